"""When a waiting job starts, as far as that is known: from measured loads and steps.

An estimate is given only where everything that decides was measured; otherwise it is absent.
It assumes that nothing new arrives: a person's request may always come in between.
"""

from gridcore.config.schema import Workload
from gridcore.core.admission import UNLOAD_S
from gridcore.core.card import Card, Mode
from gridcore.core.dispatch import grant_due_ns
from gridcore.core.job import Job
from gridcore.core.model import Model, Phase
from gridcore.core.reasons import Reason
from gridcore.core.state import State
from gridcore.units import NS_PER_S

_SHARED = frozenset({Reason.INTERACTIVE_ACTIVE, Reason.SHARE_USED})
_LOAD_WAITS = frozenset({Reason.LOADING, Reason.MAKING_ROOM, Reason.RELEASING})


def forecast_ns(state: State, job: Job, n_ahead: int) -> int | None:
    """From now until the job's next step starts; None if something unmeasured decides it."""
    if job.queue_key is None:
        return None
    model = state.model_for(job.workload, job.queue_key)
    why = state.why_waiting(job)
    if model is None or why is None:
        return None
    card = state.card_of(model)
    if model.phase is Phase.READY:
        if why.reason in _SHARED:
            return _share_ns(state, card, model, n_ahead)
        return _slot_ns(state, model, n_ahead) if why.reason is Reason.SLOTS_BUSY else None
    if why.reason in _LOAD_WAITS:
        ready_ns = _load_left_ns(state, card, model)
    elif why.reason is Reason.LOAD_SLOT_TAKEN and card.turn is not None:
        other_ns = _load_left_ns(state, card, state.models[card.turn.model_id])
        known = other_ns is not None and model.load_ns is not None
        ready_ns = (other_ns or 0) + (model.load_ns or 0) if known else None
    else:
        return None
    if ready_ns is None or job.workload is not Workload.INTERACTIVE:
        return ready_ns if n_ahead == 0 and card.mode is not Mode.INTERACTIVE else None
    rounds = n_ahead // model.settings.slots
    if not rounds:
        return ready_ns
    return None if model.step_ns is None else ready_ns + rounds * model.step_ns


def _load_left_ns(state: State, card: Card, model: Model) -> int | None:
    """What is left of making room and loading."""
    if model.load_ns is None:
        return None
    if model.phase is Phase.LOADING:
        return max(model.load_ns - (state.now_ns - model.phase_since_ns), 0)
    turn = card.turn
    if turn is None or turn.model_id != model.model_id:
        return None
    drains_ns = [_longest_step_left_ns(state, state.models[v]) for v in turn.victims]
    if None in drains_ns:
        return None
    return (
        max((d for d in drains_ns if d is not None), default=0)
        + model.load_ns
        + round(UNLOAD_S * NS_PER_S)
    )


def _steps_left_ns(state: State, model: Model) -> list[int] | None:
    """What is left of each running step, soonest first; a step past its expectation ends now."""
    if not model.leases:
        return []
    if model.step_ns is None:
        return None
    return sorted(
        max(model.step_ns - (state.now_ns - state.leases[lease_id].started_ns), 0)
        for lease_id in model.leases
    )


def _longest_step_left_ns(state: State, model: Model) -> int | None:
    left_ns = _steps_left_ns(state, model)
    return None if left_ns is None else max(left_ns, default=0)


def _slot_ns(state: State, model: Model, n_ahead: int) -> int | None:
    """The n-th slot to come free, counting the jobs that take one before."""
    left_ns = _steps_left_ns(state, model)
    if not left_ns or model.step_ns is None:
        return None
    rounds, place = divmod(n_ahead, len(left_ns))
    return left_ns[place] + rounds * model.step_ns


def _share_ns(state: State, card: Card, model: Model, n_ahead: int) -> int | None:
    """In mode interactive: the end of the quiet period, or the next step on its share."""
    if n_ahead:
        return None
    instants = []
    if not card.interactive_active and card.interactive_until_ns is not None:
        instants.append(card.interactive_until_ns)
    due_ns = grant_due_ns(state, card)
    if due_ns is not None and card.grant is None and model.n_free_slots:
        instants.append(due_ns)
    return max(min(instants) - state.now_ns, 0) if instants else None
