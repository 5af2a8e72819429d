"""Which model is loaded next on a card, who leaves for it, and who leaves by itself.

One turn at a time per card: drain, evict, wait for the memory, load. The strongest class goes
first, within it the oldest waiting job. While an interactive job is making room or waits for
the load slot, no lower class starts a load.
"""

from msgspec import Struct

from gridcore.config.schema import Workload
from gridcore.core import admission, leaving
from gridcore.core.admission import LOAD_BUMPS_MAX, Outcome, Verdict
from gridcore.core.card import Card, Mode, Turn
from gridcore.core.commands import LoadModel
from gridcore.core.dispatch import background_is_runnable, wake_for_batch
from gridcore.core.events import Pressure
from gridcore.core.model import Model, Phase
from gridcore.core.notes import Verb
from gridcore.core.policy.breaker import BreakerState
from gridcore.core.policy.residency import RANK
from gridcore.core.queues import WaitQueue
from gridcore.core.reasons import Fact, Reason, Why
from gridcore.core.state import LOWER, State
from gridcore.units import NS_PER_S, format_duration, format_mb

THRASH_LOADS = 6
THRASH_WINDOW_NS = 300 * NS_PER_S


class Want(Struct, frozen=True):
    """A model that should be resident, and for whom; workload None is a preload."""

    model: Model
    workload: Workload | None
    arrived_ns: int

    @property
    def rank(self) -> int:
        return len(RANK) if self.workload is None else RANK[self.workload]


def plan_turn(state: State, card: Card) -> None:
    """Start, change, advance or end the card's turn."""
    wants = _wants(state, card)
    _refresh_turn(state, card, wants)
    if state.draining:
        _refuse_all(state, wants)
        return
    if not state.supervisor_here:
        for want in wants:
            _defer(state, want, Why(Reason.SUPERVISOR_AWAY))
        return
    if card.turn is not None and wants:
        _preempt(state, card, card.turn, wants[0])
    _choose_turn(state, card, wants)
    if card.turn is not None:
        _advance(state, card, card.turn)
    if card.turn is not None:
        _wait_for_own_turn(state, card, card.turn)


def _refuse_all(state: State, wants: list[Want]) -> None:
    """Nothing is loaded any more at shutdown: what would need it has come to its end."""
    for want in wants:
        for _, queue in _queues(state, want):
            for job in list(queue):
                state.refuse(job, Why(Reason.SHUTTING_DOWN))


def _choose_turn(state: State, card: Card, wants: list[Want]) -> None:
    """Give the turn to the first want that may have it; say why the others wait."""
    interactive_waits: Model | None = None
    for want in wants:
        if card.turn is not None:
            if want.model.model_id != card.turn.model_id:
                _wait_for_others_turn(state, card.turn, want)
            continue
        interactive = want.workload is Workload.INTERACTIVE
        waits = interactive and want.model.phase is not Phase.COLD
        if _may_ask(state, card, want, interactive_waits):
            verdict = admission.judge(state, want.model, want.workload, want.arrived_ns)
            if verdict.outcome is Outcome.ADMIT:
                card.turn = Turn(want.model.model_id, want.workload, want.arrived_ns)
                card.turn.victims = verdict.victims
            else:
                _turn_away(state, card, want, verdict)
            waits = interactive and verdict.bounded
        if waits and interactive_waits is None:
            interactive_waits = want.model


def _wants(state: State, card: Card) -> list[Want]:
    """Models that are not there and should be, strongest first, then by the oldest job."""
    asked: dict[str, Model] = {}
    for workload in Workload:
        for model in state.waiting_models(card, workload):
            asked[model.model_id] = model
    for model_id in state.wishes:
        asked[model_id] = state.models[model_id]
    for model in state.pinned_by_card[card.card_id]:
        asked[model.model_id] = model
    wants: list[Want] = []
    for model in asked.values():
        if model.card_id != card.card_id:
            continue
        if model.phase is Phase.READY:
            state.wishes.pop(model.model_id, None)
            continue
        found = _strongest_waiting(state, model)
        wished_ns = state.wishes.get(model.model_id)
        if wished_ns is not None:
            arrived = found[1] if found and found[0] is Workload.INTERACTIVE else wished_ns
            wants.append(Want(model, Workload.INTERACTIVE, min(arrived, wished_ns)))
        elif found is not None:
            wants.append(Want(model, *found))
        elif not model.held_out:
            wants.append(Want(model, None, 0))
    return sorted(wants, key=lambda want: (want.rank, want.arrived_ns, want.model.model_id))


def _strongest_waiting(state: State, model: Model) -> tuple[Workload, int] | None:
    for workload in Workload:
        oldest = [queue.oldest() for queue in state.sources(model, workload)]
        arrivals = [job.arrived_ns for job in oldest if job is not None]
        if arrivals:
            return workload, min(arrivals)
    return None


def _queues(state: State, want: Want) -> list[tuple[Workload, WaitQueue]]:
    return [(w, queue) for w in Workload for queue in state.sources(want.model, w)]


def _defer(
    state: State, want: Want, why: Why, *, unbounded: bool = False, until_ns: int | None = None
) -> None:
    for workload, queue in _queues(state, want):
        state.set_wait(workload, queue, why, unbounded=unbounded)
    state.card_of(want.model).wake_at(until_ns)


# --- the turn in progress ------------------------------------------------------------------


def _refresh_turn(state: State, card: Card, wants: list[Want]) -> None:
    """Let the turn follow the jobs that wait for it; end it with the last of them."""
    turn = card.turn
    if turn is None:
        return
    model = state.models[turn.model_id]
    if turn.loading and model.phase is not Phase.LOADING:
        card.turn = None
        return
    if not turn.loading and model.phase is not Phase.COLD:
        end_turn(state, card)  # the supervisor has told of one that is there already
        return
    for want in wants:
        if want.model is model:
            turn.workload, turn.arrived_ns = want.workload, want.arrived_ns
            return
    turn.workload = None
    if not turn.loading:
        end_turn(state, card)


def end_turn(state: State, card: Card) -> None:
    """Give the turn up and undo its drains."""
    turn = card.turn
    card.turn = None
    if turn is not None:
        leaving.undrain(state, card, keep=())


def _preempt(state: State, card: Card, turn: Turn, best: Want) -> None:
    """A higher class takes the turn over, or takes a load back that stands in its way."""
    turn_rank = len(RANK) if turn.workload is None else RANK[turn.workload]
    if best.model.model_id == turn.model_id or best.rank >= turn_rank:
        return
    if best.workload is not Workload.INTERACTIVE and turn.loading:
        return
    loading = state.models[turn.model_id]
    if not turn.loading:
        end_turn(state, card)
        return
    if loading.load_bumps >= LOAD_BUMPS_MAX or best.model.phase is not Phase.COLD:
        return
    if best.model.breaker.state(state.now_ns) is BreakerState.OPEN:
        return
    verdict = admission.judge(state, best.model, best.workload, best.arrived_ns, without=loading)
    if verdict.outcome is not Outcome.ADMIT:
        return
    loading.load_bumps += 1
    card.turn = None
    leaving.stop(state, loading, Why(Reason.LOAD_PREEMPTED, {"model": best.model.model_id}))


def _wait_for_others_turn(state: State, turn: Turn, want: Want) -> None:
    lower = want.workload is not Workload.INTERACTIVE
    first = lower and turn.workload is Workload.INTERACTIVE
    reason = Reason.INTERACTIVE_LOADS_FIRST if first else Reason.LOAD_SLOT_TAKEN
    _defer(state, want, Why(reason, {"model": want.model.model_id, "other": turn.model_id}))


def _wait_for_own_turn(state: State, card: Card, turn: Turn) -> None:
    want = Want(state.models[turn.model_id], turn.workload, turn.arrived_ns)
    facts: dict[str, Fact] = {"model": turn.model_id, "victims": ", ".join(turn.victims)}
    if turn.loading:
        _defer(state, want, Why(Reason.LOADING, facts))
    elif turn.victims:
        _defer(state, want, Why(Reason.MAKING_ROOM, facts))
    else:
        gone = [
            other.model_id
            for other in state.models_by_card[card.card_id]
            if other.phase in (Phase.UNLOADING, Phase.RELEASING)
        ]
        _defer(state, want, Why(Reason.RELEASING, {"other": ", ".join(gone)}))


def _may_ask(state: State, card: Card, want: Want, interactive_waits: Model | None) -> bool:
    """May this want ask for a load at all? Leaves its reason if not."""
    model, now_ns = want.model, state.now_ns
    if model.phase is not Phase.COLD:
        reason = {
            Phase.RELEASING: Reason.RELEASING,
            Phase.DRAINING: Reason.DRAINING,
            Phase.LOADING: Reason.LOADING,
        }.get(model.phase, Reason.UNLOADING)
        facts: dict[str, Fact] = {"model": model.model_id, "other": model.model_id}
        _defer(state, want, Why(reason, facts))
        return False
    breaker = model.breaker.state(now_ns)
    if breaker is BreakerState.OPEN:
        _refuse_broken(state, card, want)
        return False
    if want.workload is Workload.INTERACTIVE:
        return True
    if interactive_waits is not None:
        _defer(
            state, want, Why(Reason.INTERACTIVE_LOADS_FIRST, {"other": interactive_waits.model_id})
        )
        return False
    if card.pressure in (Pressure.WARN, Pressure.CRITICAL) or (
        card.no_lower_loads_until_ns is not None and now_ns < card.no_lower_loads_until_ns
    ):
        why = Why(Reason.MEMORY_PRESSURE, {"pressure": card.pressure.value})
        until_ns = card.no_lower_loads_until_ns
        if until_ns is not None and until_ns <= now_ns:
            until_ns = None  # the pause is over, the pressure is not
        _defer(state, want, why, until_ns=until_ns)
        return False
    if want.workload is None:
        return True
    return _lower_may_load(state, card, want)


def _lower_may_load(state: State, card: Card, want: Want) -> bool:
    """Background and batch load while nobody waits, or once they have starved."""
    starved_ns = [q.starved_since_ns for w, q in _queues(state, want) if w in LOWER]
    bound_ns = state.policy.background_max_starvation_ns
    if card.mode is Mode.INTERACTIVE:
        due_ns = min(starved_ns) + bound_ns if bound_ns and starved_ns else None
        if due_ns is None or state.now_ns < due_ns:
            when = "when it is idle" if due_ns is None else state.next_in(due_ns)
            _defer(state, want, Why(Reason.INTERACTIVE_ACTIVE, {"next_in": when}), until_ns=due_ns)
            return False
    if (
        want.workload is Workload.BATCH
        and not state.batch_is_starved(card)
        and background_is_runnable(state, card)
    ):
        _defer(state, want, Why(Reason.BEHIND_BACKGROUND))
        wake_for_batch(state, card)
        return False
    return True


def _turn_away(state: State, card: Card, want: Want, verdict: Verdict) -> None:
    if verdict.outcome is Outcome.DEFER:
        _defer(
            state,
            want,
            verdict.why,
            unbounded=not verdict.bounded,
            until_ns=verdict.until_ns,
        )
        return
    state.wishes.pop(want.model.model_id, None)
    for _, queue in _queues(state, want):
        for job in list(queue):
            state.refuse(job, verdict.why)
    if want.workload is None and not want.model.held_out:
        want.model.held_out = True
        state.note(Verb.DEFER, str(verdict.why), model=want.model, reason=verdict.why.reason.value)


def _refuse_broken(state: State, card: Card, want: Want) -> None:
    breaker = want.model.breaker
    until_ns = breaker.open_until_ns or state.now_ns
    card.wake_at(until_ns)
    state.wishes.pop(want.model.model_id, None)
    why = Why(
        Reason.BREAKER_OPEN,
        {
            "model": want.model.model_id,
            "failures": breaker.n_failures,
            "detail": breaker.detail,
            "next_in": state.next_in(until_ns),
        },
    )
    for _, queue in _queues(state, want):
        for job in list(queue):
            state.refuse(job, why, retry_after_ns=until_ns - state.now_ns)


def _advance(state: State, card: Card, turn: Turn) -> None:
    """Take the next step of the turn: evict, wait for the memory, load."""
    if turn.loading:
        return
    model = state.models[turn.model_id]
    free = card.free_bytes()
    if free is not None and model.need_bytes <= free:
        leaving.undrain(state, card, keep=())
        _load(state, card, turn, model)
        return
    verdict = admission.judge(state, model, turn.workload, turn.arrived_ns)
    if verdict.outcome is not Outcome.ADMIT:
        # The facts changed under the turn (another program took memory): wait, with a reason.
        want = Want(model, turn.workload, turn.arrived_ns)
        end_turn(state, card)
        _turn_away(state, card, want, verdict)
        return
    turn.victims = verdict.victims
    leaving.undrain(state, card, keep=verdict.victims)
    for model_id in verdict.victims:
        victim = state.models[model_id]
        cost = round(admission.evict_cost(state, victim), 1)
        why = Why(Reason.MAKE_ROOM, {"model": turn.model_id, "cost": cost})
        if victim.n_running or victim.n_cooling:
            leaving.drain(state, victim, why)
            if turn.workload is Workload.INTERACTIVE:
                leaving.take_steps_back(state, victim, turn.model_id)
        else:
            leaving.evict(state, victim, why)


def _load(state: State, card: Card, turn: Turn, model: Model) -> None:
    load_id = state.next_load_id()
    need = model.need_bytes
    card.ledger.reserve(load_id, need)
    model.start_load(load_id, turn.workload, state.now_ns)
    state.model_by_load[load_id] = model
    turn.loading = True
    turn.victims = ()
    why = (
        Why(Reason.PRELOAD)
        if turn.workload is None
        else Why(Reason.WANTED, {"workload": turn.workload.value})
    )
    state.count("loads", model.model_id)
    state.out.append(
        LoadModel(
            load_id=load_id,
            model_id=model.model_id,
            reserved_bytes=need,
            reason=why.reason.value,
        )
    )
    state.note(
        Verb.LOAD,
        f"reserve {format_mb(need)}, {why}",
        model=model,
        workload=turn.workload,
        load_id=load_id,
        reserved_bytes=need,
        reason=why.reason.value,
    )
    _note_thrash(state, card, model)


def _note_thrash(state: State, card: Card, model: Model) -> None:
    since_ns = state.now_ns - THRASH_WINDOW_NS
    n_loads = sum(at_ns > since_ns for at_ns in model.loads)
    noted_ns = model.thrash_noted_ns
    if n_loads < THRASH_LOADS or (noted_ns is not None and noted_ns > since_ns):
        return
    model.thrash_noted_ns = state.now_ns
    rivals = [
        other
        for other in state.models_by_card[card.card_id]
        if other is not model and sum(at_ns > since_ns for at_ns in other.loads) > 1
    ]
    rival = max(rivals, key=lambda other: (len(other.loads), other.model_id), default=None)
    state.count("thrash", model.model_id)
    missing = ""
    names: str = model.model_id
    if rival is not None:
        names = f"{model.model_id} and {rival.model_id}"
        both = model.need_bytes + rival.need_bytes + admission.pinned_bytes(state, model)
        short = both - (card.budget_bytes() or 0)
        missing = f", {format_mb(max(short, 0))} are missing for both"
    state.note(
        Verb.THRASH,
        f"loaded {n_loads} times in {format_duration(THRASH_WINDOW_NS)}: {names} push each other "
        f"out{missing}; lower ctx or parallel, raise policy.min_residency or gpu.vram_limit_mb",
        model=model,
        loads=n_loads,
        rival=rival.model_id if rival else None,
    )
