"""Build the snapshot: the brain's state as others may see it. Reads, never writes."""

from gridcore.config.schema import Workload
from gridcore.core import admission
from gridcore.core.card import Card
from gridcore.core.forecast import forecast_ns
from gridcore.core.job import Job, JobPhase
from gridcore.core.keys import QueueKey
from gridcore.core.model import Model, Phase
from gridcore.core.snapshot import (
    CardView,
    FootprintView,
    JobView,
    ModelView,
    ServiceView,
    Snapshot,
    Totals,
)
from gridcore.core.state import State
from gridcore.units import NS_PER_MS, NS_PER_S

JOBS_SHOWN_MAX = 200


def build_snapshot(state: State, services: tuple[ServiceView, ...]) -> Snapshot:
    jobs = list(state.jobs.values())  # in order of arrival: the order they were added in
    counts = {phase.value: dict.fromkeys(map(str, Workload), 0) for phase in _OPEN}
    for job in jobs:
        counts[job.phase][job.workload] += 1
    positions: dict[str, int] = {}
    n_before = dict.fromkeys(Workload, 0)
    for job in jobs:
        if job.phase is JobPhase.QUEUED:
            n_before[job.workload] += 1
            positions[job.job_id] = n_before[job.workload]
    return Snapshot(
        epoch=state.epoch,
        revision=state.revision,
        cards=tuple(_card(state, card) for card in state.cards.values()),
        models=tuple(_model(state, model) for model in state.models.values()),
        jobs=_jobs(state, jobs[:JOBS_SHOWN_MAX], positions),
        services=services,
        counts=counts,
        totals=Totals(
            **{name: dict(state.totals.get(name, {})) for name in Totals.__struct_fields__}
        ),
        families={
            name: tuple(model_id for _, model_id in family.variants)
            for name, family in state.families.items()
        },
        draining=state.draining,
    )


_OPEN = (JobPhase.QUEUED, JobPhase.RUNNING)


def _jobs(state: State, jobs: list[Job], positions: dict[str, int]) -> tuple[JobView, ...]:
    views = []
    ahead: dict[tuple[Workload, QueueKey], int] = {}
    for job in jobs:
        n_ahead = 0
        if job.queue_key is not None:
            place = (job.workload, job.queue_key)
            n_ahead = ahead.get(place, 0)
            ahead[place] = n_ahead + 1
        views.append(_job(state, job, positions, n_ahead))
    return tuple(views)


def _card(state: State, card: Card) -> CardView:
    return CardView(
        id=card.card_id,
        name=card.settings.name,
        total_bytes=card.total_bytes,
        budget_bytes=card.budget_bytes(),
        used_bytes=card.used_bytes,
        reserved_bytes=card.ledger.reserved_bytes,
        foreign_bytes=card.foreign.value_bytes,
        utilization_percent=card.utilization_percent,
        pressure=card.pressure.value,
        mode=card.mode.value,
    )


def _model(state: State, model: Model) -> ModelView:
    card = state.card_of(model)
    reserved = 0 if model.load_id is None else card.ledger.entry(model.load_id)
    idle_s = None
    if model.is_resident and not model.n_running:
        since_ns = max(model.loaded_ns, model.last_used_ns or 0)
        idle_s = round((state.now_ns - since_ns) / NS_PER_S, 1)
    waits = [
        str(why)
        for (workload, key), why in state.waits.items()
        if (queue := state.queues[workload].find(key)) is not None
        and len(queue)
        and state.model_for(workload, key) is model
    ]
    why = model.unload_why
    return ModelView(
        id=model.model_id,
        card=model.card_id,
        phase=model.phase.value,
        residency=model.residency(state.now_ns, state.hot_ttl_ns).value,
        pid=model.pid,
        slots=model.settings.slots,
        slots_used=len(model.slots) - model.n_free_slots,
        reserved_bytes=reserved,
        footprint=FootprintView(
            estimated_bytes=model.settings.estimated_bytes, measured_bytes=model.measured_bytes
        ),
        load_seconds=None if model.load_ns is None else round(model.load_ns / NS_PER_S, 3),
        evict_cost=round(admission.evict_cost(state, model), 1)
        if model.phase is Phase.READY
        else None,
        idle_seconds=idle_s,
        breaker=model.breaker.state(state.now_ns).value,
        reason=waits[0] if waits else (None if why is None else str(why)),
        aliases=model.settings.aliases,
        capabilities=tuple(sorted(model.settings.capabilities)),
        queued=sum(len(queue) for workload in Workload for queue in state.sources(model, workload)),
    )


def _job(state: State, job: Job, positions: dict[str, int], n_ahead: int) -> JobView:
    """``n_ahead`` jobs of its class wait for the same model and arrived before it."""
    target = job.submitted.target
    waiting = job.phase is JobPhase.QUEUED
    why = state.why_waiting(job) if waiting else None
    eta_ns = forecast_ns(state, job, n_ahead) if waiting else None
    steps = job.steps_done + job.steps_left(state.policy.embedding_chunk_size)
    return JobView(
        id=job.job_id,
        workload=job.workload.value,
        class_from=job.submitted.class_from,
        model=job.model_id if target in state.families else target,
        family=target if target in state.families else None,
        kind=job.submitted.kind.value,
        phase=job.phase.value,
        steps_done=job.steps_done,
        steps=max(steps, 1),
        position=positions.get(job.job_id),
        waited_ms=(state.now_ns - job.arrived_ns) // NS_PER_MS,
        eta_ms=None if eta_ns is None else eta_ns // NS_PER_MS,
        reason=None if why is None else str(why),
    )
