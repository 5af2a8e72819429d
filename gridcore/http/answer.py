"""The client's side of one exchange: what has been sent, and what may still be sent.

Until the response has begun an error is a status and a JSON object; after that it is an event,
and nothing that would look like a regular end follows it.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from gridcore.http.openai import ApiError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would otherwise collect events until its buffer is full.
    (b"x-accel-buffering", b"no"),
]


_WRITE_BYTES = 1 << 18
"""Thousands of vectors are sent in pieces of this size, not one by one."""


def _batched(pieces: Iterable[bytes]) -> list[bytes]:
    batches, batch, n_bytes = [], [], 0
    for piece in pieces:
        batch.append(piece)
        n_bytes += len(piece)
        if n_bytes >= _WRITE_BYTES:
            batches.append(b"".join(batch))
            batch, n_bytes = [], 0
    return [*batches, b"".join(batch)] if batch or not batches else batches


def header_value(text: str) -> bytes:
    """Encode a name for a header: nothing in it can end the line."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    return text.encode("ascii", "backslashreplace")


class Answer:
    """One response. ``headers`` may be set until it begins."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers: dict[bytes, bytes] = {}
        self.has_begun = False
        self.is_stream = False
        self.is_finished = False

    def set(self, name: str, value: str) -> None:
        self.headers[name.lower().encode()] = header_value(value)

    async def begin_stream(self) -> None:
        self.is_stream = True
        await self._begin(200, _STREAM_HEADERS)

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        self.is_finished = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def json(self, body: bytes | Iterable[bytes], status: int = 200) -> None:
        await self.whole(status, JSON, body)

    async def whole(
        self,
        status: int,
        content_type: bytes,
        body: bytes | Iterable[bytes],
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send a complete response, its body in one piece or several."""
        pieces = [body] if isinstance(body, bytes) else _batched(body)
        length = b"%d" % sum(len(piece) for piece in pieces)
        await self._begin(
            status, [(b"content-type", content_type), (b"content-length", length), *headers]
        )
        self.is_finished = True
        for number, piece in enumerate(pieces, 1):
            more = number < len(pieces)
            await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def error(self, error: ApiError) -> None:
        """Tell the client, in the way that is still open."""
        if self.is_finished:
            return
        if self.is_stream:
            await self.write(error.event())
            await self.end()
            return
        headers = list(error.headers)
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        await self.whole(error.status, JSON, error.body(), headers)

    async def _begin(self, status: int, headers: Headers) -> None:
        self.has_begun = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.headers.items()],
            }
        )
