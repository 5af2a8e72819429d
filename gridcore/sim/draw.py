"""What a seed stands for: settings, truths the brain is not told, workloads, fault classes.

Swarm style: each workload and each fault class exists in about half of the runs, so that many
short runs see more than one long one.
"""

from enum import StrEnum

import msgspec
from msgspec import Struct

from gridcore.config.schema import (
    BreakerConfig,
    Capability,
    ClassConfig,
    ClassesConfig,
    EvictionPolicy,
    Fairness,
    InteractiveClassConfig,
    PolicyConfig,
    Tier,
)
from gridcore.core.settings import CardSettings, FamilySettings, ModelSettings, Settings
from gridcore.ids import CardId, ModelId
from gridcore.sim.chance import Chance
from gridcore.units import GB, MB, NS_PER_MS, NS_PER_S


class Fault(StrEnum):
    LOAD_FAILS = "load_fails"
    LOAD_RUNS_OUT = "load_runs_out"
    """Out of memory although the card had room."""
    RUNTIME_DIES = "runtime_dies"
    FOOTPRINT_GROWS = "footprint_grows"
    ESTIMATE_WRONG = "estimate_wrong"
    MEMORY_LINGERS = "memory_lingers"
    """A dead runtime's memory comes back late, or after everybody stopped waiting."""
    SAMPLE_MISSING = "sample_missing"
    SAMPLE_NOISY = "sample_noisy"
    FOREIGN_PROGRAM = "foreign_program"
    PRESSURE = "pressure"
    MONITOR_GONE = "monitor_gone"
    SUPERVISOR_GONE = "supervisor_gone"
    GATEWAY_DIES = "gateway_dies"
    GATEWAY_SILENT = "gateway_silent"
    """A beat is missed; nothing is lost."""
    GATEWAY_CUT = "gateway_cut"
    """Its link breaks: what is on the way is lost, then it re-states."""
    SCHEDULER_DIES = "scheduler_dies"
    CLIENT_LEAVES = "client_leaves"
    SLOT_STUCK = "slot_stuck"
    """An aborted step goes on for a while."""
    ADMIN_ACTS = "admin_acts"


class Workload(StrEnum):
    """Kinds of clients; the classes they ask for are theirs."""

    CHAT = "chat"
    AGENT = "agent"
    INDEXER = "indexer"
    SCREENSHOTS = "screenshots"
    OCR = "ocr"
    BURST = "burst"


class ModelTruth(Struct, frozen=True, kw_only=True):
    """What a model is really like."""

    bytes_held: int
    load_ns: int
    token_ns: int
    """Work of one token alone on the card."""
    item_ns: int
    """Work of one embedding input on one slot alone on the card."""


class Draw(Struct, frozen=True, kw_only=True):
    seed: str
    settings: Settings
    truths: dict[ModelId, ModelTruth]
    total_bytes: dict[CardId, int]
    workloads: frozenset[Workload]
    faults: frozenset[Fault]
    n_gateways: int = 1
    latency_ns: int = NS_PER_MS // 4
    """One way over the bus."""
    batch_ns: int = 0
    """How long the scheduler's loop gathers messages before it plans."""
    poll_ns: int = 500 * NS_PER_MS
    release_ns: int = 0
    """How long after an exit the card shows the memory as free."""
    tells_pids: bool = True
    """The device knows the memory of each process."""
    tells_footprint: bool = True
    fault_mean_ns: int = 20 * NS_PER_S
    drains: bool = False
    """The daemon shuts down at the end: what waits is refused, what runs may finish."""
    busy: float = 1.0
    """Load: 1 keeps a card about half busy."""


_MODELS: tuple[tuple[str, int, int, frozenset[Capability]], ...] = (
    ("big-27b", 13700, 7000, frozenset({Capability.CHAT})),
    ("qwen3-14b", 9732, 4200, frozenset({Capability.CHAT})),
    ("gemma4-12b", 8488, 3000, frozenset({Capability.CHAT, Capability.VISION})),
    (
        "gemma4-e4b",
        4118,
        1500,
        frozenset({Capability.CHAT, Capability.VISION, Capability.AUDIO}),
    ),
    (
        "gemma4-e2b",
        2900,
        1000,
        frozenset({Capability.CHAT, Capability.VISION, Capability.AUDIO}),
    ),
    ("ornith-35b", 2330, 2000, frozenset({Capability.CHAT})),
    ("coder-7b", 5200, 2200, frozenset({Capability.CHAT})),
    ("nomic-embed", 400, 500, frozenset({Capability.EMBEDDING})),
    ("bge-large", 1400, 900, frozenset({Capability.EMBEDDING})),
)
"""Name, MB, load time in ms, capabilities: the sizes measured on a 16 GB card."""
_FAMILY = ("gemma4-12b", "gemma4-e4b", "gemma4-e2b")


def draw(seed: int | str) -> Draw:
    """Return the run a seed stands for."""
    chance = Chance(seed, "draw")
    faults = frozenset(fault for fault in Fault if chance.happens(0.5))
    if chance.happens(0.1):
        faults = frozenset()
    workloads = frozenset(kind for kind in Workload if chance.happens(0.6))
    workloads = workloads or frozenset({Workload.CHAT, Workload.INDEXER})
    cards = _cards(chance)
    models, truths = _models(chance, cards, faults)
    return Draw(
        seed=str(seed),
        settings=Settings(
            cards=cards,
            models=models,
            families=_families(chance, models),
            policy=_policy(chance),
        ),
        truths=truths,
        total_bytes={card.card_id: chance.pick([8, 12, 16, 16, 16, 24]) * GB for card in cards},
        workloads=workloads,
        faults=faults,
        n_gateways=chance.pick([1, 1, 2]),
        latency_ns=chance.pick([0, 50_000, NS_PER_MS, 20 * NS_PER_MS]),
        batch_ns=chance.pick([0, 0, 5 * NS_PER_MS]),
        poll_ns=chance.pick([500, 500, 2000]) * NS_PER_MS,
        release_ns=chance.pick([0, 200, 1500, 4000]) * NS_PER_MS,
        tells_pids=chance.happens(0.5),
        # A footprint that nobody measures and that is not what was said looks like another
        # program's memory for good; no brain can know better.
        tells_footprint=chance.happens(0.8)
        or bool(faults & {Fault.ESTIMATE_WRONG, Fault.FOOTPRINT_GROWS}),
        fault_mean_ns=chance.pick([5, 20, 60]) * NS_PER_S,
        busy=chance.pick([0.5, 1, 1, 2, 4]),
        drains=chance.happens(0.15),
    )


def _cards(chance: Chance) -> tuple[CardSettings, ...]:
    return tuple(
        CardSettings(
            card_id=CardId(f"card{index}"),
            name=f"Card {index}",
            headroom_bytes=chance.pick([0, 512, 1024]) * MB,
            limit_bytes=chance.pick([None, None, None, 10 * GB]),
            frees_on_exit=chance.happens(0.3),
        )
        for index in range(chance.pick([1, 1, 1, 2]))
    )


def _models(
    chance: Chance, cards: tuple[CardSettings, ...], faults: frozenset[Fault]
) -> tuple[tuple[ModelSettings, ...], dict[ModelId, ModelTruth]]:
    models: list[ModelSettings] = []
    truths: dict[ModelId, ModelTruth] = {}
    chosen = chance.some(_MODELS, chance.between(2, 6))
    for name, mb, load_ms, capabilities in sorted(chosen, key=_MODELS.index):
        embeds = Capability.EMBEDDING in capabilities
        model_id = ModelId(name)
        low, high = (0.8, 1.25) if Fault.ESTIMATE_WRONG in faults else (0.9, 1.0)
        models.append(
            ModelSettings(
                model_id=model_id,
                card_id=chance.pick(cards).card_id,
                slots=chance.pick([1, 4, 4]) if embeds else chance.pick([1, 2, 2, 4]),
                estimated_bytes=mb * MB,
                load_ns_estimate=chance.pick([0, load_ms]) * NS_PER_MS,
                capabilities=capabilities,
                pinned=chance.happens(0.4 if embeds else 0.05),
                ttl_ns=chance.pick([None, None, None, 10 * NS_PER_S]),
            )
        )
        truths[model_id] = ModelTruth(
            bytes_held=round(mb * MB * chance.fraction(low, high)),
            load_ns=round(load_ms * NS_PER_MS * chance.fraction(0.7, 1.6)),
            token_ns=mb * 4_000,
            item_ns=chance.between(2, 20) * NS_PER_MS,
        )
    return tuple(models), truths


def _families(chance: Chance, models: tuple[ModelSettings, ...]) -> tuple[FamilySettings, ...]:
    names = {model.model_id for model in models}
    members = [ModelId(name) for name in _FAMILY if name in names]
    if len(members) < 2 or chance.happens(0.3):
        return ()
    return (FamilySettings(name="gemma4", variants=tuple(zip(Tier, members, strict=False))),)


def _policy(chance: Chance) -> PolicyConfig:
    def seconds(*choices: float) -> int:
        return round(chance.pick(choices) * NS_PER_S)

    return msgspec.structs.replace(
        PolicyConfig(),
        classes=ClassesConfig(
            interactive=InteractiveClassConfig(
                hot_ttl_ns=seconds(0, 5, 30, 300), queue_limit=chance.pick([20, 10_000])
            ),
            background=ClassConfig(queue_limit=chance.pick([10, 10_000])),
            batch=ClassConfig(queue_limit=chance.pick([10, 10_000])),
        ),
        interactive_idle_before_background_ns=seconds(0, 0.5, 2, 2, 5),
        background_max_starvation_ns=seconds(0, 1, 3, 3, 10),
        background_share=chance.pick([0.1, 0.25, 0.5, 0.5, 1.0]),
        batch_max_starvation_ns=seconds(0, 10, 120),
        interactive_turn_ns=seconds(0, 2, 10, 10),
        eviction=chance.pick([EvictionPolicy.COST, EvictionPolicy.COST, EvictionPolicy.LRU]),
        min_residency_ns=seconds(0, 5, 30, 30),
        embedding_chunk_size=chance.pick([8, 32, 32]),
        embedding_chunk_time_ns=seconds(0.1, 0.25),
        fairness=chance.pick([Fairness.CLIENT, Fairness.CLIENT, Fairness.FIFO]),
        restart=chance.happens(0.7),
        breaker=BreakerConfig(
            failures=chance.pick([1, 2, 3]), backoff_ns=seconds(2, 30), backoff_max_ns=seconds(60)
        ),
    )
