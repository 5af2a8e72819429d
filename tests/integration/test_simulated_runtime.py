"""The simulated runtime as a process: what a client of llama-server would see of it."""

import asyncio
import base64
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gridcore.runtime import health
from tests.support.runtimes import short_directory, until

Json = dict[str, Any]
USER = [{"role": "user", "content": "Say hi to the world"}]


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@contextmanager
def running(directory: Path, **model: Any) -> Iterator["Runtime"]:
    runtime = Runtime(directory, **model)
    try:
        yield runtime
    finally:
        runtime.stop()


class Runtime:
    def __init__(self, directory: Path, *, total: int = 1000, **model: Any) -> None:
        self.name = model.pop("model_id", "m")
        self.socket = directory / f"{self.name}.sock"
        self.address = f"unix:{self.socket}"
        self.log = directory / f"{self.name}.log"
        spec = {
            "address": self.address,
            "claims": str(directory / "claims"),
            "card": {"total_bytes": total, "foreign_bytes": 0, "release_delay_s": 0.0},
            "model": {"model_id": self.name, "footprint_bytes": 600, **model},
        }
        path = directory / f"{self.name}.json"
        path.write_text(json.dumps(spec))
        command = [sys.executable, "-P", "-m", "gridcore.runtime.simulated", "--spec", str(path)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    async def up(self) -> "Runtime":
        await until(self.socket.exists, "the socket", self.log)
        return self

    async def ready(self) -> "Runtime":
        await self.up()
        async with asyncio.timeout(10):
            while not await health.is_healthy(self.address):
                await asyncio.sleep(0.01)
        return self

    async def get(self, path: str) -> tuple[int, Any]:
        reply = await health.request(self.address, "GET", path)
        return reply.status, json.loads(reply.body)

    async def post(self, path: str, body: Json | bytes) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await health.request(self.address, "POST", path, raw)
        return reply.status, json.loads(reply.body)

    async def open(self, path: str, body: Json) -> "Stream":
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)
        return Stream(reader, writer)

    async def busy(self) -> list[bool]:
        return [slot["is_processing"] for slot in (await self.get("/slots"))[1]]


class Stream:
    """A streamed answer, event by event."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.head = ""

    async def next(self) -> str:
        if not self.head:
            self.head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        size = int((await self.reader.readline()).strip(), 16)
        data = (await self.reader.readexactly(size + 2))[:-2].decode()
        assert data == "" or (data.startswith("data: ") and data.endswith("\n\n"))
        return data.removeprefix("data: ").strip()

    async def all(self) -> list[Any]:
        """Every event up to ``[DONE]``, which must be the last."""
        events = []
        while (text := await self.next()) != "[DONE]":
            events.append(json.loads(text))
        assert await self.next() == ""
        self.close()
        return events

    def close(self) -> None:
        self.writer.close()


def test_it_loads_as_long_as_it_says_and_then_serves(directory: Path) -> None:
    async def story(runtime: Runtime) -> None:
        await runtime.up()
        status, body = await runtime.get("/health")
        assert status == 503
        assert body["error"] == {
            "message": "Loading model",
            "type": "unavailable_error",
            "code": 503,
        }
        assert (await runtime.post("/v1/completions", {"prompt": "x"}))[0] == 503
        await runtime.ready()
        assert await runtime.get("/health") == (200, {"status": "ok"})
        assert (await runtime.get("/v1/models"))[1]["data"][0]["id"] == "m"
        props = (await runtime.get("/props"))[1]
        assert (props["total_slots"], props["model_alias"]) == (2, "m")
        assert props["default_generation_settings"]["n_ctx"] == 2048
        metrics = await health.request(runtime.address, "GET", "/metrics")
        assert b"llamacpp:requests_processing 0\n" in metrics.body
        tokens = (await runtime.post("/tokenize", {"content": "hello big world"}))[1]["tokens"]
        assert len(tokens) == 3

    with running(directory, load_s=0.4, slots=2) as runtime:
        asyncio.run(story(runtime))
        assert runtime.stop() == 0


def test_a_chat_stream_has_the_shape_of_llama_server(directory: Path) -> None:
    async def story(runtime: Runtime) -> None:
        await runtime.ready()
        request = {
            "messages": USER,
            "max_tokens": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,
        }
        stream = await runtime.open("/v1/chat/completions", request)
        events = await stream.all()
        assert "text/event-stream" in stream.head
        assert "X-Accel-Buffering: no" in stream.head
        assert len({event["id"] for event in events}) == 1
        progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        assert [each["processed"] for each in progress] == [0, 2, 4, 5]
        assert {each["total"] for each in progress} == {5}
        role, *tokens, last, usage = [e for e in events if "prompt_progress" not in e]
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": None}
        assert "".join(each["choices"][0]["delta"]["content"] for each in tokens) == "a b c"
        assert last["choices"][0] == {"finish_reason": "length", "index": 0, "delta": {}}
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 3
        assert usage["usage"]["total_tokens"] == 8
        assert {each["object"] for each in events} == {"chat.completion.chunk"}

        plain = await (
            await runtime.open(
                "/v1/chat/completions",
                {**request, "stream": True} | {"stream_options": None, "return_progress": False},
            )
        ).all()
        assert "timings" in plain[-1]
        assert "usage" not in plain[-1]
        assert plain[-1]["choices"][0]["finish_reason"] == "length"

    with running(directory, reply="a b c d e", batch=2, tokens_per_second=500.0) as runtime:
        asyncio.run(story(runtime))


def test_answers_that_are_not_streamed(directory: Path) -> None:
    async def story(runtime: Runtime) -> None:
        await runtime.ready()
        status, chat = await runtime.post("/v1/chat/completions", {"messages": USER, "model": "x"})
        assert status == 200
        assert chat["choices"][0]["message"] == {"role": "assistant", "content": "a b c"}
        assert chat["choices"][0]["finish_reason"] == "stop"
        assert chat["model"] == "m"
        assert chat["usage"]["prompt_tokens"] == 5
        _, two = await runtime.post("/v1/completions", {"prompt": "x", "n": 2, "max_tokens": 1})
        assert [choice["text"] for choice in two["choices"]] == ["a", "a"]
        assert two["usage"]["completion_tokens"] == 2
        endless = {"prompt": "x", "max_tokens": 7, "ignore_eos": True}
        _, long = await runtime.post("/v1/completions", endless)
        assert long["choices"][0]["text"] == "a b c a b c a"

    with running(directory, reply="a b c", slots=2, tokens_per_second=1000.0) as runtime:
        asyncio.run(story(runtime))


def test_embeddings_depend_on_the_text_alone(directory: Path) -> None:
    async def story(runtime: Runtime) -> None:
        await runtime.ready()
        _, both = await runtime.post("/v1/embeddings", {"input": ["alpha", "beta gamma"]})
        _, alone = await runtime.post("/v1/embeddings", {"input": "beta gamma"})
        first, second = (item["embedding"] for item in both["data"])
        assert alone["data"][0]["embedding"] == second != first
        assert len(first) == 8
        assert sum(value * value for value in first) == pytest.approx(1)
        assert both["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        _, packed = await runtime.post(
            "/v1/embeddings", {"input": "alpha", "encoding_format": "base64"}
        )
        raw = base64.b64decode(packed["data"][0]["embedding"])
        assert list(struct.unpack("<8f", raw)) == pytest.approx(first)
        _, tokens = await runtime.post("/v1/embeddings", {"input": [[1, 2], [3]]})
        assert [item["index"] for item in tokens["data"]] == [0, 1]
        status, error = await runtime.post("/v1/embeddings", {"input": "w " * 600})
        assert status == 500
        assert error["error"]["message"].startswith("input (601 tokens) is too large to process")

    with running(directory, embeddings=True, dimensions=8, embedding_ms=0.5) as runtime:
        asyncio.run(story(runtime))


def test_inputs_share_the_slots(directory: Path) -> None:
    """Ten inputs of 40 ms on two slots take 200 ms or more, and both slots say so meanwhile."""

    async def story(runtime: Runtime) -> None:
        await runtime.ready()
        loop = asyncio.get_running_loop()
        began = loop.time()
        request = {"input": [f"text {n}" for n in range(10)]}
        work = asyncio.create_task(runtime.post("/v1/embeddings", request))
        async with asyncio.timeout(5):
            while await runtime.busy() != [True, True]:
                assert not work.done()
                await asyncio.sleep(0.005)
        await work
        assert loop.time() - began >= 0.2
        assert await runtime.busy() == [False, False]

    with running(directory, embeddings=True, embedding_ms=40.0, slots=2) as runtime:
        asyncio.run(story(runtime))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_within_a_token(directory: Path, stream: bool) -> None:
    async def story(runtime: Runtime) -> None:
        await runtime.ready()
        request = {"prompt": "x", "max_tokens": 600, "ignore_eos": True, "stream": stream}
        answer = await runtime.open("/v1/completions", request)
        async with asyncio.timeout(5):
            while await runtime.busy() != [True]:
                await asyncio.sleep(0.005)
        # A second one waits behind it and gets the slot when the first is gone.
        second = asyncio.create_task(
            runtime.post("/v1/completions", {"prompt": "y", "max_tokens": 1})
        )
        await asyncio.sleep(0.05)
        assert not second.done()
        answer.close()
        async with asyncio.timeout(1):
            status, _ = await second
        assert status == 200
        assert await runtime.busy() == [False]

    with running(directory, tokens_per_second=20.0) as runtime:
        asyncio.run(story(runtime))


def test_id_slot_is_honoured_even_when_another_is_free(directory: Path) -> None:
    async def story(runtime: Runtime) -> None:
        await runtime.ready()
        request = {
            "prompt": "x",
            "max_tokens": 60,
            "ignore_eos": True,
            "stream": True,
            "id_slot": 1,
        }
        first = await runtime.open("/v1/completions", request)
        await first.next()
        assert await runtime.busy() == [False, True]
        same = asyncio.create_task(runtime.post("/v1/completions", {"prompt": "y", "id_slot": 1}))
        other = await runtime.post("/v1/completions", {"prompt": "z", "max_tokens": 1})
        assert other[0] == 200
        assert not same.done()
        first.close()
        assert (await same)[0] == 200

    with running(directory, slots=2, tokens_per_second=30.0, reply="a") as runtime:
        asyncio.run(story(runtime))


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/chat/completions", b'{"a', 400, "[json.exception.parse_error.101] parse error at"),
        (
            "/v1/chat/completions",
            b"",
            400,
            "[json.exception.parse_error.101] parse error at line 1",
        ),
        ("/v1/chat/completions", b"{}", 400, "'messages' is required"),
        ("/v1/completions", b"{}", 400, "[json.exception.out_of_range.403] key 'prompt' not found"),
        ("/v1/completions", b'{"prompt":"x","n":2}', 400, "n_cmpl cannot be greater"),
        ("/v1/embeddings", b'{"input":"x"}', 501, "This server does not support embeddings."),
        ("/v1/rerank", b"{}", 501, "This server does not support reranking."),
        ("/nope", b"{}", 404, "File Not Found"),
    ],
)
def test_errors_are_llama_servers(
    server: Runtime, path: str, body: bytes, status: int, message: str
) -> None:
    got, reply = asyncio.run(server.post(path, body))
    assert got == status
    assert reply["error"]["code"] == status
    assert reply["error"]["message"].startswith(message)


@pytest.fixture(scope="module")
def server() -> Iterator[Runtime]:
    with short_directory() as path, running(path, context=512) as runtime:
        asyncio.run(runtime.ready())
        yield runtime


def test_an_image_without_a_projector_is_a_500(server: Runtime) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    request = {"messages": [{"role": "user", "content": [part]}]}
    status, reply = asyncio.run(server.post("/v1/chat/completions", request))
    assert status == 500
    assert "image input is not supported" in reply["error"]["message"]


def test_a_prompt_that_is_too_long_names_both_numbers(server: Runtime) -> None:
    status, reply = asyncio.run(server.post("/v1/completions", {"prompt": "word " * 600}))
    assert status == 400
    assert reply["error"]["type"] == "exceed_context_size_error"
    assert (reply["error"]["n_prompt_tokens"], reply["error"]["n_ctx"]) == (601, 512)


def test_a_large_body_and_a_reused_connection(server: Runtime) -> None:
    async def story() -> None:
        reader, writer = await asyncio.open_unix_connection(str(server.socket))
        body = json.dumps({"prompt": "x", "max_tokens": 1, "junk": "y" * (30 << 20)}).encode()
        for _ in range(2):
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            length = int(answer.split(b"Content-Length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()

    asyncio.run(story())


def test_a_card_that_is_full_refuses_as_cuda_does(directory: Path) -> None:
    with running(directory) as first:
        asyncio.run(first.ready())
        with running(directory, model_id="n") as second:
            assert second.process.wait(10) == 1
            assert "cudaMalloc failed: out of memory" in second.log.read_text()
        first.stop()
        with running(directory, model_id="o") as third:
            asyncio.run(third.ready())


def test_sigterm_ends_it_with_a_stream_in_flight(directory: Path) -> None:
    async def story(runtime: Runtime) -> None:
        await runtime.ready()
        request = {"prompt": "x", "max_tokens": 600, "ignore_eos": True, "stream": True}
        stream = await runtime.open("/v1/completions", request)
        await stream.next()
        os.kill(runtime.process.pid, signal.SIGTERM)
        assert await asyncio.to_thread(runtime.process.wait, 2) == 0
        stream.close()

    with running(directory, tokens_per_second=20.0) as runtime:
        asyncio.run(story(runtime))


def test_it_is_small_and_starts_quickly(directory: Path) -> None:
    """Many run side by side in the simulation of a 16 GB card."""

    async def story(runtime: Runtime) -> None:
        await runtime.ready()
        status = Path(f"/proc/{runtime.process.pid}/status")
        if status.exists():
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            assert int(fields["VmRSS"].split()[0]) < 32 << 10

    with running(directory) as runtime:
        asyncio.run(story(runtime))


def test_fields_of_a_wrong_type_are_errors_of_the_client(server: Runtime) -> None:
    for body in ({"prompt": "x", "n": "two"}, {"prompt": "x", "id_slot": "a"}):
        status, reply = asyncio.run(server.post("/v1/completions", body))
        assert status == 400
        assert reply["error"]["type"] == "invalid_request_error"
    assert asyncio.run(server.get("/health")) == (200, {"status": "ok"})


def test_a_request_behind_another_is_served_after_it(server: Runtime) -> None:
    async def story() -> None:
        reader, writer = await asyncio.open_unix_connection(str(server.socket))
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        for _ in range(3):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readexactly(15) == b'{"status":"ok"}'
        writer.close()

    asyncio.run(story())
