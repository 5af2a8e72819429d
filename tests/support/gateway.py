"""The real application on a real socket, with a scheduler that a test holds in its hand."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import uvicorn

from gridcore.config.schema import Capability, ServerConfig, Tier
from gridcore.core.events import JobSubmitted
from gridcore.core.settings import FamilySettings, Settings
from gridcore.http.app import create_app
from gridcore.http.gateway import Gateway
from gridcore.ids import LeaseId, LoadId, ModelId, PeerId
from gridcore.ipc.messages import (
    FromScheduler,
    GrantStep,
    SubmitJob,
    ToScheduler,
)
from tests.support.builders import model, settings

M = TypeVar("M")

CHAT = model("chat", slots=2, capabilities=[Capability.CHAT], aliases=("gpt-4o",))
EYES = model("eyes", slots=1, capabilities=[Capability.CHAT, Capability.VISION])
EMBED = model("embed", slots=2, capabilities=[Capability.EMBEDDING])
FAMILY = FamilySettings(
    name="pair",
    variants=((Tier.PREFERRED, ModelId("eyes")), (Tier.COMPACT, ModelId("chat"))),
    aliases=("both",),
)
SETTINGS = settings(CHAT, EYES, EMBED, families=[FAMILY])


class FakeScheduler:
    """Records what the gateway says; grants at once when it has an ``address``."""

    def __init__(self, address: str | None = None, *, chunk: int = 32) -> None:
        self.address = address
        self.chunk = chunk
        self.is_up = True
        self.said: list[ToScheduler] = []
        self.gateway: Gateway | None = None
        self._n_leases = 0

    def send(self, message: ToScheduler, /) -> bool:
        if not self.is_up:
            return False
        self.said.append(message)
        if isinstance(message, SubmitJob) and self.address is not None:
            self.grant_all(message.job, self.address)
        return True

    def grant_all(self, job: JobSubmitted, address: str) -> None:
        for first in range(0, job.items, self.chunk):
            self.grant(job, address, first=first, count=min(self.chunk, job.items - first))

    def grant(
        self, job: JobSubmitted, address: str, *, first: int = 0, count: int = 1, waited_ns: int = 0
    ) -> LeaseId:
        self._n_leases += 1
        lease_id = LeaseId(f"lease-{self._n_leases}")
        self.tell(
            GrantStep(
                lease_id=lease_id,
                job_id=job.job_id,
                load_id=LoadId("load-1"),
                model_id=ModelId("chat" if job.target == "pair" else job.target),
                address=address,
                slots=tuple(range(job.width)),
                first=first,
                count=count,
                waited_ns=waited_ns,
                workload=job.workload,
                reason="free_slot",
            )
        )
        return lease_id

    def tell(self, message: FromScheduler) -> None:
        """Say something to the gateway, in its loop and not from inside its send."""
        assert self.gateway is not None
        asyncio.get_running_loop().call_soon(self.gateway.on_message, message)

    def heard(self, kind: type[M]) -> list[M]:
        return [message for message in self.said if isinstance(message, kind)]

    async def hear(self, kind: type[M], count: int = 1) -> M:
        """Wait until the gateway has said so many messages of a kind; return the last."""
        await until(lambda: len(self.heard(kind)) >= count)
        return self.heard(kind)[count - 1]

    async def job(self, count: int = 1) -> JobSubmitted:
        return (await self.hear(SubmitJob, count)).job


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


class Running:
    """A gateway that is serving."""

    def __init__(self, gateway: Gateway, scheduler: FakeScheduler, url: str) -> None:
        self.gateway = gateway
        self.scheduler = scheduler
        self.url = url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextlib.asynccontextmanager
async def running(
    tmp_path: Path,
    scheduler: FakeScheduler | None = None,
    *,
    server: ServerConfig | None = None,
    served: Settings = SETTINGS,
) -> AsyncIterator[Running]:
    """Serve the application on a free port of this loop."""
    scheduler = scheduler or FakeScheduler()
    gateway = Gateway(
        name=PeerId("gateway-0"),
        server=server or ServerConfig(),
        settings=served,
        metrics=tmp_path / "metrics",
    )
    gateway.scheduler = scheduler
    scheduler.gateway = gateway
    gateway.jobs.on_link(True)
    config = uvicorn.Config(
        create_app(gateway),
        host="127.0.0.1",
        port=0,
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    http = uvicorn.Server(config)
    http.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.ensure_future(http.serve())
    try:
        await until(lambda: http.started)
        port = http.servers[0].sockets[0].getsockname()[1]
        yield Running(gateway, scheduler, f"http://127.0.0.1:{port}")
    finally:
        http.should_exit = True
        gateway.jobs.begin_drain()
        gateway.jobs.end_drain()
        await task
        await gateway.close()


def run(test: Callable[[], Awaitable[None]], within_s: float = 30.0) -> None:
    """Run a test's coroutine in a loop of its own, with a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(within_s):
            await test()

    asyncio.run(bounded())
