"""A job is a client's request; a step is the piece of it that is dispatched; a lease is the
permission to run one step on one loaded runtime.

A job keeps its place for as long as it has items that were not dispatched: a lost or taken
back step puts its items in front again.
"""

from collections import deque
from enum import StrEnum

from gridcore.config.schema import Workload
from gridcore.core.events import JobSubmitted
from gridcore.core.keys import QueueKey
from gridcore.ids import JobId, LeaseId, LoadId, ModelId, PeerId

Place = tuple[int, int]
"""(arrival, order of hearing of it)."""


class JobPhase(StrEnum):
    QUEUED = "queued"
    """Items wait and none runs."""
    RUNNING = "running"
    """At least one step runs."""
    ENDED = "ended"


JOB_TRANSITIONS: frozenset[tuple[JobPhase, JobPhase]] = frozenset(
    {
        (JobPhase.QUEUED, JobPhase.RUNNING),
        (JobPhase.RUNNING, JobPhase.QUEUED),
        (JobPhase.QUEUED, JobPhase.ENDED),
        (JobPhase.RUNNING, JobPhase.ENDED),
    }
)


class Job:
    """``pending`` holds all and only the item ranges no lease covers and no answer exists for."""

    def __init__(self, submitted: JobSubmitted, *, seq: int, now_ns: int) -> None:
        self.submitted = submitted
        self.job_id: JobId = submitted.job_id
        self.gateway: PeerId = submitted.gateway
        self.workload: Workload = submitted.workload
        self.client = submitted.client
        self.width = submitted.width
        self.arrived_ns = now_ns - submitted.waited_ns
        self.place: Place = (self.arrived_ns, seq)
        """Its place among the waiting, kept over re-queueing and over the brain's restarts."""
        self.deadline_ns: int | None = (
            None
            if submitted.max_wait_ns is None or submitted.items_done
            else self.arrived_ns + submitted.max_wait_ns
        )
        self.phase = JobPhase.QUEUED
        self.pending: deque[tuple[int, int]] = deque()
        """(first, count) of item ranges, in order."""
        if submitted.items > submitted.items_done:
            self.pending.append((submitted.items_done, submitted.items - submitted.items_done))
        self.running: dict[LeaseId, tuple[int, int]] = {}
        self.items_done = submitted.items_done
        self.steps_done = 0
        self.steps_lost = submitted.steps_lost
        self.restarts = 0
        """Steps taken back so that their model could leave."""
        self.lost_loads: set[LoadId] = set()
        self.model_id: ModelId | None = None
        """The variant, bound when the first step is dispatched."""
        self.queue_key: QueueKey | None = None
        """Where it waits, if any of its items wait."""

    @property
    def items_pending(self) -> int:
        return sum(count for _, count in self.pending)

    def take(self, count: int) -> tuple[int, int]:
        """Take the next ``count`` items at most; a range is never joined over a gap."""
        first, available = self.pending.popleft()
        taken = min(count, available)
        if taken < available:
            self.pending.appendleft((first + taken, available - taken))
        return first, taken

    def put_back(self, first: int, count: int) -> None:
        self.pending.appendleft((first, count))

    def steps_left(self, chunk: int) -> int:
        return sum(-(-count // chunk) for _, count in self.pending) + len(self.running)


class Lease:
    """One running step. It ends by StepFinished or by proof of its gateway's death."""

    __slots__ = (
        "answer_begun",
        "cancelled",
        "charged_ns",
        "client",
        "confirmed",
        "count",
        "first",
        "gateway",
        "granted",
        "job_id",
        "lease_id",
        "load_id",
        "model_id",
        "slots",
        "started_ns",
        "workload",
    )

    def __init__(
        self,
        *,
        lease_id: LeaseId,
        job_id: JobId,
        gateway: PeerId,
        load_id: LoadId,
        model_id: ModelId,
        slots: tuple[int, ...],
        first: int,
        count: int,
        started_ns: int,
        workload: Workload,
        client: str,
        granted: bool,
        charged_ns: int,
        answer_begun: bool = False,
    ) -> None:
        self.lease_id = lease_id
        self.job_id = job_id
        self.gateway = gateway
        self.load_id = load_id
        self.model_id = model_id
        self.slots = slots
        self.first = first
        self.count = count
        self.started_ns = started_ns
        self.workload = workload
        self.client = client
        self.granted = granted
        """Dispatched alongside interactive work, on its share of the time."""
        self.charged_ns = charged_ns
        self.answer_begun = answer_begun
        self.cancelled = False
        """The brain has asked for it back."""
        self.confirmed = False
        """Its gateway has named it: the grant is not on its way any more."""
