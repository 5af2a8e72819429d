"""The two link machines, told as conversations."""

from itertools import pairwise

from gridcore.core.events import CancelCause
from gridcore.ids import BootId, Epoch, JobId, LeaseId, PeerId
from gridcore.ipc.link import (
    BEAT_EVERY_NS,
    HELLO_EVERY_NS,
    HELLO_RETRY_MAX_NS,
    NOBODY,
    PEER_TIMEOUT_NS,
    PEERS_MAX,
    ChangeKind,
    Deliver,
    DeliverFrom,
    DownCause,
    FrameArrived,
    HubLink,
    LinkDown,
    LinkUp,
    PeerFrame,
    PeerLink,
    Report,
    SayHello,
    SendFailed,
    Stop,
    TimePassed,
    Transmit,
)
from gridcore.ipc.messages import (
    PROTOCOL,
    Beat,
    CancelJob,
    CancelStep,
    EnvelopeFromScheduler,
    EnvelopeToScheduler,
    Goodbye,
    Hello,
    Reject,
    RestateRequest,
    StateRequest,
    ToScheduler,
    Welcome,
)
from gridcore.units import NS_PER_S
from tests.support.wire import NAME, Wire

CANCEL = CancelJob(job_id=JobId("j"), cause=CancelCause.CLIENT_GONE)
STEP_BACK = CancelStep(lease_id=LeaseId("l"), job_id=JobId("j"), reason="r")


def connected() -> Wire:
    wire = Wire()
    wire.run_for(NS_PER_S // 10)
    assert wire.peer.epoch == wire.hub.epoch
    return wire


def peer_link() -> PeerLink:
    return PeerLink(role="gateway", boot_id=BootId("b"), pid=1, version="0", now_ns=0)


def from_scheduler(body: object, *, seq: int = 1, epoch: str = "e") -> FrameArrived:
    return FrameArrived(EnvelopeFromScheduler(epoch=Epoch(epoch), seq=seq, body=body))  # type: ignore[arg-type]


WELCOME = Welcome(beat_every_ns=BEAT_EVERY_NS, peer_timeout_ns=PEER_TIMEOUT_NS)


def hello(boot: str = "b", protocol: int = PROTOCOL) -> Hello:
    return Hello(role="gateway", boot_id=BootId(boot), protocol=protocol, pid=7, version="0")


def frame(body: ToScheduler, *, seq: int = 1, epoch: str = "e", peer: PeerId = NAME) -> PeerFrame:
    return PeerFrame(peer, EnvelopeToScheduler(epoch=Epoch(epoch), seq=seq, body=body))


# --- both ends together ---------------------------------------------------------------------


def test_hello_brings_welcome_and_the_epoch() -> None:
    wire = connected()
    assert wire.links == [LinkUp(wire.hub.epoch)]
    assert wire.kinds() == ["joined"]
    assert wire.changes[0].fresh
    assert wire.changes[0].pid == 1


def test_messages_pass_in_order_both_ways_and_beats_keep_the_link() -> None:
    wire = connected()
    assert wire.send_up(CANCEL)
    assert wire.send_down(STEP_BACK)
    wire.run_for(10 * NS_PER_S)
    assert [m for m in wire.to_hub if not isinstance(m, Beat)] == [CANCEL]
    assert wire.to_peer == [STEP_BACK]
    assert sum(isinstance(m, Beat) for m in wire.to_hub) == 10
    assert wire.kinds() == ["joined"]
    assert wire.links == [LinkUp(wire.hub.epoch)]


def test_nothing_is_sent_before_the_welcome() -> None:
    wire = Wire()
    assert not wire.send_up(CANCEL)
    assert not wire.send_down(STEP_BACK)


def test_a_new_scheduler_is_met_at_once_and_old_frames_do_not_reach_it() -> None:
    """The scheduler is killed with a frame on its way; the next one drops it and is told anew."""
    wire = connected()
    wire.send_up(CANCEL)
    wire.restart_hub()
    wire.run_for(NS_PER_S // 10)
    assert wire.to_hub == []
    assert wire.hub.dropped["epoch"] == 1
    assert wire.peer.epoch == "e2"
    assert wire.links[1:] == [LinkDown(DownCause.NEW_EPOCH), LinkUp(Epoch("e2"))]


def test_a_new_incarnation_of_a_peer_is_fresh() -> None:
    wire = connected()
    wire.restart_peer()
    wire.run_for(NS_PER_S // 10)
    assert wire.kinds() == ["joined", "joined"]
    assert [(c.boot_id, c.fresh) for c in wire.changes] == [("b1", True), ("b2", True)]


def test_a_lost_connection_brings_the_same_incarnation_back() -> None:
    wire = connected()
    wire.connected = False
    wire.run_for(5 * NS_PER_S)
    assert wire.peer.epoch is None
    assert wire.links[-1] == LinkDown(DownCause.UNSENT)
    wire.connected = True
    wire.run_for(NS_PER_S)
    assert wire.kinds() == ["joined", "lost", "joined"]
    assert not wire.changes[-1].fresh
    assert wire.links[-1] == LinkUp(wire.hub.epoch)


def test_frames_lost_on_the_way_down_make_the_peer_restate() -> None:
    """A grant that never came must not leave a job waiting: the gap ends the link, not the job."""
    wire = connected()
    wire.loss = 1.0
    wire.send_down(STEP_BACK)
    wire.loss = 0.0
    wire.send_down(STEP_BACK)
    wire.run_for(NS_PER_S // 10)
    assert wire.links[1:] == [LinkDown(DownCause.GAP), LinkUp(wire.hub.epoch)]
    assert wire.peer.dropped["gap"] == 1


def test_frames_lost_on_the_way_up_make_the_hub_ask_again() -> None:
    wire = connected()
    wire.loss = 1.0
    wire.send_up(CANCEL)
    wire.loss = 0.0
    wire.send_up(CANCEL)
    wire.run_for(NS_PER_S // 10)
    assert wire.hub.dropped["gap"] == 1
    assert wire.to_peer == [RestateRequest()]
    assert wire.to_hub == [CANCEL]


# --- the peer's end -------------------------------------------------------------------------


def test_hello_is_repeated_every_second_while_it_leaves_but_is_not_answered() -> None:
    link = peer_link()
    said = []
    for _ in range(3):
        deadline_ns = link.next_deadline_ns()
        assert deadline_ns is not None
        said += [
            deadline_ns for a in link.handle(TimePassed(), deadline_ns) if isinstance(a, SayHello)
        ]
    assert said == [0, HELLO_EVERY_NS, 2 * HELLO_EVERY_NS]


def test_hello_is_tried_soon_again_while_nobody_listens_but_never_faster_than_needed() -> None:
    link = peer_link()
    times = []
    for _ in range(12):
        now_ns = link.next_deadline_ns()
        assert now_ns is not None
        times.append(now_ns)
        link.handle(TimePassed(), now_ns)
        link.handle(SendFailed(), now_ns)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 10_000_000
    assert pauses[-1] == HELLO_RETRY_MAX_NS


def test_silence_of_the_scheduler_ends_the_link_and_hello_follows_in_the_same_step() -> None:
    link = peer_link()
    link.handle(from_scheduler(WELCOME), 0)
    for second in range(1, 3):
        link.handle(TimePassed(), second * NS_PER_S)
    actions = link.handle(TimePassed(), PEER_TIMEOUT_NS)
    assert actions[0] == LinkDown(DownCause.SILENT)
    assert isinstance(actions[1], SayHello)
    assert actions[1].envelope.epoch == NOBODY


def test_a_peer_that_slept_does_not_blame_the_scheduler() -> None:
    """After SIGCONT the timer fires before the waiting frames are read."""
    link = peer_link()
    link.handle(from_scheduler(WELCOME), 0)
    actions = link.handle(TimePassed(), 20 * NS_PER_S)
    assert not [a for a in actions if isinstance(a, LinkDown)]
    assert link.epoch == "e"


def test_frames_of_another_epoch_are_counted_and_dropped() -> None:
    link = peer_link()
    link.handle(from_scheduler(WELCOME), 0)
    assert link.handle(from_scheduler(STEP_BACK, seq=2, epoch="other"), 1) == [
        LinkDown(DownCause.NEW_EPOCH)
    ]
    assert link.handle(from_scheduler(STEP_BACK, seq=3, epoch="other"), 2) == []
    assert link.dropped == {"epoch": 1, "not_up": 1}


def test_the_welcome_of_a_repeated_hello_is_not_news() -> None:
    link = peer_link()
    assert link.handle(from_scheduler(WELCOME, seq=1), 0) == [LinkUp(Epoch("e"))]
    assert link.handle(from_scheduler(STEP_BACK, seq=2), 1) == [Deliver(STEP_BACK)]
    assert link.handle(from_scheduler(WELCOME, seq=1), 2) == []
    assert link.handle(from_scheduler(STEP_BACK, seq=2), 3) == [Deliver(STEP_BACK)]


def test_a_rejected_peer_stops_for_good() -> None:
    link = peer_link()
    assert link.handle(from_scheduler(Reject(reason="no"), seq=0), 0) == [Stop("no")]
    assert link.next_deadline_ns() is None
    assert link.handle(TimePassed(), 9 * NS_PER_S) == []
    assert link.handle(from_scheduler(WELCOME), 10 * NS_PER_S) == []


def test_the_timing_is_the_schedulers() -> None:
    link = peer_link()
    link.handle(from_scheduler(Welcome(beat_every_ns=7, peer_timeout_ns=9), seq=1), 0)
    assert link.next_deadline_ns() == 1_000_000, "a beat faster than 1 ms is nonsense"
    link = peer_link()
    link.handle(from_scheduler(Welcome(beat_every_ns=NS_PER_S // 2, peer_timeout_ns=NS_PER_S)), 0)
    assert link.next_deadline_ns() == NS_PER_S // 2


# --- the hub's end --------------------------------------------------------------------------


def joined_hub() -> HubLink:
    hub = HubLink(Epoch("e"), 0)
    hub.handle(frame(hello(), seq=1, epoch=""), 0)
    return hub


def changes_of(actions: list[object]) -> list[ChangeKind]:
    return [action.change.kind for action in actions if isinstance(action, Report)]


def test_a_silent_peer_is_suspect_and_comes_back_but_is_never_called_lost() -> None:
    hub = joined_hub()
    seen: list[ChangeKind] = []
    for second in range(1, 120):
        seen += changes_of([*hub.handle(TimePassed(), second * NS_PER_S)])
    assert seen == [ChangeKind.SUSPECT]
    actions = hub.handle(frame(Beat(), seq=2), 120 * NS_PER_S)
    assert changes_of([*actions]) == [ChangeKind.BACK]
    assert actions[-1] == DeliverFrom(NAME, Beat())


def test_a_hub_that_slept_suspects_nobody() -> None:
    hub = joined_hub()
    assert changes_of([*hub.handle(TimePassed(), 60 * NS_PER_S)]) == []


def test_the_welcome_leaves_before_the_brain_hears_of_the_peer() -> None:
    actions = HubLink(Epoch("e"), 0).handle(frame(hello(), epoch=""), 0)
    assert isinstance(actions[0], Transmit)
    assert isinstance(actions[0].envelope.body, Welcome)
    assert isinstance(actions[1], Report)


def test_another_protocol_is_rejected_with_both_numbers() -> None:
    hub = HubLink(Epoch("e"), 0)
    (action,) = hub.handle(frame(hello(protocol=PROTOCOL + 1), epoch=""), 0)
    assert isinstance(action, Transmit)
    assert isinstance(action.envelope.body, Reject)
    assert str(PROTOCOL) in action.envelope.body.reason
    assert str(PROTOCOL + 1) in action.envelope.body.reason
    assert hub.stamp(NAME, Beat()) is None


def test_a_stranger_is_told_to_say_hello_once_a_beat() -> None:
    hub = HubLink(Epoch("e"), 0)
    answers = [hub.handle(frame(Beat(), seq=n), n) for n in range(1, 100)]
    assert answers[0] == [Transmit(NAME, EnvelopeFromScheduler(epoch=NOBODY, seq=0, body=Beat()))]
    assert not any(answers[1:])
    assert hub.dropped == {"not_joined": 99}


def test_goodbye_is_not_a_loss() -> None:
    hub = joined_hub()
    actions = hub.handle(frame(Goodbye(cause="shutdown"), seq=2), 1)
    assert changes_of([*actions]) == [ChangeKind.LEFT]
    assert hub.next_deadline_ns() is None
    assert hub.stamp(NAME, Beat()) is None


def test_the_number_of_identities_is_bounded() -> None:
    hub = HubLink(Epoch("e"), 0)
    for number in range(PEERS_MAX):
        hub.handle(frame(hello(), epoch="", peer=PeerId(f"p-{number}")), 0)
    (action,) = hub.handle(frame(hello(), epoch="", peer=PeerId("one-more")), 0)
    assert isinstance(action, Transmit)
    assert isinstance(action.envelope.body, Reject)
    known = hub.handle(frame(hello("again"), epoch="", peer=PeerId("p-0")), 0)
    assert changes_of([*known]) == [ChangeKind.JOINED], "a known name may always come back"


def test_beats_are_delivered_because_they_carry_the_digest() -> None:
    hub = joined_hub()
    beat = Beat(jobs=3, leases=1, digest=99)
    assert hub.handle(frame(beat, seq=2), 1) == [DeliverFrom(NAME, beat)]
    request = StateRequest(request_id="r")
    assert hub.handle(frame(request, seq=3), 2) == [DeliverFrom(NAME, request)]
    assert hub.silent_ns(NAME, 5) == 3
