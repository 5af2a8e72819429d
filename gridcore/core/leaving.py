"""Models that leave: drained, evicted, unloaded, and the memory they give back.

A model with running steps is drained first; an entry of the ledger is closed when the card
shows the memory as free. Also those who leave without anybody asking for their room.
"""

from gridcore.config.schema import Workload
from gridcore.core import admission
from gridcore.core.card import Card
from gridcore.core.commands import CancelStep, SampleCard, UnloadModel
from gridcore.core.events import Pressure
from gridcore.core.model import RESIDENT, Model, Phase
from gridcore.core.notes import Verb
from gridcore.core.reasons import Reason, Why
from gridcore.core.state import State
from gridcore.ids import LoadId, ModelId
from gridcore.units import MB, NS_PER_S, format_duration, format_mb

RELEASE_TIMEOUT_NS = 10 * NS_PER_S
"""A card that does not show a dead runtime's memory as free after this long is not waited for."""
FOREIGN_OVER_BYTES = 256 * MB
FOREIGN_OVER_NS = 5 * NS_PER_S
PRESSURE_EVICT_EVERY_NS = 5 * NS_PER_S
PRESSURE_PAUSE_NS = 60 * NS_PER_S
RESTARTS_MAX = 2
"""How often a step may be taken back so that its model can leave."""


def undrain(state: State, card: Card, keep: tuple[str, ...]) -> None:
    for model in state.models_by_card[card.card_id]:
        if (
            model.phase is Phase.DRAINING
            and not model.drain_is_final
            and model.model_id not in keep
        ):
            model.move_to(Phase.READY, state.now_ns)
            model.unload_why = None
            state.mark(card.card_id)


def drain(state: State, model: Model, why: Why) -> None:
    if model.phase is Phase.READY:
        model.move_to(Phase.DRAINING, state.now_ns)
        model.unload_why = why
        state.note(
            Verb.DRAIN,
            f"{why} (running={model.n_running})",
            model=model,
            reason=why.reason.value,
        )


def take_steps_back(state: State, victim: Model, for_model: str) -> None:
    """Cancel the victim's lower-class steps that no client has seen a byte of."""
    if not state.policy.restart:
        return
    for lease_id in sorted(victim.leases):
        lease = state.leases[lease_id]
        job = state.jobs.get(lease.job_id)
        if (
            job is None
            or lease.workload is Workload.INTERACTIVE
            or lease.answer_begun
            or lease.cancelled
            or job.restarts >= RESTARTS_MAX
        ):
            continue
        lease.cancelled = True
        why = Why(Reason.STANDS_IN_THE_WAY, {"model": for_model})
        state.out.append(
            CancelStep(
                lease_id=lease_id,
                job_id=lease.job_id,
                gateway=lease.gateway,
                reason=why.reason.value,
            )
        )


def evict(state: State, model: Model, why: Why) -> None:
    """Unload a model to make room, and say what it cost."""
    state.count("evictions", model.model_id)
    state.note(
        Verb.EVICT,
        f"{why} (running={model.n_running})",
        model=model,
        facts=why.facts,
        reason=why.reason.value,
        running=model.n_running,
    )
    stop(state, model, why)


def stop(state: State, model: Model, why: Why) -> None:
    """Ask the supervisor to stop a runtime or a load in progress."""
    model.move_to(Phase.UNLOADING, state.now_ns)
    model.unload_why = why
    if state.supervisor_here:  # else it is asked when it re-states the runtime
        order_stop(state, model, why)
    state.mark(model.card_id)


def order_stop(state: State, model: Model, why: Why) -> None:
    assert model.load_id is not None
    state.out.append(
        UnloadModel(load_id=model.load_id, model_id=model.model_id, reason=why.reason.value)
    )


def unload_when_idle(state: State, model: Model, why: Why) -> None:
    """Let a model finish what runs and leave for good (admin, shutdown)."""
    if model.phase is Phase.LOADING:
        state.note(Verb.UNLOAD, str(why), model=model, reason=why.reason.value)
        stop(state, model, why)
        return
    drain(state, model, why)
    model.unload_why = why
    model.drain_is_final = True
    state.mark(model.card_id)


def finish_drains(state: State, card: Card) -> None:
    """Stop the models whose last step has ended and that leave for good."""
    if not state.supervisor_here:
        return
    for model in state.models_by_card[card.card_id]:
        if (
            model.phase is Phase.DRAINING
            and model.drain_is_final
            and not model.n_running
            and not model.n_cooling
        ):
            why = model.unload_why or Why(Reason.ADMIN)
            state.note(Verb.UNLOAD, str(why), model=model, reason=why.reason.value)
            stop(state, model, why)


def finish_releases(state: State, card: Card) -> None:
    """Close the entries of dead runtimes whose memory is back, or was waited for too long."""
    for model in state.models_by_card[card.card_id]:
        if model.phase is not Phase.RELEASING:
            continue
        deadline_ns = model.phase_since_ns + RELEASE_TIMEOUT_NS
        late = state.now_ns >= deadline_ns
        if not (_memory_is_back(state, card, model) or late):
            card.wake_at(deadline_ns)
            continue
        assert model.load_id is not None
        n_bytes = card.ledger.release(model.load_id)
        del state.model_by_load[model.load_id]
        why = model.unload_why
        text = "process ended" if why is None else f"{why}"
        if late:
            text += f"; {format_mb(n_bytes)} not seen free after 10 s, not waited for any longer"
        state.note(
            Verb.UNLOADED,
            text,
            model=model,
            reason=why.reason.value if why else None,
            freed_bytes=n_bytes,
        )
        state.count("unloads", model.model_id)
        model.unload_why = None
        model.become_cold(state.now_ns)
        state.mark(card.card_id)


def _memory_is_back(state: State, card: Card, model: Model) -> bool:
    if card.settings.frees_on_exit or not state.monitor_here or card.used_bytes is None:
        return True
    return model.memory_seen_back


def relieve(state: State, card: Card) -> None:
    """Unload what must go without anybody asking: idle, over budget, under pressure."""
    if not state.supervisor_here:
        return
    _unload_idle(state, card)
    _evict_over_budget(state, card)
    _evict_under_pressure(state, card)


def _unload_idle(state: State, card: Card) -> None:
    for model in state.models_by_card[card.card_id]:
        ttl_ns = model.settings.ttl_ns
        if ttl_ns is None or model.phase is not Phase.READY or model.settings.pinned:
            continue
        if model.n_running or model.n_cooling or state.is_wanted(model):
            continue
        idle_since_ns = max(model.loaded_ns, model.last_used_ns or 0)
        if state.now_ns >= idle_since_ns + ttl_ns:
            why = Why(Reason.IDLE, {"idle": format_duration(state.now_ns - idle_since_ns)})
            state.note(Verb.UNLOAD, str(why), model=model, reason=why.reason.value)
            stop(state, model, why)
        else:
            card.wake_at(idle_since_ns + ttl_ns)


def _evict_over_budget(state: State, card: Card) -> None:
    """Cold models go first: at once when our own models grew, later for other programs."""
    budget, ceiling = card.budget_bytes(), card.ceiling_bytes()
    if budget is None or ceiling is None:
        return
    staying = card.ledger.reserved_bytes - admission.leaving_bytes(state, card)
    grown, squeezed = staying - ceiling, staying - budget
    if grown <= 0 and squeezed <= FOREIGN_OVER_BYTES:
        card.over_since_ns = None
        return
    if grown <= 0:
        if card.over_since_ns is None:
            card.over_since_ns = state.now_ns
        due_ns = card.over_since_ns + FOREIGN_OVER_NS
        if state.now_ns < due_ns:
            card.wake_at(due_ns)
            return
    for model in _cold_idle(state, card):
        if max(grown, squeezed) <= 0:
            return
        assert model.load_id is not None
        freed = card.ledger.entry(model.load_id)
        grown, squeezed = grown - freed, squeezed - freed
        why = Why(Reason.FOREIGN_GREW, {"foreign": format_mb(card.foreign.value_bytes or 0)})
        if grown + freed > 0:
            why = Why(Reason.OVER_BUDGET, {"over": format_mb(grown + freed)})
        evict(state, model, why)


def _cold_idle(state: State, card: Card) -> list[Model]:
    """Models nobody would miss, cheapest first."""
    cold = [
        model
        for model in state.models_by_card[card.card_id]
        if model.phase in RESIDENT
        and not model.settings.pinned
        and not state.is_hot(model)
        and not model.n_running
        and not model.n_cooling
        and not state.has_queued(model, Workload.INTERACTIVE)
        and (model.served or not state.is_wanted(model))
    ]
    return sorted(cold, key=lambda m: (admission.evict_cost(state, m), m.model_id))


def _evict_under_pressure(state: State, card: Card) -> None:
    if card.pressure is not Pressure.CRITICAL:
        return
    last_ns = card.pressure_evicted_ns
    if last_ns is not None and state.now_ns < last_ns + PRESSURE_EVICT_EVERY_NS:
        card.wake_at(last_ns + PRESSURE_EVICT_EVERY_NS)
        return
    cold = _cold_idle(state, card)
    if cold:
        card.pressure_evicted_ns = state.now_ns
        card.no_lower_loads_until_ns = state.now_ns + PRESSURE_PAUSE_NS
        card.wake_at(state.now_ns + PRESSURE_EVICT_EVERY_NS)
        evict(state, cold[0], Why(Reason.PRESSURE_CRITICAL))


def ask_for_sample(state: State, card: Card) -> None:
    if state.monitor_here and not card.settings.frees_on_exit:
        state.out.append(SampleCard(card_id=card.card_id))


def stop_unknown(state: State, load_id: LoadId, model_id: ModelId) -> None:
    """Stop a runtime that this brain holds no reservation for."""
    why = Why(Reason.NOT_CONFIGURED)
    state.out.append(UnloadModel(load_id=load_id, model_id=model_id, reason=why.reason.value))
