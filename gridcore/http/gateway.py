"""What one gateway process owns: its jobs, its way to the scheduler, its way to runtimes.

``on_message``, ``on_link``, ``inventory`` and ``beat`` are what the peer of the control socket
calls. It must not know HTTP requests; ``app.py`` serves them from what is here.
"""

import asyncio
import secrets
from pathlib import Path

from gridcore.clock import wall_time_s
from gridcore.config.schema import ServerConfig
from gridcore.core.settings import Settings
from gridcore.http.jobs import JobTable, Scheduler
from gridcore.http.names import Names
from gridcore.http.openai import ApiError
from gridcore.http.slots import SlotReader
from gridcore.http.upstream import Upstream
from gridcore.ids import PeerId
from gridcore.ipc.messages import (
    AdminReply,
    AdminRequest,
    CancelStep,
    FromScheduler,
    GrantStep,
    ReadSlots,
    RefuseJob,
    StateReply,
    StateRequest,
    ToScheduler,
)

REPLY_TIMEOUT_S = 5.0
"""The scheduler answers within a millisecond; after this it is away or stuck."""

Reply = AdminReply | StateReply


class Gateway:
    """``scheduler`` is set once the peer exists; until then every send is refused."""

    def __init__(
        self, *, name: PeerId, server: ServerConfig, settings: Settings, metrics: Path
    ) -> None:
        self.server = server
        self.settings = settings
        self.metrics_address = f"unix:{metrics}"
        self.names = Names(settings)
        self.started_s = int(wall_time_s())
        self.upstream = Upstream()
        self.scheduler: Scheduler | None = None
        self.jobs = JobTable(name=name, hold_timeout_ns=server.hold_timeout_ns, scheduler=self)
        self.held_body_bytes = 0
        """Bodies of open requests, in memory until their step ends."""
        self._replies: dict[str, asyncio.Future[Reply]] = {}
        self._slots = SlotReader(self.upstream, self, settings)

    def send(self, message: ToScheduler, /) -> bool:
        return self.scheduler is not None and self.scheduler.send(message)

    def on_message(self, message: FromScheduler) -> None:
        match message:
            case GrantStep():
                self.jobs.on_grant(message)
            case RefuseJob():
                self.jobs.on_refusal(message)
            case CancelStep():
                self.jobs.on_cancel_step(message)
            case ReadSlots():
                self._slots.read(message)
            case AdminReply() | StateReply():
                waiting = self._replies.pop(message.request_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case _:
                pass  # the link's own messages, and those for other roles

    async def ask(self, request: AdminRequest | StateRequest) -> Reply:
        """Ask the scheduler something and wait for its reply.

        Raises:
            ApiError: 503, the scheduler is away.
        """
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[request.request_id] = waiting
        try:
            if not self.send(request):
                raise _AWAY
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                return await waiting
        except TimeoutError:
            raise _AWAY from None
        finally:
            self._replies.pop(request.request_id, None)

    async def close(self) -> None:
        await self._slots.close()


_AWAY = ApiError(
    503,
    "scheduler_unavailable",
    "the scheduler does not answer; it is being restarted",
    retry_after_s=2,
)


def new_request_id() -> str:
    return secrets.token_hex(6)
