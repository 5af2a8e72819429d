"""What the brain is told once, at its start: models, families, cards, policy.

Built from the config, the estimates and nothing else (``config/resolve.py``); facts that
change while it runs (measured footprints, card totals) arrive as events.
"""

from msgspec import Struct

from gridcore.config.schema import Capability, PolicyConfig, Tier, Workload
from gridcore.ids import CardId, ModelId


class CardSettings(Struct, frozen=True, kw_only=True):
    card_id: CardId
    name: str
    headroom_bytes: int
    limit_bytes: int | None = None
    """The user's cap below the card's total."""
    unified: bool = False
    """Device memory is host memory: a model is charged for both parts."""
    frees_on_exit: bool = False
    """The memory of a process is back the moment it is gone; else a sample must show it."""


class ModelSettings(Struct, frozen=True, kw_only=True):
    model_id: ModelId
    card_id: CardId
    slots: int
    estimated_bytes: int
    """What a load reserves until a measured footprint is known."""
    load_ns_estimate: int = 0
    """A guess from the file size, replaced by the first measured load."""
    capabilities: frozenset[Capability] = frozenset({Capability.CHAT})
    pinned: bool = False
    ttl_ns: int | None = None
    aliases: tuple[str, ...] = ()
    can_pause: bool = False
    """The runtime's process group may be stopped without harm to its clients."""


class FamilySettings(Struct, frozen=True, kw_only=True):
    name: str
    variants: tuple[tuple[Tier, ModelId], ...]
    """Best first."""
    aliases: tuple[str, ...] = ()


class Settings(Struct, frozen=True, kw_only=True):
    cards: tuple[CardSettings, ...]
    models: tuple[ModelSettings, ...]
    families: tuple[FamilySettings, ...] = ()
    policy: PolicyConfig = PolicyConfig()

    def priority(self, workload: Workload) -> int:
        """Weight of a class in a model's demand."""
        classes = self.policy.classes
        match workload:
            case Workload.INTERACTIVE:
                return classes.interactive.priority or 100
            case Workload.BACKGROUND:
                return classes.background.priority or 30
            case Workload.BATCH:
                return classes.batch.priority or 10
