"""services.supervisor and services.gpu_monitor as processes, against the scheduler's real hub."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gridcore.core.events import FailureCause
from gridcore.ids import CardId, Epoch, LoadId, ModelId, PeerId
from gridcore.instance import Instance, write_instance
from gridcore.ipc.hub import Hub
from gridcore.ipc.messages import (
    CardSample,
    LoadModel,
    RuntimeExited,
    RuntimeReady,
    SampleRequest,
    SupervisorInventory,
    ToScheduler,
    UnloadModel,
)
from gridcore.runtime import identity
from gridcore.runtime.registry import Registry, process_of
from gridcore.units import MB, NS_PER_S
from tests.support.runtimes import Inbox, make_instance, short_directory, simulated, until

SUPERVISOR, MONITOR = PeerId("supervisor"), PeerId("gpu-monitor")


@pytest.fixture
def instance() -> Iterator[Instance]:
    with short_directory() as path:
        models = {"m": simulated(700, load_s=0.1), "n": simulated(200)}
        instance = make_instance(path, models, gpu={"poll_interval": NS_PER_S // 20})
        write_instance(instance)
        yield instance
        for record in Registry(instance.state.registry).records():
            found = process_of(record)
            if found is not None:
                with suppress(ProcessLookupError):
                    os.killpg(found[0], signal.SIGKILL)


class Scheduler:
    """A hub that only listens and sends what a test tells it to."""

    def __init__(self, instance: Instance) -> None:
        self.inboxes = {SUPERVISOR: Inbox(), MONITOR: Inbox()}
        self.hub = Hub(
            endpoint=instance.runtime.control,
            epoch=Epoch("e1"),
            on_message=self._on_message,
            on_peer=lambda change: None,
            on_batch=lambda: None,
        )

    def _on_message(self, peer: PeerId, message: ToScheduler) -> None:
        self.inboxes[peer].put(message)

    async def __aenter__(self) -> "Scheduler":
        self._task = asyncio.create_task(self.hub.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def start(instance: Instance, service: str, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", "-m", f"services.{service}"]
    return subprocess.Popen(
        [*command, "--instance", str(instance.runtime.instance), "--name", name]
    )


async def stopped(process: "subprocess.Popen[bytes]") -> int:
    process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(process.wait, 15)


def resident_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) >> 10


def test_killed_and_restarted_it_reports_the_runtimes_it_finds(instance: Instance) -> None:
    """kill -9 of the supervisor: the model answers on, the next one adopts and unloads it."""

    async def story() -> None:
        async with Scheduler(instance) as scheduler:
            inbox = scheduler.inboxes[SUPERVISOR]
            process = start(instance, "supervisor", "supervisor")
            first = await inbox.next(SupervisorInventory)
            assert first.runtimes == ()
            assert {profile.model_id for profile in first.profiles} == {"m", "n"}
            load = LoadModel(load_id=LoadId("e1-1"), model_id=ModelId("m"), reserved_bytes=800 * MB)
            assert scheduler.hub.send(SUPERVISOR, load)
            ready = await inbox.next(RuntimeReady)
            assert ready.footprint_bytes == 700 * MB
            assert resident_mb(process.pid) < 64

            process.kill()
            await asyncio.to_thread(process.wait)
            assert identity.is_alive(ready.pid, None)

            process = start(instance, "supervisor", "supervisor")
            again = await inbox.next(SupervisorInventory, 2)
            (known,) = again.runtimes
            assert (known.load_id, known.pid, known.ready) == ("e1-1", ready.pid, True)
            assert known.reserved_bytes == 800 * MB
            unload = UnloadModel(load_id=LoadId("e1-1"), reason="test")
            assert scheduler.hub.send(SUPERVISOR, unload)
            exited = await inbox.next(RuntimeExited)
            assert exited.cause is None
            assert not identity.is_alive(ready.pid, None)
            assert await stopped(process) == 0

    asyncio.run(story())


def test_sigterm_unloads_everything_and_says_so(instance: Instance) -> None:
    async def story() -> None:
        async with Scheduler(instance) as scheduler:
            inbox = scheduler.inboxes[SUPERVISOR]
            process = start(instance, "supervisor", "supervisor")
            await inbox.next(SupervisorInventory)
            for n, model in enumerate("mn"):
                load = LoadModel(
                    load_id=LoadId(f"e1-{n}"), model_id=ModelId(model), reserved_bytes=MB
                )
                scheduler.hub.send(SUPERVISOR, load)
            await inbox.next(RuntimeReady, 2)
            pids = [ready.pid for ready in inbox.of(RuntimeReady)]
            assert await stopped(process) == 0
            assert not any(identity.is_alive(pid, None) for pid in pids)
            await inbox.next(RuntimeExited, 2)
            assert {each.cause for each in inbox.of(RuntimeExited)} == {None}

    asyncio.run(story())


def test_a_crash_reaches_the_scheduler(instance: Instance) -> None:
    async def story() -> None:
        async with Scheduler(instance) as scheduler:
            inbox = scheduler.inboxes[SUPERVISOR]
            process = start(instance, "supervisor", "supervisor")
            await inbox.next(SupervisorInventory)
            load = LoadModel(load_id=LoadId("e1-1"), model_id=ModelId("m"), reserved_bytes=MB)
            scheduler.hub.send(SUPERVISOR, load)
            ready = await inbox.next(RuntimeReady)
            os.kill(ready.pid, signal.SIGABRT)
            exited = await inbox.next(RuntimeExited)
            assert exited.cause is FailureCause.CRASHED
            assert "SIGABRT" in exited.detail
            assert await stopped(process) == 0

    asyncio.run(story())


def test_the_monitor_tells_what_is_ours_and_when_it_is_gone(instance: Instance) -> None:
    async def story() -> None:
        async with Scheduler(instance) as scheduler:
            supervisor = start(instance, "supervisor", "supervisor")
            monitor = start(instance, "gpu_monitor", "gpu-monitor")
            inbox, samples = scheduler.inboxes[SUPERVISOR], scheduler.inboxes[MONITOR]
            first = await samples.next(CardSample)
            assert first.card_id == "simulation"
            assert (first.total_bytes, first.used_bytes) == (16384 * MB, 0)
            await inbox.next(SupervisorInventory)
            load = LoadModel(load_id=LoadId("e1-1"), model_id=ModelId("m"), reserved_bytes=MB)
            scheduler.hub.send(SUPERVISOR, load)
            ready = await inbox.next(RuntimeReady)

            def last() -> CardSample:
                return samples.of(CardSample)[-1]

            await until(lambda: last().used_bytes == 700 * MB, "the model's memory", samples)
            await until(lambda: last().used_by_pid == {ready.pid: 700 * MB}, "our share", samples)
            count = len(samples.of(CardSample))
            scheduler.hub.send(MONITOR, SampleRequest(card_id=CardId("simulation")))
            await samples.next(CardSample, count + 1)
            assert await stopped(supervisor) == 0
            await until(lambda: last().used_bytes == 0, "memory to come back", samples)
            assert resident_mb(monitor.pid) < 64
            assert await stopped(monitor) == 0

    asyncio.run(story())


def test_an_idle_monitor_is_quiet(instance: Instance) -> None:
    """Twenty readings a second are two messages in three seconds while nothing changes."""

    async def story() -> None:
        async with Scheduler(instance) as scheduler:
            monitor = start(instance, "gpu_monitor", "gpu-monitor")
            samples = scheduler.inboxes[MONITOR]
            await samples.next(CardSample, 2)
            before = len(samples.of(CardSample))
            await asyncio.sleep(3)
            assert 1 <= len(samples.of(CardSample)) - before <= 2
            assert await stopped(monitor) == 0

    asyncio.run(story())


def test_without_a_daemon_the_services_say_so(tmp_path: Path) -> None:
    for service in ("supervisor", "gpu_monitor"):
        result = subprocess.run(
            [sys.executable, "-P", "-m", f"services.{service}", "--instance", str(tmp_path / "i")],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert result.returncode == 1
        assert "is not a running daemon's instance" in result.stderr
        assert "Traceback" not in result.stderr
