"""The sockets' own loop side: no wake-up is lost, however sends and arrivals meet.

A lost wake-up is a message that lies here unread until something else happens, which for a quiet
daemon is the next beat: a request that takes a second instead of a millisecond.
"""

import asyncio
import contextlib
import select
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from gridcore.clock import monotonic_ns
from gridcore.ids import PeerId
from gridcore.ipc.endpoints import identity_of
from gridcore.ipc.sockets import BATCH_MAX, ControlClient, ControlServer, Sent
from gridcore.units import NS_PER_S
from tests.support.bus import DEADLINE_S, eventually, short_dir

Run = Callable[..., Any]

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
NAME = PeerId("gateway-0")
HAMMER = 20_000
IN_FLIGHT = 500
"""Well below the high-water mark: a refused send would be right, and is not the subject."""
LATE_NS = 2 * NS_PER_S
"""Far above what a busy machine needs for 500 frames; a lost wake-up ends at the deadline."""


@contextlib.contextmanager
def connected() -> Iterator[tuple[ControlServer, ControlClient]]:
    with short_dir() as directory:
        server = ControlServer(directory / "control")
        client = ControlClient(directory / "control", NAME)
        try:
            yield server, client
        finally:
            client.close()
            server.close()


async def introduced(server: ControlServer, client: ControlClient) -> None:
    """Until the connection stands, nothing can be sent either way."""
    await eventually(lambda: client.send(b"hello") is Sent.YES, "the client is connected")
    async with asyncio.timeout(DEADLINE_S):
        await server.receive_batch()


@LOOPS
def test_a_send_that_takes_the_edge_away_wakes_the_reader_itself(run: Run) -> None:
    """The message has arrived, its edge is on the descriptor, and a send comes first."""

    async def story() -> None:
        with connected() as (server, client):
            await introduced(server, client)
            reading = asyncio.ensure_future(client.receive_batch())
            for round_ in range(50):
                await asyncio.sleep(0)  # the reader is waiting now
                assert server.send(identity_of(NAME), b"%d" % round_) is Sent.YES
                edge, _, _ = select.select([descriptor(client)], [], [], DEADLINE_S)
                assert edge
                # The library attends to its mailbox in a send only if it last did a while ago.
                time.sleep(0.002)
                assert client.send(b"noise") is Sent.YES
                async with asyncio.timeout(DEADLINE_S):
                    assert await reading == [[b"%d" % round_]]
                reading = asyncio.ensure_future(client.receive_batch())
            reading.cancel()

    run(story())


@LOOPS
def test_twenty_thousand_messages_both_ways_arrive_in_order_and_in_time(run: Run) -> None:
    """Both ends send from every corner while they receive; each frame carries its instant."""

    async def story() -> None:
        with connected() as (server, client):
            await introduced(server, client)
            at_server, at_client = Arrivals(), Arrivals()
            readers = [
                asyncio.ensure_future(at_server.read(server.receive_batch)),
                asyncio.ensure_future(at_client.read(client.receive_batch)),
            ]

            async def send(deliver: Callable[[bytes], Sent], there: Arrivals, pause: int) -> None:
                for number in range(HAMMER):
                    assert deliver(b"%d %d" % (number, monotonic_ns())) is Sent.YES
                    if number % pause == 0:
                        await asyncio.sleep(0)
                    while number - there.count > IN_FLIGHT:
                        await asyncio.sleep(0)

            async with asyncio.timeout(4 * DEADLINE_S):
                await asyncio.gather(
                    send(client.send, at_server, 7),
                    send(lambda frame: server.send(identity_of(NAME), frame), at_client, 3),
                )
                await asyncio.gather(*readers)
            assert at_server.late_ns < LATE_NS
            assert at_client.late_ns < LATE_NS

    run(story())


@LOOPS
def test_a_stream_without_end_leaves_the_loop_its_turn(run: Run) -> None:
    """Somebody who reads as fast as they can must not keep timers and signals from running."""

    async def story() -> None:
        with connected() as (server, client):
            await introduced(server, client)
            for _ in range(4 * BATCH_MAX):
                assert client.send(b"x") is Sent.YES
            turns, received = 0, 0
            turns_seen = []

            async def count_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.ensure_future(count_turns())
            while received < 4 * BATCH_MAX:
                async with asyncio.timeout(DEADLINE_S):
                    batch = await server.receive_batch()
                assert len(batch) <= BATCH_MAX
                received += len(batch)
                turns_seen.append(turns)
            assert len(turns_seen) >= 4
            assert turns_seen == sorted(set(turns_seen)), "a batch came without a turn before it"
            counting.cancel()

    run(story())


class Arrivals:
    """The numbers that have come, which must be all of them in order, and the worst delay."""

    def __init__(self) -> None:
        self.count = 0
        self.late_ns = 0

    async def read(self, receive_batch: Callable[[], Any]) -> None:
        while self.count < HAMMER:
            for frames in await receive_batch():
                number, sent_ns = frames[-1].split()
                assert int(number) == self.count
                self.count += 1
                self.late_ns = max(self.late_ns, monotonic_ns() - int(sent_ns))


def descriptor(client: ControlClient) -> int:
    return client._socket.fileno()
