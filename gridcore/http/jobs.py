"""Every open job of this gateway, the leases it holds, and what the scheduler says of them.

The gateway owns these facts: after each Welcome the inventory re-states them, so a message lost
with a dead scheduler needs no repair of its own. It must not know HTTP; a job's request waits in
``next_word()`` for a grant, a refusal or the end of a step, and runs each step as a task.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from gridcore.clock import monotonic_ns
from gridcore.core.events import CancelCause, JobSubmitted, RunningLease, StepOutcome
from gridcore.http.failures import INTERNAL_ERROR, log_failure
from gridcore.http.openai import ApiError
from gridcore.http.sse import TokenCounts
from gridcore.ids import JobId, LeaseId, PeerId, ids_digest
from gridcore.ipc.messages import (
    Beat,
    CancelJob,
    CancelStep,
    GatewayInventory,
    GrantStep,
    RefuseJob,
    StepAnswering,
    StepEnded,
    SubmitJob,
    ToScheduler,
)
from gridcore.units import NS_PER_S, format_duration

INVENTORY_PAGE = 500
"""Entries per message: a frame stays far below the link's 16 MiB."""
OPEN_JOBS_MAX = 40_000
"""Four times a class's default queue limit: the scheduler's limits come first."""
_HELD_CHECK_S = 0.1
"""How exactly a request's longest wait is kept while the scheduler is away."""


class Scheduler(Protocol):
    """The way to the scheduler; False when the message did not leave."""

    def send(self, message: ToScheduler, /) -> bool: ...


class StepResult(Struct, frozen=True, kw_only=True):
    """How a step ended.

    Args:
        last: the client has its answer; the job is over.
        slot_idle: the runtime had finished.
        answer: the whole answer, for a client that did not ask for a stream.
        error: what the client is told instead of an answer.
    """

    outcome: StepOutcome
    last: bool = False
    slot_idle: bool = True
    detail: str = ""
    answer: bytes | None = None
    error: ApiError | None = None
    first_byte_ns: int | None = None
    counts: TokenCounts = TokenCounts()


CANCELLED = StepResult(outcome=StepOutcome.CANCELLED, slot_idle=False)


class Step:
    """One lease being used. Its task ends only after the upstream connection is closed."""

    def __init__(self, job: "Job", grant: GrantStep, scheduler: Scheduler) -> None:
        self.job = job
        self.grant = grant
        self.started_ns = monotonic_ns()
        self.answer_begun = False
        self.task: asyncio.Task[StepResult] | None = None
        self._scheduler = scheduler

    def begin_answer(self) -> None:
        """A byte of the answer goes to the client: the step may not be taken back any more."""
        if not self.answer_begun:
            self.answer_begun = True
            self._scheduler.send(StepAnswering(lease_id=self.grant.lease_id))

    def age_ns(self) -> int:
        return monotonic_ns() - self.started_ns

    def abort(self) -> None:
        assert self.task is not None
        self.task.cancel()


Word = GrantStep | StepResult | ApiError
Work = Callable[[Step], Coroutine[Any, Any, StepResult]]


class Job:
    """One request. ``steps`` are all and only its leases whose upstream may be open."""

    def __init__(self, table: "JobTable", submitted: JobSubmitted) -> None:
        self.submitted = submitted
        self.job_id = submitted.job_id
        self.arrived_ns = monotonic_ns()
        self.idle_since_ns = self.arrived_ns
        """Since when it has waited without a step."""
        self.items_done = 0
        self.steps_lost = 0
        self.was_granted = False
        self.steps: dict[LeaseId, Step] = {}
        self.is_over = False
        """The scheduler knows, or must not be told again, that this job has ended."""
        self._table = table
        self._words: deque[Word] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def next_word(self) -> Word:
        while not self._words:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._words.popleft()

    def say(self, word: Word) -> None:
        self._words.append(word)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def run(
        self, grant: GrantStep, work: Callable[[Step], Coroutine[Any, Any, StepResult]]
    ) -> Step:
        """Use a lease; its end is reported to the scheduler and said to the job."""
        step = Step(self, grant, self._table.scheduler)
        self.steps[grant.lease_id] = step
        step.task = asyncio.get_running_loop().create_task(work(step))
        step.task.add_done_callback(lambda _: self._table.end_step(step))
        return step

    def close(self) -> None:
        """The request is answered, or its client has gone; upstreams are closed at once."""
        self._table.close(self)

    def grants_waiting(self) -> list[GrantStep]:
        return [word for word in self._words if isinstance(word, GrantStep)]

    def drop_grant(self, grant: GrantStep) -> None:
        self._words.remove(grant)

    def skip(self, grant: GrantStep) -> None:
        """End a lease for items that are done already (re-stated to a scheduler that had not
        heard of it)."""
        self._table.give_back(grant, StepOutcome.DONE)

    def restated(self) -> JobSubmitted:
        return msgspec.structs.replace(
            self.submitted,
            waited_ns=monotonic_ns() - self.arrived_ns,
            items_done=self.items_done,
            steps_lost=self.steps_lost,
        )


class JobTable:
    """``jobs`` are all and only the jobs the scheduler must know of."""

    def __init__(self, *, name: PeerId, hold_timeout_ns: int, scheduler: Scheduler) -> None:
        self.name = name
        self.scheduler = scheduler
        self.jobs: dict[JobId, Job] = {}
        self.shutdown_error: ApiError | None = None
        self._hold_timeout_ns = hold_timeout_ns
        self._away_since_ns: int | None = monotonic_ns()
        self._held_check: asyncio.TimerHandle | None = None

    def open(self, submitted: JobSubmitted) -> Job:
        """
        Raises:
            ApiError: 503, the gateway is shutting down or holds too much.
        """
        if self.shutdown_error is not None:
            raise self.shutdown_error
        if len(self.jobs) >= OPEN_JOBS_MAX:
            raise ApiError(
                503,
                "queue_full",
                f"{OPEN_JOBS_MAX} requests are open, which is the most a gateway holds",
                retry_after_s=10,
            )
        job = Job(self, submitted)
        self.jobs[job.job_id] = job
        if not self.scheduler.send(SubmitJob(job=submitted)):
            self._check_held_later()
        return job

    def close(self, job: Job) -> None:
        for grant in job.grants_waiting():
            job.drop_grant(grant)
            self.give_back(grant, StepOutcome.CANCELLED, last=True)
        has_steps = bool(job.steps)
        for step in list(job.steps.values()):
            step.abort()
        if job.is_over:
            return
        self._forget(job)
        # A single running step says it itself when its upstream is closed; until then the slot
        # is not free, and a job that is gone must not be granted the rest of its items.
        if not has_steps or job.submitted.items > 1:
            self.scheduler.send(CancelJob(job_id=job.job_id, cause=CancelCause.CLIENT_GONE))

    def end_step(self, step: Step) -> None:
        """A step's task is done and its upstream closed: tell the scheduler, then the job."""
        job, grant = step.job, step.grant
        assert step.task is not None
        result = _result_of(step.task)
        del job.steps[grant.lease_id]
        job.idle_since_ns = monotonic_ns()
        job.steps_lost += result.outcome is StepOutcome.LOST
        last = result.last or job.is_over
        self.scheduler.send(
            StepEnded(
                lease_id=grant.lease_id,
                outcome=result.outcome,
                took_ns=step.age_ns(),
                last=last,
                slot_idle=result.slot_idle,
                detail=result.detail,
                first_byte_ns=result.first_byte_ns,
                prompt_tokens=result.counts.prompt_tokens,
                completion_tokens=result.counts.completion_tokens,
            )
        )
        if last and not job.is_over:
            self._forget(job)
        job.say(result)

    def _forget(self, job: Job) -> None:
        job.is_over = True
        self.jobs.pop(job.job_id, None)

    # --- what the scheduler says ---------------------------------------------------------

    def on_grant(self, grant: GrantStep) -> None:
        job = self.jobs.get(grant.job_id)
        if job is None:
            self.give_back(grant, StepOutcome.CANCELLED, last=True)
            return
        if grant.lease_id in job.steps or grant in job.grants_waiting():
            return
        job.was_granted = True
        job.say(grant)

    def on_refusal(self, refusal: RefuseJob) -> None:
        job = self.jobs.get(refusal.job_id)
        if job is None:
            return
        retry_ns = refusal.retry_after_ns
        self._end_with(
            job,
            ApiError(
                refusal.status,
                refusal.code,
                refusal.message,
                error_type=refusal.error_type,
                param=refusal.param,
                retry_after_s=None if retry_ns is None else max(1, -(-retry_ns // NS_PER_S)),
            ),
        )

    def on_cancel_step(self, cancel: CancelStep) -> None:
        job = self.jobs.get(cancel.job_id)
        if job is None:
            return
        step = job.steps.get(cancel.lease_id)
        if step is not None and not step.answer_begun:
            step.abort()
        for grant in job.grants_waiting():
            if grant.lease_id == cancel.lease_id:
                job.drop_grant(grant)
                self.give_back(grant, StepOutcome.CANCELLED)

    def give_back(self, grant: GrantStep, outcome: StepOutcome, *, last: bool = False) -> None:
        """End a lease that was never used, so that its slot does not leak."""
        self.scheduler.send(
            StepEnded(lease_id=grant.lease_id, outcome=outcome, took_ns=0, last=last)
        )

    def _end_with(self, job: Job, error: ApiError) -> None:
        self._forget(job)
        for step in list(job.steps.values()):
            step.abort()
        job.say(error)

    # --- the link -------------------------------------------------------------------------

    def on_link(self, up: bool) -> None:
        if up:
            self._away_since_ns = None
        elif self._away_since_ns is None:
            self._away_since_ns = monotonic_ns()
            self._check_held_later()

    def inventory(self) -> Iterator[GatewayInventory]:
        """Re-state every open job and every lease that is in use, in pages."""
        jobs = [job.restated() for job in self.jobs.values()]
        leases = [
            *(_running(step) for job in self.jobs.values() for step in job.steps.values()),
            *(_unused(grant) for job in self.jobs.values() for grant in job.grants_waiting()),
        ]
        n_pages = max(1, -(-max(len(jobs), len(leases)) // INVENTORY_PAGE))
        for page in range(n_pages):
            entries = slice(page * INVENTORY_PAGE, (page + 1) * INVENTORY_PAGE)
            yield GatewayInventory(
                jobs=tuple(jobs[entries]),
                leases=tuple(leases[entries]),
                last_page=page == n_pages - 1,
            )

    def beat(self) -> Beat:
        leases = [
            lease_id
            for job in self.jobs.values()
            for lease_id in (*job.steps, *(grant.lease_id for grant in job.grants_waiting()))
        ]
        return Beat(
            jobs=len(self.jobs), leases=len(leases), digest=ids_digest([*self.jobs, *leases])
        )

    def _check_held_later(self) -> None:
        if self._held_check is None and self.jobs:
            loop = asyncio.get_running_loop()
            self._held_check = loop.call_later(_HELD_CHECK_S, self._check_held)

    def _check_held(self) -> None:
        """While the scheduler is away, end the requests that have been held long enough."""
        self._held_check = None
        if self._away_since_ns is None:
            return
        now_ns = monotonic_ns()
        for job in list(self.jobs.values()):
            if job.steps or now_ns < self._held_until_ns(job, self._away_since_ns):
                continue
            waited = format_duration(now_ns - job.arrived_ns)
            self._end_with(
                job,
                ApiError(
                    503,
                    "scheduler_unavailable",
                    f"the scheduler is away; the request was held for {waited} "
                    "(server.hold_timeout, or its own max_wait)",
                    retry_after_s=5,
                ),
            )
        self._check_held_later()

    def _held_until_ns(self, job: Job, away_since_ns: int) -> int:
        max_wait_ns = job.submitted.max_wait_ns
        if max_wait_ns is not None and not job.was_granted:
            return job.arrived_ns + max_wait_ns
        return max(away_since_ns, job.idle_since_ns) + self._hold_timeout_ns

    # --- shutting down --------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Refuse what waits and what comes; what runs may finish."""
        self.shutdown_error = ApiError(
            503, "shutting_down", "GridCore is shutting down", retry_after_s=5
        )
        for job in list(self.jobs.values()):
            if not job.steps:
                self._give_up(job)

    def end_drain(self) -> None:
        """The drain timeout has passed: what still runs is ended, and its clients told."""
        for job in list(self.jobs.values()):
            self._give_up(job)

    def _give_up(self, job: Job) -> None:
        assert self.shutdown_error is not None
        for grant in job.grants_waiting():
            job.drop_grant(grant)
            self.give_back(grant, StepOutcome.CANCELLED, last=True)
        self.scheduler.send(CancelJob(job_id=job.job_id, cause=CancelCause.ADMIN))
        self._end_with(job, self.shutdown_error)


def _result_of(task: asyncio.Task[StepResult]) -> StepResult:
    if task.cancelled():
        return CANCELLED
    failure = task.exception()
    if failure is None:
        return task.result()
    log_failure("a step failed in the gateway itself", failure)
    return StepResult(
        outcome=StepOutcome.BROKEN,
        last=True,
        slot_idle=False,
        detail=f"gateway: {type(failure).__name__}",
        error=INTERNAL_ERROR,
    )


def _running(step: Step) -> RunningLease:
    return _lease(step.grant, ran_ns=step.age_ns(), answer_begun=step.answer_begun)


def _unused(grant: GrantStep) -> RunningLease:
    return _lease(grant, ran_ns=0, answer_begun=False)


def _lease(grant: GrantStep, *, ran_ns: int, answer_begun: bool) -> RunningLease:
    return RunningLease(
        lease_id=grant.lease_id,
        job_id=grant.job_id,
        load_id=grant.load_id,
        model_id=grant.model_id,
        slots=grant.slots,
        first=grant.first,
        count=grant.count,
        ran_ns=ran_ns,
        answer_begun=answer_begun,
    )
