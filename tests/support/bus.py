"""Real ends of the bus in one loop, for tests: a hub that records, a peer that records."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from gridcore.ids import Epoch, PeerId
from gridcore.ipc.hub import Hub, PeerChange
from gridcore.ipc.messages import Beat, FromScheduler, ToScheduler
from gridcore.ipc.peer import Peer

DEADLINE_S = 15.0


@contextmanager
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a socket name, whatever TMPDIR is."""
    with tempfile.TemporaryDirectory(prefix="gc-", dir="/tmp") as directory:
        yield Path(directory)


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds; fail with its name."""
    async with asyncio.timeout(DEADLINE_S) as limit:
        while not condition():
            with suppress(TimeoutError):
                await asyncio.sleep(0.005)
            if limit.expired():
                raise AssertionError(f"never: {what}")


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Run beside the test; a failure of it is a failure of the test."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class RecordingHub:
    def __init__(self, endpoint: Path, epoch: str = "e1") -> None:
        self.messages: list[tuple[PeerId, ToScheduler]] = []
        self.beats = 0
        self.changes: list[PeerChange] = []
        self.batches = 0
        self.answer: Callable[[PeerId, ToScheduler], FromScheduler | None] = lambda *_: None
        self.hub = Hub(
            endpoint=endpoint,
            epoch=Epoch(epoch),
            on_message=self._on_message,
            on_peer=self.changes.append,
            on_batch=self._on_batch,
        )

    def _on_message(self, peer: PeerId, message: ToScheduler) -> None:
        if isinstance(message, Beat):
            self.beats += 1
            return
        self.messages.append((peer, message))
        reply = self.answer(peer, message)
        if reply is not None:
            self.hub.send(peer, reply)

    def _on_batch(self) -> None:
        self.batches += 1

    def kinds(self, peer: str = "gateway-0") -> list[str]:
        return [change.kind.value for change in self.changes if change.peer == peer]


class RecordingPeer:
    def __init__(self, endpoint: Path, name: str = "gateway-0") -> None:
        self.received: list[FromScheduler] = []
        self.links: list[bool] = []
        self.facts: list[ToScheduler] = []
        self.peer = Peer(
            name=PeerId(name),
            role="gateway",
            endpoint=endpoint,
            on_message=self.received.append,
            on_link=self.links.append,
            inventory=lambda: list(self.facts),
        )


@asynccontextmanager
async def connected_peer(endpoint: Path, name: str = "gateway-0") -> AsyncIterator[RecordingPeer]:
    recording = RecordingPeer(endpoint, name)
    try:
        async with running(recording.peer.run()) as task:
            await eventually(lambda: recording.links or task.done(), "the link comes up")
            yield recording
    finally:
        await recording.peer.close("test over")
