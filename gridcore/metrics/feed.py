"""Keeps an exposition up to date from the event socket.

The scheduler publishes a snapshot when something changed and when somebody subscribes. A scrape
that finds the last one old therefore subscribes once more: either a new snapshot comes, or the
scheduler is away and the page says so.
"""

import asyncio
import math
from pathlib import Path

from gridcore.ipc.events import EventSubscriber
from gridcore.ipc.messages import TOPIC_SNAPSHOT
from gridcore.metrics.exposition import Exposition

FRESH_S = 2.0
"""A busy scheduler publishes every second; twice that is silence."""
LOT_S, REST_S = 0.02, 0.1
"""Reading rests so that events come in lots: a request makes several, and a wake-up for each
cost 0.8 ms of processor time a request. The socket holds 5,000 meanwhile."""
ANSWER_TIMEOUT_S = 1.5
"""It answers a subscription at most once a second."""


class EventFeed:
    """The one reader of the event socket in this process."""

    def __init__(self, endpoint: Path, exposition: Exposition) -> None:
        self._endpoint = endpoint
        self._exposition = exposition
        self._snapshot_s = self._asked_s = -math.inf
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Read until cancelled; a scheduler that comes later or again is found by itself."""
        loop = asyncio.get_running_loop()
        rested_s = -math.inf
        with EventSubscriber(self._endpoint) as events:
            async for envelope in events:
                self._exposition.observe(envelope, events.events_missed)
                if envelope.snapshot is not None:
                    self._snapshot_s = loop.time()
                    self._arrived.set()
                if loop.time() - rested_s > LOT_S:
                    await asyncio.sleep(REST_S)
                    rested_s = loop.time()

    async def page(self) -> bytes:
        """The page, with a snapshot that is not old if the scheduler is there."""
        now_s = asyncio.get_running_loop().time()
        if now_s - max(self._snapshot_s, self._asked_s) > FRESH_S:
            self._asked_s = now_s
            await self._ask()
        return self._exposition.render()

    async def _ask(self) -> None:
        self._arrived.clear()
        # A second subscriber: the socket of the first belongs to the task that reads it. The
        # snapshot goes to both.
        with EventSubscriber(self._endpoint, (TOPIC_SNAPSHOT,)):
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await self._arrived.wait()
            except TimeoutError:
                self._exposition.is_connected = False
