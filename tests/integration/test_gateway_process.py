"""The gateway as its own process: an inherited socket, a ZeroMQ link, a drain on SIGTERM."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gridcore.config.schema import Config, ServerConfig
from gridcore.core.events import JobSubmitted, StepOutcome
from gridcore.ids import LeaseId, LoadId, ModelId, PeerId
from gridcore.instance import Instance, write_instance
from gridcore.ipc.messages import (
    FromScheduler,
    GatewayInventory,
    GrantStep,
    StepEnded,
    SubmitJob,
    ToScheduler,
)
from tests.support.bus import RecordingHub, eventually, running, short_dir
from tests.support.gateway import SETTINGS
from tests.support.upstream import Exchange, Upstream, chat_handler

CHAT = "/v1/chat/completions"
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


class Process:
    """One gateway process and everything around it that a launcher would hold."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        server = ServerConfig(drain_timeout_ns=5_000_000_000)
        self.instance = Instance(
            instance_id="test",
            config_path=None,
            state_dir=str(directory),
            runtime_dir=str(directory),
            device="cpu",
            llama_server=None,
            listen=self.url.removeprefix("http://"),
            config=Config(server=server),
            settings=SETTINGS,
        )
        self.path = write_instance(self.instance)
        self.hub = RecordingHub(self.instance.runtime.control)
        self.parent: int | None = None
        self.child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        reader, self.parent = os.pipe()
        fds = (self.listener.fileno(), reader)
        self.child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "services.gateway", "--instance", str(self.path)),
            *("--name", "gateway-0", "--listen-fd", str(fds[0]), "--parent-fd", str(fds[1])),
            pass_fds=fds,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        os.close(reader)

    async def exit_status(self) -> int:
        assert self.child is not None
        async with asyncio.timeout(15):
            return await self.child.wait()

    def close(self) -> None:
        if self.child is not None and self.child.returncode is None:
            self.child.kill()
        if self.parent is not None:
            os.close(self.parent)
        self.listener.close()

    def n_jobs(self) -> int:
        return len({job.job_id for _, said in self.hub.messages for job in jobs_in(said)})

    def heard(self, kind: type[Any]) -> list[Any]:
        return [message for _, message in self.hub.messages if isinstance(message, kind)]


def jobs_in(message: ToScheduler) -> tuple[JobSubmitted, ...]:
    """A job that arrives before the Welcome is in the inventory, not in a message of its own."""
    if isinstance(message, SubmitJob):
        return (message.job,)
    return message.jobs if isinstance(message, GatewayInventory) else ()


def granting(address: str, *, only: int = 1000) -> Any:
    """Answer the first so many jobs with a grant, however they are made known."""
    count = 0

    def answer(_: PeerId, message: ToScheduler) -> FromScheduler | None:
        nonlocal count
        jobs = jobs_in(message)
        if not jobs or count >= only:
            return None
        assert len(jobs) == 1
        count += 1
        return GrantStep(
            lease_id=LeaseId(f"lease-{count}"),
            job_id=jobs[0].job_id,
            load_id=LoadId("load"),
            model_id=ModelId("chat"),
            address=address,
            slots=(0,),
            first=0,
            count=1,
            waited_ns=0,
            workload=jobs[0].workload,
            reason="free_slot",
        )

    return answer


@asynccontextmanager
async def started(handler: Any = chat_handler) -> AsyncIterator[tuple[Process, Upstream]]:
    with short_dir() as directory:
        process = Process(directory)
        async with Upstream(directory / "u", handler) as upstream, running(process.hub.hub.run()):
            process.hub.answer = granting(upstream.address)
            await process.start()
            try:
                yield process, upstream
            finally:
                process.close()
                await process.exit_status()


async def text_of(reply: aiohttp.ClientResponse) -> str:
    content: str = json.loads(await reply.read())["choices"][0]["message"]["content"]
    return content


def test_a_killed_gateway_is_replaced_and_nobody_is_refused() -> None:
    """Clients wait in the backlog of the socket that the launcher holds."""

    async def test() -> None:
        async with started() as (process, _), aiohttp.ClientSession() as client:
            assert await text_of(await client.post(process.url + CHAT, json=BODY)) == "Hello"
            assert process.child is not None
            process.child.kill()
            assert await process.exit_status() == -signal.SIGKILL
            waiting = asyncio.ensure_future(client.post(process.url + CHAT, json=BODY))
            await process.start()
            assert await text_of(await waiting) == "Hello"
            await eventually(
                lambda: len(process.heard(GatewayInventory)) >= 2, "both incarnations said hello"
            )

    asyncio.run(test())


def test_sigterm_refuses_what_waits_and_finishes_what_runs() -> None:
    async def test() -> None:
        may_end = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            await exchange.begin()
            await exchange.token("x")
            await may_end.wait()
            await exchange.finish()

        async with started(handler) as (process, upstream), aiohttp.ClientSession() as client:
            process.hub.answer = granting(upstream.address, only=1)
            stream = await client.post(process.url + CHAT, json={**BODY, "stream": True})
            await stream.content.readuntil(b"\n\n")
            queued = asyncio.ensure_future(client.post(process.url + CHAT, json=BODY))
            await eventually(lambda: process.n_jobs() == 2, "the second job")
            assert process.child is not None
            process.child.send_signal(signal.SIGTERM)
            refused = await queued
            assert refused.status == 503
            assert json.loads(await refused.read())["error"]["code"] == "shutting_down"
            may_end.set()
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
            assert await process.exit_status() == 0
            await eventually(lambda: len(process.heard(StepEnded)) == 1, "the step's end")
            assert process.heard(StepEnded)[0].outcome is StepOutcome.DONE
            await eventually(lambda: "left" in process.hub.kinds(), "the goodbye")

    asyncio.run(test())


def test_it_ends_with_its_launcher() -> None:
    async def test() -> None:
        async with started() as (process, _), aiohttp.ClientSession() as client:
            async with client.get(process.url + "/health") as reply:
                assert (reply.status, await reply.json()) == (200, {"status": "ok"})
            assert process.parent is not None
            os.close(process.parent)
            process.parent = None
            assert await process.exit_status() == 0

    asyncio.run(test())


def test_a_bad_instance_is_a_sentence(tmp_path: Path) -> None:
    async def test() -> None:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "services.gateway", "--instance", str(tmp_path / "no")),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        _, errors = await child.communicate()
        assert child.returncode == 1
        assert b"is not a running daemon's instance" in errors
        assert b"Traceback" not in errors

    asyncio.run(test())


def test_the_instance_carries_what_the_gateway_needs() -> None:
    with short_dir() as directory:
        process = Process(directory)
        text = process.path.read_bytes()
        assert msgspec.json.decode(text, type=Instance) == process.instance
        process.close()
