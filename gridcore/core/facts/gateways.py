"""Facts about gateways: what they re-state, that they are silent, that they are dead."""

from gridcore.core.events import (
    GatewayRestated,
    GatewaySuspected,
    JobSubmitted,
    RunningLease,
)
from gridcore.core.facts import jobs
from gridcore.core.job import Job, Lease
from gridcore.core.model import Model
from gridcore.core.notes import Verb
from gridcore.core.state import State
from gridcore.ids import ModelId, PeerId
from gridcore.units import NS_PER_S

GRANT_TRAVEL_NS = 2 * NS_PER_S
"""A grant younger than this may have crossed the inventory on its way: it is not believed to be
lost. If it was, the gateway's next beats disagree and the inventory is asked for again."""


def gateway_restated(state: State, event: GatewayRestated) -> None:
    """What a gateway says of its own jobs replaces what was known of them."""
    state.gateways.add(event.gateway)
    state.trust(event.gateway)
    stated_jobs = {job.job_id: job for job in event.jobs}
    stated_leases = {lease.lease_id: lease for lease in event.leases}
    for lease in [held for held in state.leases.values() if held.gateway == event.gateway]:
        lease.confirmed |= lease.lease_id in stated_leases
        young = state.now_ns - lease.started_ns < GRANT_TRAVEL_NS
        on_its_way = young and not lease.confirmed
        if lease.lease_id not in stated_leases and not on_its_way:
            _end_silently(state, lease)
            if lease.job_id in state.jobs and lease.job_id in stated_jobs:
                _settle_lost(state, lease, stated_jobs[lease.job_id])
    for job in [known for known in state.jobs.values() if known.gateway == event.gateway]:
        if job.job_id not in stated_jobs:
            state.end_job(job, "done" if job.steps_done else "cancelled")
    running_by_job: dict[str, list[RunningLease]] = {}
    for lease_stated in event.leases:
        running_by_job.setdefault(lease_stated.job_id, []).append(lease_stated)
    for submitted in event.jobs:
        if submitted.job_id not in state.jobs:
            _adopt_job(state, submitted, running_by_job.get(submitted.job_id, []))
    state.mark_all()


def _settle_lost(state: State, lease: Lease, submitted: JobSubmitted) -> None:
    """A step whose grant or whose end got lost on the way: done, or to be done again."""
    job = state.jobs[lease.job_id]
    if lease.first + lease.count <= submitted.items_done:
        job.items_done += lease.count
        job.steps_done += 1
        state.move_job(job)
    else:
        jobs.requeue(state, job, lease, "its step got lost on the way")


def _adopt_job(state: State, submitted: JobSubmitted, running: list[RunningLease]) -> None:
    """Take a job over from an earlier epoch, with its place and its running steps."""
    target = submitted.target
    known = target in state.families or ModelId(target) in state.models
    if not known or not (running or submitted.items_done):
        jobs.job_submitted(state, submitted)  # nothing of it has started: judged like a new one
        return
    job = Job(submitted, seq=state.next_seq(), now_ns=state.now_ns)
    state.jobs[job.job_id] = job
    job.pending.clear()
    covered = [(lease.first, lease.count) for lease in running]
    for first, count in _gaps(submitted.items_done, submitted.items, covered):
        job.pending.append((first, count))
    for stated in running:
        job.running[stated.lease_id] = (stated.first, stated.count)
        _adopt_lease(state, job, stated)
    state.count("jobs_submitted", job.workload)
    if running:
        job.deadline_ns = None
    state.set_deadline(job)
    state.move_job(job)
    if job.pending:
        state.enqueue(job)


def _gaps(start: int, end: int, covered: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of [start, end) that no covered range holds."""
    gaps = []
    for first, count in sorted(covered):
        if first > start:
            gaps.append((start, first - start))
        start = max(start, first + count)
    if start < end:
        gaps.append((start, end - start))
    return gaps


def _adopt_lease(state: State, job: Job, stated: RunningLease) -> None:
    model = state.model_by_load.get(stated.load_id)
    lease = Lease(
        lease_id=stated.lease_id,
        job_id=job.job_id,
        gateway=job.gateway,
        load_id=stated.load_id,
        model_id=stated.model_id,
        slots=stated.slots,
        first=stated.first,
        count=stated.count,
        started_ns=state.now_ns - stated.ran_ns,
        workload=job.workload,
        client=job.client,
        granted=False,
        charged_ns=0,
        answer_begun=stated.answer_begun,
    )
    lease.confirmed = True
    state.leases[lease.lease_id] = lease
    job.model_id = stated.model_id
    if model is not None:
        seat(model, lease, job)


def seat(model: Model, lease: Lease, job: Job) -> None:
    """Mark the slots of an adopted lease, if nobody else has them."""
    seats = tuple(
        i for i in lease.slots if i < len(model.slots) and model.slots[i].lease_id is None
    )
    if model.is_resident and len(seats) == len(lease.slots):
        for index in seats:
            model.slots[index].cooling = False
        model.occupy(lease.lease_id, seats, lease.workload, job.submitted.affinity)


def gateway_gone(state: State, gateway: PeerId) -> None:
    """Proof of death: its leases have ended, its jobs are over."""
    state.gateways.discard(gateway)
    state.trust(gateway)
    for lease in [held for held in state.leases.values() if held.gateway == gateway]:
        _end_silently(state, lease)
    for job in [known for known in state.jobs.values() if known.gateway == gateway]:
        state.note(Verb.CANCEL, f"{job.workload}: its gateway died", job=job, cause="gateway_gone")
        state.end_job(job, "cancelled")


def _end_silently(state: State, lease: Lease) -> None:
    """End a lease nobody reported on; its slots count as busy until the runtime says idle."""
    del state.leases[lease.lease_id]
    job = state.jobs.get(lease.job_id)
    if job is not None:
        job.running.pop(lease.lease_id, None)
    model = state.models.get(lease.model_id)
    if model is None:
        return
    if model.load_id == lease.load_id and lease.lease_id in model.leases:
        model.vacate(lease.lease_id, lease.slots, lease.workload, idle=False, now_ns=state.now_ns)
    state.mark(model.card_id)
    jobs.pay_share(state, state.card_of(model), lease)
    state.queues[lease.workload].end(lease.client, lease.charged_ns, 0, state.now_ns)


def gateway_suspected(state: State, event: GatewaySuspected) -> None:
    if event.suspect:
        state.suspects.add(event.gateway)
    else:
        state.trust(event.gateway)
    state.mark_all()
