"""One name for several sizes: which variant a family's request takes at this moment.

A person who waits gets the best variant that can be had. Background and batch get the one that
disturbs nothing: resident with a slot to give, else one that fits in free memory, else the one
whose eviction costs least; else they wait. The variant is bound when a step is dispatched and
chosen anew at every plan until then.
"""

from gridcore.config.schema import Workload
from gridcore.core import admission
from gridcore.core.admission import Outcome
from gridcore.core.job import Job
from gridcore.core.model import Model, Phase
from gridcore.core.notes import Verb
from gridcore.core.policy.breaker import BreakerState
from gridcore.core.queues import WaitQueue
from gridcore.core.reasons import Reason, Why
from gridcore.core.state import State


def resolve_all(state: State) -> None:
    """Choose the variant of every waiting family queue."""
    if state.families:
        for workload, class_queue in state.queues.items():
            for queue in class_queue.queues():
                if queue.key.target in state.families:
                    _choose(state, workload, queue)
    state.index_sources()


def resolve(state: State, workload: Workload, queue: WaitQueue) -> None:
    """Choose again after a step of this queue was dispatched."""
    if len(queue):
        before = state.variants.get((workload, queue.key))
        _choose(state, workload, queue)
        if state.variants.get((workload, queue.key)) != before:
            state.index_sources()


def announce(state: State, job: Job, model: Model) -> None:
    """Tell which variant a job got, and why."""
    why = state.variant_reasons.get((job.workload, state.key_of(job)))
    passed = []
    for variant in state.variants_of(state.key_of(job)):
        if variant is model:
            break
        residency = variant.residency(state.now_ns, state.hot_ttl_ns)
        passed.append(f"{variant.model_id} {variant.phase}, {residency}")
    text = f"{job.submitted.target} -> {model.model_id} ({why or Why(Reason.RESIDENT)})"
    if passed:
        text += "; " + ", ".join(passed)
    state.note(
        Verb.VARIANT,
        text,
        job=job,
        model=model,
        family=job.submitted.target,
        reason=(why.reason if why else Reason.RESIDENT).value,
    )


def _choose(state: State, workload: Workload, queue: WaitQueue) -> None:
    place = (workload, queue.key)
    variants = [m for m in state.variants_of(queue.key) if _may_be_tried(state, m)]
    chosen: tuple[Model, Reason] | None
    if workload is Workload.INTERACTIVE:
        chosen = _best_obtainable(state, variants)
    else:
        chosen = _least_disturbing(state, variants)
    if chosen is None:
        fallback = state.variants_of(queue.key)
        if not fallback:
            state.variants.pop(place, None)
            return
        chosen = (fallback[0], Reason.BEST_OBTAINABLE)
    model, reason = chosen
    if state.variants.get(place) != model.model_id:
        state.mark(model.card_id)
    state.variants[place] = model.model_id
    state.variant_reasons[place] = Why(reason)


def _may_be_tried(state: State, model: Model) -> bool:
    if model.breaker.state(state.now_ns) is BreakerState.OPEN and not model.is_resident:
        return False
    ceiling = state.card_of(model).ceiling_bytes()
    return ceiling is None or model.need_bytes <= ceiling - admission.pinned_bytes(state, model)


def _best_obtainable(state: State, variants: list[Model]) -> tuple[Model, Reason] | None:
    for model in variants:
        if model.phase in (Phase.READY, Phase.LOADING):
            return model, Reason.RESIDENT
        free = state.card_of(model).free_bytes()
        if free is not None and model.need_bytes <= free:
            return model, Reason.FITS_FREE
        if _can_be_had(state, model):
            return model, Reason.BEST_OBTAINABLE
    return None


def _least_disturbing(state: State, variants: list[Model]) -> tuple[Model, Reason] | None:
    for model in variants:
        if model.phase is Phase.READY:
            keep = 1 if state.is_hot(model) else 0
            chatting = model.n_running_by_workload[Workload.INTERACTIVE] > 0
            if model.n_free_slots > keep and not chatting:
                return model, Reason.RESIDENT
            continue
        if model.phase is Phase.LOADING:
            return model, Reason.RESIDENT
        free = state.card_of(model).free_bytes()
        turn = state.card_of(model).turn
        if free is not None and model.need_bytes <= free and turn is None:
            return model, Reason.FITS_FREE
    costs = [
        (cost, index, model)
        for index, model in enumerate(variants)
        if model.phase is not Phase.READY and (cost := _cost_of_room(state, model)) is not None
    ]
    if costs:
        _, _, model = min(costs, key=lambda entry: entry[:2])
        return model, Reason.LEAST_EVICTION
    resident = [model for model in variants if model.phase is Phase.READY]
    return (resident[0], Reason.RESIDENT) if resident else None


def _can_be_had(state: State, model: Model) -> bool:
    """Can it be made resident for a person who waits, now or within a turn?"""
    verdict = admission.judge(state, model, Workload.INTERACTIVE, state.now_ns)
    return verdict.outcome is Outcome.ADMIT or verdict.bounded


def _cost_of_room(state: State, model: Model) -> float | None:
    """What background would have to evict for it; None if it may not."""
    verdict = admission.judge(state, model, Workload.BACKGROUND, state.now_ns)
    return verdict.cost if verdict.outcome is Outcome.ADMIT else None
