"""Whatever is lost, late or restarted: the two ends agree, or both know that they do not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gridcore.ids import Epoch
from gridcore.ipc.codec import (
    BadFrameError,
    decode_event,
    decode_from_scheduler,
    decode_to_scheduler,
    encode,
)
from gridcore.ipc.messages import Beat, EnvelopeToScheduler, StateRequest
from gridcore.units import NS_PER_MS, NS_PER_S
from tests.support.wire import Wire

FAULTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 5_000)),
        st.tuples(st.just("loss"), st.sampled_from((0, 20, 90))),
        st.tuples(st.just("delay"), st.integers(0, 4_000)),
        st.tuples(st.sampled_from(("cut", "join", "peer", "hub", "up", "down")), st.just(0)),
    ),
    max_size=30,
)


def inject(wire: Wire, fault: str, amount: int) -> None:
    match fault:
        case "wait":
            wire.run_for(amount * NS_PER_MS)
        case "loss":
            wire.loss = amount / 100
        case "delay":
            wire.delay_ns = amount * NS_PER_MS
        case "cut" | "join":
            wire.connected = fault == "join"
        case "peer":
            wire.restart_peer()
        case "hub":
            wire.restart_hub()
        case "up":
            wire.send_up(StateRequest(request_id="r"))
        case "down":
            wire.send_down(Beat())


@settings(max_examples=150, deadline=None)
@given(faults=FAULTS, seed=st.integers(0, 2**16))
def test_ends_agree_once_the_faults_stop(faults: list[tuple[str, int]], seed: int) -> None:
    """Liveness: 20 seconds without faults end every disagreement, and a message passes."""
    wire = Wire(seed=seed)
    for fault, amount in faults:
        inject(wire, fault, amount)
        if wire.peer.epoch is not None:
            assert wire.peer.epoch in {f"e{n + 1}" for n in range(wire.epochs)}
    wire.loss, wire.delay_ns, wire.connected = 0.0, NS_PER_MS, True
    wire.run_for(20 * NS_PER_S)
    assert wire.peer.epoch == wire.hub.epoch
    assert wire.changes[-1].boot_id == f"b{wire.boots}"
    assert wire.changes[-1].kind in {"joined", "back"}
    before = len(wire.links)
    wire.to_hub.clear()
    assert wire.send_up(StateRequest(request_id="last"))
    wire.run_for(10 * NS_PER_S)
    assert StateRequest(request_id="last") in wire.to_hub
    assert len(wire.links) == before, "a healthy link stays"


@settings(max_examples=100, deadline=None)
@given(faults=FAULTS, seed=st.integers(0, 2**16))
def test_a_message_never_reaches_a_scheduler_it_was_not_meant_for(
    faults: list[tuple[str, int]], seed: int
) -> None:
    """Safety: every delivered message was stamped with the epoch of the hub that delivers it."""
    wire = Wire(seed=seed)
    for number, (fault, amount) in enumerate(faults):
        if fault == "up":
            wire.send_up(StateRequest(request_id=f"{wire.peer.epoch} {number}"))
        else:
            seen = len(wire.to_hub)
            inject(wire, fault, amount)
            for message in wire.to_hub[seen:]:
                if isinstance(message, StateRequest):
                    assert message.request_id.split()[0] == wire.hub.epoch


@given(garbage=st.binary(max_size=200))
def test_garbage_is_a_bad_frame_and_nothing_else(garbage: bytes) -> None:
    for decode in (decode_to_scheduler, decode_from_scheduler, decode_event):
        try:
            decode(garbage)
        except BadFrameError:
            continue


@given(data=st.data())
def test_damaged_frames_are_bad_frames_or_messages(data: st.DataObject) -> None:
    whole = encode(
        EnvelopeToScheduler(epoch=Epoch("e"), seq=1, body=StateRequest(request_id="request"))
    )
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    for frame in (whole[:position], bytes(flipped)):
        try:
            assert isinstance(decode_to_scheduler(frame), EnvelopeToScheduler)
        except BadFrameError:
            continue
