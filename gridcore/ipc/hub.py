"""The scheduler's end of the control link: the loop and the socket around ``HubLink``.

Frames are drained in batches; each is one message to the brain, and after each batch the brain
gets one chance to plan. A send either leaves or becomes a ``PeerChange``; it never waits.
"""

from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from gridcore.clock import monotonic_ns
from gridcore.ids import Epoch, PeerId
from gridcore.ipc.alarm import Alarm, run_together
from gridcore.ipc.codec import BadFrameError, BadFrames, decode_to_scheduler, encode
from gridcore.ipc.endpoints import identity_of, peer_of
from gridcore.ipc.link import (
    DeliverFrom,
    HubAction,
    HubLink,
    PeerChange,
    PeerFrame,
    PeerSendFailed,
    Report,
    TimePassed,
    Transmit,
)
from gridcore.ipc.messages import EnvelopeFromScheduler, FromScheduler, ToScheduler
from gridcore.ipc.sockets import ControlServer, Sent


class Hub:
    """All peers of the scheduler, by name.

    Args:
        on_message: what a peer says, in its order. Beats are among it.
        on_peer: a peer joined, fell silent, came back, cannot be reached, or left.
        on_batch: after every batch of the two above, once.
    """

    def __init__(
        self,
        *,
        endpoint: Path,
        epoch: Epoch,
        on_message: Callable[[PeerId, ToScheduler], None],
        on_peer: Callable[[PeerChange], None],
        on_batch: Callable[[], None],
    ) -> None:
        self._endpoint = endpoint
        self._on_message = on_message
        self._on_peer = on_peer
        self._on_batch = on_batch
        self._link = HubLink(epoch, monotonic_ns())
        self._socket: ControlServer | None = None
        self._alarm = Alarm()
        self._pending: deque[HubAction] = deque()
        self._bad_frames = BadFrames()
        self._nameless = 0

    @property
    def dropped(self) -> dict[str, int]:
        """Frames that were not delivered, by why."""
        counts = Counter(self._link.dropped)
        counts["undecodable"] = self._bad_frames.total()
        counts["nameless"] = self._nameless
        return dict(counts)

    def silent_ms(self, peer: PeerId) -> int | None:
        """Since the last sign of life of a peer; None if it is unknown."""
        silent_ns = self._link.silent_ns(peer, monotonic_ns())
        return None if silent_ns is None else silent_ns // 1_000_000

    def send(self, peer: PeerId, message: FromScheduler) -> bool:
        """Send now, from the loop; False when the peer is not here.

        If it was here until now, ``on_peer`` hears that it is lost, soon but not from inside this.
        """
        envelope = self._link.stamp(peer, message)
        return envelope is not None and self._transmit(peer, envelope)

    async def run(self) -> None:
        """Bind and serve until cancelled."""
        self._socket = ControlServer(self._endpoint)
        try:
            await run_together(self._read(self._socket), self._watch_time())
        finally:
            self._alarm.cancel()
            self._socket.close()
            self._socket = None

    async def _read(self, socket: ControlServer) -> None:
        while True:
            batch = await socket.receive_batch()
            now_ns = monotonic_ns()
            for frames in batch:
                self._read_frame(frames, now_ns)
            self._act()

    def _read_frame(self, frames: list[bytes], now_ns: int) -> None:
        peer = peer_of(frames[0])
        if peer is None or len(frames) != 2:
            self._nameless += 1
            return
        try:
            envelope = decode_to_scheduler(frames[1])
        except BadFrameError as error:
            self._bad_frames.add(peer, error, now_ns)
            return
        self._pending += self._link.handle(PeerFrame(peer, envelope), now_ns)

    async def _watch_time(self) -> None:
        while True:
            self._alarm.set(self._link.next_deadline_ns(), monotonic_ns())
            await self._alarm.wait()
            self._pending += self._link.handle(TimePassed(), monotonic_ns())
            self._act()

    def _act(self) -> None:
        told = False
        while self._pending:
            match self._pending.popleft():
                case DeliverFrom(peer, message):
                    self._on_message(peer, message)
                    told = True
                case Report(change):
                    self._on_peer(change)
                    told = True
                case Transmit(peer, envelope):
                    self._transmit(peer, envelope)
        if told:
            self._on_batch()
        if self._pending:
            self._alarm.ring()  # a send of on_batch failed: the next round tells it
        else:
            self._alarm.set(self._link.next_deadline_ns(), monotonic_ns())

    def _transmit(self, peer: PeerId, envelope: EnvelopeFromScheduler) -> bool:
        sent = Sent.NO_ROUTE
        if self._socket is not None:
            sent = self._socket.send(identity_of(peer), encode(envelope))
        if sent is Sent.YES:
            return True
        # Told by the task of ``run``, so that the brain never hears of it while it commands.
        self._pending += self._link.handle(PeerSendFailed(peer, sent.value), monotonic_ns())
        self._alarm.ring()
        return False


__all__ = ["Hub", "PeerChange"]
