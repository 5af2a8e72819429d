"""The wire: every message between the processes, in one place.

MessagePack maps with a short tag in ``t``. Nothing but types here. Durations and sizes are
integers with units in the name; instants never cross a process. A field may be added; renaming
or removing one needs a new ``PROTOCOL``.
"""

from msgspec import Struct

from gridcore.config.schema import Workload
from gridcore.core.events import (
    AdminVerb,
    CancelCause,
    FailureCause,
    JobSubmitted,
    KnownProfile,
    KnownRuntime,
    Pressure,
    RunningLease,
    StepOutcome,
)
from gridcore.core.notes import Note
from gridcore.core.snapshot import ServiceView, Snapshot
from gridcore.ids import BootId, CardId, Epoch, JobId, LeaseId, LoadId, ModelId, PeerId

PROTOCOL = 1


class Message(Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Base of everything on the control socket."""


# --- link: any peer <-> scheduler --------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """The first message of a peer; repeated until a Welcome comes."""

    role: str
    boot_id: BootId
    protocol: int
    pid: int
    version: str


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    beat_every_ns: int
    peer_timeout_ns: int


class Reject(Message, frozen=True, kw_only=True, tag="reject"):
    """The peer may not join (wrong protocol); it logs the reason and exits."""

    reason: str


class Beat(Message, frozen=True, kw_only=True, tag="beat"):
    """Proof that the sender's loop turns, once a second, in both directions.

    A gateway adds count and digest of its open jobs and leases; two mismatches in a row make
    the scheduler ask for the inventory again.
    """

    jobs: int = 0
    leases: int = 0
    digest: int = 0


class Goodbye(Message, frozen=True, kw_only=True, tag="goodbye"):
    """A peer that leaves on purpose."""

    cause: str


class RestateRequest(Message, frozen=True, kw_only=True, tag="restate"):
    """The scheduler asks a peer for its inventory again."""


# --- gateway -> scheduler ----------------------------------------------------------------


class SubmitJob(Message, frozen=True, kw_only=True, tag="submit"):
    job: JobSubmitted


class CancelJob(Message, frozen=True, kw_only=True, tag="cancel_job"):
    job_id: JobId
    cause: CancelCause


class StepAnswering(Message, frozen=True, kw_only=True, tag="answering"):
    """The first byte of the answer goes to the client."""

    lease_id: LeaseId


class StepEnded(Message, frozen=True, kw_only=True, tag="step_ended"):
    """Sent after the upstream connection is closed; only this frees a slot."""

    lease_id: LeaseId
    outcome: StepOutcome
    took_ns: int
    last: bool = False
    slot_idle: bool = True
    detail: str = ""
    first_byte_ns: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class SlotsReading(Message, frozen=True, kw_only=True, tag="slots"):
    load_id: LoadId
    idle_slots: tuple[int, ...]


class GatewayInventory(Message, frozen=True, kw_only=True, tag="gateway_inventory"):
    """One page (at most 500 entries) of a gateway's open jobs and leases."""

    jobs: tuple[JobSubmitted, ...]
    leases: tuple[RunningLease, ...]
    last_page: bool = True


class AdminRequest(Message, frozen=True, kw_only=True, tag="admin"):
    request_id: str
    verb: AdminVerb
    target: str


class StateRequest(Message, frozen=True, kw_only=True, tag="state_request"):
    request_id: str


# --- scheduler -> gateway ----------------------------------------------------------------


class GrantStep(Message, frozen=True, kw_only=True, tag="grant"):
    lease_id: LeaseId
    job_id: JobId
    load_id: LoadId
    model_id: ModelId
    address: str
    slots: tuple[int, ...]
    first: int
    count: int
    waited_ns: int
    workload: Workload
    reason: str


class RefuseJob(Message, frozen=True, kw_only=True, tag="refuse"):
    job_id: JobId
    status: int
    error_type: str
    code: str
    message: str
    param: str | None = None
    retry_after_ns: int | None = None


class CancelStep(Message, frozen=True, kw_only=True, tag="cancel_step"):
    lease_id: LeaseId
    job_id: JobId
    reason: str


class ReadSlots(Message, frozen=True, kw_only=True, tag="read_slots"):
    load_id: LoadId
    address: str


class AdminReply(Message, frozen=True, kw_only=True, tag="admin_reply"):
    request_id: str
    status: int
    message: str


class StateReply(Message, frozen=True, kw_only=True, tag="state_reply"):
    request_id: str
    snapshot: Snapshot


# --- supervisor <-> scheduler ------------------------------------------------------------


class LoadModel(Message, frozen=True, kw_only=True, tag="load"):
    load_id: LoadId
    model_id: ModelId
    reserved_bytes: int


class UnloadModel(Message, frozen=True, kw_only=True, tag="unload"):
    load_id: LoadId
    reason: str


class RuntimeReady(Message, frozen=True, kw_only=True, tag="ready"):
    load_id: LoadId
    pid: int
    address: str
    slots: int
    took_ns: int
    footprint_bytes: int | None


class LoadFailed(Message, frozen=True, kw_only=True, tag="load_failed"):
    load_id: LoadId
    cause: FailureCause
    detail: str
    card_free_bytes: int | None = None


class RuntimeExited(Message, frozen=True, kw_only=True, tag="exited"):
    """``cause`` is None when the scheduler had asked for it."""

    load_id: LoadId
    cause: FailureCause | None
    detail: str = ""


class FootprintMeasured(Message, frozen=True, kw_only=True, tag="footprint"):
    load_id: LoadId
    footprint_bytes: int


class SupervisorInventory(Message, frozen=True, kw_only=True, tag="supervisor_inventory"):
    runtimes: tuple[KnownRuntime, ...]
    profiles: tuple[KnownProfile, ...]


# --- gpu-monitor -> scheduler ------------------------------------------------------------


class CardSample(Message, frozen=True, kw_only=True, tag="sample"):
    card_id: CardId
    total_bytes: int
    used_bytes: int | None = None
    used_by_pid: dict[int, int] | None = None
    utilization_percent: int | None = None
    pressure: Pressure = Pressure.UNKNOWN


class SampleRequest(Message, frozen=True, kw_only=True, tag="sample_request"):
    """scheduler -> gpu-monitor: read the card now and answer with a CardSample."""

    card_id: CardId


# --- launcher -> scheduler ---------------------------------------------------------------


class ServiceExited(Message, frozen=True, kw_only=True, tag="service_exited"):
    """Proof of death of one of the launcher's children.

    ``pid`` tells its incarnations apart: a restarted one may have joined under the same name.
    """

    peer: PeerId
    exit_status: int
    pid: int | None = None


class ServicesStatus(Message, frozen=True, kw_only=True, tag="services"):
    """Pids and restarts of the group, for display; sent after every change."""

    services: tuple[ServiceView, ...]


class BeginDrain(Message, frozen=True, kw_only=True, tag="drain"):
    """SIGTERM was received: refuse what is queued, finish what runs."""


ToScheduler = (
    Hello
    | Beat
    | Goodbye
    | SubmitJob
    | CancelJob
    | StepAnswering
    | StepEnded
    | SlotsReading
    | GatewayInventory
    | AdminRequest
    | StateRequest
    | RuntimeReady
    | LoadFailed
    | RuntimeExited
    | FootprintMeasured
    | SupervisorInventory
    | CardSample
    | ServiceExited
    | ServicesStatus
    | BeginDrain
)

FromScheduler = (
    Welcome
    | Reject
    | Beat
    | RestateRequest
    | GrantStep
    | RefuseJob
    | CancelStep
    | ReadSlots
    | AdminReply
    | StateReply
    | LoadModel
    | UnloadModel
    | SampleRequest
)


class EnvelopeToScheduler(Struct, frozen=True, kw_only=True):
    """``epoch`` is the one the sender was welcomed to, empty in a Hello."""

    epoch: Epoch
    seq: int
    body: ToScheduler


class EnvelopeFromScheduler(Struct, frozen=True, kw_only=True):
    epoch: Epoch
    seq: int
    body: FromScheduler


class EventEnvelope(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of the event socket, after its topic and a zero byte: a note or a snapshot.

    ``seq`` counts all events of an epoch: a gap means that some were dropped, and a new
    subscription brings a snapshot. ``time_s`` is wall time, for display.
    """

    version: int
    epoch: Epoch
    seq: int
    time_s: float
    note: Note | None = None
    snapshot: Snapshot | None = None


EVENT_VERSION = 1
TOPIC_NOTE = "note."
"""Followed by the verb: subscribe to ``note.`` for all, ``note.evict`` for one."""
TOPIC_SNAPSHOT = "snapshot"
