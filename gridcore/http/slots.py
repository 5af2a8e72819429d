"""Reading a runtime's slots for the scheduler, after a step of it was aborted.

llama-server ends aborted work some time after the disconnect; only its own word frees the slot.
The scheduler decides how often to ask: reading more than every two seconds would keep
llama-server from noticing disconnects.
"""

import asyncio
import logging

import msgspec
from msgspec import Struct

from gridcore.core.settings import Settings
from gridcore.http.jobs import Scheduler
from gridcore.http.upstream import UPSTREAM_ERRORS, Upstream, UpstreamError
from gridcore.ids import LoadId
from gridcore.ipc.messages import ReadSlots, SlotsReading

log = logging.getLogger("gridcore.gateway")

ATTEMPTS_MAX = 5
READ_TIMEOUT_S = 2.0
"""A paused runtime accepts and does not answer."""
RETRY_EVERY_S = 2.0


class _Slot(Struct):
    id: int
    is_processing: bool = False


_SLOTS = msgspec.json.Decoder(list[_Slot])


class SlotReader:
    """At most one reading of a runtime is in progress."""

    def __init__(self, upstream: Upstream, scheduler: Scheduler, settings: Settings) -> None:
        self._upstream = upstream
        self._scheduler = scheduler
        self._slots_max = max((model.slots for model in settings.models), default=1)
        self._readings: dict[LoadId, asyncio.Task[None]] = {}

    def read(self, request: ReadSlots) -> None:
        if request.load_id in self._readings:
            return
        task = asyncio.get_running_loop().create_task(self._read(request))
        self._readings[request.load_id] = task
        task.add_done_callback(lambda _: self._readings.pop(request.load_id, None))

    async def _read(self, request: ReadSlots) -> None:
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(RETRY_EVERY_S)
            try:
                idle_slots = await self._idle_slots(request.address)
            except (*UPSTREAM_ERRORS, msgspec.MsgspecError) as error:
                log.debug("reading the slots of %s: %s", request.load_id, type(error).__name__)
                continue
            self._scheduler.send(SlotsReading(load_id=request.load_id, idle_slots=idle_slots))
            return
        log.warning("the slots of %s could not be read %d times", request.load_id, ATTEMPTS_MAX)

    async def _idle_slots(self, address: str) -> tuple[int, ...]:
        async with self._upstream.request(
            "GET", address, "/slots", timeout_s=READ_TIMEOUT_S
        ) as response:
            if response.status in (404, 501):
                # Not to be read here: the closed connection is all there is to go by.
                return tuple(range(self._slots_max))
            if response.status != 200:
                raise UpstreamError(f"/slots answers {response.status}")
            slots = _SLOTS.decode(await response.read())
        return tuple(slot.id for slot in slots if not slot.is_processing)

    async def close(self) -> None:
        readings = list(self._readings.values())
        for task in readings:
            task.cancel()
        await asyncio.gather(*readings, return_exceptions=True)
