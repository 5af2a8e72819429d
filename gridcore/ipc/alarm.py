"""One timer for one pure machine: the loop's side of ``next_deadline_ns()``."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from gridcore.units import NS_PER_S


class Alarm:
    """Rings at the machine's deadline, or when something else must be looked at."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None

    def set(self, deadline_ns: int | None, now_ns: int) -> None:
        """Ring at the deadline and not before; a deadline that is armed already costs nothing."""
        if deadline_ns == self._armed_ns:
            return
        self.cancel()
        if deadline_ns is not None:
            self._armed_ns = deadline_ns
            delay_s = max(0, deadline_ns - now_ns) / NS_PER_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.ring)

    def ring(self) -> None:
        self.cancel()
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung.clear()

    def cancel(self) -> None:
        self._armed_ns = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def run_together(*work: Coroutine[Any, Any, None]) -> None:
    """Run until one fails, end the others, and raise that failure as it is."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
