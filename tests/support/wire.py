"""Two ends of a link joined in memory: delay, loss and reordering across links, no sockets.

One link delivers in order, as ZeroMQ does; what can go wrong is that frames are lost (a lost
connection) or late. Time is virtual.
"""

from collections import deque
from random import Random

from gridcore.ids import BootId, Epoch, PeerId
from gridcore.ipc.link import (
    Deliver,
    DeliverFrom,
    FrameArrived,
    HubAction,
    HubLink,
    LinkAction,
    LinkDown,
    LinkUp,
    PeerChange,
    PeerFrame,
    PeerLink,
    PeerSendFailed,
    Report,
    SayHello,
    SendBeat,
    SendFailed,
    Stop,
    TimePassed,
    Transmit,
)
from gridcore.ipc.messages import (
    Beat,
    EnvelopeFromScheduler,
    EnvelopeToScheduler,
    FromScheduler,
    ToScheduler,
)

NAME = PeerId("gateway-0")


class Wire:
    """One peer and one hub, with a queue of (due time, frame) in each direction."""

    def __init__(self, *, delay_ns: int = 1_000_000, seed: int = 0) -> None:
        self.now_ns = 0
        self.delay_ns = delay_ns
        self.loss = 0.0
        self.connected = True
        self.random = Random(seed)
        self.up: deque[tuple[int, EnvelopeToScheduler]] = deque()
        self.down: deque[tuple[int, EnvelopeFromScheduler]] = deque()
        self.to_peer: list[FromScheduler] = []
        self.to_hub: list[ToScheduler] = []
        self.changes: list[PeerChange] = []
        self.links: list[LinkUp | LinkDown] = []
        self.stopped: str | None = None
        self.boots = 0
        self.epochs = 0
        self.restart_peer()
        self.restart_hub()

    def restart_peer(self) -> None:
        """A new incarnation; what the old one had sent may still arrive."""
        self.boots += 1
        self.down.clear()
        self.peer = PeerLink(
            role="gateway", boot_id=BootId(f"b{self.boots}"), pid=1, version="0", now_ns=self.now_ns
        )

    def restart_hub(self) -> None:
        """A new scheduler; frames meant for the old one still arrive, in order."""
        self.epochs += 1
        self.hub = HubLink(Epoch(f"e{self.epochs}"), self.now_ns)

    def send_up(self, message: ToScheduler) -> bool:
        envelope = self.peer.stamp(message)
        return envelope is not None and self._transmit_up(envelope)

    def send_down(self, message: FromScheduler) -> bool:
        envelope = self.hub.stamp(NAME, message)
        return envelope is not None and self._transmit_down(envelope)

    def run_for(self, duration_ns: int) -> None:
        """Move the time, stopping at every deadline and arrival on the way."""
        end_ns = self.now_ns + duration_ns
        for _ in range(100_000):
            next_ns = min([end_ns, *self._due()])
            self.now_ns = max(self.now_ns, next_ns)
            if self._deliver():
                continue
            if self.now_ns >= end_ns:
                return
        raise AssertionError("the link does not settle")

    def _due(self) -> list[int]:
        due = [queue[0][0] for queue in (self.up, self.down) if queue]
        deadlines = (self.peer.next_deadline_ns(), self.hub.next_deadline_ns())
        return due + [deadline for deadline in deadlines if deadline is not None]

    def _deliver(self) -> bool:
        """Let everything happen that is due now; False if nothing was."""
        busy = False
        while self.up and self.up[0][0] <= self.now_ns:
            _, sent = self.up.popleft()
            self._do_hub(self.hub.handle(PeerFrame(NAME, sent), self.now_ns))
            busy = True
        while self.down and self.down[0][0] <= self.now_ns:
            _, received = self.down.popleft()
            self._do_peer(self.peer.handle(FrameArrived(received), self.now_ns))
            busy = True
        deadline_ns = self.peer.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self._do_peer(self.peer.handle(TimePassed(), self.now_ns))
            busy = True
        deadline_ns = self.hub.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self._do_hub(self.hub.handle(TimePassed(), self.now_ns))
            busy = True
        return busy

    def _do_peer(self, actions: list[LinkAction]) -> None:
        for action in actions:
            match action:
                case SayHello(envelope):
                    self._transmit_up(envelope)
                case SendBeat():
                    self.send_up(Beat())
                case LinkUp() | LinkDown():
                    self.links.append(action)
                case Deliver(message):
                    self.to_peer.append(message)
                case Stop(reason):
                    self.stopped = reason

    def _do_hub(self, actions: list[HubAction]) -> None:
        for action in actions:
            match action:
                case Transmit(_, envelope):
                    self._transmit_down(envelope)
                case Report(change):
                    self.changes.append(change)
                case DeliverFrom(_, message):
                    self.to_hub.append(message)

    def _transmit_up(self, envelope: EnvelopeToScheduler) -> bool:
        if not self.connected:
            self._do_peer(self.peer.handle(SendFailed(), self.now_ns))
            return False
        if self.random.random() >= self.loss:
            self.up.append((self.now_ns + self.delay_ns, envelope))
        return True

    def _transmit_down(self, envelope: EnvelopeFromScheduler) -> bool:
        if not self.connected:
            self._do_hub(self.hub.handle(PeerSendFailed(NAME, "not connected"), self.now_ns))
            return False
        if self.random.random() >= self.loss:
            self.down.append((self.now_ns + self.delay_ns, envelope))
        return True

    def kinds(self) -> list[str]:
        return [change.kind.value for change in self.changes]
