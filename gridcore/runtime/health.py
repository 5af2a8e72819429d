"""Asks a runtime whether it can serve: /health, then one token.

A request is one connection of its own, over the runtime's unix socket or TCP. Only what a
runtime's own answers need of HTTP is here; the gateway's client is another one.
"""

import asyncio
import json
from contextlib import suppress

from msgspec import Struct

from gridcore.config.schema import Capability

REPLY_BYTES_MAX = 4 << 20
"""An embedding of the largest known dimension is 200 KB of JSON."""
HEALTH_TIMEOUT_S = 2.0


class Reply(Struct, frozen=True):
    status: int
    body: bytes


class Verdict(Struct, frozen=True):
    ok: bool
    detail: str = ""
    refused: bool = False
    """It answered, with an error."""


async def is_healthy(address: str) -> bool:
    """Does /health say 200? Refused, silent and loading are all no."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            reply = await request(address, "GET", "/health")
    except (OSError, ValueError, EOFError, TimeoutError):
        return False
    return reply.status == 200


async def probe(address: str, capabilities: tuple[Capability, ...], n_tokens: int = 1) -> Verdict:
    """Let the model compute once, on a prompt of about so many tokens.

    The caller bounds the time. A prompt of a full batch makes it take the memory it will need.
    """
    path, body = probe_request(capabilities, n_tokens)
    verdict = await _ask(address, path, body)
    if verdict.refused and n_tokens > 1:
        # A vocabulary that cuts the text into many more tokens; the load is not to fail for it.
        verdict = await _ask(address, *probe_request(capabilities))
    return verdict


async def _ask(address: str, path: str, body: dict[str, object]) -> Verdict:
    try:
        reply = await request(address, "POST", path, json.dumps(body).encode())
    except EOFError:
        return Verdict(ok=False, detail=f"{path}: the connection was closed without an answer")
    except (OSError, ValueError) as error:
        return Verdict(ok=False, detail=f"{path}: {error}")
    if reply.status == 200:
        return Verdict(ok=True)
    detail = f"{path} answered {reply.status}: {_message(reply.body)}"
    return Verdict(ok=False, detail=detail, refused=True)


def probe_request(
    capabilities: tuple[Capability, ...], n_tokens: int = 1
) -> tuple[str, dict[str, object]]:
    """Return path and body of the cheapest request that exercises the model."""
    text = "hello" + " the" * (n_tokens - 1)  # one token each in every usual vocabulary
    if Capability.RERANK in capabilities:
        return "/v1/rerank", {"query": "a", "documents": [text]}
    if Capability.EMBEDDING in capabilities:
        return "/v1/embeddings", {"input": text}
    # Plain completion: a chat template that fails is the request's problem, not the load's.
    return "/v1/completions", {"prompt": text, "max_tokens": 1, "cache_prompt": False}


async def request(address: str, method: str, path: str, body: bytes = b"") -> Reply:
    """Send one request on a new connection and read the whole answer.

    Raises:
        OSError, EOFError, ValueError: no connection, no answer, not HTTP.
    """
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: runtime\r\nConnection: close\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + body)
        await writer.drain()
        return await _read_reply(reader)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _read_reply(reader: asyncio.StreamReader) -> Reply:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError("the head of the answer is too long") from error
    status_line, *lines = head.decode("latin-1").split("\r\n")
    parts = status_line.split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
        raise ValueError(f"not an HTTP answer: {status_line[:80]!r}")
    length: int | None = None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
    if length is not None and length <= REPLY_BYTES_MAX:
        return Reply(int(parts[1]), await reader.readexactly(length))
    return Reply(int(parts[1]), await reader.read(REPLY_BYTES_MAX))


def _message(body: bytes) -> str:
    """Take the sentence out of a llama-server error, or the beginning of anything else."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return body[:200].decode("utf-8", "replace")
