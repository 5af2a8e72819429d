"""Who is connected to whom, decided by two pure machines.

``PeerLink`` is a service's end of its one link to the scheduler, ``HubLink`` the scheduler's end
of all of them. Each is ``handle(event, now_ns) -> actions`` and ``next_deadline_ns()``; neither
knows sockets, clocks or what the messages mean. Nothing here relies on one frame arriving: what
gets lost shows as a gap or a silence, and both end in the peer stating its facts again.

The life of a link: the peer says Hello until a Welcome brings the scheduler's epoch; from then
on both sides stamp every frame with it and beat once a second. A frame of another epoch was
meant for a scheduler that is gone. Identity says who a peer is, its boot id which incarnation.
"""

from collections import Counter
from enum import StrEnum

from msgspec import Struct

from gridcore.ids import BootId, Epoch, PeerId
from gridcore.ipc.messages import (
    PROTOCOL,
    Beat,
    EnvelopeFromScheduler,
    EnvelopeToScheduler,
    FromScheduler,
    Goodbye,
    Hello,
    Reject,
    RestateRequest,
    ToScheduler,
    Welcome,
)
from gridcore.units import NS_PER_MS, NS_PER_S

BEAT_EVERY_NS = 1 * NS_PER_S
"""Five beats a second for the whole group: nothing, and a person sees a stuck process soon."""
PEER_TIMEOUT_NS = 3 * NS_PER_S
"""Three beats: a garbage collection or a busy machine delays one, hardly three."""
HELLO_EVERY_NS = 1 * NS_PER_S
"""Between Hellos that left but were not answered: the scheduler is busy, do not flood it."""
HELLO_RETRY_MIN_NS, HELLO_RETRY_MAX_NS = 10 * NS_PER_MS, 250 * NS_PER_MS
"""Between Hellos that could not even leave; such a try costs microseconds, and a restarted
scheduler should be met as soon as it listens."""
PEERS_MAX = 64
"""Identities that the scheduler remembers; a group has six."""

NOBODY = Epoch("")
"""The epoch of a Hello, and of a beat to a sender that is not, or no longer, welcome: it must say
Hello first."""


# --- a service's end -----------------------------------------------------------------------


class LinkPhase(StrEnum):
    HELLO = "hello"
    UP = "up"
    REJECTED = "rejected"


_NEXT = {
    LinkPhase.HELLO: (LinkPhase.UP, LinkPhase.REJECTED),
    LinkPhase.UP: (LinkPhase.HELLO, LinkPhase.REJECTED),
    LinkPhase.REJECTED: (),
}


class DownCause(StrEnum):
    SILENT = "no beat from the scheduler"
    UNSENT = "nothing can be sent to the scheduler"
    NEW_EPOCH = "another scheduler answers"
    GAP = "messages of the scheduler were lost"


class FrameArrived(Struct, frozen=True):
    envelope: EnvelopeFromScheduler


class SendFailed(Struct, frozen=True):
    """The last frame did not leave."""


class TimePassed(Struct, frozen=True):
    """A deadline may have come."""


class SayHello(Struct, frozen=True):
    envelope: EnvelopeToScheduler


class SendBeat(Struct, frozen=True):
    """Time for a beat; the shell fills it in and stamps it."""


class LinkUp(Struct, frozen=True):
    """Welcomed: the inventory must be the first thing that is sent."""

    epoch: Epoch


class LinkDown(Struct, frozen=True):
    cause: DownCause


class Deliver(Struct, frozen=True):
    message: FromScheduler


class Stop(Struct, frozen=True):
    reason: str


LinkEvent = FrameArrived | SendFailed | TimePassed
LinkAction = SayHello | SendBeat | LinkUp | LinkDown | Deliver | Stop


class PeerLink:
    """The peer's end: there is an epoch exactly while the link is up."""

    def __init__(self, *, role: str, boot_id: BootId, pid: int, version: str, now_ns: int) -> None:
        self.phase = LinkPhase.HELLO
        self.epoch: Epoch | None = None
        self.dropped: Counter[str] = Counter()
        """Frames not delivered, by why; ``gap`` counts frames that never came."""
        self._hello = Hello(role=role, boot_id=boot_id, protocol=PROTOCOL, pid=pid, version=version)
        self._beat_every_ns = BEAT_EVERY_NS
        self._timeout_ns = PEER_TIMEOUT_NS
        self._sent = 0
        self._received = 0
        self._heard_ns = now_ns
        self._awake_ns = now_ns
        self._next_send_ns: int = now_ns
        self._retry_ns = HELLO_RETRY_MIN_NS

    def stamp(self, message: ToScheduler) -> EnvelopeToScheduler | None:
        """Put a message into the envelope of this epoch; None while the link is down."""
        if self.epoch is None:
            return None
        self._sent += 1
        return EnvelopeToScheduler(epoch=self.epoch, seq=self._sent, body=message)

    def next_deadline_ns(self) -> int | None:
        match self.phase:
            case LinkPhase.HELLO:
                return self._next_send_ns
            case LinkPhase.UP:
                return min(self._next_send_ns, self._heard_ns + self._timeout_ns)
            case LinkPhase.REJECTED:
                return None

    def handle(self, event: LinkEvent, now_ns: int) -> list[LinkAction]:
        if now_ns - self._awake_ns > 2 * self._beat_every_ns:
            # It was this process that slept, not the scheduler: what it sent meanwhile is unread.
            self._heard_ns = now_ns
        self._awake_ns = now_ns
        match event:
            case FrameArrived(envelope):
                return self._on_frame(envelope, now_ns)
            case SendFailed():
                return self._on_send_failed(now_ns)
            case TimePassed():
                return self._on_time(now_ns)

    def _on_frame(self, envelope: EnvelopeFromScheduler, now_ns: int) -> list[LinkAction]:
        body = envelope.body
        match self.phase:
            case LinkPhase.HELLO | LinkPhase.UP if isinstance(body, Reject):
                self._enter(LinkPhase.REJECTED)
                return [Stop(body.reason)]
            case LinkPhase.HELLO if isinstance(body, Welcome):
                return self._on_welcome(envelope.epoch, envelope.seq, body, now_ns)
            case LinkPhase.UP if envelope.epoch == self.epoch:
                return self._on_message(envelope.seq, body, now_ns)
            case LinkPhase.UP:
                # One connection delivers in order, so this sender is newer than our epoch.
                self.dropped["epoch"] += 1
                return self._go_down(DownCause.NEW_EPOCH, now_ns)
            case _:
                self.dropped["not_up"] += 1
                return []

    def _on_welcome(
        self, epoch: Epoch, seq: int, welcome: Welcome, now_ns: int
    ) -> list[LinkAction]:
        self._enter(LinkPhase.UP)
        self.epoch = epoch
        self._beat_every_ns = max(welcome.beat_every_ns, NS_PER_MS)
        self._timeout_ns = max(welcome.peer_timeout_ns, self._beat_every_ns)
        self._received = seq
        self._heard_ns = now_ns
        self._next_send_ns = now_ns + self._beat_every_ns
        return [LinkUp(epoch)]

    def _on_message(self, seq: int, body: FromScheduler, now_ns: int) -> list[LinkAction]:
        self._heard_ns = now_ns
        if isinstance(body, Welcome):
            # The answer to a Hello that we repeated; the scheduler counts anew from it.
            self._received = seq
            return []
        missed = seq - self._received - 1
        self._received = seq
        if missed:
            self.dropped["gap"] += max(missed, 1)
            return self._go_down(DownCause.GAP, now_ns)
        return [] if isinstance(body, Beat) else [Deliver(body)]

    def _on_send_failed(self, now_ns: int) -> list[LinkAction]:
        match self.phase:
            case LinkPhase.HELLO:
                self._next_send_ns = now_ns + self._retry_ns
                self._retry_ns = min(2 * self._retry_ns, HELLO_RETRY_MAX_NS)
                return []
            case LinkPhase.UP:
                actions = self._go_down(DownCause.UNSENT, now_ns)
                self._next_send_ns = now_ns + self._retry_ns
                return actions
            case LinkPhase.REJECTED:
                return []

    def _on_time(self, now_ns: int) -> list[LinkAction]:
        actions: list[LinkAction] = []
        if self.phase is LinkPhase.UP and now_ns >= self._heard_ns + self._timeout_ns:
            actions += self._go_down(DownCause.SILENT, now_ns)
        if self.phase is LinkPhase.REJECTED or now_ns < self._next_send_ns:
            return actions
        if self.phase is LinkPhase.UP:
            self._next_send_ns = now_ns + self._beat_every_ns
            return [*actions, SendBeat()]
        self._next_send_ns = now_ns + HELLO_EVERY_NS
        self._sent += 1
        hello = EnvelopeToScheduler(epoch=NOBODY, seq=self._sent, body=self._hello)
        return [*actions, SayHello(hello)]

    def _go_down(self, cause: DownCause, now_ns: int) -> list[LinkAction]:
        self._enter(LinkPhase.HELLO)
        self.epoch = None
        self._next_send_ns = now_ns
        self._retry_ns = HELLO_RETRY_MIN_NS
        return [LinkDown(cause)]

    def _enter(self, phase: LinkPhase) -> None:
        assert phase in _NEXT[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase


# --- the scheduler's end -------------------------------------------------------------------


class PeerPhase(StrEnum):
    JOINED = "joined"
    SUSPECT = "suspect"
    """Silent for longer than the timeout; it may be alive, and what it holds stays its own."""
    LOST = "lost"
    """Frames to it do not leave: it hears nothing from us until it says Hello again."""


class ChangeKind(StrEnum):
    JOINED = "joined"
    SUSPECT = "suspect"
    BACK = "back"
    LOST = "lost"
    LEFT = "left"


class PeerChange(Struct, frozen=True, kw_only=True):
    """Something about a peer that the brain must know.

    Args:
        fresh: for ``joined``: an incarnation not seen before, so that an earlier one of this name
            is dead. False when the same process comes back after a lost link.
    """

    kind: ChangeKind
    peer: PeerId
    role: str
    boot_id: BootId
    pid: int
    fresh: bool = False
    detail: str = ""


class PeerFrame(Struct, frozen=True):
    peer: PeerId
    envelope: EnvelopeToScheduler


class PeerSendFailed(Struct, frozen=True):
    """The last frame to this peer did not leave."""

    peer: PeerId
    detail: str


class Transmit(Struct, frozen=True):
    peer: PeerId
    envelope: EnvelopeFromScheduler


class Report(Struct, frozen=True):
    change: PeerChange


class DeliverFrom(Struct, frozen=True):
    peer: PeerId
    message: ToScheduler


HubEvent = PeerFrame | PeerSendFailed | TimePassed
HubAction = Transmit | Report | DeliverFrom


class _Known:
    """What the hub remembers of one identity: its latest incarnation."""

    def __init__(self, hello: Hello, received: int, now_ns: int) -> None:
        self.hello = hello
        self.phase = PeerPhase.JOINED
        self.received = received
        self.sent = 0
        self.heard_ns = now_ns


class HubLink:
    """The scheduler's end of all links.

    A peer is never called dead here: silence makes it suspect, a frame that cannot leave makes it
    lost, and both may come back. Only a new boot id proves that the old incarnation has ended.
    """

    def __init__(self, epoch: Epoch, now_ns: int) -> None:
        self.epoch = epoch
        self.dropped: Counter[str] = Counter()
        """Frames not delivered, by why; ``gap`` counts frames that never came."""
        self._peers: dict[PeerId, _Known] = {}
        self._told_ns: dict[PeerId, int] = {}
        self._next_beat_ns = now_ns
        self._awake_ns = now_ns

    def stamp(self, peer: PeerId, message: FromScheduler) -> EnvelopeFromScheduler | None:
        """Put a message into this peer's next envelope; None if the peer is not here."""
        known = self._peers.get(peer)
        if known is None or known.phase is PeerPhase.LOST:
            return None
        known.sent += 1
        return EnvelopeFromScheduler(epoch=self.epoch, seq=known.sent, body=message)

    def silent_ns(self, peer: PeerId, now_ns: int) -> int | None:
        """Since the last sign of life; None for an unknown peer."""
        known = self._peers.get(peer)
        return None if known is None else max(0, now_ns - known.heard_ns)

    def next_deadline_ns(self) -> int | None:
        deadlines = [
            known.heard_ns + PEER_TIMEOUT_NS
            for known in self._peers.values()
            if known.phase is PeerPhase.JOINED
        ]
        if any(known.phase is not PeerPhase.LOST for known in self._peers.values()):
            deadlines.append(self._next_beat_ns)
        return min(deadlines, default=None)

    def handle(self, event: HubEvent, now_ns: int) -> list[HubAction]:
        if now_ns - self._awake_ns > 2 * BEAT_EVERY_NS:
            # It was the scheduler that slept, not its peers: their beats are in the queue.
            for known in self._peers.values():
                known.heard_ns = now_ns
        self._awake_ns = now_ns
        match event:
            case PeerFrame(peer, envelope):
                return self._on_frame(peer, envelope, now_ns)
            case PeerSendFailed(peer, detail):
                return self._on_send_failed(peer, detail)
            case TimePassed():
                return self._on_time(now_ns)

    def _on_frame(
        self, peer: PeerId, envelope: EnvelopeToScheduler, now_ns: int
    ) -> list[HubAction]:
        body = envelope.body
        if isinstance(body, Hello):
            return self._on_hello(peer, envelope.seq, body, now_ns)
        known = self._peers.get(peer)
        if envelope.epoch != self.epoch:
            self.dropped["epoch"] += 1
            return self._turn_away(peer, now_ns)
        if known is None or known.phase is PeerPhase.LOST:
            self.dropped["not_joined"] += 1
            return self._turn_away(peer, now_ns)
        known.heard_ns = now_ns
        actions: list[HubAction] = []
        if known.phase is PeerPhase.SUSPECT:
            known.phase = PeerPhase.JOINED
            actions.append(_report(ChangeKind.BACK, peer, known))
        missed = envelope.seq - known.received - 1
        known.received = envelope.seq
        if missed:
            self.dropped["gap"] += max(missed, 1)
            actions += self._transmit(peer, RestateRequest())
        match body:
            case Beat():
                # Delivered too: a gateway's beat carries the digest of what it holds.
                actions.append(DeliverFrom(peer, body))
            case Goodbye(cause=cause):
                del self._peers[peer]
                actions.append(_report(ChangeKind.LEFT, peer, known, detail=cause))
            case _:
                actions.append(DeliverFrom(peer, body))
        return actions

    def _on_hello(self, peer: PeerId, seq: int, hello: Hello, now_ns: int) -> list[HubAction]:
        known = self._peers.get(peer)
        refusal = None
        if hello.protocol != PROTOCOL:
            refusal = (
                f"{peer} {hello.version} speaks protocol {hello.protocol}, "
                f"the scheduler {PROTOCOL}: start both from one installation"
            )
        elif known is None and len(self._peers) >= PEERS_MAX:
            refusal = f"the scheduler knows {PEERS_MAX} peers already: {peer} is one too many"
        if refusal is not None:
            self.dropped["rejected"] += 1
            return [Transmit(peer, self._unstamped(self.epoch, Reject(reason=refusal)))]
        fresh = known is None or known.hello.boot_id != hello.boot_id
        known = self._peers[peer] = _Known(hello, seq, now_ns)
        welcome = Welcome(beat_every_ns=BEAT_EVERY_NS, peer_timeout_ns=PEER_TIMEOUT_NS)
        # The Welcome first: what the brain sends on joining must come after it.
        return [
            *self._transmit(peer, welcome),
            _report(ChangeKind.JOINED, peer, known, fresh=fresh),
        ]

    def _on_send_failed(self, peer: PeerId, detail: str) -> list[HubAction]:
        known = self._peers.get(peer)
        if known is None or known.phase is PeerPhase.LOST:
            return []
        known.phase = PeerPhase.LOST
        return [_report(ChangeKind.LOST, peer, known, detail=detail)]

    def _on_time(self, now_ns: int) -> list[HubAction]:
        actions: list[HubAction] = []
        for peer, known in self._peers.items():
            if known.phase is PeerPhase.JOINED and now_ns >= known.heard_ns + PEER_TIMEOUT_NS:
                known.phase = PeerPhase.SUSPECT
                actions.append(_report(ChangeKind.SUSPECT, peer, known))
        if now_ns >= self._next_beat_ns:
            self._next_beat_ns = now_ns + BEAT_EVERY_NS
            for peer in self._peers:
                actions += self._transmit(peer, Beat())
        return actions

    def _turn_away(self, peer: PeerId, now_ns: int) -> list[HubAction]:
        """Tell a sender that it is not welcome yet, at most once per beat."""
        told_ns = self._told_ns.get(peer)
        if told_ns is not None and now_ns - told_ns < BEAT_EVERY_NS:
            return []
        if len(self._told_ns) >= PEERS_MAX:
            self._told_ns.clear()
        self._told_ns[peer] = now_ns
        return [Transmit(peer, self._unstamped(NOBODY, Beat()))]

    def _transmit(self, peer: PeerId, message: FromScheduler) -> list[HubAction]:
        envelope = self.stamp(peer, message)
        return [] if envelope is None else [Transmit(peer, envelope)]

    @staticmethod
    def _unstamped(epoch: Epoch, message: FromScheduler) -> EnvelopeFromScheduler:
        return EnvelopeFromScheduler(epoch=epoch, seq=0, body=message)


def _report(
    kind: ChangeKind, peer: PeerId, known: _Known, *, fresh: bool = False, detail: str = ""
) -> Report:
    hello = known.hello
    return Report(
        PeerChange(
            kind=kind,
            peer=peer,
            role=hello.role,
            boot_id=hello.boot_id,
            pid=hello.pid,
            fresh=fresh,
            detail=detail,
        )
    )
