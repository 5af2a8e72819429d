"""A configured model as the brain sees it: its phase, its slots, what it was used for.

One model has at most one load attempt at a time, named by its load id. Slots belong to that
attempt; a lease on an earlier attempt never touches them.
"""

from collections import deque
from enum import StrEnum

from gridcore.config.schema import Workload
from gridcore.core.policy.breaker import Breaker
from gridcore.core.policy.demand import Demand
from gridcore.core.reasons import Why
from gridcore.core.settings import ModelSettings
from gridcore.errors import InvariantViolation
from gridcore.ids import LeaseId, LoadId, ModelId
from gridcore.units import MB


class Phase(StrEnum):
    COLD = "cold"
    """No process, no reservation."""
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """Finishes what runs, takes no more, leaves then."""
    UNLOADING = "unloading"
    """Asked to stop; its process may still be there."""
    RELEASING = "releasing"
    """The process is gone; the card does not show its memory as free yet."""


PHASE_TRANSITIONS: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        (Phase.COLD, Phase.LOADING),
        (Phase.COLD, Phase.READY),  # re-stated by the supervisor
        (Phase.COLD, Phase.UNLOADING),  # re-stated while it stops
        (Phase.LOADING, Phase.READY),
        (Phase.LOADING, Phase.UNLOADING),
        (Phase.LOADING, Phase.RELEASING),
        (Phase.READY, Phase.DRAINING),
        (Phase.READY, Phase.UNLOADING),
        (Phase.READY, Phase.RELEASING),
        (Phase.DRAINING, Phase.READY),
        (Phase.DRAINING, Phase.UNLOADING),
        (Phase.DRAINING, Phase.RELEASING),
        (Phase.UNLOADING, Phase.RELEASING),
        (Phase.RELEASING, Phase.COLD),
    }
)

RESIDENT = frozenset({Phase.READY, Phase.DRAINING})

LOADS_REMEMBERED_MAX = 16
"""Load times kept for thrash detection; six within five minutes are thrash."""


class Residency(StrEnum):
    PINNED = "pinned"
    HOT = "hot"
    COLD = "cold"


class Slot:
    """One concurrent place of a loaded runtime, and whose prompt its cache holds."""

    __slots__ = ("affinity", "cooling", "last_used_ns", "last_workload", "lease_id")

    def __init__(self) -> None:
        self.lease_id: LeaseId | None = None
        self.cooling = False
        """Its step was aborted; it counts as busy until the runtime says it is idle."""
        self.affinity: str | None = None
        self.last_workload: Workload | None = None
        self.last_used_ns = 0

    @property
    def is_free(self) -> bool:
        return self.lease_id is None and not self.cooling


class Model:
    """``load_id`` is set in all and only the phases that are not COLD."""

    def __init__(self, settings: ModelSettings, breaker: Breaker) -> None:
        self.settings = settings
        self.model_id: ModelId = settings.model_id
        self.card_id = settings.card_id
        self.phase = Phase.COLD
        self.phase_since_ns = 0
        self.load_id: LoadId | None = None
        self.pid: int | None = None
        self.address = ""
        self.slots: list[Slot] = []
        self.leases: set[LeaseId] = set()
        """All and only the leases on the current load."""
        self.n_running_by_workload: dict[Workload, int] = dict.fromkeys(Workload, 0)

        self.measured_bytes: int | None = None
        self.out_of_memory_at_bytes: int | None = None
        self.load_ns: int | None = None
        self.item_ns: int | None = None
        """Measured length of one embedding input; smoothed."""
        self.step_ns: int | None = None
        """Measured length of a step; smoothed. An expectation, not a bound."""

        self.loaded_ns: int = 0
        self.loaded_for: Workload | None = None
        self.served = False
        """A step was completed since the load."""
        self.last_used_ns: int | None = None
        self.last_used_ns_by_workload: dict[Workload, int] = {}
        self.unload_why: Why | None = None
        self.memory_seen_back = False
        """A sample after its exit showed its memory as free."""
        self.suspect_until_ns: int | None = None
        self.slots_read_ns: int | None = None
        self.loads: deque[int] = deque(maxlen=LOADS_REMEMBERED_MAX)
        self.thrash_noted_ns: int | None = None
        self.demand = Demand()
        self.breaker = breaker
        self.load_bumps = 0
        """How often it was pushed back for an interactive request since it last served."""
        self.held_out = False
        """Unloaded by an admin: not preloaded again by itself."""
        self.drain_is_final = False
        """The drain is not undone when the room is not needed any more."""

    def move_to(self, phase: Phase, now_ns: int) -> None:
        if (self.phase, phase) not in PHASE_TRANSITIONS:
            raise InvariantViolation(f"{self.model_id}: {self.phase} -> {phase} is not a move")
        self.phase = phase
        self.phase_since_ns = now_ns

    @property
    def is_resident(self) -> bool:
        return self.phase in RESIDENT

    @property
    def n_free_slots(self) -> int:
        return sum(slot.is_free for slot in self.slots)

    @property
    def n_cooling(self) -> int:
        return sum(slot.cooling for slot in self.slots)

    @property
    def n_running(self) -> int:
        return len(self.leases)

    @property
    def need_bytes(self) -> int:
        """What a load reserves: the measured footprint, else the estimate, and always more
        than the free memory at which it last ran out."""
        known = self.measured_bytes
        need = self.settings.estimated_bytes if known is None else known
        if self.out_of_memory_at_bytes is not None:
            need = max(need, self.out_of_memory_at_bytes + MB)
        return need

    @property
    def load_ns_expected(self) -> int:
        return self.settings.load_ns_estimate if self.load_ns is None else self.load_ns

    def is_hot(self, now_ns: int, hot_ttl_ns: int) -> bool:
        """Used by interactive within hot_ttl."""
        if self.n_running_by_workload[Workload.INTERACTIVE]:
            return True
        used_ns = self.last_used_ns_by_workload.get(Workload.INTERACTIVE)
        return used_ns is not None and now_ns - used_ns < hot_ttl_ns

    def cools_ns(self, now_ns: int, hot_ttl_ns: int) -> int | None:
        """When time alone makes it cold; None while interactive work runs on it."""
        until_ns = self.hot_until_ns(hot_ttl_ns)
        if until_ns is None or self.n_running_by_workload[Workload.INTERACTIVE]:
            return None
        return until_ns if until_ns > now_ns else None

    def hot_until_ns(self, hot_ttl_ns: int) -> int | None:
        used_ns = self.last_used_ns_by_workload.get(Workload.INTERACTIVE)
        return None if used_ns is None else used_ns + hot_ttl_ns

    def residency(self, now_ns: int, hot_ttl_ns: int) -> Residency:
        if self.settings.pinned:
            return Residency.PINNED
        return Residency.HOT if self.is_hot(now_ns, hot_ttl_ns) else Residency.COLD

    def note_use(self, workload: Workload, now_ns: int) -> None:
        self.last_used_ns = now_ns
        self.last_used_ns_by_workload[workload] = now_ns

    def start_load(self, load_id: LoadId, workload: Workload | None, now_ns: int) -> None:
        self.move_to(Phase.LOADING, now_ns)
        self.load_id = load_id
        self.loaded_for = workload
        self.held_out = False
        self.unload_why = None
        self.loads.append(now_ns)

    def become_ready(self, *, pid: int | None, address: str, slots: int, now_ns: int) -> None:
        self.move_to(Phase.READY, now_ns)
        self.pid = pid
        self.address = address
        self.slots = [Slot() for _ in range(slots)]
        self.loaded_ns = now_ns
        self.served = False
        self.suspect_until_ns = None
        self.slots_read_ns = None
        self.drain_is_final = False

    def lose_process(self, now_ns: int) -> None:
        """The process is gone, however; slots and leases of this load mean nothing any more."""
        self.move_to(Phase.RELEASING, now_ns)
        self.memory_seen_back = False
        self.pid = None
        self.address = ""
        self.slots = []
        self.leases.clear()
        self.n_running_by_workload = dict.fromkeys(Workload, 0)
        self.suspect_until_ns = None
        self.drain_is_final = False

    def become_cold(self, now_ns: int) -> None:
        self.move_to(Phase.COLD, now_ns)
        self.load_id = None
        self.loaded_for = None

    def choose_slots(self, width: int, affinity: str | None, workload: Workload) -> tuple[int, ...]:
        """The free slots whose caches are cheapest to overwrite: the same conversation's, then
        empty ones, then those last used by a lower class, then the least recently used."""
        rank = list(Workload).index(workload)

        def cost(index: int) -> tuple[int, int, int]:
            slot = self.slots[index]
            if affinity is not None and slot.affinity == affinity:
                return 0, 0, index
            if slot.last_workload is None:
                return 1, 0, index
            lower = list(Workload).index(slot.last_workload) > rank
            return (2 if lower else 3), slot.last_used_ns, index

        free = [index for index, slot in enumerate(self.slots) if slot.is_free]
        return tuple(sorted(free, key=cost)[:width])

    def occupy(
        self, lease_id: LeaseId, slots: tuple[int, ...], workload: Workload, affinity: str | None
    ) -> None:
        for index in slots:
            slot = self.slots[index]
            if not slot.is_free:
                raise InvariantViolation(f"{self.model_id}: slot {index} is not free")
            slot.lease_id = lease_id
            slot.affinity = affinity
            slot.last_workload = workload
        self.leases.add(lease_id)
        self.n_running_by_workload[workload] += 1

    def vacate(
        self,
        lease_id: LeaseId,
        slots: tuple[int, ...],
        workload: Workload,
        *,
        idle: bool,
        now_ns: int,
    ) -> None:
        for index in slots:
            slot = self.slots[index]
            slot.lease_id = None
            slot.cooling = not idle
            slot.last_used_ns = now_ns
        self.leases.discard(lease_id)
        self.n_running_by_workload[workload] -= 1
