"""docs/errors.md, row by row, against the application on a real socket."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct

from gridcore.config.schema import ServerConfig
from tests.support.gateway import FakeScheduler, Running, run, running, until
from tests.support.upstream import Exchange, Upstream

DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"
CHAT, COMPLETE, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]


class Case(Struct, frozen=True):
    path: str
    body: bytes = b""
    headers: dict[str, str] = {}
    method: str = "POST"


def case(path: str, headers: dict[str, str] | None = None, **fields: Any) -> Case:
    if path == CHAT:
        fields = {"model": "chat", "messages": HELLO, **fields}
    return Case(path, json.dumps(fields).encode(), headers or {})


def part(kind: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": kind, kind: {}}]}]


CASES = {
    "a body of 0 bytes": Case(CHAT),
    "invalid JSON": Case(CHAT, b'{"model":'),
    "invalid UTF-8": Case(CHAT, b'{"model":"\xff"}'),
    "nested too deeply": Case(CHAT, b'{"a":' + b"[" * 50_000),
    "not an object": Case(CHAT, b"[]"),
    "a key twice": Case(CHAT, b'{"model":"chat","temperature":0,"temperature":1}'),
    "a value of the wrong type": case(CHAT, stream="yes"),
    "no model": case(CHAT, model=None),
    "unknown model": case(CHAT, model="nope"),
    "unknown suffix": case(CHAT, model="chat@urgent"),
    "unknown class in the header": case(CHAT, {"X-GridCore-Class": "urgent"}),
    "unknown class in the body": case(CHAT, gridcore={"class": "urgent"}),
    "a longest wait that is no number": case(CHAT, {"X-GridCore-Max-Wait-Ms": "3s"}),
    "unknown quality": case(CHAT, gridcore={"quality": "best"}),
    "no messages": case(CHAT, messages=None),
    "no prompt": case(COMPLETE, model="chat"),
    "an empty list of prompts": case(COMPLETE, model="chat", prompt=[]),
    "an image for a model without vision": case(CHAT, messages=part("image_url")),
    "sound for a family without audio": case(CHAT, model="pair", messages=part("input_audio")),
    "a chat with an embedding model": case(CHAT, model="embed"),
    "embeddings from a chat model": case(EMBED, model="chat", input="x"),
    "no answer asked for": case(CHAT, n=0),
    "more answers than slots": case(CHAT, n=3),
    "no embedding input": case(EMBED, model="embed"),
    "an empty list of inputs": case(EMBED, model="embed", input=[]),
    "a body over the limit": Case(CHAT, b" " * (2 << 20)),
    "an unknown route": Case("/v2/chat"),
    "a wrong method": Case(CHAT, method="GET"),
    "an admin body that is not JSON": Case(
        "/admin/models/chat/load", b"x", {"Content-Type": "text/plain"}
    ),
    "an admin request from a foreign page": Case(
        "/admin/models/chat/load", headers={"Origin": "http://example.com"}
    ),
    "a family where a model is meant": Case("/admin/models/pair/load"),
    "the metrics exporter is away": Case("/metrics", method="GET"),
}
"""Cases that need nothing but the request; the others have tests of their own."""
ELSEWHERE = {
    "the scheduler is away for longer than the request may wait",
    "the state is asked for while the scheduler is away",
    "GridCore is shutting down",
    "a conversation too long for the model",
    "an error answer of the runtime",
    "the runtime dies in the middle of an answer",
    "the runtime answers with other vectors than asked for",
}

Row = tuple[int, str, str | None, str | None]


def documented() -> dict[str, Row]:
    rows = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[1].isdigit():
            code, param = (None if cell == "null" else cell for cell in cells[3:])
            rows[cells[0]] = (int(cells[1]), cells[2], code, param)
    return rows


ROWS = documented()


async def row_of(reply: aiohttp.ClientResponse) -> Row:
    error = json.loads(await reply.read())["error"]
    assert error["message"]
    return reply.status, error["type"], error["code"], error["param"]


def test_every_row_has_a_test() -> None:
    assert set(ROWS) == CASES.keys() | ELSEWHERE


@pytest.mark.parametrize("name", CASES)
def test_row(name: str, tmp_path: Path) -> None:
    wanted = CASES[name]

    async def story() -> None:
        server = ServerConfig(max_body_mb=1)
        async with running(tmp_path, server=server) as gw, aiohttp.ClientSession() as client:
            async with client.request(
                wanted.method,
                gw.url + wanted.path,
                data=io.BytesIO(wanted.body),
                headers=wanted.headers,
            ) as reply:
                assert await row_of(reply) == ROWS[name]
                if reply.status == 405:
                    assert reply.headers["Allow"] == "POST"
            assert gw.scheduler.said == []
            assert gw.gateway.held_body_bytes == 0

    run(story)


async def chat(client: aiohttp.ClientSession, gw: Running, **fields: Any) -> aiohttp.ClientResponse:
    return await client.post(gw.url + CHAT, data=case(CHAT, **fields).body)


def test_held_while_the_scheduler_is_away(tmp_path: Path) -> None:
    """Within max_wait, else server.hold_timeout; never refused at once."""

    async def story() -> None:
        server = ServerConfig(hold_timeout_ns=400_000_000)
        async with running(tmp_path, server=server) as gw, aiohttp.ClientSession() as client:
            gw.scheduler.is_up = False
            gw.gateway.jobs.on_link(False)
            loop = asyncio.get_running_loop()
            for fields, least_s in (({}, 0.35), ({"gridcore": {"max_wait_ms": 100}}, 0.05)):
                begun = loop.time()
                reply = await chat(client, gw, **fields)
                name = "the scheduler is away for longer than the request may wait"
                assert await row_of(reply) == ROWS[name]
                assert int(reply.headers["Retry-After"]) > 0
                assert "X-GridCore-Job-Id" in reply.headers
                assert loop.time() - begun > least_s
            async with client.get(gw.url + "/admin/state") as reply:
                name = "the state is asked for while the scheduler is away"
                assert await row_of(reply) == ROWS[name]
            assert gw.gateway.jobs.jobs == {}

    run(story)


def test_shutting_down(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as gw, aiohttp.ClientSession() as client:
            waiting = asyncio.ensure_future(chat(client, gw))
            await gw.scheduler.job()
            gw.gateway.jobs.begin_drain()
            for reply in (await waiting, await chat(client, gw)):
                assert await row_of(reply) == ROWS["GridCore is shutting down"]
                assert int(reply.headers["Retry-After"]) > 0

    run(story)


@pytest.mark.parametrize(
    ("name", "status", "error"),
    [
        (
            "a conversation too long for the model",
            400,
            {"code": 400, "message": "m", "type": "exceed_context_size_error", "n_ctx": 1},
        ),
        (
            "an error answer of the runtime",
            500,
            {"code": 500, "message": "Compute error.", "type": "server_error"},
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_an_error_answer_of_the_runtime(
    name: str, status: int, error: dict[str, Any], stream: bool, tmp_path: Path
) -> None:
    async def handler(exchange: Exchange) -> None:
        body = json.dumps({"error": error}).encode()
        await exchange.send_slowly(status, body)

    async def story() -> None:
        async with (
            Upstream(tmp_path / "u", handler) as upstream,
            running(tmp_path, FakeScheduler(upstream.address)) as gw,
            aiohttp.ClientSession() as client,
        ):
            reply = await chat(client, gw, stream=stream)
            assert await row_of(reply) == ROWS[name]
            assert "X-GridCore-Job-Id" in reply.headers
            await until(lambda: gw.gateway.jobs.jobs == {})

    run(story)


def test_the_runtime_answers_with_other_vectors(tmp_path: Path) -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.send(200, b'{"data":[]}')

    async def story() -> None:
        async with (
            Upstream(tmp_path / "u", handler) as upstream,
            running(tmp_path, FakeScheduler(upstream.address)) as gw,
            aiohttp.ClientSession() as client,
        ):
            reply = await client.post(gw.url + EMBED, data=b'{"model":"embed","input":"x"}')
            name = "the runtime answers with other vectors than asked for"
            assert await row_of(reply) == ROWS[name]

    run(story)


def test_the_runtime_dies_in_the_middle(tmp_path: Path) -> None:
    """An error event, no [DONE]: a client library must not take it for a success."""

    async def handler(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.token("Hel")
        exchange.die()

    async def story() -> None:
        async with (
            Upstream(tmp_path / "u", handler) as upstream,
            running(tmp_path, FakeScheduler(upstream.address)) as gw,
            aiohttp.ClientSession() as client,
        ):
            reply = await chat(client, gw, stream=True)
            *events, rest = (await reply.read()).split(b"\n\n")
            assert (reply.status, rest, b"[DONE]" in b"".join(events)) == (200, b"", False)
            error = json.loads(events[-1].removeprefix(b"data: "))["error"]
            row = ROWS["the runtime dies in the middle of an answer"]
            assert (error["type"], error["code"], error["param"]) == row[1:]

    run(story)
