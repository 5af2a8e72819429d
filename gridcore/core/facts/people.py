"""What people ask for: admin requests, and the end of the daemon."""

from gridcore.core import leaving, turns
from gridcore.core.commands import AnswerAdmin
from gridcore.core.events import (
    AdminAsked,
    AdminVerb,
)
from gridcore.core.model import Model, Phase
from gridcore.core.notes import Verb
from gridcore.core.queues import ClassQueue
from gridcore.core.reasons import Reason, Why
from gridcore.core.state import State
from gridcore.ids import ModelId


def admin_asked(state: State, event: AdminAsked) -> None:
    model = state.models.get(ModelId(event.target))
    if model is None:
        _answer(state, event, 404, f"no model is named {event.target}")
        return
    match event.verb:
        case AdminVerb.LOAD:
            _admin_load(state, event, model)
        case AdminVerb.UNLOAD:
            _admin_unload(state, event, model)
        case AdminVerb.ENABLE:
            model.breaker.close()
            model.out_of_memory_at_bytes = None
            model.held_out = False
            state.note(Verb.BREAKER, "closed by admin", model=model, state="closed")
            _answer(state, event, 200, f"{model.model_id} is enabled")
    state.mark(model.card_id)


def _admin_load(state: State, event: AdminAsked, model: Model) -> None:
    if model.phase is Phase.READY:
        _answer(state, event, 200, f"{model.model_id} is loaded")
        return
    if state.draining:
        _answer(state, event, 503, "the daemon is shutting down")
        return
    if model.phase is Phase.DRAINING and model.drain_is_final:
        model.drain_is_final = False
        model.move_to(Phase.READY, state.now_ns)
        _answer(state, event, 200, f"{model.model_id} is loaded")
        return
    model.held_out = False
    state.wishes[model.model_id] = state.now_ns
    _answer(state, event, 202, f"{model.model_id} will be loaded")


def _admin_unload(state: State, event: AdminAsked, model: Model) -> None:
    state.wishes.pop(model.model_id, None)
    model.held_out = True
    if model.phase is Phase.COLD:
        _answer(state, event, 200, f"{model.model_id} is not loaded")
        return
    if model.phase in (Phase.LOADING, Phase.READY, Phase.DRAINING):
        leaving.unload_when_idle(state, model, Why(Reason.ADMIN))
    _answer(state, event, 202, f"{model.model_id} will be unloaded when it is idle")


def _answer(state: State, event: AdminAsked, status: int, message: str) -> None:
    state.out.append(
        AnswerAdmin(request_id=event.request_id, peer=event.peer, status=status, message=message)
    )


def drain_begun(state: State) -> None:
    """Refuse what has not started; what runs goes on."""
    state.draining = True
    queued: list[ClassQueue] = list(state.queues.values())
    for class_queue in queued:
        for job in list(class_queue.jobs()):
            if not job.running and not job.steps_done:
                state.refuse(job, Why(Reason.SHUTTING_DOWN))
    for card in state.cards.values():
        if card.turn is not None and not card.turn.loading:
            turns.end_turn(state, card)
    state.mark_all()
