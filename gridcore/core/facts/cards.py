"""Facts about cards: samples, and what they say of other programs and of memory given back."""

from gridcore.core.card import Card
from gridcore.core.events import (
    CardSampled,
)
from gridcore.core.model import Phase
from gridcore.core.notes import Verb
from gridcore.core.state import State
from gridcore.units import format_mb

RELEASE_SLACK_DIVISOR = 4
"""Memory is back when three quarters of a dead runtime's share are free again; drivers keep a
rest for a while."""


def card_sampled(state: State, event: CardSampled) -> None:
    card = state.cards.get(event.card_id)
    if card is None:
        state.drop(event)
        return
    state.monitor_here = True
    changed = card.total_bytes != event.total_bytes or card.pressure != event.pressure
    card.total_bytes = event.total_bytes
    card.used_bytes = event.used_bytes
    card.used_by_pid = event.used_by_pid or {}
    card.utilization_percent = event.utilization_percent
    card.pressure = event.pressure
    changed |= _observe_foreign(state, card, event)
    changed |= _see_memory_back(state, card, event)
    if changed:
        state.mark(card.card_id)


def _ours_bytes(state: State, card: Card, used_by_pid: dict[int, int] | None) -> int:
    """What the card's residents hold, by the device's own count where it has one."""
    total = 0
    for model in state.models_by_card[card.card_id]:
        if model.is_resident and model.load_id is not None:
            reserved = card.ledger.entry(model.load_id)
            measured = (used_by_pid or {}).get(model.pid or -1)
            total += reserved if measured is None else measured
    return total


def _observe_foreign(state: State, card: Card, event: CardSampled) -> bool:
    if event.used_bytes is None:
        return False
    frozen = any(
        model.phase in (Phase.LOADING, Phase.UNLOADING, Phase.RELEASING)
        for model in state.models_by_card[card.card_id]
    )
    foreign = max(event.used_bytes - _ours_bytes(state, card, event.used_by_pid), 0)
    changed = card.foreign.observe(foreign, state.now_ns, frozen=frozen)
    if changed:
        value = card.foreign.value_bytes or 0
        state.note(
            Verb.MEMORY,
            f"other programs hold {format_mb(value)} of {card.card_id}",
            card=card,
            foreign_bytes=value,
            budget_bytes=card.budget_bytes(),
        )
    return changed


def _see_memory_back(state: State, card: Card, event: CardSampled) -> bool:
    """Is a dead runtime's memory free again? Nothing unexplained may be in use."""
    releasing = [
        model
        for model in state.models_by_card[card.card_id]
        if model.phase is Phase.RELEASING and model.load_id is not None
    ]
    if not releasing or event.used_bytes is None:
        return bool(releasing)
    explained = card.foreign.value_bytes or 0
    for model in state.models_by_card[card.card_id]:
        if model.load_id is not None and model.phase is not Phase.RELEASING:
            reserved = card.ledger.entry(model.load_id)
            explained += (event.used_by_pid or {}).get(model.pid or -1, reserved)
    changed = False
    for model in releasing:
        assert model.load_id is not None
        held = card.ledger.entry(model.load_id)
        if event.used_bytes - explained <= held // RELEASE_SLACK_DIVISOR:
            model.memory_seen_back = True
            changed = True
        else:
            explained += held
    return changed
