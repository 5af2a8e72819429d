"""Facts about jobs and their steps: submitted, cancelled, answering, finished."""

from gridcore.config.schema import Workload
from gridcore.core.card import Card
from gridcore.core.events import (
    AnswerBegun,
    JobCancelled,
    JobSubmitted,
    SlotsSeen,
    StepFinished,
    StepOutcome,
)
from gridcore.core.job import Job, Lease
from gridcore.core.model import Model
from gridcore.core.notes import Verb
from gridcore.core.reasons import Fact, Reason, Why
from gridcore.core.state import State
from gridcore.ids import ModelId
from gridcore.units import NS_PER_S, format_duration

SUSPECT_NS = 5 * NS_PER_S
"""How long a runtime that lost a step gets no new ones; its exit is reported well before."""
STEPS_LOST_MAX = 2
"""A step running at so many runtime deaths is not tried again: it may be what kills them."""
SMOOTHING = 4
"""A new step time counts a quarter."""


def job_submitted(state: State, event: JobSubmitted) -> None:
    if event.job_id in state.jobs:
        state.drop(event)
        return
    job = Job(event, seq=state.next_seq(), now_ns=state.now_ns)
    state.jobs[job.job_id] = job
    state.count("jobs_submitted", job.workload)
    if event.target not in state.families and ModelId(event.target) not in state.models:
        state.refuse(job, Why(Reason.UNKNOWN_MODEL, {"model": event.target}))
        return
    if state.draining:
        state.refuse(job, Why(Reason.SHUTTING_DOWN))
        return
    key = state.key_of(job)
    variants = state.variants_of(key._replace(width=1))
    if not variants:
        facts: dict[str, Fact] = {
            "model": event.target,
            "needs": " and ".join(sorted(event.needs)) or "this request",
        }
        state.refuse(job, Why(Reason.NO_VARIANT, facts))
        return
    widest = max(variants, key=lambda model: model.settings.slots)
    if job.width > widest.settings.slots:
        facts = {
            "width": job.width,
            "model": widest.model_id,
            "slots": widest.settings.slots,
        }
        state.refuse(job, Why(Reason.TOO_WIDE, facts))
        return
    queue = state.queues[job.workload]
    limit = _queue_limit(state, job.workload)
    if queue.n_jobs >= limit and not event.waited_ns:
        facts = {"queued": queue.n_jobs, "workload": job.workload.value, "limit": limit}
        state.refuse(job, Why(Reason.QUEUE_FULL, facts))
        return
    state.set_deadline(job)
    for model in state.variants_of(key)[:1]:
        model.demand.add(state.settings.priority(job.workload), state.now_ns)
    steps = job.steps_left(state.policy.embedding_chunk_size)
    state.note(
        Verb.ENQUEUE,
        f"{job.workload} {event.kind} {event.target} steps={steps}",
        job=job,
        kind=event.kind.value,
        target=event.target,
        steps=steps,
        class_from=event.class_from,
        position=queue.n_jobs + 1,
    )
    state.enqueue(job)


def _queue_limit(state: State, workload: Workload) -> int:
    classes = state.policy.classes
    match workload:
        case Workload.INTERACTIVE:
            return classes.interactive.queue_limit
        case Workload.BACKGROUND:
            return classes.background.queue_limit
        case Workload.BATCH:
            return classes.batch.queue_limit


def job_cancelled(state: State, event: JobCancelled) -> None:
    job = state.jobs.get(event.job_id)
    if job is None:
        state.drop(event)
        return
    job.pending.clear()
    state.mark_job(job)
    state.dequeue(job)
    if job.running:
        return  # its gateway closes the upstream and ends the leases
    waited = format_duration(state.now_ns - job.arrived_ns)
    state.note(
        Verb.CANCEL,
        f"{job.workload} {job.submitted.target}: {event.cause}, after {waited} in the queue",
        job=job,
        cause=event.cause.value,
    )
    state.end_job(job, "cancelled")


def answer_begun(state: State, event: AnswerBegun) -> None:
    lease = state.leases.get(event.lease_id)
    if lease is None:
        state.drop(event)
        return
    lease.answer_begun = lease.confirmed = True


def step_finished(state: State, event: StepFinished) -> None:
    lease = state.leases.pop(event.lease_id, None)
    if lease is None:
        state.drop(event)
        return
    end_lease(state, lease, event)


def end_lease(state: State, lease: Lease, event: StepFinished) -> None:
    """Free what a lease held, learn from it, and decide what its job is now."""
    model = state.models.get(lease.model_id)
    if model is not None:
        if model.load_id == lease.load_id and lease.lease_id in model.leases:
            model.vacate(
                lease.lease_id,
                lease.slots,
                lease.workload,
                idle=event.slot_idle,
                now_ns=state.now_ns,
            )
            model.note_use(lease.workload, state.now_ns)
            _learn(state, model, lease, event)
        state.mark(model.card_id)
        pay_share(state, state.card_of(model), lease)
    state.queues[lease.workload].end(
        lease.client, lease.charged_ns, event.took_ns * len(lease.slots), state.now_ns
    )
    state.count("steps", lease.workload)
    state.count("step_ns", lease.workload, event.took_ns)
    job = state.jobs.get(lease.job_id)
    if job is not None:
        job.running.pop(lease.lease_id, None)
        _settle_job(state, job, lease, event)


def _learn(state: State, model: Model, lease: Lease, event: StepFinished) -> None:
    if event.outcome is StepOutcome.LOST:
        model.suspect_until_ns = state.now_ns + SUSPECT_NS
    if event.outcome is not StepOutcome.DONE:
        return
    model.served = True
    model.load_bumps = 0
    model.suspect_until_ns = None
    if model.breaker.n_failures:
        model.breaker.close()
    model.step_ns = _smooth(model.step_ns, event.took_ns)
    if lease.count > 1:
        model.item_ns = max(_smooth(model.item_ns, event.took_ns // lease.count), 1)


def _smooth(old_ns: int | None, new_ns: int) -> int:
    return new_ns if old_ns is None else old_ns + (new_ns - old_ns) // SMOOTHING


def pay_share(state: State, card: Card, lease: Lease) -> None:
    """After a grant of length d the next waits d * (1 / share - 1)."""
    if lease.workload is Workload.INTERACTIVE:
        return
    card.lower_progress_ns = state.now_ns
    if lease.workload is Workload.BATCH:
        card.batch_progress_ns = state.now_ns
    if card.grant == lease.lease_id:
        card.grant = None
        ran_ns = state.now_ns - lease.started_ns
        share = state.policy.background_share
        card.next_grant_ns = state.now_ns + round(ran_ns * (1 - share) / share)


def _settle_job(state: State, job: Job, lease: Lease, event: StepFinished) -> None:
    match event.outcome:
        case StepOutcome.DONE:
            job.items_done += lease.count
            job.steps_done += 1
            if event.last or not (job.pending or job.running):
                _complete(state, job)
                return
        case StepOutcome.CANCELLED if event.last or not lease.cancelled:
            _end_cancelled(state, job, event)
            return
        case StepOutcome.CANCELLED:
            job.restarts += 1
            requeue(state, job, lease, "taken back")
            return
        case StepOutcome.LOST:
            job.steps_lost += lease.load_id not in job.lost_loads
            job.lost_loads.add(lease.load_id)
            if event.last:
                _fail(state, job, event)
            elif job.steps_lost >= STEPS_LOST_MAX:
                _refuse_lost(state, job, event)
            else:
                requeue(state, job, lease, event.detail or "runtime lost")
            return
        case StepOutcome.BROKEN:
            _fail(state, job, event)
            return
    state.move_job(job)


def _complete(state: State, job: Job) -> None:
    total_ns = state.now_ns - job.arrived_ns
    state.note(
        Verb.COMPLETE,
        f"{job.workload} {job.model_id or job.submitted.target}",
        job=job,
        steps=job.steps_done,
        took_ms=total_ns // 1_000_000,
    )
    job.pending.clear()
    state.end_job(job, "done")


def _end_cancelled(state: State, job: Job, event: StepFinished) -> None:
    if job.running:
        job.pending.clear()
        state.dequeue(job)
        return  # ends with its last lease
    state.note(
        Verb.CANCEL,
        f"{job.workload} {job.model_id or job.submitted.target}: client gone",
        job=job,
        detail=event.detail,
    )
    state.end_job(job, "cancelled")


def _fail(state: State, job: Job, event: StepFinished) -> None:
    state.note(
        Verb.FAIL,
        f"{job.workload} {job.model_id or job.submitted.target}: {event.detail or 'failed'}",
        job=job,
        detail=event.detail,
    )
    state.end_job(job, "failed")


def _refuse_lost(state: State, job: Job, event: StepFinished) -> None:
    facts: dict[str, Fact] = {
        "model": job.model_id or job.submitted.target,
        "times": job.steps_lost,
        "detail": event.detail or "no word from it",
    }
    state.refuse(job, Why(Reason.RUNTIME_LOST, facts))


def requeue(state: State, job: Job, lease: Lease, detail: str) -> None:
    """Put the items of a step that did not happen back at the job's old place."""
    state.dequeue(job)
    job.put_back(lease.first, lease.count)
    if not job.running and not job.steps_done:
        job.model_id = None
    state.move_job(job)
    state.note(
        Verb.REQUEUE,
        f"{job.workload} {job.submitted.target}: {detail}",
        job=job,
        detail=detail,
        steps_lost=job.steps_lost,
        restarts=job.restarts,
    )
    state.enqueue(job)


def slots_seen(state: State, event: SlotsSeen) -> None:
    model = state.model_by_load.get(event.load_id)
    if model is None or not model.is_resident:
        state.drop(event)
        return
    model.slots_read_ns = state.now_ns
    for index in event.idle_slots:
        if 0 <= index < len(model.slots):
            model.slots[index].cooling = False
    state.mark(model.card_id)
