"""A runtime that does exactly what a test says: an HTTP server on a unix socket of this loop."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Body = dict[str, Any]


class Exchange:
    """One request as received, and the means to answer it."""

    def __init__(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        raw: bytes,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.raw = raw
        self._writer = writer

    @property
    def body(self) -> Body:
        document: Body = json.loads(self.raw)
        return document

    async def send(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await self._writer.drain()

    async def send_slowly(self, status: int, body: bytes) -> None:
        """Send an answer whose body arrives in two pieces."""
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body[:10])
        await self._writer.drain()
        await asyncio.sleep(0.05)
        self._writer.write(body[10:])
        await self._writer.drain()

    async def begin(self) -> None:
        self._writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        await self._writer.drain()

    async def write(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n" % len(data) + data + b"\r\n")
        await self._writer.drain()

    async def event(self, document: object) -> None:
        await self.write(b"data: " + json.dumps(document).encode() + b"\n\n")

    async def token(self, text: str, index: int = 0) -> None:
        await self.event(chunk({"content": text}, index=index))

    async def finish(self) -> None:
        await self.event(chunk({}, finish_reason="stop"))
        await self.write(b"data: [DONE]\n\n")
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def die(self) -> None:
        """Close as a killed process does: in the middle of whatever it was."""
        self._writer.transport.abort()


def chunk(delta: Body, *, index: int = 0, finish_reason: str | None = None) -> Body:
    choice = {"finish_reason": finish_reason, "index": index, "delta": delta}
    return {"choices": [choice], "id": "c", "model": "m", "object": "chat.completion.chunk"}


Handler = Callable[[Exchange], Awaitable[None]]


class Upstream:
    """``requests`` are those received; ``gone`` counts clients that left before their answer."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self.address = f"unix:{path}"
        self.requests: list[Exchange] = []
        self.gone = 0
        self.open = 0
        self._path = path
        self._handler = handler
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=1 << 26)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            pairs = (line.split(":", 1) for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, value in pairs}
            raw = await reader.readexactly(int(headers.get("content-length", "0")))
            exchange = Exchange(method, path, headers, raw, writer)
            self.requests.append(exchange)
            work = asyncio.ensure_future(self._handler(exchange))
            left = asyncio.ensure_future(reader.read(1))
            await asyncio.wait([work, left], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.gone += 1
            left.cancel()
            work.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone += 1
        finally:
            self.open -= 1
            writer.close()


async def chat_handler(exchange: Exchange) -> None:
    """Answer any chat with two tokens."""
    await exchange.begin()
    await exchange.event(chunk({"role": "assistant", "content": None}))
    await exchange.token("Hel")
    await exchange.token("lo")
    await exchange.finish()
