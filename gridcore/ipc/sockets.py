"""The only module that touches ZeroMQ: four kinds of socket, every option set on purpose.

Frames are bytes here; what they mean is the codec's business. Each socket is used from one loop:
one task reads, sends are synchronous and never wait. The sockets are plain ones and the loop
watches their descriptor, because ``zmq.asyncio`` makes futures and timers for every frame. The
price is to know one thing: the descriptor tells of an *edge*, and a send may take that edge away
with the message still unread. So every send looks afterwards whether something can be read; where
it did not, the wake-up of 398 in 400 messages was lost.
"""

import asyncio
import os
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import zmq

from gridcore.errors import GridcoreError
from gridcore.ids import PeerId
from gridcore.ipc.endpoints import identity_of, ipc_address

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
TOPIC_END = b"\0"
"""Between a topic, which holds no zero byte, and the event in the same frame."""
BATCH_MAX = 256
"""Frames handled before the loop and the brain get a turn."""


class Sent(Enum):
    YES = "sent"
    NO_ROUTE = "not connected"
    FULL = "its queue is full"


class _SharedContext:
    """The context of this process, ended with its last socket so that lingering frames leave."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._sockets = 0

    def open(self, kind: int) -> "zmq.Socket[bytes]":
        if self._context is None:
            self._context = zmq.Context()
            self._context.setsockopt(zmq.LINGER, 0)
        self._sockets += 1
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_EVERY_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        return socket

    def close(self, socket: "zmq.Socket[bytes]") -> None:
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
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that watches the descriptor, from the first wait on."""
        self._reader: asyncio.Future[None] | None = None

    def close(self) -> None:
        """Close; safe to repeat. The task that reads must have ended."""
        if self._socket.closed:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        _shared.close(self._socket)

    async def receive_batch(self) -> list[list[bytes]]:
        """Wait for a message; return it with all others that are here, ``BATCH_MAX`` at most."""
        if self._is_readable():
            await asyncio.sleep(0)  # a stream of messages without end must not stop the loop
        while not self._is_readable():
            await self._wait()
        batch = [self._socket.recv_multipart()]
        while len(batch) < BATCH_MAX and self._is_readable():
            batch.append(self._socket.recv_multipart())
        return batch

    async def _wait(self) -> None:
        """Sleep until something touches the socket and finds it readable."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket.fileno(), self._look)
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _look(self) -> None:
        """Wake the reader if it can read. Taking the edge away is part of looking."""
        if self._is_readable() and self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _is_readable(self) -> bool:
        events = self._socket.getsockopt(zmq.EVENTS)
        return isinstance(events, int) and bool(events & zmq.POLLIN)

    def _send(self, frames: list[bytes]) -> Sent:
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Sent.NO_ROUTE
            if error.errno == zmq.EAGAIN:
                return Sent.FULL
            raise
        finally:
            self._look()
        return Sent.YES

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
        """Send to whoever listens; a full subscriber loses it.

        Topic and event are one frame: libzmq aborts the process that closes a socket while a slow
        subscriber has read only the first of two.
        """
        self._send([topic + TOPIC_END + frame])


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


def _subscribe(socket: "zmq.Socket[bytes]", address: str, topics: Iterable[str]) -> None:
    socket.setsockopt(zmq.RCVHWM, EVENT_HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_EVERY_MS)
    for topic in topics:
        socket.subscribe(topic)
    socket.connect(address)
