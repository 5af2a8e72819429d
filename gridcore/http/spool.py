"""Bytes on their way from a runtime to a client that may be slower.

The runtime's side is read ahead up to a bound, so that a step ends when the runtime is done and
not when a phone on a bad network has the last byte.
"""

import asyncio
from collections import deque

SPOOL_BYTES_MAX = 4 << 20
"""Longer than any usual answer; beyond it the runtime waits for its client."""


class Spool:
    """One writer, one reader. ``close()`` ends it; what is in it can still be read."""

    def __init__(self, bytes_max: int = SPOOL_BYTES_MAX) -> None:
        self._pieces: deque[bytes] = deque()
        self._n_bytes = 0
        self._bytes_max = bytes_max
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    def put(self, data: bytes) -> None:
        self._pieces.append(data)
        self._n_bytes += len(data)
        _wake(self._reader)

    @property
    def is_full(self) -> bool:
        return self._n_bytes >= self._bytes_max

    async def room(self) -> None:
        """Wait until the reader has taken what was in the spool."""
        while self.is_full:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def take(self) -> bytes | None:
        """Return all bytes there are, waiting for the first; None when it is closed and empty."""
        while not self._pieces:
            if self._closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._n_bytes = 0
        _wake(self._writer)
        return data

    def close(self) -> None:
        self._closed = True
        _wake(self._reader)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
