"""The HTTP client towards runtimes and the metrics exporter: one new connection a request.

A reused connection may be closed by llama-server in the moment it is used (measured: 60 of 60
right after a stream); a new one over a unix socket costs 0.2 ms and makes closing it the proof
that the step has ended. aiohttp's defaults would cut an answer (300 s in all, 100 connections)
and are all set here. Nothing of the client's headers is forwarded: an X-Conversation-Id would
make llama-server go on after a disconnect, and keys and cookies are not the runtime's.
"""

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping

import aiohttp
from aiohttp.abc import AbstractCookieJar

CONNECT_TIMEOUT_S = 10.0
"""Both ends are on this machine; a runtime that does not accept for so long is lost."""
READ_BYTES = 1 << 18
"""Buffer of one connection: several batches of events."""
_SESSIONS_MAX = 32
"""Addresses remembered: more than the models any machine keeps resident."""
_SEND_BYTES = 1 << 18

UPSTREAM_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""What means: the runtime is gone, or does not speak HTTP."""

Pieces = tuple[bytes | memoryview, ...]


class Upstream:
    """Sessions by address; an idle one holds no connection."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, aiohttp.ClientSession] = OrderedDict()
        self._users: dict[str, int] = {}
        self._cookies: AbstractCookieJar = aiohttp.DummyCookieJar()

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        address: str,
        path: str,
        *,
        body: Pieces | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; the connection is closed when the context ends, however it ends.

        Args:
            address: ``unix:/path/of.sock`` or ``http://host:port``.
            timeout_s: of the whole exchange; None is unlimited, as an answer is.
        """
        session = await self._session(address)
        base = "http://runtime" if address.startswith("unix:") else address
        self._users[address] = self._users.get(address, 0) + 1
        try:
            response = await session.request(
                method,
                base + path,
                data=_data(body),
                headers=_headers(body),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            )
            try:
                yield response
            finally:
                response.close()
        finally:
            self._users[address] -= 1

    async def _session(self, address: str) -> aiohttp.ClientSession:
        session = self._sessions.get(address)
        if session is not None:
            self._sessions.move_to_end(address)
            return session
        connector: aiohttp.BaseConnector
        if address.startswith("unix:"):
            connector = aiohttp.UnixConnector(
                address.removeprefix("unix:"), force_close=True, limit=0
            )
        else:
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=self._cookies,
            auto_decompress=False,
            read_bufsize=READ_BYTES,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        self._sessions[address] = session
        for old in [known for known in self._sessions if not self._users.get(known)]:
            if len(self._sessions) <= _SESSIONS_MAX or old == address:
                break
            self._users.pop(old, None)
            await self._sessions.pop(old).close()
        return session

    async def close(self) -> None:
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()


def _headers(body: Pieces | None) -> Mapping[str, str]:
    if body is None:
        return {}
    # Always a length: chunked requests hang in several servers.
    return {
        "Content-Type": "application/json",
        "Content-Length": str(sum(len(piece) for piece in body)),
    }


def _data(body: Pieces | None) -> bytes | AsyncIterator[bytes] | None:
    if body is None:
        return None
    if sum(len(piece) for piece in body) <= _SEND_BYTES:
        return b"".join(body)
    return _in_parts(body)


async def _in_parts(body: Pieces) -> AsyncIterator[bytes]:
    """Send a large body in parts, so that other streams go on meanwhile."""
    for piece in body:
        view = memoryview(piece)
        for start in range(0, len(view), _SEND_BYTES):
            yield bytes(view[start : start + _SEND_BYTES])
