"""A GET-only HTTP/1.1 server for one page, small enough to stay resident.

It owns connections and their limits, and must not know what the page says. A full ASGI server
would cost this process three times its memory for one route.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

Render = Callable[[], Awaitable[bytes]]

HEAD_BYTES_MAX = 16 * 1024
"""A scraper's request head is a few hundred bytes."""
IDLE_TIMEOUT_S = 75.0
"""Scrapers keep a connection for their interval, 15 to 60 s as a rule."""
CONNECTIONS_MAX = 32


class MetricsServer:
    """Serves ``GET /metrics`` on any number of listening sockets."""

    def __init__(self, render: Render, content_type: str) -> None:
        self._render = render
        self._content_type = content_type
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def listen_unix(self, path: Path) -> None:
        """Serve on a unix socket; one that a killed exporter left behind is replaced."""
        path.unlink(missing_ok=True)
        umask = os.umask(0o077)
        try:
            server = await asyncio.start_unix_server(self._accept, path, limit=HEAD_BYTES_MAX)
        finally:
            os.umask(umask)
        self._servers.append(server)

    async def listen_tcp(self, host: str, port: int) -> None:
        """Serve on a TCP port.

        Raises:
            OSError: the address cannot be bound.
        """
        server = await asyncio.start_server(self._accept, host, port, limit=HEAD_BYTES_MAX)
        self._servers.append(server)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                writer.write(_answer(503, b"too many connections\n", "text/plain", last=True))
            else:
                await self._converse(reader, writer)
            await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # the scraper left, or we are closing
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, TimeoutError):
                return
            except asyncio.LimitOverrunError:
                writer.write(_answer(431, b"request head too large\n", "text/plain", last=True))
                return
            answer, last = await self._respond(head)
            writer.write(answer)
            await writer.drain()
            if last:
                return

    async def _respond(self, head: bytes) -> tuple[bytes, bool]:
        lines = head.decode("latin-1").split("\r\n")
        try:
            method, target, version = lines[0].split(" ")
        except ValueError:
            return _answer(400, b"not an HTTP request\n", "text/plain", last=True), True
        headers = _headers(lines[1:])
        # A body would be read as the next request; nobody sends one with a GET.
        last = (
            headers.get("connection", "").lower() == "close"
            or version != "HTTP/1.1"
            or headers.get("content-length", "0") != "0"
            or "transfer-encoding" in headers
        )
        if target.partition("?")[0] != "/metrics":
            return _answer(404, b"the page is /metrics\n", "text/plain", last=last), last
        if method not in ("GET", "HEAD"):
            return _answer(405, b"GET only\n", "text/plain", last=last), last
        page = await self._render()
        answer = _answer(200, page, self._content_type, last=last, head_only=method == "HEAD")
        return answer, last


_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def _answer(
    status: int, body: bytes, content_type: str, *, last: bool, head_only: bool = False
) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        f"Connection: {'close' if last else 'keep-alive'}",
    ]
    if status == 405:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head if head_only else head + body


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
