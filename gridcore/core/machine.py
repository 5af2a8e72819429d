"""The brain: facts in, commands out.

``handle(events, now_ns)`` applies all events, then plans once; ``next_deadline_ns()`` is when
it wants to be called again without any. There is one decision tree, ``_plan``. No clock, no
I/O: the same events at the same times give the same commands.
"""

import heapq
from collections.abc import Sequence

from gridcore.config.schema import Workload
from gridcore.core import facts, families, leaving, turns
from gridcore.core.card import Card, Mode
from gridcore.core.commands import AnyCommand, ReadSlots
from gridcore.core.dispatch import dispatch_card
from gridcore.core.events import AnyEvent
from gridcore.core.notes import Verb
from gridcore.core.reasons import Reason, Why
from gridcore.core.settings import Settings
from gridcore.core.snapshot import ServiceView, Snapshot
from gridcore.core.state import LOWER, State
from gridcore.core.view import build_snapshot
from gridcore.ids import Epoch, PeerId
from gridcore.units import NS_PER_MS, NS_PER_S, format_duration

SLOTS_READ_EVERY_NS = 2 * NS_PER_S
"""llama-server does not notice disconnects while /slots is polled more than once a second."""
SLOTS_READ_FIRST_NS = 100 * NS_PER_MS
"""An aborted stream frees its slot in 10 to 30 ms, unless a prompt batch is running."""
REST_NS = NS_PER_MS
"""Whatever asks to be woken, the brain never spins."""
PLAN_ROUNDS_MAX = 8
"""A plan may enable another (an undone drain, a closed entry); it settles in two or three."""


class SchedulerCore:
    def __init__(self, settings: Settings, epoch: Epoch) -> None:
        self.state = State(settings, epoch)
        for card_id in self.state.cards:
            self.state.mark(card_id)

    def handle(self, events: Sequence[AnyEvent], now_ns: int) -> list[AnyCommand]:
        """Apply what happened and return what to do. ``now_ns`` never goes back."""
        state = self.state
        assert now_ns >= state.now_ns, "time went back"
        state.now_ns = now_ns
        for event in events:
            facts.apply(state, event)
        self._wake()
        self._plan()
        out, state.out = state.out, []
        if out:
            state.revision += 1
        return out

    def next_deadline_ns(self) -> int | None:
        """When ``handle([])`` is due: the earliest wait that time alone can end."""
        state = self.state
        soonest_ns = state.now_ns + REST_NS
        instants = [
            max(card.wake_ns, soonest_ns)
            for card in state.cards.values()
            if card.wake_ns is not None
        ]
        while state.deadlines:
            at_ns, _, job_id = state.deadlines[0]
            job = state.jobs.get(job_id)
            if job is not None and job.deadline_ns == at_ns:
                instants.append(at_ns)
                break
            heapq.heappop(state.deadlines)
        return min(instants, default=None)

    def snapshot(self, services: tuple[ServiceView, ...] = ()) -> Snapshot:
        return build_snapshot(self.state, services)

    # --- one pass --------------------------------------------------------------------

    def _wake(self) -> None:
        """Notice what only time changes."""
        state = self.state
        for class_queue in state.queues.values():
            class_queue.expire(state.now_ns)
        for card in state.cards.values():
            if card.wake_ns is not None and card.wake_ns <= state.now_ns:
                state.mark(card.card_id)

    def _expire_waits(self) -> None:
        """Refuse the jobs whose max_wait has passed. Those that can start at this very moment
        have been dispatched before; no load is planned for the others."""
        state = self.state
        while state.deadlines and state.deadlines[0][0] <= state.now_ns:
            at_ns, _, job_id = heapq.heappop(state.deadlines)
            job = state.jobs.get(job_id)
            if job is None or job.deadline_ns != at_ns:
                continue
            max_wait_ns = job.submitted.max_wait_ns or 0
            why = Why(
                Reason.QUEUE_TIMEOUT,
                {
                    "waited": format_duration(state.now_ns - job.arrived_ns),
                    "max_wait": format_duration(max_wait_ns),
                    "because": state.describe_wait(job),
                },
            )
            state.refuse(job, why)

    def _plan(self) -> None:
        """Decide, card by card, until nothing more follows from what was decided."""
        state = self.state
        for _ in range(PLAN_ROUNDS_MAX):
            families.resolve_all(state)
            cards = [state.cards[card_id] for card_id in state.dirty]
            state.dirty.clear()
            for card in cards:
                self._plan_steps(card)
            self._expire_waits()
            for card in cards:
                self._plan_loads(card)
            if not state.dirty:
                return

    def _plan_steps(self, card: Card) -> None:
        state = self.state
        card.wake_ns = None
        self._end_suspicions(card)
        leaving.finish_releases(state, card)
        leaving.finish_drains(state, card)
        self._update_waiting(card)
        self._enter_or_leave_interactive(card)
        dispatch_card(state, card)

    def _plan_loads(self, card: Card) -> None:
        state = self.state
        turns.plan_turn(state, card)
        leaving.relieve(state, card)
        self._update_waiting(card)
        self._update_mode(card)
        self._read_slots(card)

    def _end_suspicions(self, card: Card) -> None:
        for model in self.state.models_by_card[card.card_id]:
            until_ns = model.suspect_until_ns
            if until_ns is not None:
                if self.state.now_ns >= until_ns:
                    model.suspect_until_ns = None
                else:
                    card.wake_at(until_ns)

    def _update_waiting(self, card: Card) -> None:
        """Starvation is counted from when something begins to wait."""
        state = self.state
        waits = {w: bool(state.waiting_models(card, w)) for w in LOWER}
        lower_waits = any(waits.values())
        if lower_waits and not card.lower_waits:
            card.lower_progress_ns = state.now_ns
        if not lower_waits and card.grant is None:
            card.granting = False
        if waits[Workload.BATCH] and not card.batch_waits:
            card.batch_progress_ns = state.now_ns
        card.lower_waits, card.batch_waits = lower_waits, waits[Workload.BATCH]

    def _enter_or_leave_interactive(self, card: Card) -> None:
        """What decides who may be dispatched; the quiet period is part of the mode."""
        active = self._interactive_is_active(card)
        if active or card.interactive_active:
            quiet_ns = self.state.policy.interactive_idle_before_background_ns
            card.interactive_until_ns = self.state.now_ns + quiet_ns
        card.interactive_active = active
        if active or self._is_quiet_period(card):
            self._set_mode(card, Mode.INTERACTIVE)
        elif card.mode is Mode.INTERACTIVE:
            self._set_mode(card, Mode.IDLE)

    def _update_mode(self, card: Card) -> None:
        """Name what the card does, now that steps were dispatched and jobs refused."""
        self._enter_or_leave_interactive(card)
        if card.mode is Mode.INTERACTIVE:
            if not card.interactive_active:
                card.wake_at(card.interactive_until_ns)
            return
        mode = Mode.IDLE
        for workload, lower_mode in ((LOWER[1], Mode.BATCH), (LOWER[0], Mode.BACKGROUND)):
            if self._is_running(card, workload):
                mode = lower_mode
        self._set_mode(card, mode)

    def _interactive_is_active(self, card: Card) -> bool:
        return bool(
            self._is_running(card, Workload.INTERACTIVE)
            or self.state.waiting_models(card, Workload.INTERACTIVE)
        )

    def _is_running(self, card: Card, workload: Workload) -> bool:
        return any(
            model.leases and model.n_running_by_workload[workload]
            for model in self.state.models_by_card[card.card_id]
        )

    def _is_quiet_period(self, card: Card) -> bool:
        until_ns = card.interactive_until_ns
        return until_ns is not None and self.state.now_ns < until_ns

    def _set_mode(self, card: Card, mode: Mode) -> None:
        if mode is card.mode:
            return
        if card.mode is Mode.INTERACTIVE:
            self.state.mark(card.card_id)
        card.mode = mode
        self.state.note(Verb.MODE, f"{card.card_id} {mode}", card=card, mode=mode.value)

    def _read_slots(self, card: Card) -> None:
        """Ask once in a while whether an aborted step has really ended."""
        state = self.state
        for model in state.models_by_card[card.card_id]:
            if not model.is_resident or not model.n_cooling or model.load_id is None:
                continue
            last_ns = model.slots_read_ns
            due_ns = max(slot.last_used_ns for slot in model.slots if slot.cooling)
            due_ns += SLOTS_READ_FIRST_NS
            if last_ns is not None:
                due_ns = max(due_ns, last_ns + SLOTS_READ_EVERY_NS)
            if state.now_ns < due_ns:
                card.wake_at(due_ns)
                continue
            reader = self._any_gateway()
            if reader is None:
                continue
            model.slots_read_ns = state.now_ns
            card.wake_at(state.now_ns + SLOTS_READ_EVERY_NS)
            state.out.append(
                ReadSlots(load_id=model.load_id, gateway=reader, address=model.address)
            )

    def _any_gateway(self) -> PeerId | None:
        here = sorted(self.state.gateways - self.state.suspects)
        return here[0] if here else None
