"""One card: its budget, its ledger, the turn in progress and the share of lower classes."""

from enum import StrEnum

from gridcore.config.schema import Workload
from gridcore.core.events import Pressure
from gridcore.core.ledger import Ledger
from gridcore.core.policy.foreign import ForeignMeter
from gridcore.core.settings import CardSettings
from gridcore.ids import CardId, LeaseId, ModelId


class Mode(StrEnum):
    IDLE = "idle"
    INTERACTIVE = "interactive"
    BACKGROUND = "background"
    BATCH = "batch"


class Turn:
    """The one change of residents in progress on a card: room being made, then a load.

    It exists for the jobs that wait for ``model_id``; when the last of them leaves before the
    load has started, it ends and its drains are undone. The room is theirs: nothing else is
    loaded on the card meanwhile.
    """

    __slots__ = ("arrived_ns", "jobs_bumped", "loading", "model_id", "victims", "workload")

    def __init__(self, model_id: ModelId, workload: Workload | None, arrived_ns: int) -> None:
        self.model_id = model_id
        self.workload = workload
        """The strongest class that waits for it; None is a preload, weaker than all."""
        self.arrived_ns = arrived_ns
        self.victims: tuple[ModelId, ...] = ()
        self.loading = False


class Card:
    def __init__(self, settings: CardSettings) -> None:
        self.settings = settings
        self.card_id: CardId = settings.card_id
        self.ledger = Ledger()
        self.foreign = ForeignMeter()
        self.total_bytes: int | None = None
        self.used_bytes: int | None = None
        self.used_by_pid: dict[int, int] = {}
        self.utilization_percent: int | None = None
        self.pressure = Pressure.UNKNOWN
        self.mode = Mode.IDLE
        self.interactive_until_ns: int | None = None
        """End of the quiet period after the last interactive work."""
        self.interactive_active = False
        """Interactive work was running or waiting at the last plan."""
        self.turn: Turn | None = None

        self.lower_progress_ns = 0
        """When background or batch last made progress here, or began to wait."""
        self.batch_progress_ns = 0
        self.lower_waits = False
        self.batch_waits = False
        self.granting = False
        """The last lower-class step was a grant; the next is due when its debt is paid."""
        self.next_grant_ns = 0
        self.grant: LeaseId | None = None
        """The one lower-class step that runs on its share."""

        self.over_since_ns: int | None = None
        self.pressure_evicted_ns: int | None = None
        self.no_lower_loads_until_ns: int | None = None
        self.wake_ns: int | None = None

    def budget_bytes(self) -> int | None:
        """What models may reserve now; None before the first sample."""
        ceiling = self.ceiling_bytes()
        if ceiling is None:
            return None
        total = self.total_bytes
        assert total is not None
        left = total - (self.foreign.value_bytes or 0) - self.settings.headroom_bytes
        return min(ceiling, left)

    def ceiling_bytes(self) -> int | None:
        """The budget as it would be without other programs: what "never fits" is judged by."""
        if self.total_bytes is None:
            return None
        limit = self.settings.limit_bytes
        total = self.total_bytes if limit is None else min(self.total_bytes, limit)
        return total - self.settings.headroom_bytes

    def free_bytes(self) -> int | None:
        budget = self.budget_bytes()
        return None if budget is None else budget - self.ledger.reserved_bytes

    def wake_at(self, at_ns: int | None) -> None:
        """Ask for a plan at an instant; the earliest wins."""
        if at_ns is not None and (self.wake_ns is None or at_ns < self.wake_ns):
            self.wake_ns = at_ns
