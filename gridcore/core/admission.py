"""May this model be loaded now, and who must leave for it? One verdict, with its reason.

The whole plan is judged before anything is evicted: a load that cannot be made to fit evicts
nothing. "Never fits" is judged without other programs' memory; waiting for that is a wait.
"""

from enum import StrEnum

from msgspec import Struct

from gridcore.config.schema import EvictionPolicy, Workload
from gridcore.core.card import Card
from gridcore.core.model import RESIDENT, Model, Phase
from gridcore.core.policy.eviction import Candidate, choose_victims, lru_victims
from gridcore.core.policy.residency import Hold, Holder, Requester, hold
from gridcore.core.reasons import Fact, Reason, Why
from gridcore.core.state import State
from gridcore.ids import ModelId
from gridcore.units import format_mb

UNLOAD_S = 0.2
"""Expected length of an unload: llama-server without work exits in 0.03 to 0.2 s."""
LOAD_BUMPS_MAX = 2
"""How often a lower-class load may be taken back before it is left to finish."""


class Outcome(StrEnum):
    ADMIT = "admit"
    DEFER = "defer"
    REFUSE = "refuse"


class Verdict(Struct, frozen=True, kw_only=True):
    """
    Args:
        victims: who must leave first, cheapest set (ADMIT); empty if it fits as it is.
        bounded: the wait ends by itself within a bound (DEFER).
        until_ns: when to ask again, if time alone may change the answer.
    """

    outcome: Outcome
    why: Why
    victims: tuple[ModelId, ...] = ()
    cost: float = 0.0
    bounded: bool = False
    until_ns: int | None = None


def pinned_bytes(state: State, model: Model) -> int:
    """What pinned neighbours hold for good, or will when they are loaded."""
    ledger = state.card_of(model).ledger
    return sum(
        other.need_bytes if other.load_id is None else ledger.entry(other.load_id)
        for other in state.models_by_card[model.card_id]
        if other is not model and other.settings.pinned and not other.held_out
    )


def evict_cost(state: State, model: Model) -> float:
    """Seconds of reload weighed by recent demand, plus the unload itself."""
    reload_s = model.load_ns_expected / 1e9
    return reload_s * model.demand.value(state.now_ns) + UNLOAD_S


def leaving_bytes(state: State, card: Card) -> int:
    """Memory that is on its way back: processes being stopped or gone."""
    return sum(
        card.ledger.entry(model.load_id)
        for model in state.models_by_card[card.card_id]
        if model.phase in (Phase.UNLOADING, Phase.RELEASING) and model.load_id is not None
    )


def judge(
    state: State,
    model: Model,
    workload: Workload | None,
    arrived_ns: int,
    *,
    without: Model | None = None,
) -> Verdict:
    """Decide about a load for a class (None: a preload, which evicts nothing).

    Args:
        without: judge as if this model's load in progress were taken back.
    """
    card = state.card_of(model)
    budget, ceiling = card.budget_bytes(), card.ceiling_bytes()
    if budget is None or ceiling is None:
        return Verdict(
            outcome=Outcome.DEFER,
            why=Why(Reason.CARD_UNKNOWN, {"card": card.card_id}),
            bounded=True,
        )
    need = model.need_bytes
    ceiling -= pinned_bytes(state, model)
    if need > ceiling:
        return Verdict(outcome=Outcome.REFUSE, why=_never_fits(state, model, ceiling))
    reserved = card.ledger.reserved_bytes
    if without is not None and without.load_id is not None:
        reserved -= card.ledger.entry(without.load_id)
    free = budget - reserved + leaving_bytes(state, card)
    if need <= free:
        return Verdict(outcome=Outcome.ADMIT, why=Why(Reason.FITS_FREE))
    return _with_room_made(state, model, workload, arrived_ns, free)


def _with_room_made(
    state: State,
    model: Model,
    workload: Workload | None,
    arrived_ns: int,
    free: int,
) -> Verdict:
    """Find the cheapest set that may leave for the request."""
    card = state.card_of(model)
    candidates, kept = evictable(state, card, model, workload, arrived_ns)
    victims = choose(state, candidates, model.need_bytes - free)
    if victims:
        return Verdict(
            outcome=Outcome.ADMIT,
            why=Why(Reason.MAKING_ROOM, _room_facts(model, [v.model_id for v in victims])),
            victims=tuple(victim.model_id for victim in victims),
            cost=sum(victim.cost for victim in victims),
        )
    return _held(card, model, free + sum(c.freed_bytes for c in candidates), kept)


def _room_facts(model: Model, victims: list[ModelId]) -> dict[str, Fact]:
    return {"model": model.model_id, "victims": ", ".join(victims)}


def _held(card: Card, model: Model, obtainable: int, kept: list[tuple[Model, Hold]]) -> Verdict:
    """Say who holds the memory, and whether that ends by itself."""
    need = model.need_bytes
    foreign = card.foreign.value_bytes or 0
    over = card.ledger.reserved_bytes - (card.budget_bytes() or 0)
    facts: dict[str, Fact] = {
        "model": model.model_id,
        "need": format_mb(need),
        "free": format_mb(max(obtainable, 0)),
        "kept": ", ".join(f"{m.model_id} ({h.kind})" for m, h in kept) or "nothing",
        "foreign": format_mb(foreign),
        "over": format_mb(max(over, 0)),
    }
    until = [h.until_ns for _, h in kept if h.until_ns is not None]
    until_ns = min(until) if until else None
    held = sum(
        card.ledger.entry(m.load_id)
        for m, h in kept
        if m.load_id is not None and h.kind != "pinned"
    )
    if obtainable + held < need:
        reason = Reason.FOREIGN_MEMORY if foreign else Reason.OVER_BUDGET
        return Verdict(outcome=Outcome.DEFER, why=Why(reason, facts))
    if any(h.kind == "in interactive use" for _, h in kept):
        return Verdict(
            outcome=Outcome.DEFER,
            why=Why(Reason.INTERACTIVE_TURN, facts),
            bounded=True,
            until_ns=until_ns,
        )
    bounded = all(h.kind not in ("pinned", "hot") for _, h in kept)
    return Verdict(
        outcome=Outcome.DEFER,
        why=Why(Reason.HELD_BY_MODELS, facts),
        bounded=bounded,
        until_ns=until_ns,
    )


def evictable(
    state: State, card: Card, model: Model, workload: Workload | None, arrived_ns: int
) -> tuple[list[Candidate], list[tuple[Model, Hold]]]:
    """Split the residents of a card into those that may leave and those that are kept."""
    candidates: list[Candidate] = []
    kept: list[tuple[Model, Hold]] = []
    requester = None
    if workload is not None:
        requester = Requester(workload, arrived_ns, state.batch_is_starved(card))
    for other in state.models_by_card[card.card_id]:
        if other is model or other.phase not in RESIDENT or other.load_id is None:
            continue
        if requester is None:
            kept.append((other, Hold("a preload evicts nothing", None)))
            continue
        held = hold(_holder(state, other), requester, state.policy, state.now_ns)
        if held is None or other.drain_is_final:
            candidates.append(candidate(state, card, other))
        else:
            kept.append((other, held))
    return candidates, kept


def candidate(state: State, card: Card, model: Model) -> Candidate:
    assert model.load_id is not None
    return Candidate(
        model_id=model.model_id,
        freed_bytes=card.ledger.entry(model.load_id),
        # What drains for this turn already stays chosen.
        cost=0.0 if model.phase is Phase.DRAINING else evict_cost(state, model),
        last_used_ns=model.last_used_ns or 0,
    )


def choose(state: State, candidates: list[Candidate], short_bytes: int) -> tuple[Candidate, ...]:
    if state.policy.eviction is EvictionPolicy.LRU:
        return lru_victims(candidates, short_bytes)
    return choose_victims(candidates, short_bytes)


def _holder(state: State, model: Model) -> Holder:
    interactive_queued = state.has_queued(model, Workload.INTERACTIVE)
    running = model.n_running_by_workload[Workload.INTERACTIVE] > 0
    return Holder(
        pinned=model.settings.pinned,
        hot=state.is_hot(model),
        hot_until_ns=model.hot_until_ns(state.hot_ttl_ns),
        interactive_busy=interactive_queued or running,
        loaded_for=model.loaded_for,
        loaded_ns=model.loaded_ns,
        background_used_ns=model.last_used_ns_by_workload.get(Workload.BACKGROUND),
        unserved_job_waits=not model.served and (model.n_running > 0 or state.is_wanted(model)),
        bumped_too_often=model.load_bumps >= LOAD_BUMPS_MAX,
    )


def _never_fits(state: State, model: Model, ceiling: int) -> Why:
    because, advice = "", ""
    pinned = [
        other.model_id
        for other in state.models_by_card[model.card_id]
        if other is not model and other.settings.pinned and not other.held_out
    ]
    if pinned:
        because = f" ({', '.join(pinned)} pinned)"
        advice = ", or unpin"
    if model.out_of_memory_at_bytes is not None:
        because += f"; it ran out of memory with {format_mb(model.out_of_memory_at_bytes)} free"
    return Why(
        Reason.NEVER_FITS,
        {
            "model": model.model_id,
            "need": format_mb(model.need_bytes),
            "ceiling": format_mb(max(ceiling, 0)),
            "because": because,
            "advice": advice,
        },
    )
