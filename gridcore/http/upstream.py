"""The HTTP client towards runtimes and the metrics exporter: one new connection a request.

A reused connection may be closed by llama-server in the moment it is used (measured: 60 of 60
right after a stream); a new one over a unix socket costs little and makes closing it the proof
that the step has ended. So this needs no pool, no redirects, no cookies and no decompression, and
is a protocol on httptools' parser: a general client spent 0.3 ms more of each request. Nothing of
the client's headers is forwarded: an X-Conversation-Id would make llama-server go on after a
disconnect, and keys and cookies are not the runtime's.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import cast

import httptools

CONNECT_TIMEOUT_S = 10.0
"""Both ends are on this machine; a runtime that does not accept for so long is lost."""
READ_AHEAD_BYTES = 1 << 18
"""Unread bytes of one answer beyond which its connection is not read: several batches of events."""
SEND_BYTES = 1 << 18
"""A large body is sent in such parts, so that other streams go on meanwhile."""

Pieces = tuple[bytes | memoryview, ...]


class UpstreamError(Exception):
    """The runtime closed the connection too early, or does not speak HTTP."""


UPSTREAM_ERRORS = (UpstreamError, OSError, TimeoutError)
"""What means: the runtime is gone, or was never there."""


class Response(asyncio.Protocol):
    """One connection: the request written, the answer parsed as it comes.

    ``status`` and ``headers`` (names in lower case) are there once ``Upstream.request`` is
    entered.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: deque[bytes] = deque()
        self._unread_bytes = 0
        self._has_head = False
        self._is_complete = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._may_write = True

    # --- the answer ------------------------------------------------------------------

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            UpstreamError: it ended before its end.
        """
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._unread_bytes -= len(chunk)
                if self._unread_bytes < READ_AHEAD_BYTES and self._transport is not None:
                    self._transport.resume_reading()
                yield chunk
            if self._is_complete:
                return
            await self._wait()

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def wait_for_head(self) -> None:
        while not self._has_head:
            await self._wait()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # --- the request -----------------------------------------------------------------

    async def send(self, head: bytes, body: Pieces) -> None:
        assert self._transport is not None
        if sum(map(len, body)) <= SEND_BYTES:
            self._transport.write(b"".join((head, *body)))
            return
        self._transport.write(head)
        for piece in body:
            view = memoryview(piece)
            for start in range(0, len(view), SEND_BYTES):
                if self._has_head or self._error is not None:
                    return  # refused before it was heard out
                self._transport.write(view[start : start + SEND_BYTES])
                if not self._may_write:
                    self._writer = asyncio.get_running_loop().create_future()
                    await self._writer

    def close(self) -> None:
        """Close the connection, whatever is still to come on it."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(UpstreamError(f"not an HTTP answer: {error}"))
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._is_complete:
            ends_by_closing = self._has_head and not self._has_length()
            if ends_by_closing and exc is None:
                self._is_complete = True
            else:
                self._fail(exc or UpstreamError("the connection was closed before the end"))
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error

    def _has_length(self) -> bool:
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    # --- httptools -------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes >= READ_AHEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True
        else:
            self.headers.clear()


class _Exchange:
    """A request as a context: the connection is closed when it ends, however it ends."""

    def __init__(
        self, method: str, address: str, path: str, body: Pieces | None, timeout_s: float | None
    ) -> None:
        self._method = method
        self._address = address
        self._path = path
        self._body = body
        self._timeout = asyncio.timeout(timeout_s)
        self._response = Response()

    async def __aenter__(self) -> Response:
        await self._timeout.__aenter__()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await _connect(self._address, self._response)
            await self._response.send(self._head(), self._body or ())
            await self._response.wait_for_head()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self._response

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._response.close()
        await self._timeout.__aexit__(kind, error, trace)

    def _head(self) -> bytes:
        host = self._address.removeprefix("http://")
        if host.startswith("unix:"):
            host = "runtime"
        lines = [f"{self._method} {self._path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        if self._body is not None:
            # Always a length: chunked requests hang in several servers.
            lines.append("Content-Type: application/json")
            lines.append(f"Content-Length: {sum(map(len, self._body))}")
        return "\r\n".join([*lines, "", ""]).encode()


async def _connect(address: str, response: Response) -> None:
    loop = asyncio.get_running_loop()
    if address.startswith("unix:"):
        await loop.create_unix_connection(lambda: response, address.removeprefix("unix:"))
    else:
        host, _, port = address.removeprefix("http://").rpartition(":")
        await loop.create_connection(lambda: response, host.strip("[]"), int(port))


class Upstream:
    """Where requests to runtimes go."""

    def request(
        self,
        method: str,
        address: str,
        path: str,
        *,
        body: Pieces | None = None,
        timeout_s: float | None = None,
    ) -> _Exchange:
        """``async with upstream.request(...) as response``.

        Args:
            address: ``unix:/path/of.sock`` or ``http://host:port``.
            timeout_s: of the whole exchange; None is unlimited, as an answer is.

        Raises:
            UpstreamError, OSError, TimeoutError: on entering, or while reading.
        """
        return _Exchange(method, address, path, body, timeout_s)
