"""How long work takes on a card that several steps use at once: the one contention law.

The card's time is shared equally by the runtimes that have work (processes are time-sliced);
inside a runtime steps are batched, and every busy slot beyond the first slows all of them by
``BATCHING``. A step's rate is therefore 1 / runtimes / (1 + BATCHING * (slots - 1)). Measured
cases of the documentation are reproduced with this law and these constants, not with others.
"""

import math
from collections.abc import Callable

from gridcore.ids import LoadId

BATCHING = 0.15
"""llama.cpp decodes a second stream for about this much more time per token."""


class Work:
    """One running step: what is left of it, in nanoseconds alone on the card."""

    __slots__ = ("left_ns", "load_id", "on_done", "width")

    def __init__(
        self, load_id: LoadId, width: int, left_ns: float, on_done: Callable[[], None]
    ) -> None:
        self.load_id = load_id
        self.width = width
        self.left_ns = left_ns
        self.on_done = on_done


class Compute:
    """``running`` holds all and only the steps that make progress on this card."""

    def __init__(
        self, after: Callable[[int, Callable[[], None]], None], now: Callable[[], int]
    ) -> None:
        self._after = after
        self._now = now
        self._running: dict[Work, None] = {}
        self._advanced_ns = now()
        self._timer = 0

    def start(self, work: Work) -> None:
        self._advance()
        self._running[work] = None
        self._rearm()

    def stop(self, work: Work) -> None:
        """Take a step off the card, done or not."""
        self._advance()
        self._running.pop(work, None)
        self._rearm()

    def _slots_busy(self) -> dict[LoadId, int]:
        busy: dict[LoadId, int] = {}
        for work in self._running:
            busy[work.load_id] = busy.get(work.load_id, 0) + work.width
        return busy

    def _rate(self, work: Work, busy: dict[LoadId, int]) -> float:
        return 1 / len(busy) / (1 + BATCHING * (busy[work.load_id] - 1))

    def _advance(self) -> None:
        now_ns = self._now()
        elapsed_ns, self._advanced_ns = now_ns - self._advanced_ns, now_ns
        busy = self._slots_busy()
        for work in self._running:
            work.left_ns -= elapsed_ns * self._rate(work, busy)

    def _rearm(self) -> None:
        self._timer += 1
        if not self._running:
            return
        timer, busy = self._timer, self._slots_busy()
        soonest_ns = min(work.left_ns / self._rate(work, busy) for work in self._running)
        self._after(max(math.ceil(soonest_ns), 0), lambda: self._ring(timer))

    def _ring(self, timer: int) -> None:
        if timer != self._timer:
            return
        busy = self._slots_busy()
        first = min(self._running, key=lambda work: work.left_ns / self._rate(work, busy))
        first.on_done()
