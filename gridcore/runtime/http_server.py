"""A small HTTP/1.1 server for runtimes that are processes of ours.

One asyncio protocol on httptools: it starts in a tenth of a second and takes 12 MB, where a
framework takes 40. A request is a task; a client that goes away cancels it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import httptools

WRITE_BUFFER_BYTES = 64 << 10


class Request:
    """A whole request: runtimes read the body before they answer."""

    def __init__(self) -> None:
        self.method = ""
        self.path = ""
        self.query = ""
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.keep_alive = True

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


Handler = Callable[[Request, "Responder"], Awaitable[None]]


class Responder:
    """Writes one answer; either ``send`` or ``begin``, ``write`` and ``end``."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.begun = False
        self.status = 0

    async def send(
        self, status: int, body: bytes, content_type: str = "application/json; charset=utf-8"
    ) -> None:
        self._head(status, [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"])
        await self._connection.write(body)

    async def begin(self, status: int, content_type: str) -> None:
        """Start a chunked answer."""
        lines = ["X-Accel-Buffering: no", f"Content-Type: {content_type}"]
        self._head(status, [*lines, "Transfer-Encoding: chunked"])
        await self._connection.write(b"")

    async def write(self, data: bytes) -> None:
        if data:
            await self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self._connection.write(b"0\r\n\r\n")

    def abort(self) -> None:
        """Close the connection in the middle of the answer."""
        self._connection.abort()

    def _head(self, status: int, lines: list[str]) -> None:
        assert not self.begun, "one answer a request"
        self.begun = True
        self.status = status
        self._connection.keep_alive = self._connection.keep_alive and status < 400
        closing = "keep-alive" if self._connection.keep_alive else "close"
        head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Server: llama.cpp", *lines]
        head += [f"Connection: {closing}", "", ""]
        self._connection.put("\r\n".join(head).encode("latin-1"))


class _Connection(asyncio.Protocol):
    """Serves one request after the other; reading pauses while one is answered."""

    def __init__(self, handler: Handler, on_task: Callable[["asyncio.Task[None]"], None]) -> None:
        self._handler = handler
        self._on_task = on_task
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._url = b""
        self._chunks: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[Request] = deque()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self.keep_alive = True

    # --- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._task is None and self._transport is not None:
                self.put(
                    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
            self.abort()

    # --- httptools -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._request = Request()
        self._url = b""
        self._chunks = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._request.header("expect") == "100-continue":
            self.put(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        request = self._request
        request.method = self._parser.get_method().decode()
        path, _, request.query = self._url.decode("latin-1").partition("?")
        request.path = path
        request.body = b"".join(self._chunks)
        self._chunks = []
        request.keep_alive = self._parser.should_keep_alive()
        self._waiting.append(request)
        if self._task is None:
            self._serve_next()
        elif self._transport is not None:
            self._transport.pause_reading()  # one may wait, not a pipeline of them

    # --- answering -----------------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Write with whatever else is written before the loop turns: one system call for all."""
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= WRITE_BUFFER_BYTES:
            self._flush()
        elif len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        if data and self._transport is not None:
            self._transport.write(data)

    async def write(self, data: bytes) -> None:
        self.put(data)
        await self._writable.wait()
        if self._transport is None:
            raise asyncio.CancelledError  # the client is gone

    def abort(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _serve_next(self) -> None:
        if not self._waiting or self._transport is None:
            return
        request = self._waiting.popleft()
        self._transport.resume_reading()
        self.keep_alive = request.keep_alive
        self._task = asyncio.get_running_loop().create_task(self._serve(request))
        self._on_task(self._task)

    async def _serve(self, request: Request) -> None:
        responder = Responder(self)
        try:
            await self._handler(request, responder)
        finally:
            self._task = None
            if self.keep_alive and responder.begun:
                self._serve_next()
            else:
                self.abort()


class HttpServer:
    """Listens on a unix socket or a TCP port and hands requests to a handler."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: str) -> None:
        """Listen on ``unix:/path`` or ``http://host:port``."""
        loop = asyncio.get_running_loop()
        if address.startswith("unix:"):
            path = address.removeprefix("unix:")
            self._server = await loop.create_unix_server(self._connection, path)
        else:
            host, _, port = address.removeprefix("http://").rpartition(":")
            self._server = await loop.create_server(self._connection, host, int(port))

    def close(self) -> None:
        """Stop listening and drop every answer in progress."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def _connection(self) -> _Connection:
        return _Connection(self._handler, self._hold)

    def _hold(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
