"""Facts about runtimes: loaded, failed, exited, measured, re-stated by the supervisor."""

from gridcore.core import leaving, turns
from gridcore.core.card import Turn
from gridcore.core.events import (
    FailureCause,
    FootprintMeasured,
    KnownRuntime,
    LoadFailed,
    RuntimeExited,
    RuntimeLoaded,
    SupervisorRestated,
)
from gridcore.core.facts.gateways import seat
from gridcore.core.model import Model, Phase
from gridcore.core.notes import Verb
from gridcore.core.reasons import Reason, Why
from gridcore.core.state import State
from gridcore.units import format_duration, format_mb


def runtime_loaded(state: State, event: RuntimeLoaded) -> None:
    model = state.model_by_load.get(event.load_id)
    if model is None or model.phase is not Phase.LOADING:
        state.drop(event)
        return
    model.become_ready(
        pid=event.pid,
        address=event.address,
        slots=min(event.slots, model.settings.slots),
        now_ns=state.now_ns,
    )
    state.wishes.pop(model.model_id, None)
    model.load_ns = event.took_ns
    model.out_of_memory_at_bytes = None
    state.count("load_ns", model.model_id, event.took_ns)
    measured = ""
    if event.footprint_bytes is not None:
        state.settle_footprint(model, event.footprint_bytes)
        measured = f", {format_mb(event.footprint_bytes)} measured"
    state.note(
        Verb.LOADED,
        f"{format_duration(event.took_ns)} pid={event.pid}{measured}",
        model=model,
        load_id=event.load_id,
        pid=event.pid,
        took_ms=event.took_ns // 1_000_000,
        footprint_bytes=event.footprint_bytes,
    )
    state.mark(model.card_id)


def load_failed(state: State, event: LoadFailed) -> None:
    model = state.model_by_load.get(event.load_id)
    if model is None or model.phase not in (Phase.LOADING, Phase.UNLOADING):
        state.drop(event)
        return
    asked = model.phase is Phase.UNLOADING
    turns_card = state.card_of(model)
    if event.cause is FailureCause.OUT_OF_MEMORY:
        _learn_out_of_memory(state, model, event.card_free_bytes)
    _process_gone(state, model)
    if asked:
        return
    detail = event.detail or event.cause.value
    model.unload_why = Why(Reason.LOAD_FAILED, {"model": model.model_id, "detail": detail})
    state.count("load_failures", model.model_id)
    state.note(
        Verb.FAIL,
        f"load of {model.model_id} failed ({event.cause}): {detail}",
        model=model,
        cause=event.cause.value,
        detail=detail,
    )
    _count_failure(state, model, detail)
    if turns_card.turn is not None and turns_card.turn.model_id == model.model_id:
        turns.end_turn(state, turns_card)
    if event.cause is not FailureCause.OUT_OF_MEMORY:
        _refuse_waiting(state, model, model.unload_why)


def _learn_out_of_memory(state: State, model: Model, card_free_bytes: int | None) -> None:
    """Drop the measurement and remember the free memory at which it failed."""
    model.measured_bytes = None
    free = card_free_bytes
    if free is None:
        card = state.card_of(model)
        assert model.load_id is not None
        free = (card.free_bytes() or 0) + card.ledger.entry(model.load_id)
    model.out_of_memory_at_bytes = max(free, model.need_bytes)


def _count_failure(state: State, model: Model, detail: str) -> None:
    if model.breaker.failed(detail, state.now_ns):
        until_ns = model.breaker.open_until_ns or state.now_ns
        state.note(
            Verb.BREAKER,
            f"open after {model.breaker.n_failures} failures, next try in "
            f"{state.next_in(until_ns)}: {detail}",
            model=model,
            failures=model.breaker.n_failures,
            state="open",
        )


def _refuse_waiting(state: State, model: Model, why: Why) -> None:
    """A load that cannot work answers those who waited for it; families try another variant."""
    for class_queue in state.queues.values():
        for queue in class_queue.queues():
            if queue.key.target == model.model_id:
                for job in list(queue):
                    state.refuse(job, why)
    state.wishes.pop(model.model_id, None)


def runtime_exited(state: State, event: RuntimeExited) -> None:
    model = state.model_by_load.get(event.load_id)
    if model is None or model.phase in (Phase.COLD, Phase.RELEASING):
        state.drop(event)
        return
    asked = model.phase is Phase.UNLOADING or event.cause is None
    if model.phase is Phase.LOADING and not asked:
        cause = event.cause or FailureCause.CRASHED
        load_failed(state, LoadFailed(load_id=event.load_id, cause=cause, detail=event.detail))
        return
    _process_gone(state, model)
    if asked:
        return
    if event.cause is FailureCause.OUT_OF_MEMORY:
        model.measured_bytes = None
    detail = event.detail or (event.cause.value if event.cause else "ended")
    model.unload_why = Why(Reason.LOAD_FAILED, {"model": model.model_id, "detail": detail})
    state.note(
        Verb.FAIL,
        f"runtime of {model.model_id} died ({event.cause}): {detail}",
        model=model,
        cause=event.cause.value if event.cause else None,
        detail=detail,
    )
    _count_failure(state, model, detail)


def _process_gone(state: State, model: Model) -> None:
    model.lose_process(state.now_ns)
    card = state.card_of(model)
    state.mark(card.card_id)
    leaving.ask_for_sample(state, card)


def footprint_measured(state: State, event: FootprintMeasured) -> None:
    model = state.model_by_load.get(event.load_id)
    if model is None or not model.is_resident:
        state.drop(event)
        return
    state.settle_footprint(model, max(event.footprint_bytes, model.measured_bytes or 0))


def supervisor_restated(state: State, event: SupervisorRestated) -> None:
    """All runtimes there are; what is not among them does not exist any more."""
    state.supervisor_here = True
    for profile in event.profiles:
        model = state.models.get(profile.model_id)
        if model is None:
            continue
        if model.measured_bytes is None:
            model.measured_bytes = profile.footprint_bytes
        if model.load_ns is None:
            model.load_ns = profile.load_ns
        if model.out_of_memory_at_bytes is None:
            model.out_of_memory_at_bytes = profile.out_of_memory_at_bytes
    stated = {runtime.load_id for runtime in event.runtimes}
    for load_id, model in list(state.model_by_load.items()):
        if load_id not in stated and model.phase is not Phase.RELEASING:
            _process_gone(state, model)
    for runtime in event.runtimes:
        known = state.model_by_load.get(runtime.load_id)
        if known is None:
            _adopt_runtime(state, runtime)
        else:
            _catch_up(state, known, runtime)
    state.mark_all()


def _catch_up(state: State, model: Model, runtime: KnownRuntime) -> None:
    """What was on its way when the link broke: a report that got lost, or an order."""
    if model.phase is Phase.LOADING and runtime.ready:
        _become_ready(state, model, runtime)
    elif model.phase is Phase.LOADING and runtime.stopping:
        model.move_to(Phase.UNLOADING, state.now_ns)
    elif model.is_resident and runtime.footprint_bytes is not None:
        grown_bytes = max(runtime.footprint_bytes, model.measured_bytes or 0)
        state.settle_footprint(model, grown_bytes)
    elif model.phase is Phase.UNLOADING and not runtime.stopping:
        leaving.order_stop(state, model, model.unload_why or Why(Reason.NOT_CONFIGURED))


def _become_ready(state: State, model: Model, runtime: KnownRuntime) -> None:
    model.become_ready(
        pid=runtime.pid,
        address=runtime.address,
        slots=min(runtime.slots, model.settings.slots),
        now_ns=state.now_ns,
    )
    model.out_of_memory_at_bytes = None
    if runtime.footprint_bytes is not None:
        state.settle_footprint(model, runtime.footprint_bytes)


def _adopt_runtime(state: State, runtime: KnownRuntime) -> None:
    model = state.models.get(runtime.model_id)
    if model is None or model.phase is not Phase.COLD:
        _drop_runtime(state, runtime)
        return
    card = state.card_of(model)
    bytes_held = runtime.footprint_bytes
    if bytes_held is None:
        bytes_held = runtime.reserved_bytes or model.need_bytes
    else:
        model.measured_bytes = bytes_held
    card.ledger.reserve(runtime.load_id, bytes_held)
    state.model_by_load[runtime.load_id] = model
    if runtime.stopping:
        model.load_id = runtime.load_id
        model.move_to(Phase.UNLOADING, state.now_ns)
        return
    model.start_load(runtime.load_id, None, state.now_ns)
    if not runtime.ready:
        if card.turn is not None and card.turn.loading:
            # One load at a time, whatever was ordered before this epoch.
            leaving.stop(state, model, Why(Reason.LOAD_PREEMPTED, {"model": card.turn.model_id}))
            return
        if card.turn is not None:
            turns.end_turn(state, card)
        card.turn = Turn(model.model_id, None, state.now_ns)
        card.turn.loading = True
        return
    _become_ready(state, model, runtime)
    for slot in model.slots:
        slot.cooling = True  # work of a gateway not heard yet may run on it
    model.served = True
    model.last_used_ns = state.now_ns - runtime.idle_ns
    for lease in state.leases.values():
        if lease.load_id == runtime.load_id and lease.lease_id not in model.leases:
            job = state.jobs.get(lease.job_id)
            if job is not None:
                seat(model, lease, job)


def _drop_runtime(state: State, runtime: KnownRuntime) -> None:
    """A runtime this configuration does not know, or a second one of a model: stop it."""
    leaving.stop_unknown(state, runtime.load_id, runtime.model_id)
