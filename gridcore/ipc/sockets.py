"""The only module that touches ZeroMQ: four kinds of socket, every option set on purpose.

Frames are bytes here; what they mean is the codec's business. Each socket is used from the loop
it was made in: one task reads, sends are synchronous and never wait. A raw send beside an asyncio
reader can swallow the edge-triggered wake-up of a message that has arrived (it did for 398 of 400
in a test), so everything goes through ``zmq.asyncio``, whose sends look for that.
"""

import asyncio
import os
from collections.abc import Awaitable, Iterable
from enum import Enum
from pathlib import Path
from typing import TypeVar

import zmq
import zmq.asyncio

from gridcore.errors import GridcoreError
from gridcore.ids import PeerId
from gridcore.ipc.endpoints import identity_of, ipc_address

_T = TypeVar("_T")

HIGH_WATER_FRAMES = 10_000
"""A queue this long means a stuck peer, not a busy one: as many jobs as one class may queue."""
EVENT_HIGH_WATER_FRAMES = 5_000
"""Events beyond it are dropped for a slow subscriber, who sees the gap."""
FRAME_BYTES_MAX = 16 << 20
"""A page of 500 jobs is a tenth of it."""
HEARTBEAT_EVERY_MS, HEARTBEAT_TIMEOUT_MS = 1_000, 3_000
"""Of the library: they notice a stopped process. A stuck loop still answers them, hence Beat."""
LINGER_MS = 1_000
"""On the control link, where the last frame says why a process goes. Never the default: it is
without end, and a process could not exit while its peer is stuck."""
RECONNECT_EVERY_MS = 50
BATCH_MAX = 256
"""Frames handled before the loop and the brain get a turn."""


class Sent(Enum):
    YES = "sent"
    NO_ROUTE = "not connected"
    FULL = "its queue is full"


class _SharedContext:
    """The context of this process, ended with its last socket so that lingering frames leave."""

    def __init__(self) -> None:
        self._context: zmq.asyncio.Context | None = None
        self._sockets = 0

    def open(self, kind: int) -> zmq.asyncio.Socket:
        if self._context is None:
            self._context = zmq.asyncio.Context()
            self._context.setsockopt(zmq.LINGER, 0)
        self._sockets += 1
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_EVERY_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        return socket

    def close(self, socket: zmq.asyncio.Socket) -> None:
        if socket.closed:
            return
        socket.close()
        self._sockets -= 1
        if self._sockets == 0 and self._context is not None:
            self._context.term()  # waits for lingering frames, LINGER_MS at most
            self._context = None


_shared = _SharedContext()


class _LoopSocket:
    """What the four kinds have in common: batches in, synchronous sends out."""

    def __init__(self, kind: int) -> None:
        self._socket = _shared.open(kind)

    def close(self) -> None:
        """Close; safe to repeat. The task that reads must have ended."""
        _shared.close(self._socket)

    async def receive_batch(self) -> list[list[bytes]]:
        """Wait for a message; return it with all others that are here, ``BATCH_MAX`` at most."""
        socket = self._socket
        batch = [await socket.recv_multipart()]
        while len(batch) < BATCH_MAX and self._is_readable():
            # With DONTWAIT the future is done at once; without, the event costs four times more.
            batch.append(_done(socket.recv_multipart(zmq.DONTWAIT)).result())
        return batch

    def _is_readable(self) -> bool:
        events = self._socket.getsockopt(zmq.EVENTS)
        return isinstance(events, int) and bool(events & zmq.POLLIN)

    def _send(self, frames: list[bytes]) -> Sent:
        error = _done(self._socket.send_multipart(frames, zmq.DONTWAIT)).exception()
        if error is None:
            return Sent.YES
        if isinstance(error, zmq.ZMQError):
            if error.errno == zmq.EHOSTUNREACH:
                return Sent.NO_ROUTE
            if error.errno == zmq.EAGAIN:
                return Sent.FULL
        raise error

    def _bind(self, address: str) -> None:
        umask = os.umask(0o077)  # the socket file is made with 0777 & ~umask
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise GridcoreError(f"cannot open {address}: {error}") from error
        finally:
            os.umask(umask)


class ControlServer(_LoopSocket):
    """The scheduler's ROUTER. Bind it only with the daemon's lock held: a second bind steals."""

    def __init__(self, path: Path) -> None:
        address = ipc_address(path)
        super().__init__(zmq.ROUTER)
        socket = self._socket
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else a frame to nobody vanishes in silence
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # else a restarted peer is never heard
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_FRAMES)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_FRAMES)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._bind(address)

    def send(self, identity: bytes, frame: bytes) -> Sent:
        return self._send([identity, frame])


class ControlClient(_LoopSocket):
    """A peer's DEALER. It queues nothing for a scheduler that is not connected."""

    def __init__(self, path: Path, name: PeerId) -> None:
        address, identity = ipc_address(path), identity_of(name)
        super().__init__(zmq.DEALER)
        socket = self._socket
        socket.setsockopt(zmq.IDENTITY, identity)
        # Frames for a dead scheduler would reach the next one: refuse them here instead.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_FRAMES)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_FRAMES)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_EVERY_MS)
        socket.connect(address)

    def send(self, frame: bytes) -> Sent:
        return self._send([frame])


class EventServer(_LoopSocket):
    """The scheduler's XPUB; what it receives are subscriptions."""

    def __init__(self, path: Path) -> None:
        address = ipc_address(path)
        super().__init__(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # tell of a topic's second subscriber too
        self._socket.setsockopt(zmq.SNDHWM, EVENT_HIGH_WATER_FRAMES)
        self._bind(address)

    async def receive_topics(self) -> list[bytes]:
        """The topics that were subscribed to since the last call; waits for one."""
        while True:
            batch = await self.receive_batch()
            topics = [frames[0][1:] for frames in batch if frames[0][:1] == b"\x01"]
            if topics:
                return topics

    def publish(self, topic: bytes, frame: bytes) -> None:
        """Send to whoever listens; a full subscriber loses it."""
        self._send([topic, frame])


class EventClient(_LoopSocket):
    """A SUB socket in a loop."""

    def __init__(self, path: Path, topics: Iterable[str]) -> None:
        address = ipc_address(path)
        super().__init__(zmq.SUB)
        _subscribe(self._socket, address, topics)

    def ask_again(self, topic: str) -> None:
        """Subscribe to a topic anew, so that the publisher sees a new subscriber."""
        self._socket.unsubscribe(topic)
        self._socket.subscribe(topic)


class BlockingEventClient:
    """A SUB socket without a loop, for a program that does nothing else."""

    def __init__(self, path: Path, topics: Iterable[str]) -> None:
        address = ipc_address(path)
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_EVERY_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        _subscribe(self._socket, address, topics)

    def receive(self, timeout_ms: int | None) -> list[bytes] | None:
        """The next message; None after the timeout."""
        if not self._socket.poll(timeout_ms):
            return None
        return self._socket.recv_multipart()

    def ask_again(self, topic: str) -> None:
        self._socket.unsubscribe(topic)
        self._socket.subscribe(topic)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def _done(attempt: Awaitable[_T]) -> "asyncio.Future[_T]":
    """What pyzmq returns for DONTWAIT: a future with its result or its error already in it."""
    assert isinstance(attempt, asyncio.Future)
    assert attempt.done()
    return attempt


def _subscribe(
    socket: "zmq.Socket[bytes] | zmq.asyncio.Socket", address: str, topics: Iterable[str]
) -> None:
    socket.setsockopt(zmq.RCVHWM, EVENT_HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_EVERY_MS)
    for topic in topics:
        socket.subscribe(topic)
    socket.connect(address)
