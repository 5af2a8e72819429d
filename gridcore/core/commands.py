"""All that the brain can ask for. Imperative; idempotent for the receiver, keyed by id."""

from msgspec import Struct

from gridcore.config.schema import Workload
from gridcore.core.notes import Note
from gridcore.ids import CardId, JobId, LeaseId, LoadId, ModelId, PeerId


class Command(Struct, frozen=True, kw_only=True, tag=True):
    """Base of everything the brain may ask its shell to do."""


class DispatchStep(Command, frozen=True, kw_only=True):
    """Give a gateway the lease of one step on one resident model.

    Args:
        first: index of the first item of the step; ``count`` items belong to it.
        slots: the runtime's slots that the step occupies; the first is its ``id_slot``.
        waited_ns: since the request arrived.
    """

    lease_id: LeaseId
    job_id: JobId
    gateway: PeerId
    load_id: LoadId
    model_id: ModelId
    address: str
    slots: tuple[int, ...]
    first: int
    count: int
    waited_ns: int
    workload: Workload
    reason: str


class RefuseJob(Command, frozen=True, kw_only=True):
    """End a job with an error answer; ``retry_after_ns`` makes it a retryable one."""

    job_id: JobId
    gateway: PeerId
    status: int
    error_type: str
    code: str
    message: str
    param: str | None = None
    retry_after_ns: int | None = None


class CancelStep(Command, frozen=True, kw_only=True):
    """Take a lease back: close its upstream; the job stays open and is dispatched again."""

    lease_id: LeaseId
    job_id: JobId
    gateway: PeerId
    reason: str


class LoadModel(Command, frozen=True, kw_only=True):
    load_id: LoadId
    model_id: ModelId
    reserved_bytes: int
    reason: str


class UnloadModel(Command, frozen=True, kw_only=True):
    """Stop a runtime, or a load in progress."""

    load_id: LoadId
    model_id: ModelId
    reason: str


class ReadSlots(Command, frozen=True, kw_only=True):
    """Read a runtime's slots once, to see that an aborted step has really ended."""

    load_id: LoadId
    gateway: PeerId
    address: str


class SampleCard(Command, frozen=True, kw_only=True):
    """Read a card now: memory is about to come back."""

    card_id: CardId


class AnswerAdmin(Command, frozen=True, kw_only=True):
    request_id: str
    peer: PeerId
    status: int
    message: str


class PublishNote(Command, frozen=True, kw_only=True):
    note: Note


AnyCommand = (
    DispatchStep
    | RefuseJob
    | CancelStep
    | LoadModel
    | UnloadModel
    | ReadSlots
    | SampleCard
    | AnswerAdmin
    | PublishNote
)
