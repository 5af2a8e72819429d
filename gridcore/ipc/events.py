"""The event socket: notes and snapshots for everyone who listens.

Events are for display and metrics, never for decisions: a slow subscriber loses some. It sees
that by a gap in ``seq`` and asks for a snapshot by subscribing anew, which is all the handshake
there is. The same happens by itself when a subscriber reconnects to a new scheduler.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from gridcore.clock import wall_time_s
from gridcore.core.notes import Note
from gridcore.core.snapshot import Snapshot
from gridcore.ids import Epoch
from gridcore.ipc.alarm import run_together
from gridcore.ipc.codec import BadFrameError, decode_event, encode
from gridcore.ipc.messages import EVENT_VERSION, TOPIC_NOTE, TOPIC_SNAPSHOT, EventEnvelope
from gridcore.ipc.sockets import TOPIC_END, BlockingEventClient, EventClient, EventServer

LOT_S = 0.01
"""Events leave together so often: one request makes four within a millisecond, and each that
leaves alone wakes two threads here and two in every subscriber."""
LOT_MAX = 1_000
"""Far below what the socket holds for a subscriber."""
SNAPSHOT_EVERY_S = 1.0
"""Subscribers that come together share one: a snapshot of a long queue is not free."""
ALL_TOPICS = (TOPIC_NOTE, TOPIC_SNAPSHOT)


class EventPublisher:
    """The scheduler's end. What is published before anybody listens is counted and gone.

    ``on_subscribe`` is called when somebody wants a snapshot, once a second at most.
    """

    def __init__(self, endpoint: Path, epoch: Epoch) -> None:
        self.on_subscribe: Callable[[], None] = lambda: None
        self.subscribers_seen = 0
        self._endpoint = endpoint
        self._epoch = epoch
        self._seq = 0
        self._socket: EventServer | None = None
        self._leaving: list[tuple[bytes, EventEnvelope]] = []
        self._wanted = asyncio.Event()

    def note(self, note: Note) -> None:
        self._publish(f"{TOPIC_NOTE}{note.verb}", note=note)

    def snapshot(self, snapshot: Snapshot) -> None:
        self._publish(TOPIC_SNAPSHOT, snapshot=snapshot)

    async def run(self) -> None:
        """Bind and serve until cancelled."""
        self._socket = EventServer(self._endpoint)
        try:
            await run_together(self._read(self._socket), self._answer())
        finally:
            self._leave()
            self._socket.close()
            self._socket = None

    async def _read(self, socket: EventServer) -> None:
        snapshot = TOPIC_SNAPSHOT.encode()
        while True:
            wanted = [t for t in await socket.receive_topics() if snapshot.startswith(t)]
            self.subscribers_seen += len(wanted)
            if wanted:
                self._wanted.set()

    async def _answer(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self.on_subscribe()
            await asyncio.sleep(SNAPSHOT_EVERY_S)

    def _publish(
        self, topic: str, *, note: Note | None = None, snapshot: Snapshot | None = None
    ) -> None:
        self._seq += 1
        if self._socket is None:
            return
        envelope = EventEnvelope(
            version=EVENT_VERSION,
            epoch=self._epoch,
            seq=self._seq,
            time_s=wall_time_s(),
            note=note,
            snapshot=snapshot,
        )
        self._leaving.append((topic.encode(), envelope))
        if len(self._leaving) == 1:
            asyncio.get_running_loop().call_later(LOT_S, self._leave)
        elif len(self._leaving) >= LOT_MAX:
            self._leave()

    def _leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        if self._socket is not None:
            for topic, envelope in leaving:
                self._socket.publish(topic, encode(envelope))


class _Reading:
    """What a subscriber knows of the stream: where it is, and whether something is missing.

    Gaps can be told only by one that takes every topic; ``seq`` counts all events.
    """

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = ALL_TOPICS if "" in topics else topics
        self.events_missed = 0
        self.bad_frames = 0
        self._sees_all = set(ALL_TOPICS) <= set(self.topics)
        self._epoch: Epoch | None = None
        self._seq = 0

    def read(self, frames: list[bytes]) -> tuple[EventEnvelope | None, bool]:
        """The event in a message, and whether some before it are missing."""
        try:
            envelope = decode_event(frames[0].partition(TOPIC_END)[2])
        except BadFrameError:
            self.bad_frames += 1
            return None, False
        expected = self._seq + 1 if envelope.epoch == self._epoch else envelope.seq
        missed = envelope.seq - expected if self._sees_all else 0
        self.events_missed += max(missed, 0)
        self._epoch, self._seq = envelope.epoch, envelope.seq
        return envelope, missed != 0


class EventSubscriber:
    """``with EventSubscriber(path) as events: async for envelope in events: ...``"""

    def __init__(self, endpoint: Path, topics: tuple[str, ...] = ALL_TOPICS) -> None:
        self._reading = _Reading(topics)
        self._socket = EventClient(endpoint, self._reading.topics)
        self._ready: deque[list[bytes]] = deque()

    @property
    def events_missed(self) -> int:
        return self._reading.events_missed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventEnvelope:
        while True:
            while not self._ready:
                self._ready.extend(await self._socket.receive_batch())
            envelope, has_gap = self._reading.read(self._ready.popleft())
            if has_gap:
                self._socket.ask_again(TOPIC_SNAPSHOT)
            if envelope is not None:
                return envelope

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingEventSubscriber:
    """The same without a loop, for the command line: iterate, or ``receive`` with a timeout."""

    def __init__(self, endpoint: Path, topics: tuple[str, ...] = ALL_TOPICS) -> None:
        self._reading = _Reading(topics)
        self._socket = BlockingEventClient(endpoint, self._reading.topics)

    @property
    def events_missed(self) -> int:
        return self._reading.events_missed

    def receive(self, timeout_s: float | None = None) -> EventEnvelope | None:
        """The next event; None when none came in time."""
        while True:
            frames = self._socket.receive(None if timeout_s is None else int(timeout_s * 1000))
            if frames is None:
                return None
            envelope, has_gap = self._reading.read(frames)
            if has_gap:
                self._socket.ask_again(TOPIC_SNAPSHOT)
            if envelope is not None:
                return envelope

    def ask_for_snapshot(self) -> None:
        """Have the state sent again; it comes within a second."""
        self._socket.ask_again(TOPIC_SNAPSHOT)

    def __iter__(self) -> Iterator[EventEnvelope]:
        while (envelope := self.receive()) is not None:
            yield envelope

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.close()
