"""What the brain shows: the types behind /admin/state and the snapshots on the event socket.

A public contract: fields are added, never renamed. An unknown value is null, never 0.
"""

from msgspec import Struct, field


class CardView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    total_bytes: int | None
    budget_bytes: int | None
    used_bytes: int | None
    reserved_bytes: int
    foreign_bytes: int | None
    utilization_percent: int | None
    pressure: str
    mode: str


class FootprintView(Struct, frozen=True, kw_only=True):
    estimated_bytes: int | None
    measured_bytes: int | None


class ModelView(Struct, frozen=True, kw_only=True):
    id: str
    card: str
    phase: str
    residency: str
    pid: int | None
    slots: int
    slots_used: int
    reserved_bytes: int
    footprint: FootprintView
    load_seconds: float | None
    evict_cost: float | None
    idle_seconds: float | None
    breaker: str
    reason: str | None
    aliases: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    queued: int = 0


class JobView(Struct, frozen=True, kw_only=True):
    id: str
    workload: str = field(name="class")
    class_from: str
    model: str | None
    family: str | None
    kind: str
    phase: str
    steps_done: int
    steps: int
    position: int | None
    waited_ms: int
    eta_ms: int | None
    reason: str | None


class ServiceView(Struct, frozen=True, kw_only=True):
    name: str
    pid: int | None
    restarts: int
    last_beat_ms: int | None


class Totals(Struct, frozen=True, kw_only=True):
    """Counters since this epoch began; metrics come from these, not from counting events."""

    jobs_submitted: dict[str, int]
    jobs_done: dict[str, int]
    jobs_failed: dict[str, int]
    jobs_cancelled: dict[str, int]
    jobs_refused: dict[str, int]
    steps: dict[str, int]
    queue_wait_ns: dict[str, int]
    step_ns: dict[str, int]
    loads: dict[str, int]
    load_failures: dict[str, int]
    evictions: dict[str, int]
    unloads: dict[str, int]
    load_ns: dict[str, int]
    thrash: dict[str, int]
    messages_dropped: dict[str, int]


class Snapshot(Struct, frozen=True, kw_only=True):
    epoch: str
    revision: int
    cards: tuple[CardView, ...]
    models: tuple[ModelView, ...]
    jobs: tuple[JobView, ...]
    services: tuple[ServiceView, ...]
    counts: dict[str, dict[str, int]]
    """Jobs by phase (queued, running) and class; ``jobs`` lists only the first 200."""
    totals: Totals
    families: dict[str, tuple[str, ...]] = {}
    draining: bool = False
