"""One gateway on a real socket between real clients and runtimes that do what the test says."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from gridcore.config.schema import ServerConfig
from gridcore.core.events import StepOutcome
from gridcore.ids import JobId, LoadId
from gridcore.ipc.messages import (
    AdminReply,
    AdminRequest,
    CancelJob,
    CancelStep,
    GatewayInventory,
    ReadSlots,
    RefuseJob,
    SlotsReading,
    StepAnswering,
    StepEnded,
    SubmitJob,
)
from tests.support.gateway import FakeScheduler, Running, run, running, until
from tests.support.upstream import Exchange, Handler, Upstream, chat_handler, chunk

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


class Stage(Running):
    """A gateway, a runtime and a client."""

    upstream: Upstream
    client: aiohttp.ClientSession

    async def chat(
        self, headers: dict[str, str] | None = None, **fields: Any
    ) -> aiohttp.ClientResponse:
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.client.post(self.url + CHAT, json=body, headers=headers)

    async def ended(self, count: int = 1) -> StepEnded:
        return await self.scheduler.hear(StepEnded, count)

    async def text(self, reply: aiohttp.ClientResponse) -> str:
        document = json.loads(await reply.read())
        content: str = document["choices"][0]["message"]["content"]
        return content


@asynccontextmanager
async def stage(
    tmp_path: Path,
    handler: Handler = chat_handler,
    *,
    by_hand: bool = False,
    server: ServerConfig | None = None,
) -> AsyncIterator[Stage]:
    """Grants come at once, or ``by_hand``."""
    async with Upstream(tmp_path / "u", handler) as upstream:
        scheduler = FakeScheduler(None if by_hand else upstream.address)
        async with (
            running(tmp_path, scheduler, server=server) as gw,
            aiohttp.ClientSession() as client,
        ):
            made = Stage(gw.gateway, scheduler, gw.url)
            made.upstream, made.client = upstream, client
            yield made


class Gates:
    """A runtime whose every token waits for the test."""

    def __init__(self) -> None:
        self.next = asyncio.Semaphore(0)

    async def handler(self, exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.event({**chunk({}), "prompt_progress": {"total": 1}})
        while True:
            await self.next.acquire()
            await exchange.token("x")


def story(test: Callable[[], Awaitable[None]]) -> None:
    run(test)


# --- answers -------------------------------------------------------------------------------


def test_headers_tell_what_was_decided(tmp_path: Path) -> None:
    async def test() -> None:
        async with stage(tmp_path) as gw:
            reply = await gw.chat({"X-GridCore-Class": "batch"}, model="both")
            assert await gw.text(reply) == "Hello"
            assert reply.headers["X-GridCore-Model"] == "chat"
            assert reply.headers["X-GridCore-Family"] == "pair"
            assert reply.headers["X-GridCore-Class"] == "batch; from=header"
            assert reply.headers["X-GridCore-Queue-Ms"] == "0"
            assert reply.headers["X-GridCore-Job-Id"] == (await gw.scheduler.job()).job_id

    story(test)


def test_a_stream_arrives_event_by_event_and_unchanged(tmp_path: Path) -> None:
    """Each event reaches the client before the next exists; only progress is left out."""

    async def test() -> None:
        gates = Gates()
        async with stage(tmp_path, gates.handler) as gw:
            reply = await gw.chat({"Accept-Encoding": "gzip"}, stream=True)
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            assert reply.headers["Cache-Control"] == "no-cache"
            assert reply.headers["X-Accel-Buffering"] == "no"
            assert "Content-Length" not in reply.headers
            assert "Content-Encoding" not in reply.headers
            for _ in range(3):
                gates.next.release()
                event = await reply.content.readuntil(b"\n\n")
                assert json.loads(event.removeprefix(b"data: ")) == chunk({"content": "x"})
            assert len(gw.scheduler.heard(StepAnswering)) == 1
            reply.close()

    story(test)


def test_progress_reaches_a_client_that_asked_for_it(tmp_path: Path) -> None:
    async def test() -> None:
        gates = Gates()
        async with stage(tmp_path, gates.handler) as gw:
            reply = await gw.chat(stream=True, return_progress=True)
            assert b"prompt_progress" in await reply.content.readuntil(b"\n\n")
            assert gw.scheduler.heard(StepAnswering) == []
            reply.close()

    story(test)


def test_headers_that_are_not_the_runtimes_business_stay_here(tmp_path: Path) -> None:
    async def test() -> None:
        async with stage(tmp_path) as gw:
            secret = {"Authorization": "Bearer k", "Cookie": "c=1", "X-Conversation-Id": "conv"}
            await gw.text(await gw.chat(secret))
            seen = gw.upstream.requests[0].headers
            assert not {name.lower() for name in secret} & seen.keys()
            assert gw.scheduler.heard(SubmitJob)[0].job.client not in ("", "k")

    story(test)


@pytest.mark.parametrize("how", ["whole", "chunked", "expect"])
def test_a_body_of_30_mb_arrives_byte_for_byte(how: str, tmp_path: Path) -> None:
    image = "data:image/png;base64," + "QUJD" * 7_500_000
    content = [{"type": "image_url", "image_url": {"url": image}}]
    fields = {"messages": [{"role": "user", "content": content}], "model": "eyes", "x": 1.50}
    raw = json.dumps(fields, indent=1).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 1 << 20):
            yield raw[start : start + (1 << 20)]

    async def test() -> None:
        async with stage(tmp_path) as gw:
            headers = {"Content-Length": str(len(raw))} if how != "chunked" else {}
            expects = how == "expect"
            url = gw.url + CHAT
            async with gw.client.post(
                url, data=pieces(), headers=headers, expect100=expects
            ) as reply:
                assert await gw.text(reply) == "Hello"
            passed = gw.upstream.requests[0]
            assert passed.headers["content-length"] == str(len(passed.raw))
            assert "transfer-encoding" not in passed.headers
            same = hashlib.sha256(passed.raw[: len(raw) - 2]).digest()
            assert same == hashlib.sha256(raw[:-2]).digest()
            assert gw.gateway.held_body_bytes == 0

    story(test)


def test_a_chunked_body_over_the_limit(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 16)

    async def test() -> None:
        async with stage(tmp_path, server=ServerConfig(max_body_mb=1)) as gw:
            async with gw.client.post(gw.url + CHAT, data=pieces()) as reply:
                error = json.loads(await reply.read())["error"]
                assert (reply.status, error["code"]) == (413, "body_too_large")
                assert "server.max_body_mb" in error["message"]
            assert gw.gateway.held_body_bytes == 0

    story(test)


# --- clients that leave --------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_at_once(stream: bool, tmp_path: Path) -> None:
    async def test() -> None:
        gates = Gates()
        async with stage(tmp_path, gates.handler) as gw:
            asked = asyncio.ensure_future(gw.chat(stream=stream))
            await until(lambda: len(gw.upstream.requests) == 1)
            gates.next.release()
            if stream:
                await (await asked).content.readuntil(b"\n\n")
                (await asked).close()
            else:
                asked.cancel()
            async with asyncio.timeout(1):
                ended = await gw.ended()
                await until(lambda: gw.upstream.open == 0)
            assert ended.outcome is StepOutcome.CANCELLED
            assert (ended.last, ended.slot_idle) == (True, False)
            assert gw.gateway.jobs.jobs == {}

    story(test)


def test_dropping_a_queued_request_does_not_touch_the_running_one(tmp_path: Path) -> None:
    async def test() -> None:
        gates = Gates()
        async with stage(tmp_path, gates.handler, by_hand=True) as gw:
            first = asyncio.ensure_future(gw.chat(stream=True))
            gw.scheduler.grant(await gw.scheduler.job(), gw.upstream.address)
            reply = await first
            second = asyncio.ensure_future(gw.chat())
            queued = await gw.scheduler.job(2)
            second.cancel()
            async with asyncio.timeout(1):
                cancelled = await gw.scheduler.hear(CancelJob)
            assert cancelled.job_id == queued.job_id
            for _ in range(3):
                gates.next.release()
                await reply.content.readuntil(b"\n\n")
            assert gw.scheduler.heard(StepEnded) == []
            assert gw.upstream.open == 1
            reply.close()

    story(test)


def test_a_grant_nobody_waits_for_is_given_back(tmp_path: Path) -> None:
    """Sent while the client was leaving: the slot must not leak."""

    async def test() -> None:
        async with stage(tmp_path, by_hand=True) as gw:
            asked = asyncio.ensure_future(gw.chat())
            job = await gw.scheduler.job()
            asked.cancel()
            await gw.scheduler.hear(CancelJob)
            lease = gw.scheduler.grant(job, gw.upstream.address)
            ended = await gw.ended()
            assert (ended.lease_id, ended.outcome) == (lease, StepOutcome.CANCELLED)
            assert (ended.last, ended.slot_idle) == (True, True)
            assert gw.upstream.requests == []

    story(test)


# --- runtimes that fail --------------------------------------------------------------------


def failing_once(failure: Callable[[Exchange], Awaitable[None]]) -> Handler:
    failed = False

    async def handler(exchange: Exchange) -> None:
        nonlocal failed
        if failed:
            await chat_handler(exchange)
            return
        failed = True
        await failure(exchange)

    return handler


async def dies_at_once(exchange: Exchange) -> None:
    exchange.die()


async def is_loading(exchange: Exchange) -> None:
    await exchange.send(503, b'{"error":{"message":"Loading model","code":503}}')


async def dies_after_progress(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.event({**chunk({}), "prompt_progress": {"total": 1}})
    exchange.die()


async def ends_without_mark(exchange: Exchange) -> None:
    await exchange.send(200, b"", "text/event-stream")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "failure", [dies_at_once, is_loading, dies_after_progress, ends_without_mark]
)
def test_a_step_lost_before_its_answer_is_done_again(
    failure: Callable[[Exchange], Awaitable[None]], stream: bool, tmp_path: Path
) -> None:
    async def test() -> None:
        async with stage(tmp_path, failing_once(failure), by_hand=True) as gw:
            asked = asyncio.ensure_future(gw.chat(stream=stream))
            job = await gw.scheduler.job()
            gw.scheduler.grant(job, gw.upstream.address)
            lost = await gw.ended()
            assert (lost.outcome, lost.last) == (StepOutcome.LOST, False)
            assert gw.gateway.jobs.jobs[job.job_id].restated().steps_lost == 1
            gw.scheduler.grant(job, gw.upstream.address)
            text = await (await asked).read()
            assert b"lo" in text
            assert b"error" not in text
            assert (await gw.ended(2)).outcome is StepOutcome.DONE

    story(test)


def test_no_runtime_at_the_address(tmp_path: Path) -> None:
    async def test() -> None:
        async with stage(tmp_path, by_hand=True) as gw:
            asked = asyncio.ensure_future(gw.chat())
            job = await gw.scheduler.job()
            gw.scheduler.grant(job, f"unix:{tmp_path}/nobody")
            assert (await gw.ended()).outcome is StepOutcome.LOST
            gw.scheduler.tell(refusal(job.job_id, status=502, code="runtime_lost"))
            reply = await asked
            assert (reply.status, json.loads(await reply.read())["error"]["code"]) == (
                502,
                "runtime_lost",
            )

    story(test)


def refusal(job_id: JobId, *, status: int = 503, code: str = "queue_timeout") -> RefuseJob:
    return RefuseJob(
        job_id=job_id,
        status=status,
        error_type="unavailable_error",
        code=code,
        message="no",
        retry_after_ns=1_500_000_000,
    )


def test_the_official_client_sees_a_broken_stream_as_an_error(tmp_path: Path) -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.token("Hel")
        exchange.die()

    async def test() -> None:
        async with stage(tmp_path, handler) as gw:
            client = openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="k", max_retries=0)
            stream = await client.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            texts: list[str | None] = []

            async def read() -> None:
                async for part in stream:
                    texts.append(part.choices[0].delta.content)  # noqa: PERF401 - until it raises

            with pytest.raises(openai.APIError, match="middle of the answer"):
                await read()
            assert texts == ["Hel"]
            ended = await gw.ended()
            assert (ended.outcome, ended.last) == (StepOutcome.BROKEN, True)
            await client.close()

    story(test)


def test_an_error_event_of_the_runtime_ends_the_stream(tmp_path: Path) -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.token("Hel")
        await exchange.event(
            {"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}
        )
        exchange.die()

    async def test() -> None:
        async with stage(tmp_path, handler) as gw:
            text = await (await gw.chat(stream=True)).read()
            last = json.loads(text.split(b"\n\n")[-2].removeprefix(b"data: "))
            assert last["error"] == {
                "message": "Compute error.",
                "type": "server_error",
                "code": None,
                "param": None,
            }
            whole = await gw.chat()
            assert (whole.status, json.loads(await whole.read())) == (500, last)
            assert (await gw.ended(2)).outcome is StepOutcome.DONE

    story(test)


# --- the scheduler's word ------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_step_is_taken_back_before_its_answer_only(stream: bool, tmp_path: Path) -> None:
    async def test() -> None:
        gates = Gates()
        async with stage(tmp_path, gates.handler, by_hand=True) as gw:
            asked = asyncio.ensure_future(gw.chat(stream=stream))
            job = await gw.scheduler.job()
            for count in (1, 2):
                lease = gw.scheduler.grant(job, gw.upstream.address)
                await until(lambda: gw.upstream.open == 1)
                gw.scheduler.tell(
                    CancelStep(lease_id=lease, job_id=job.job_id, reason="in the way")
                )
                ended = await gw.ended(count)
                assert (ended.outcome, ended.last) == (StepOutcome.CANCELLED, False)
                await until(lambda: gw.upstream.open == 0)
            lease = gw.scheduler.grant(job, gw.upstream.address)
            await until(lambda: len(gw.upstream.requests) == 3)
            if stream:
                gates.next.release()
                await gw.scheduler.hear(StepAnswering)
                gw.scheduler.tell(CancelStep(lease_id=lease, job_id=job.job_id, reason="too late"))
                reply = await asked
                for _ in range(2):
                    gates.next.release()
                    await reply.content.readuntil(b"\n\n")
                assert len(gw.scheduler.heard(StepEnded)) == 2
                reply.close()
            else:
                asked.cancel()
            await gw.ended(3)

    story(test)


def test_a_refusal_is_the_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with stage(tmp_path, by_hand=True) as gw:
            asked = asyncio.ensure_future(gw.chat({"X-GridCore-Max-Wait-Ms": "3000"}, stream=True))
            job = await gw.scheduler.job()
            assert job.max_wait_ns == 3_000_000_000
            gw.scheduler.tell(refusal(job.job_id))
            reply = await asked
            assert (reply.status, reply.headers["Retry-After"]) == (503, "2")
            assert json.loads(await reply.read())["error"]["code"] == "queue_timeout"
            assert gw.scheduler.heard(CancelJob) == []

    story(test)


def test_a_long_wait_shows_comments_and_its_refusal_is_an_event(tmp_path: Path) -> None:
    async def test() -> None:
        server = ServerConfig(wait_comments_after_ns=50_000_000)
        async with stage(tmp_path, by_hand=True, server=server) as gw:
            reply = await gw.chat(stream=True)
            assert (await reply.content.readuntil(b"\n\n")).startswith(b": waiting ")
            assert reply.status == 200
            gw.scheduler.tell(refusal((await gw.scheduler.job()).job_id))
            text = await reply.read()
            assert json.loads(text.removeprefix(b"data: "))["error"]["code"] == "queue_timeout"

            reply = await gw.chat(stream=True)
            await reply.content.readuntil(b"\n\n")
            gw.scheduler.grant(await gw.scheduler.job(2), gw.upstream.address)
            assert (await reply.read()).endswith(b"data: [DONE]\n\n")

    story(test)


def test_with_a_longest_wait_the_status_stays_open(tmp_path: Path) -> None:
    async def test() -> None:
        server = ServerConfig(wait_comments_after_ns=10_000_000)
        async with stage(tmp_path, by_hand=True, server=server) as gw:
            asked = asyncio.ensure_future(gw.chat(stream=True, gridcore={"max_wait_ms": 60_000}))
            job = await gw.scheduler.job()
            await until(lambda: gw.gateway.jobs.jobs[job.job_id].restated().waited_ns > 100_000_000)
            assert not asked.done()
            gw.scheduler.tell(refusal(job.job_id))
            assert (await asked).status == 503

    story(test)


# --- the link ------------------------------------------------------------------------------


def test_open_jobs_and_leases_are_restated_after_a_welcome(tmp_path: Path) -> None:
    """A new scheduler learns who waits since when, and what runs; a running stream goes on."""

    async def test() -> None:
        gates = Gates()
        async with stage(tmp_path, gates.handler, by_hand=True) as gw:
            running_one = asyncio.ensure_future(gw.chat(stream=True))
            job = await gw.scheduler.job()
            lease = gw.scheduler.grant(job, gw.upstream.address)
            gates.next.release()
            reply = await running_one
            waiting = asyncio.ensure_future(gw.chat())
            waiting_job = await gw.scheduler.job(2)
            gw.scheduler.is_up = False
            gw.gateway.jobs.on_link(False)
            held = asyncio.ensure_future(gw.chat())
            await until(lambda: len(gw.gateway.jobs.jobs) == 3)
            await until(
                lambda: gw.gateway.jobs.jobs[waiting_job.job_id].restated().waited_ns > 50_000_000
            )
            for _ in range(2):
                gates.next.release()
                await reply.content.readuntil(b"\n\n")

            (page,) = gw.gateway.jobs.inventory()
            assert isinstance(page, GatewayInventory)
            assert [entry.job_id for entry in page.jobs][:2] == [job.job_id, waiting_job.job_id]
            assert page.jobs[1].waited_ns > 50_000_000
            (stated,) = page.leases
            assert (stated.lease_id, stated.answer_begun) == (lease, True)
            beat = gw.gateway.jobs.beat()
            assert (beat.jobs, beat.leases) == (3, 1)

            gw.scheduler.is_up = True
            gw.gateway.jobs.on_link(True)
            for entry in page.jobs[1:]:
                gw.scheduler.tell(refusal(entry.job_id))
            assert {(await waiting).status, (await held).status} == {503}
            reply.close()
            ended = await gw.ended()
            assert ended.lease_id == lease

    story(test)


def test_a_stream_that_ends_while_the_link_is_down_is_not_restated(tmp_path: Path) -> None:
    async def test() -> None:
        may_end = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            await exchange.begin()
            await exchange.token("x")
            await may_end.wait()
            await exchange.finish()

        async with stage(tmp_path, handler) as gw:
            reply = await gw.chat(stream=True)
            gw.scheduler.is_up = False
            gw.gateway.jobs.on_link(False)
            may_end.set()
            assert (await reply.read()).endswith(b"data: [DONE]\n\n")
            await until(lambda: gw.gateway.jobs.jobs == {})
            (page,) = gw.gateway.jobs.inventory()
            assert (page.jobs, page.leases) == ((), ())

    story(test)


def test_the_inventory_comes_in_pages(tmp_path: Path) -> None:
    async def test() -> None:
        async with stage(tmp_path, by_hand=True) as gw:
            asked = asyncio.ensure_future(gw.chat())
            queued = await gw.scheduler.job()
            for number in range(1200):
                gw.gateway.jobs.open(msgspec.structs.replace(queued, job_id=JobId(f"j{number}")))
            pages = list(gw.gateway.jobs.inventory())
            assert [len(page.jobs) for page in pages] == [500, 500, 201]
            assert [page.last_page for page in pages] == [False, False, True]
            asked.cancel()
            await gw.scheduler.hear(CancelJob)

    story(test)


# --- slow clients --------------------------------------------------------------------------


def test_a_step_ends_when_the_runtime_ends_not_when_the_client_has_read(tmp_path: Path) -> None:
    text = "x" * 10_000

    async def handler(exchange: Exchange) -> None:
        await exchange.begin()
        for _ in range(300):
            await exchange.token(text)
        await exchange.finish()

    async def test() -> None:
        async with stage(tmp_path, handler) as gw:
            body = json.dumps({"model": "chat", "messages": [], "stream": True}).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", gw.port, limit=1)
            writer.write(head.encode() + body)
            ended = await gw.ended()  # nothing has been read yet
            assert ended.outcome is StepOutcome.DONE
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += await reader.read(1 << 16)
            assert received.count(text.encode()) == 300
            assert b"data: [DONE]" in received
            writer.close()

    story(test)


# --- embeddings ----------------------------------------------------------------------------


async def embedder(exchange: Exchange) -> None:
    inputs = exchange.body["input"]
    data = [
        {"embedding": [float(text.removeprefix("t"))], "index": n, "object": "embedding"}
        for n, text in enumerate(inputs)
    ]
    if inputs[0] == "t0":
        await asyncio.sleep(0.05)  # the first chunk comes last
    usage = {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}
    reply = {"model": "x", "object": "list", "data": data, "usage": usage}
    await exchange.send(200, json.dumps(reply).encode())


def test_a_large_embedding_request_is_one_answer_of_many_chunks(tmp_path: Path) -> None:
    async def test() -> None:
        async with stage(tmp_path, embedder) as gw:
            texts = [f"t{n}" for n in range(100)]
            body = {"model": "embed", "input": texts, "user": "u"}
            reply = await gw.client.post(gw.url + EMBED, json=body)
            answer = json.loads(await reply.read())
            assert [entry["embedding"] for entry in answer["data"]] == [
                [float(n)] for n in range(100)
            ]
            assert [entry["index"] for entry in answer["data"]] == list(range(100))
            assert answer["usage"] == {"prompt_tokens": 100, "total_tokens": 100}
            assert answer["model"] == "embed"
            assert reply.headers["X-GridCore-Model"] == "embed"
            job = await gw.scheduler.job()
            assert (job.items, job.width) == (100, 1)
            ended = gw.scheduler.heard(StepEnded)
            assert [step.last for step in ended] == [False, False, False, True]
            assert {exchange.body["user"] for exchange in gw.upstream.requests} == {"u"}

    story(test)


def test_a_lost_chunk_is_done_again_and_a_done_one_is_not(tmp_path: Path) -> None:
    failed = False

    async def handler(exchange: Exchange) -> None:
        nonlocal failed
        if exchange.body["input"][0] == "t2" and not failed:
            failed = True
            exchange.die()
            return
        await embedder(exchange)

    async def test() -> None:
        async with stage(tmp_path, handler, by_hand=True) as gw:
            body = {"model": "embed", "input": ["t0", "t1", "t2", "t3"]}
            asked = asyncio.ensure_future(gw.client.post(gw.url + EMBED, json=body))
            job = await gw.scheduler.job()
            gw.scheduler.grant(job, gw.upstream.address, first=2, count=2)
            assert (await gw.ended()).outcome is StepOutcome.LOST
            gw.scheduler.grant(job, gw.upstream.address, first=0, count=2)
            assert (await gw.ended(2)).outcome is StepOutcome.DONE
            assert gw.gateway.jobs.jobs[job.job_id].restated().items_done == 2
            gw.scheduler.grant(job, gw.upstream.address, first=0, count=2)  # a new epoch asks again
            assert (await gw.ended(3)).outcome is StepOutcome.DONE
            assert len(gw.upstream.requests) == 2
            gw.scheduler.grant(job, gw.upstream.address, first=2, count=2)
            answer = json.loads(await (await asked).read())
            assert [entry["embedding"] for entry in answer["data"]] == [[0.0], [1.0], [2.0], [3.0]]
            assert (await gw.ended(4)).last

    story(test)


def test_an_error_of_one_chunk_ends_the_others(tmp_path: Path) -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.body["input"] == ["t1"]:
            await exchange.send(500, b'{"error":{"message":"too large","type":"server_error"}}')
        else:
            await asyncio.Event().wait()

    async def test() -> None:
        async with stage(tmp_path, handler) as gw:
            gw.scheduler.chunk = 1
            reply = await gw.client.post(
                gw.url + EMBED, json={"model": "embed", "input": ["t0", "t1"]}
            )
            assert (reply.status, json.loads(await reply.read())["error"]["message"]) == (
                500,
                "too large",
            )
            await gw.ended(2)
            outcomes = [step.outcome for step in gw.scheduler.heard(StepEnded)]
            assert outcomes == [StepOutcome.DONE, StepOutcome.CANCELLED]
            await until(lambda: gw.upstream.open == 0)

    story(test)


def test_a_client_of_embeddings_that_leaves(tmp_path: Path) -> None:
    async def handler(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        async with stage(tmp_path, handler, by_hand=True) as gw:
            body = {"model": "embed", "input": ["t0", "t1", "t2"]}
            asked = asyncio.ensure_future(gw.client.post(gw.url + EMBED, json=body))
            job = await gw.scheduler.job()
            for first in (0, 1):
                gw.scheduler.grant(job, gw.upstream.address, first=first)
            await until(lambda: gw.upstream.open == 2)
            asked.cancel()
            async with asyncio.timeout(1):
                await gw.ended(2)
                await until(lambda: gw.upstream.open == 0)
            assert {step.outcome for step in gw.scheduler.heard(StepEnded)} == {
                StepOutcome.CANCELLED
            }
            assert [cancel.job_id for cancel in gw.scheduler.heard(CancelJob)] == [job.job_id]

    story(test)


# --- everything else -----------------------------------------------------------------------


def test_the_slots_of_a_runtime_are_read_for_the_scheduler(tmp_path: Path) -> None:
    async def handler(exchange: Exchange) -> None:
        assert (exchange.method, exchange.path) == ("GET", "/slots")
        slots = [{"id": 0, "is_processing": True, "n_ctx": 1}, {"id": 1, "is_processing": False}]
        await exchange.send(200, json.dumps(slots).encode())

    async def test() -> None:
        async with stage(tmp_path, handler) as gw:
            gw.scheduler.tell(ReadSlots(load_id=LoadId("l"), address=gw.upstream.address))
            reading = await gw.scheduler.hear(SlotsReading)
            assert (reading.load_id, reading.idle_slots) == ("l", (1,))

    story(test)


def test_admin_verbs_are_passed_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with stage(tmp_path) as gw:
            asked = asyncio.ensure_future(
                gw.client.post(gw.url + "/admin/models/gpt%2D4o/load", headers={"Origin": gw.url})
            )
            request = await gw.scheduler.hear(AdminRequest)
            assert (request.verb, request.target) == ("load", "chat")
            gw.scheduler.tell(
                AdminReply(request_id=request.request_id, status=202, message="will be loaded")
            )
            reply = await asked
            assert reply.status == 202
            assert json.loads(await reply.read()) == {"model": "chat", "message": "will be loaded"}

            asked = asyncio.ensure_future(
                gw.client.post(gw.url + "/admin/models/chat/unload", json={})
            )
            request = await gw.scheduler.hear(AdminRequest, 2)
            gw.scheduler.tell(AdminReply(request_id=request.request_id, status=409, message="busy"))
            reply = await asked
            assert (reply.status, json.loads(await reply.read())["error"]["message"]) == (
                409,
                "busy",
            )

    story(test)


def test_pages_that_need_no_scheduler(tmp_path: Path) -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.send(200, b"# metrics\n", "text/plain; version=0.0.4")

    async def test() -> None:
        async with stage(tmp_path) as gw, Upstream(tmp_path / "metrics", handler):
            gw.scheduler.is_up = False
            gw.gateway.jobs.on_link(False)
            for path, status, text in (
                ("/health", 200, b'{"status":"ok"}'),
                ("/v1/models", 200, b'"id":"pair"'),
                ("/v1/models/gpt-4o", 200, b'"id":"chat"'),
                ("/v1/models/nope", 404, b"model_not_found"),
                ("/metrics", 200, b"# metrics"),
                ("/admin/ui", 200, b"<!doctype html>"),
            ):
                async with gw.client.get(gw.url + path) as reply:
                    assert (reply.status, text in await reply.read()) == (status, True), path
                async with gw.client.head(gw.url + path) as head:
                    assert (head.status, await head.read()) == (status, b""), path
            async with gw.client.get(gw.url, allow_redirects=False) as reply:
                assert reply.headers["Location"] == "/admin/ui"

    story(test)


def test_the_page_asks_nobody_else() -> None:
    html = resources.files("gridcore.http").joinpath("ui", "index.html").read_text()
    assert "//" not in html.replace("</", "")
    assert "prefers-color-scheme: dark" in html


def test_a_defect_is_a_500_without_the_prompt_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with stage(tmp_path) as gw:
            gw.gateway.names = None  # type: ignore[assignment]
            reply = await gw.chat(messages=[{"role": "user", "content": "a secret"}])
            assert (reply.status, json.loads(await reply.read())["error"]["code"]) == (
                500,
                "internal_error",
            )

    story(test)
    assert "AttributeError" in caplog.text
    assert "secret" not in caplog.text
