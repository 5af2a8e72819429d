"""Simulated gateways: they hold open jobs, use leases, and re-state both.

The behaviour of ``http/jobs.py`` without HTTP: a lease ends when its upstream is closed, a job
when its client is answered or gone. It decides nothing about who runs.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from gridcore.core.commands import CancelStep, DispatchStep, ReadSlots, RefuseJob
from gridcore.core.events import (
    AnswerBegun,
    AnyEvent,
    CancelCause,
    GatewayRestated,
    JobCancelled,
    JobSubmitted,
    RunningLease,
    SlotsSeen,
    StepFinished,
    StepOutcome,
)
from gridcore.ids import JobId, LeaseId, LoadId, PeerId
from gridcore.sim.compute import Work
from gridcore.units import NS_PER_MS


class End(StrEnum):
    """What a client is told in the end; each job has exactly one."""

    ANSWERED = "answered"
    REFUSED = "refused"
    BROKEN = "broken"
    LEFT = "left"
    """The client went away by itself."""
    CUT = "cut"
    """Its gateway died."""


class Upstreams(Protocol):
    """The runtimes as a gateway reaches them."""

    def begin(
        self, command: DispatchStep, job: JobSubmitted, step: "SimStep", /
    ) -> Work | None: ...

    def leave(self, step: "SimStep", /) -> bool:
        """Close an upstream; return whether its slots are idle already."""

    def idle_slots(self, load_id: LoadId, /) -> tuple[int, ...] | None: ...


class Clock(Protocol):
    now_ns: int

    def after(self, delay_ns: int, action: Callable[[], None], /) -> None: ...


class SimStep:
    """One lease being used."""

    def __init__(self, gateway: "SimGateway", job: "SimJob", command: DispatchStep) -> None:
        self.gateway = gateway
        self.job = job
        self.command = command
        self.started_ns = gateway.clock.now_ns
        self.answer_begun = False
        self.work: Work | None = None

    def begin_answer(self) -> None:
        if not self.answer_begun:
            self.answer_begun = True
            self.gateway.send(AnswerBegun(lease_id=self.command.lease_id))

    def end(self, outcome: StepOutcome, *, slot_idle: bool = True, detail: str = "") -> None:
        """The upstream is closed."""
        self.gateway.end_step(self, outcome, slot_idle=slot_idle, detail=detail)


class SimJob:
    def __init__(
        self,
        submitted: JobSubmitted,
        arrived_ns: int,
        on_end: Callable[[End, str], None],
        *,
        streams: bool,
    ) -> None:
        self.submitted = submitted
        self.arrived_ns = arrived_ns
        self.on_end = on_end
        self.done: set[int] = set()
        self.steps: dict[LeaseId, SimStep] = {}
        self.steps_lost = 0
        self.streams = streams
        """Its client sees bytes before the end of the step."""
        self.is_over = False

    @property
    def items_done(self) -> int:
        """How many items from the first on are done: what a re-statement can say."""
        count = 0
        while count in self.done:
            count += 1
        return count


class SimGateway:
    """``jobs`` are all and only the jobs the scheduler must know of."""

    def __init__(
        self,
        name: PeerId,
        clock: Clock,
        upstreams: Upstreams,
        send: Callable[[PeerId, AnyEvent], None],
    ) -> None:
        self.name = name
        self.clock = clock
        self.jobs: dict[JobId, SimJob] = {}
        self.steps: dict[LeaseId, SimStep] = {}
        self.alive = True
        self._upstreams = upstreams
        self._send = send

    def send(self, event: AnyEvent) -> None:
        self._send(self.name, event)

    def submit(
        self, submitted: JobSubmitted, on_end: Callable[[End, str], None], *, streams: bool = False
    ) -> SimJob:
        job = SimJob(submitted, self.clock.now_ns, on_end, streams=streams)
        self.jobs[submitted.job_id] = job
        self.send(submitted)
        return job

    def leave(self, job: SimJob) -> None:
        """The client closes its connection."""
        if job.is_over:
            return
        has_steps = bool(job.steps)
        self._finish(job, End.LEFT)
        for step in list(job.steps.values()):
            idle = self._upstreams.leave(step)
            step.end(StepOutcome.CANCELLED, slot_idle=idle)
        if not has_steps or job.submitted.items > 1:
            self.send(JobCancelled(job_id=job.submitted.job_id, cause=CancelCause.CLIENT_GONE))

    def die(self) -> None:
        """SIGKILL: connections close, nobody says anything."""
        self.alive = False
        for step in list(self.steps.values()):
            self._upstreams.leave(step)
        self.steps.clear()
        for job in list(self.jobs.values()):
            self._finish(job, End.CUT)

    # --- what the scheduler says -----------------------------------------------------

    def on_dispatch(self, command: DispatchStep) -> None:
        job = self.jobs.get(command.job_id)
        if job is None:
            self._give_back(command, StepOutcome.CANCELLED, last=True)
            return
        if command.lease_id in job.steps:
            return
        if set(range(command.first, command.first + command.count)) <= job.done:
            self._give_back(command, StepOutcome.DONE)
            return
        step = SimStep(self, job, command)
        job.steps[command.lease_id] = self.steps[command.lease_id] = step
        step.work = self._upstreams.begin(command, job.submitted, step)
        if step.work is None:
            self.clock.after(
                NS_PER_MS,
                lambda: step.end(StepOutcome.LOST, slot_idle=False, detail="refused to connect"),
            )

    def on_refusal(self, command: RefuseJob) -> None:
        job = self.jobs.get(command.job_id)
        if job is None:
            return
        self._finish(job, End.REFUSED, command.code)
        for step in list(job.steps.values()):
            idle = self._upstreams.leave(step)
            step.end(StepOutcome.CANCELLED, slot_idle=idle)

    def on_cancel_step(self, command: CancelStep) -> None:
        step = self.steps.get(command.lease_id)
        if step is not None and not step.answer_begun:
            idle = self._upstreams.leave(step)
            step.end(StepOutcome.CANCELLED, slot_idle=idle)

    def on_read_slots(self, command: ReadSlots) -> None:
        idle = self._upstreams.idle_slots(command.load_id)
        if idle is not None:
            self.send(SlotsSeen(load_id=command.load_id, idle_slots=idle))

    def restated(self) -> GatewayRestated:
        now_ns = self.clock.now_ns
        return GatewayRestated(
            gateway=self.name,
            jobs=tuple(
                msgspec.structs.replace(
                    job.submitted,
                    waited_ns=now_ns - job.arrived_ns,
                    items_done=job.items_done,
                    steps_lost=job.steps_lost,
                )
                for job in self.jobs.values()
            ),
            leases=tuple(
                RunningLease(
                    lease_id=step.command.lease_id,
                    job_id=step.command.job_id,
                    load_id=step.command.load_id,
                    model_id=step.command.model_id,
                    slots=step.command.slots,
                    first=step.command.first,
                    count=step.command.count,
                    ran_ns=now_ns - step.started_ns,
                    answer_begun=step.answer_begun,
                )
                for step in self.steps.values()
                if not step.job.is_over
            ),
        )

    # --- ends ------------------------------------------------------------------------

    def end_step(
        self, step: SimStep, outcome: StepOutcome, *, slot_idle: bool, detail: str
    ) -> None:
        job, lease_id = step.job, step.command.lease_id
        if self.steps.pop(lease_id, None) is None:
            return
        job.steps.pop(lease_id, None)
        if outcome is StepOutcome.LOST and step.answer_begun:
            outcome = StepOutcome.BROKEN
        last = job.is_over
        if outcome is StepOutcome.DONE:
            first = step.command.first
            job.done.update(range(first, first + step.command.count))
            last |= len(job.done) == job.submitted.items
        job.steps_lost += outcome is StepOutcome.LOST
        last |= outcome is StepOutcome.BROKEN
        self.send(
            StepFinished(
                lease_id=lease_id,
                outcome=outcome,
                took_ns=self.clock.now_ns - step.started_ns,
                last=last,
                slot_idle=slot_idle,
                detail=detail,
            )
        )
        if last and not job.is_over:
            answered = outcome is StepOutcome.DONE
            self._finish(job, End.ANSWERED if answered else End.BROKEN)
            for other in list(job.steps.values()):
                idle = self._upstreams.leave(other)
                other.end(StepOutcome.CANCELLED, slot_idle=idle)

    def _give_back(
        self, command: DispatchStep, outcome: StepOutcome, *, last: bool = False
    ) -> None:
        self.send(StepFinished(lease_id=command.lease_id, outcome=outcome, took_ns=0, last=last))

    def _finish(self, job: SimJob, end: End, code: str = "") -> None:
        job.is_over = True
        del self.jobs[job.submitted.job_id]
        job.on_end(end, code)
