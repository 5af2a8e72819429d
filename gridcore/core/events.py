"""All that can happen to the brain. Past tense; facts, never wishes.

Events are frozen and tagged, so that a recorded day is a list of them and a time. An event
about an unknown or finished attempt is legal: it is counted and dropped. Durations are
nanoseconds; the only instants are those the shell passes to ``handle()``.
"""

from enum import StrEnum

from msgspec import Struct

from gridcore.config.schema import Capability, Tier, Workload
from gridcore.ids import CardId, JobId, LeaseId, LoadId, ModelId, PeerId


class Event(Struct, frozen=True, kw_only=True, tag=True):
    """Base of everything the brain may be told."""


class JobKind(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    OTHER = "other"


class StepOutcome(StrEnum):
    DONE = "done"
    """The answer is complete (an error answer of the runtime included)."""
    CANCELLED = "cancelled"
    """The client left, or the brain took the step back."""
    LOST = "lost"
    """The runtime died or refused before any byte of the answer reached the client."""
    BROKEN = "broken"
    """The runtime died after the answer had begun; the client has been told."""


class CancelCause(StrEnum):
    CLIENT_GONE = "client_gone"
    ADMIN = "admin"


class FailureCause(StrEnum):
    """Why a load failed or a runtime ended."""

    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    BAD_CONFIG = "bad_config"
    """The file or an argument is wrong: trying again cannot help."""
    CANCELLED = "cancelled"
    """The brain took the load back."""


class AdminVerb(StrEnum):
    LOAD = "load"
    UNLOAD = "unload"
    ENABLE = "enable"


class Pressure(StrEnum):
    UNKNOWN = "unknown"
    NORMAL = "normal"
    WARN = "warn"
    CRITICAL = "critical"


class JobSubmitted(Event, frozen=True, kw_only=True):
    """A gateway holds an open request.

    Args:
        target: model or family id, already resolved from aliases and suffix.
        items: pieces that may be cut into steps (embedding inputs); 1 for a chat.
        width: tasks one item makes in the runtime (``n`` of a chat).
        waited_ns: how long the request has waited already (a re-stated job keeps its place).
        steps_lost: steps of this job that died with their runtime so far.
    """

    job_id: JobId
    gateway: PeerId
    target: str
    workload: Workload
    kind: JobKind
    class_from: str = "default"
    client: str = ""
    items: int = 1
    items_done: int = 0
    width: int = 1
    needs: frozenset[Capability] = frozenset()
    quality: Tier | None = None
    max_wait_ns: int | None = None
    affinity: str | None = None
    waited_ns: int = 0
    steps_lost: int = 0


class JobCancelled(Event, frozen=True, kw_only=True):
    job_id: JobId
    cause: CancelCause


class AnswerBegun(Event, frozen=True, kw_only=True):
    """A byte of the answer is on its way to the client: the step may not be cut any more."""

    lease_id: LeaseId


class StepFinished(Event, frozen=True, kw_only=True):
    """The upstream connection of a step is closed.

    Args:
        took_ns: from dispatch to close.
        last: the gateway has answered its client; the job is over whatever is left of it.
        slot_idle: the runtime had finished the work (False after an aborted stream).
    """

    lease_id: LeaseId
    outcome: StepOutcome
    took_ns: int
    last: bool = False
    slot_idle: bool = True
    detail: str = ""


class SlotsSeen(Event, frozen=True, kw_only=True):
    """One reading of the runtime's slots: which of them it says are idle."""

    load_id: LoadId
    idle_slots: tuple[int, ...]


class RunningLease(Struct, frozen=True, kw_only=True):
    """A step that a gateway says is running on a runtime, as re-stated after a reconnect."""

    lease_id: LeaseId
    job_id: JobId
    load_id: LoadId
    model_id: ModelId
    slots: tuple[int, ...]
    first: int
    count: int
    ran_ns: int
    answer_begun: bool


class GatewayRestated(Event, frozen=True, kw_only=True):
    """All open jobs and running leases of a gateway; replaces what was known of it."""

    gateway: PeerId
    jobs: tuple[JobSubmitted, ...]
    leases: tuple[RunningLease, ...]


class GatewayGone(Event, frozen=True, kw_only=True):
    """A gateway process is dead: its jobs and leases have ended."""

    gateway: PeerId


class GatewaySuspected(Event, frozen=True, kw_only=True):
    """A gateway is silent or back again; a suspect one gets no grants."""

    gateway: PeerId
    suspect: bool


class RuntimeLoaded(Event, frozen=True, kw_only=True):
    load_id: LoadId
    pid: int
    address: str
    slots: int
    took_ns: int
    footprint_bytes: int | None
    """Measured on the model's card; None where the device cannot tell."""


class LoadFailed(Event, frozen=True, kw_only=True):
    load_id: LoadId
    cause: FailureCause
    detail: str
    card_free_bytes: int | None = None


class RuntimeExited(Event, frozen=True, kw_only=True):
    """A loaded runtime's process has ended.

    Args:
        cause: None when the brain had asked for it.
    """

    load_id: LoadId
    cause: FailureCause | None
    detail: str = ""


class FootprintMeasured(Event, frozen=True, kw_only=True):
    """A loaded model's memory on its card grew, or was measured again."""

    load_id: LoadId
    footprint_bytes: int


class KnownRuntime(Struct, frozen=True, kw_only=True):
    """A runtime that the supervisor says exists, as re-stated after a reconnect."""

    load_id: LoadId
    model_id: ModelId
    pid: int | None
    address: str
    slots: int
    ready: bool
    stopping: bool
    idle_ns: int
    footprint_bytes: int | None
    reserved_bytes: int


class KnownProfile(Struct, frozen=True, kw_only=True):
    """What was measured of a model earlier and still applies."""

    model_id: ModelId
    footprint_bytes: int | None = None
    load_ns: int | None = None
    out_of_memory_at_bytes: int | None = None
    """Free memory of the card at which the last attempt ran out of it."""


class SupervisorRestated(Event, frozen=True, kw_only=True):
    """All runtimes and stored measurements; loads may start from now on."""

    runtimes: tuple[KnownRuntime, ...]
    profiles: tuple[KnownProfile, ...]


class SupervisorGone(Event, frozen=True, kw_only=True):
    """Loads and unloads wait; READY models keep serving."""


class CardSampled(Event, frozen=True, kw_only=True):
    """One reading of a card; None is unknown, never 0.

    Args:
        used_by_pid: bytes by process for our runtimes, where the device can tell.
    """

    card_id: CardId
    total_bytes: int
    used_bytes: int | None = None
    used_by_pid: dict[int, int] | None = None
    utilization_percent: int | None = None
    pressure: Pressure = Pressure.UNKNOWN


class MonitorGone(Event, frozen=True, kw_only=True):
    """No samples: the ledger decides alone."""


class AdminAsked(Event, frozen=True, kw_only=True):
    request_id: str
    peer: PeerId
    verb: AdminVerb
    target: str


class DrainBegun(Event, frozen=True, kw_only=True):
    """The daemon is shutting down: queued jobs are refused, nothing is loaded any more."""


AnyEvent = (
    JobSubmitted
    | JobCancelled
    | AnswerBegun
    | StepFinished
    | SlotsSeen
    | GatewayRestated
    | GatewayGone
    | GatewaySuspected
    | RuntimeLoaded
    | LoadFailed
    | RuntimeExited
    | FootprintMeasured
    | SupervisorRestated
    | SupervisorGone
    | CardSampled
    | MonitorGone
    | AdminAsked
    | DrainBegun
)
