"""Hub, peers and events over real ipc sockets, with real processes where one has to die."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gridcore.config.schema import Workload
from gridcore.core.events import CancelCause, JobKind, JobSubmitted
from gridcore.core.notes import Note, Verb
from gridcore.core.snapshot import Snapshot, Totals
from gridcore.errors import GridcoreError
from gridcore.ids import BootId, Epoch, JobId, LeaseId, LoadId, ModelId, PeerId
from gridcore.ipc.codec import decode_from_scheduler, encode
from gridcore.ipc.events import BlockingEventSubscriber, EventPublisher, EventSubscriber
from gridcore.ipc.messages import (
    PROTOCOL,
    CancelJob,
    EnvelopeFromScheduler,
    EnvelopeToScheduler,
    EventEnvelope,
    FromScheduler,
    GrantStep,
    Hello,
    Reject,
    RestateRequest,
    SubmitJob,
    ToScheduler,
)
from gridcore.ipc.peer import LinkRejectedError
from gridcore.ipc.sockets import ControlClient, ControlServer, EventClient, Sent
from tests.support.bus import (
    RecordingHub,
    RecordingPeer,
    connected_peer,
    eventually,
    running,
    short_dir,
)

GATEWAY = PeerId("gateway-0")
ROOT = Path(__file__).parents[2]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


def submit(number: int = 0) -> SubmitJob:
    return SubmitJob(
        job=JobSubmitted(
            job_id=JobId(f"job-{number}"),
            gateway=GATEWAY,
            target="m",
            workload=Workload.INTERACTIVE,
            kind=JobKind.CHAT,
        )
    )


def grant(_: PeerId, message: ToScheduler) -> FromScheduler | None:
    if not isinstance(message, SubmitJob):
        return None
    return GrantStep(
        lease_id=LeaseId("l"),
        job_id=message.job.job_id,
        load_id=LoadId("x"),
        model_id=ModelId("m"),
        address="unix:/r/x",
        slots=(0,),
        first=0,
        count=1,
        waited_ns=0,
        workload=Workload.INTERACTIVE,
        reason="free slot",
    )


CANCEL = CancelJob(job_id=JobId("j"), cause=CancelCause.CLIENT_GONE)


# --- hub and peer ----------------------------------------------------------------------------


@LOOPS
def test_every_job_gets_its_grant_in_order_and_in_one_round_trip(run: Run) -> None:
    """1,000 jobs in one burst, then a hundred one by one: nothing is lost and nothing waits.

    A swallowed wake-up would show as a message that comes only with the next beat, a second
    later; the bound is far below that and far above what a loaded machine needs.
    """

    async def story() -> None:
        with short_dir() as directory:
            hub = RecordingHub(directory / "control")
            hub.answer = grant
            async with running(hub.hub.run()), connected_peer(directory / "control") as gateway:
                for number in range(1_000):
                    assert gateway.peer.send(submit(number))
                await eventually(lambda: len(gateway.received) == 1_000, "1,000 grants")
                assert [m.job_id for m in gateway.received if isinstance(m, GrantStep)] == [
                    f"job-{n}" for n in range(1_000)
                ]
                assert hub.batches < 1_000, "frames that are there are one batch"
                waits_s = []
                for number in range(100):
                    gateway.received.clear()
                    began_s = time.perf_counter()
                    gateway.peer.send(submit(number))
                    await eventually(lambda: gateway.received, "a grant")
                    waits_s.append(time.perf_counter() - began_s)
                assert sorted(waits_s)[50] < 0.25
                assert gateway.links == [True]

    run(story())


def test_a_peer_may_start_first_and_states_its_facts_first() -> None:
    async def story() -> None:
        with short_dir() as directory:
            endpoint = directory / "control"
            gateway = RecordingPeer(endpoint)
            gateway.facts = [submit(1), submit(2)]
            async with running(gateway.peer.run()):
                assert not gateway.peer.send(CANCEL)
                hub = RecordingHub(endpoint)
                async with running(hub.hub.run()):
                    await eventually(lambda: gateway.links, "the link comes up")
                    assert gateway.peer.send(CANCEL)
                    await eventually(lambda: len(hub.messages) == 3, "three messages")
                    assert [m for _, m in hub.messages] == [submit(1), submit(2), CANCEL]
            await gateway.peer.close("done")

    asyncio.run(story())


def test_a_new_scheduler_gets_the_facts_and_nothing_meant_for_the_old_one() -> None:
    async def story() -> None:
        with short_dir() as directory:
            endpoint = directory / "control"
            first = RecordingHub(endpoint, "e1")
            async with running(first.hub.run()) as serving, connected_peer(endpoint) as gateway:
                gateway.facts = [submit(7)]
                serving.cancel()
                await asyncio.wait([serving])
                for _ in range(5):
                    gateway.peer.send(CANCEL)
                second = RecordingHub(endpoint, "e2")
                async with running(second.hub.run()):
                    await eventually(lambda: gateway.peer.epoch == "e2", "the new epoch")
                    await eventually(lambda: second.messages, "the facts")
                    assert second.messages == [(GATEWAY, submit(7))]
                    assert gateway.links == [True, False, True]

    asyncio.run(story())


def test_goodbye_is_told_as_left() -> None:
    async def story() -> None:
        with short_dir() as directory:
            hub = RecordingHub(directory / "control")
            async with running(hub.hub.run()):
                async with connected_peer(directory / "control"):
                    pass
                await eventually(lambda: hub.kinds() == ["joined", "left"], "a goodbye")
                assert hub.changes[-1].detail == "test over"
                assert not hub.hub.send(GATEWAY, RestateRequest())

    asyncio.run(story())


def test_the_inventory_is_asked_for_without_a_new_link() -> None:
    async def story() -> None:
        with short_dir() as directory:
            hub = RecordingHub(directory / "control")
            async with running(hub.hub.run()), connected_peer(directory / "control") as gateway:
                gateway.facts = [submit(3)]
                assert hub.hub.send(GATEWAY, RestateRequest())
                await eventually(lambda: hub.messages == [(GATEWAY, submit(3))], "the inventory")
                assert gateway.links == [True]
                assert gateway.received == []

    asyncio.run(story())


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.support.bus import RecordingPeer
peer = RecordingPeer(Path(sys.argv[1]))
asyncio.run(peer.peer.run())
"""


def start_child(endpoint: Path, code: str = CHILD) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, str(endpoint)], env=environment)


def test_a_successor_is_heard_while_the_connection_of_the_old_one_is_still_open() -> None:
    """Without handover it would not be, until the old process is really gone."""

    async def story() -> None:
        with short_dir() as directory:
            hub = RecordingHub(directory / "control")
            async with running(hub.hub.run()):
                first = start_child(directory / "control")
                second = None
                try:
                    await eventually(lambda: hub.kinds() == ["joined"], "the first joins")
                    first.send_signal(signal.SIGSTOP)
                    second = start_child(directory / "control")
                    pid = second.pid
                    await eventually(lambda: hub.changes[-1].pid == pid, "the second joins")
                    assert hub.changes[-1].fresh
                    assert "lost" not in hub.kinds()
                    assert "suspect" not in hub.kinds(), "it had to wait for a timeout"
                finally:
                    for child in (first, second):
                        if child is not None:
                            child.kill()
                            child.wait()

    asyncio.run(story())


def test_a_killed_peer_is_lost_when_sent_to_and_its_successor_is_heard() -> None:

    async def story() -> None:
        with short_dir() as directory:
            hub = RecordingHub(directory / "control")
            async with running(hub.hub.run()):
                first = start_child(directory / "control")
                try:
                    await eventually(lambda: hub.kinds() == ["joined"], "the first joins")
                    first.kill()
                    first.wait()
                    await eventually(
                        lambda: not hub.hub.send(GATEWAY, RestateRequest()), "sending fails"
                    )
                    await eventually(lambda: hub.kinds() == ["joined", "lost"], "told as lost")
                    second = start_child(directory / "control")
                    try:
                        await eventually(lambda: len(hub.changes) == 3, "the second joins")
                        assert hub.changes[2].fresh
                        assert hub.changes[2].pid == second.pid
                        assert hub.changes[2].boot_id != hub.changes[0].boot_id
                        assert hub.hub.send(GATEWAY, RestateRequest())
                    finally:
                        second.kill()
                        second.wait()
                finally:
                    first.kill()
                    first.wait()

    asyncio.run(story())


def test_a_stopped_peer_is_suspect_and_comes_back_the_same() -> None:
    async def story() -> None:
        with short_dir() as directory:
            hub = RecordingHub(directory / "control")
            async with running(hub.hub.run()):
                child = start_child(directory / "control")
                try:
                    await eventually(lambda: hub.kinds() == ["joined"], "it joins")
                    child.send_signal(signal.SIGSTOP)
                    await eventually(lambda: "suspect" in hub.kinds(), "it is suspect")
                    assert not any(change.fresh for change in hub.changes[1:])
                    child.send_signal(signal.SIGCONT)
                    await eventually(lambda: hub.kinds()[-1] in ("back", "joined"), "it is back")
                    assert not any(change.fresh for change in hub.changes[1:])
                finally:
                    child.kill()
                    child.wait()

    asyncio.run(story())


def test_garbage_and_strangers_harm_nobody() -> None:
    """Random bytes, a frame too many, a message before Hello: counted, dropped, served on."""

    async def story() -> None:
        with short_dir() as directory:
            endpoint = directory / "control"
            hub = RecordingHub(endpoint)
            hub.answer = grant
            async with running(hub.hub.run()), connected_peer(endpoint) as gateway:
                stranger = ControlClient(endpoint, PeerId("stranger"))
                await eventually(lambda: stranger.send(b"\xc1garbage") is Sent.YES, "it connects")
                stranger.send(b"")
                early = EnvelopeToScheduler(epoch=Epoch("e1"), seq=1, body=CANCEL)
                stranger.send(encode(early))
                await eventually(lambda: hub.hub.dropped.get("not_joined"), "it is turned away")
                assert hub.hub.dropped["undecodable"] == 2
                gateway.peer.send(submit(1))
                await eventually(lambda: gateway.received, "a grant")
                assert [peer for peer, _ in hub.messages] == [GATEWAY]
                stranger.close()

    asyncio.run(story())


def test_another_protocol_is_told_so() -> None:
    async def story() -> None:
        with short_dir() as directory:
            endpoint = directory / "control"
            async with running(RecordingHub(endpoint).hub.run()):
                client = ControlClient(endpoint, GATEWAY)
                hello = Hello(
                    role="gateway", boot_id=BootId("b"), protocol=PROTOCOL + 1, pid=1, version="9"
                )
                frame = encode(EnvelopeToScheduler(epoch=Epoch(""), seq=1, body=hello))
                await eventually(lambda: client.send(frame) is Sent.YES, "it connects")
                answer = decode_from_scheduler((await client.receive_batch())[0][0])
                assert isinstance(answer.body, Reject)
                client.close()

    asyncio.run(story())


def test_a_rejected_peer_ends_with_the_reason() -> None:
    async def story() -> None:
        with short_dir() as directory:
            server = ControlServer(directory / "control")
            peer = RecordingPeer(directory / "control").peer

            async def refuse() -> None:
                identity = (await server.receive_batch())[0][0]
                body = Reject(reason="speaks protocol 9")
                server.send(
                    identity, encode(EnvelopeFromScheduler(epoch=Epoch("e"), seq=0, body=body))
                )

            async with running(refuse()):
                with pytest.raises(LinkRejectedError, match="gateway-0: speaks protocol 9"):
                    await asyncio.wait_for(peer.run(), 10)
            await peer.close("")
            server.close()

    asyncio.run(story())


def test_sockets_are_ours_alone_and_paths_are_checked() -> None:
    async def story() -> None:
        with short_dir() as directory:
            server = ControlServer(directory / "control")
            assert stat.S_IMODE((directory / "control").stat().st_mode) == 0o700
            assert server.send(b"nobody", b"x") is Sent.NO_ROUTE
            server.close()
            with pytest.raises(GridcoreError, match="XDG_RUNTIME_DIR"):
                ControlServer(directory / ("x" * 100))
            with pytest.raises(GridcoreError, match="cannot open"):
                ControlServer(directory / "missing" / "control")

    asyncio.run(story())


LEAVER = """
import asyncio, sys, time
from pathlib import Path
from gridcore.ids import PeerId
from gridcore.ipc.sockets import ControlClient, Sent

async def main():
    client = ControlClient(Path(sys.argv[1]), PeerId("gateway-0"))
    while client.send(b"x" * 1000) is not Sent.YES:
        await asyncio.sleep(0.01)
    while client.send(b"x" * 1000) is not Sent.FULL:
        pass
    began_s = time.monotonic()
    client.close()
    sys.exit(time.monotonic() - began_s > 2.5)

asyncio.run(main())
"""


def test_a_process_can_leave_although_its_scheduler_is_stuck() -> None:
    """Unsent frames hold a process for the second that a last frame may need, not longer.

    The library's default is without end; the heartbeat would cut that after some four seconds.
    """

    async def story() -> None:
        with short_dir() as directory:
            server = ControlServer(directory / "control")  # nobody reads it
            child = start_child(directory / "control", LEAVER)
            try:
                assert await asyncio.to_thread(child.wait, 15) == 0
            finally:
                child.kill()
                child.wait()
                server.close()

    asyncio.run(story())


# --- events ------------------------------------------------------------------------------------


def snapshot(revision: int = 1) -> Snapshot:
    nothing: dict[str, int] = {}
    names = Totals.__struct_fields__
    return Snapshot(
        epoch="e1",
        revision=revision,
        cards=(),
        models=(),
        jobs=(),
        services=(),
        counts={},
        totals=Totals(**dict.fromkeys(names, nothing)),
    )


def note(number: int = 0, verb: Verb = Verb.MODE) -> Note:
    return Note(verb=verb, text=f"note {number}")


async def next_event(events: EventSubscriber) -> EventEnvelope:
    return await asyncio.wait_for(anext(events), 10)


def test_a_subscriber_gets_a_snapshot_and_then_every_note() -> None:
    async def story() -> None:
        with short_dir() as directory:
            publisher = EventPublisher(directory / "events", Epoch("e1"))
            publisher.on_subscribe = lambda: publisher.snapshot(snapshot())
            publisher.note(note(0))  # before anybody could listen
            async with running(publisher.run()):
                with EventSubscriber(directory / "events") as events:
                    first = await next_event(events)
                    assert first.snapshot == snapshot()
                    assert first.epoch == "e1"
                    for number in range(3):
                        publisher.note(note(number))
                    seen = [await next_event(events) for _ in range(3)]
                    assert [event.note for event in seen] == [note(0), note(1), note(2)]
                    assert [event.seq - first.seq for event in seen] == [1, 2, 3]
                    assert events.events_missed == 0

    asyncio.run(story())


def test_a_topic_is_one_verb() -> None:
    async def story() -> None:
        with short_dir() as directory:
            publisher = EventPublisher(directory / "events", Epoch("e1"))
            asked: list[int] = []
            publisher.on_subscribe = lambda: asked.append(1)
            async with running(publisher.run()):
                with EventSubscriber(directory / "events", ("note.evict", "snapshot")) as events:
                    await eventually(lambda: asked, "the subscription arrives")
                    publisher.note(note(1, Verb.LOAD))
                    publisher.note(note(2, Verb.EVICT))
                    assert (await next_event(events)).note == note(2, Verb.EVICT)
                    assert events.events_missed == 0, "who takes one topic cannot see gaps"

    asyncio.run(story())


def test_subscribers_that_come_together_share_a_snapshot() -> None:
    async def story() -> None:
        with short_dir() as directory:
            publisher = EventPublisher(directory / "events", Epoch("e1"))
            asked_s: list[float] = []
            publisher.on_subscribe = lambda: asked_s.append(time.monotonic())
            async with running(publisher.run()):
                clients = [EventClient(directory / "events", ("snapshot",))]
                await eventually(lambda: len(asked_s) == 1, "the first is answered at once")
                clients += [EventClient(directory / "events", ("snapshot",)) for _ in range(20)]
                await eventually(lambda: publisher.subscribers_seen == 21, "all are seen")
                await eventually(lambda: len(asked_s) == 2, "the late ones are answered too")
                assert asked_s[1] - asked_s[0] >= 0.99
                for client in clients:
                    client.close()
                assert len(asked_s) == 2, "and by one snapshot"

    asyncio.run(story())


def test_a_gap_makes_the_subscriber_ask_for_a_snapshot() -> None:
    """What a slow subscriber loses is replaced, not replayed."""

    async def story() -> None:
        with short_dir() as directory:
            publisher = EventPublisher(directory / "events", Epoch("e1"))
            publisher.on_subscribe = lambda: publisher.snapshot(snapshot())
            async with running(publisher.run()):
                with EventSubscriber(directory / "events") as events:
                    await next_event(events)
                    for number in range(30_000):  # more than every queue on the way holds
                        publisher.note(note(number))
                    event = await next_event(events)
                    while event.snapshot is None:
                        publisher.note(note())  # a loss shows when something comes after it
                        event = await next_event(events)
                    assert event.seq > 30_000
                    assert events.events_missed > 0

    asyncio.run(story())


def test_a_subscriber_survives_the_scheduler() -> None:
    async def story() -> None:
        with short_dir() as directory, EventSubscriber(directory / "events") as events:
            for epoch in ("e1", "e2"):
                publisher = EventPublisher(directory / "events", Epoch(epoch))
                publisher.on_subscribe = lambda p=publisher: p.snapshot(snapshot())
                async with running(publisher.run()):
                    assert (await next_event(events)).epoch == epoch

    asyncio.run(story())


def test_the_blocking_subscriber_needs_no_loop() -> None:
    async def story() -> None:
        with short_dir() as directory:
            publisher = EventPublisher(directory / "events", Epoch("e1"))
            publisher.on_subscribe = lambda: publisher.snapshot(snapshot())
            async with running(publisher.run()):

                def listen() -> tuple[EventEnvelope | None, EventEnvelope | None]:
                    with BlockingEventSubscriber(directory / "events") as events:
                        return events.receive(10), events.receive(0.01)

                first, nothing = await asyncio.to_thread(listen)
                assert first is not None
                assert first.snapshot == snapshot()
                assert nothing is None

    asyncio.run(story())
