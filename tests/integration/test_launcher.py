"""The launcher's machinery with stub services: real processes, signals, sockets and pipes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from gridcore.core.snapshot import ServiceView
from gridcore.errors import AlreadyRunningError, ListenError
from gridcore.group.listen import address_of, open_listener, reachable_address
from gridcore.group.lock import FileLock
from gridcore.group.ready import http_get
from gridcore.group.roster import Member, Roster, end_remains
from gridcore.group.sdnotify import notify
from gridcore.ids import PeerId
from gridcore.ipc.messages import BeginDrain, ServiceExited, ServicesStatus
from gridcore.runtime.identity import kernel_boot_id, start_ticks
from tests.support.bus import RecordingHub, eventually, running, short_dir

ROOT = Path(__file__).parents[2]
DEADLINE_S = 20.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(0.01)


class Stub:
    """A running launcher with stub services."""

    def __init__(self, directory: Path, **options: list[str]) -> None:
        self.directory = directory
        named = {name.replace("_", "-"): value for name, value in options.items()}
        module = [sys.executable, "-m", "tests.support.group_stub"]
        with (directory / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                [*module, str(directory), "127.0.0.1:0", json.dumps(named)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def wait_ready(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait_started(self) -> None:
        until(lambda: len(self.pids()) == 4, "four services")

    def events(self) -> list[dict[str, object]]:
        try:
            lines = (self.directory / "log").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def pids(self) -> dict[str, int]:
        """The latest incarnation of each service."""
        starts = [event for event in self.events() if event["what"] == "start"]
        return {str(event["name"]): int(str(event["pid"])) for event in starts}

    def all_pids(self) -> list[int]:
        return [int(str(e["pid"])) for e in self.events() if e["what"] == "start"]

    def order(self, what: str) -> list[str]:
        return [str(event["name"]) for event in self.events() if event["what"] == what]

    def stderr(self) -> str:
        return (self.directory / "stderr").read_text()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


@contextmanager
def launched(directory: Path, **options: list[str]) -> Iterator[Stub]:
    stub = Stub(directory, **options)
    try:
        yield stub
    finally:
        if stub.process.poll() is None:
            stub.process.kill()
        stub.process.wait()
        if stub.process.stdout is not None:
            stub.process.stdout.close()
        for pid in stub.all_pids():
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(is_alive(pid) for pid in stub.all_pids()), "all are dead")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_group_starts_in_order_answers_and_ends_in_order() -> None:
    """Gateways finish first, then the supervisor unloads, then the rest; nobody is left."""
    with short_dir() as directory, launched(directory, supervisor=["--linger", "0.2"]) as stub:
        address = stub.wait_ready()
        assert asyncio.run(http_get(address, "/health"))[0] == 200
        stub.wait_started()
        began_s = time.monotonic()
        assert stub.end() == 0
        assert time.monotonic() - began_s < 5
        ends = stub.order("end")
        assert ends[:2] == ["gateway-0", "supervisor"]
        assert sorted(ends[2:]) == ["gpu-monitor", "scheduler"]
        assert stub.order("term")[:2] == ["gateway-0", "supervisor"]
        assert not any(is_alive(pid) for pid in stub.all_pids())


def test_every_service_has_a_session_of_its_own_and_inherits_no_lock() -> None:
    with short_dir() as directory, launched(directory) as stub:
        stub.wait_ready()
        stub.wait_started()
        for pid in stub.pids().values():
            assert os.getsid(pid) == pid
            opened = [f.path for f in psutil.Process(pid).open_files()]
            assert not [path for path in opened if path.endswith("lock")]


def test_a_second_launcher_is_refused_and_the_first_untouched() -> None:
    with short_dir() as directory, launched(directory) as first:
        address = first.wait_ready()
        first.wait_started()
        pids = first.pids()
        with launched(directory) as second:
            assert second.process.wait(DEADLINE_S) == 3
        assert f"pid {first.process.pid}" in first.stderr()
        assert first.process.poll() is None
        assert first.pids() == pids
        assert asyncio.run(http_get(address, "/health"))[0] == 200


@pytest.mark.parametrize("name", ["gateway-0", "supervisor", "scheduler"])
def test_a_killed_service_is_started_again_and_the_others_are_left_alone(name: str) -> None:
    with short_dir() as directory, launched(directory) as stub:
        stub.wait_ready()
        stub.wait_started()
        before = stub.pids()
        os.kill(before[name], signal.SIGKILL)
        until(lambda: stub.pids()[name] != before[name], "a new incarnation")
        after = stub.pids()
        assert {n: p for n, p in after.items() if n != name} == {
            n: p for n, p in before.items() if n != name
        }
        assert "killed by SIGKILL" in stub.stderr()
        assert stub.end() == 0


def test_clients_wait_in_the_backlog_while_the_gateway_restarts() -> None:
    """Not one connection is refused, and the one that was waiting is answered by the next."""
    with short_dir() as directory, launched(directory) as stub:
        address = stub.wait_ready()
        stub.wait_started()
        old = stub.pids()["gateway-0"]
        os.kill(old, signal.SIGKILL)
        until(lambda: not is_alive(old), "the gateway is dead")
        status, body = asyncio.run(http_get(address, "/health"))
        assert status == 200
        assert int(body) == stub.pids()["gateway-0"] != old


def test_a_service_that_cannot_start_ends_the_group_with_the_reason() -> None:
    with short_dir() as directory, launched(directory, gpu_monitor=["--fail"]) as stub:
        assert stub.process.wait(DEADLINE_S) == 5
        assert stub.order("start").count("gpu-monitor") == 3
        assert "gpu-monitor ended 3 times in a row" in stub.stderr()
        assert "exit status 7" in stub.stderr()
        assert not any(is_alive(pid) for pid in stub.all_pids())


def test_the_group_ends_in_order_when_the_launcher_is_killed() -> None:
    """The order hangs on pipes: each stage hears of the end when the stages before are gone."""
    slow = ["--linger", "0.3"]
    with short_dir() as directory:
        with launched(directory, gateway_0=slow, supervisor=slow) as stub:
            stub.wait_ready()
            stub.wait_started()
            stub.process.kill()
            stub.process.wait()
            until(lambda: not any(is_alive(pid) for pid in stub.all_pids()), "all have ended")
            what = [(event["what"], event["name"]) for event in stub.events()][4:]
            assert what[:4] == [
                ("term", "gateway-0"),
                ("end", "gateway-0"),
                ("term", "supervisor"),
                ("end", "supervisor"),
            ]
        with launched(directory) as again:
            again.wait_ready()
            assert again.end() == 0


def test_a_new_group_waits_for_the_remains_of_a_killed_one_and_then_ends_them() -> None:
    """Two gateways of one name would take the link from each other for as long as a drain."""
    with short_dir() as directory:
        with launched(directory, gateway_0=["--deaf"]) as stub:
            stub.wait_ready()
            stub.wait_started()
            old = stub.all_pids()
            stub.process.kill()
            stub.process.wait()
            assert is_alive(old[0])
            with launched(directory) as again:
                again.wait_ready()
                assert not any(is_alive(pid) for pid in old)
                assert "gateway-0" in again.stderr()
                assert again.end() == 0
        assert not (directory / "group.json").exists()


def test_a_pid_that_is_used_again_is_not_touched() -> None:
    """The roster of an earlier boot, or of a process long gone, names somebody else now."""
    with short_dir() as directory:
        path = directory / "group.json"
        me = Member(name="gateway-0", pid=os.getpid(), ticks=start_ticks(os.getpid()) or 0)
        other_boot = Roster(boot="earlier", members=(me,))
        other_start = Roster(
            boot=kernel_boot_id(), members=(Member(name="x", pid=os.getpid(), ticks=1),)
        )
        for roster in (other_boot, other_start):
            path.write_bytes(msgspec.json.encode(roster))
            assert end_remains(path, patience_s=0) == []
            assert not path.exists()
        path.write_text("not a roster")
        assert end_remains(path, patience_s=0) == []


def test_a_deaf_service_is_killed_after_its_grace() -> None:
    with short_dir() as directory, launched(directory, supervisor=["--deaf"]) as stub:
        stub.wait_ready()
        stub.wait_started()
        began_s = time.monotonic()
        assert stub.end() == 0
        assert 3 <= time.monotonic() - began_s < 8
        assert not any(is_alive(pid) for pid in stub.all_pids())


def test_a_second_signal_hurries() -> None:
    with short_dir() as directory, launched(directory, gateway_0=["--linger", "2.5"]) as stub:
        stub.wait_ready()
        stub.wait_started()
        began_s = time.monotonic()
        stub.process.send_signal(signal.SIGINT)
        until(lambda: "gateway-0" in stub.order("term"), "the gateway drains")
        assert "supervisor" not in stub.order("term")
        stub.process.send_signal(signal.SIGINT)
        assert stub.process.wait(DEADLINE_S) == 0
        assert time.monotonic() - began_s < 2
        assert "gateway-0" not in stub.order("end")
        assert "supervisor" in stub.order("end")


def test_a_signal_during_the_start_ends_it() -> None:
    with short_dir() as directory, launched(directory, gateway_0=["--fail"]) as stub:
        until(stub.events, "something has started")
        assert stub.end() in (0, 5)
        assert not any(is_alive(pid) for pid in stub.all_pids())


def test_the_scheduler_hears_of_pids_deaths_and_the_drain() -> None:
    """The launcher is a peer: proof of death comes from it, with the pid that died."""

    async def story(directory: Path, stub: Stub) -> None:
        hub = RecordingHub(directory / "control")

        def said(kind: type) -> list[object]:
            return [message for _, message in hub.messages if isinstance(message, kind)]

        def shown() -> dict[str, ServiceView]:
            latest = said(ServicesStatus)[-1]
            assert isinstance(latest, ServicesStatus)
            return {view.name: view for view in latest.services}

        async with running(hub.hub.run()):
            await eventually(lambda: said(ServicesStatus), "the inventory")
            await eventually(lambda: len(stub.pids()) == 4, "four services")
            await eventually(
                lambda: {n: v.pid for n, v in shown().items()} == stub.pids(), "the pids"
            )
            old = stub.pids()["supervisor"]
            os.kill(old, signal.SIGKILL)
            await eventually(lambda: said(ServiceExited), "the proof of death")
            assert said(ServiceExited) == [
                ServiceExited(peer=PeerId("supervisor"), exit_status=-9, pid=old)
            ]
            await eventually(
                lambda: shown()["supervisor"].pid not in (None, old), "the new supervisor"
            )
            assert shown()["supervisor"].restarts == 1
            assert shown()["gateway-0"].restarts == 0
            stub.process.send_signal(signal.SIGTERM)
            await eventually(lambda: said(BeginDrain), "the drain")
            await eventually(lambda: hub.kinds("launcher")[-1] == "left", "a goodbye")

    with short_dir() as directory, launched(directory) as stub:
        asyncio.run(story(directory, stub))
        assert stub.process.wait(DEADLINE_S) == 0


# --- its parts ---------------------------------------------------------------------------------


def test_a_lock_is_exclusive_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path, owned="state directory"):
        with pytest.raises(AlreadyRunningError, match=f"pid {os.getpid()}") as refused:
            FileLock(path, owned="state directory")
        assert "state directory" in str(refused.value)
        assert refused.value.exit_code == 3
    with FileLock(path, owned="state directory"):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_taken_port_names_its_holder(tmp_path: Path) -> None:
    with open_listener("127.0.0.1:0") as first:
        with pytest.raises(ListenError, match=f"pid {os.getpid()}") as refused:
            open_listener(address_of(first))
        assert refused.value.exit_code == 4
        assert address_of(first) in str(refused.value)
        assert "--listen" in str(refused.value)


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "192.0.2.1:8080"])
def test_an_address_that_cannot_be_is_a_listen_error(listen: str) -> None:
    with pytest.raises(ListenError, match=listen.rpartition(":")[0] or listen):
        open_listener(listen)


def test_all_addresses_are_reached_by_loopback() -> None:
    assert reachable_address("0.0.0.0:80") == ("127.0.0.1", 80)
    assert reachable_address("[::]:80") == ("::1", 80)
    assert reachable_address("10.0.0.1:80") == ("10.0.0.1", 80)


def test_systemd_is_told_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_dir() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(directory / "notify"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(directory / "notify"))
        notify(READY=1, STATUS="serving")
        assert systemd.recv(1024) == b"READY=1\nSTATUS=serving"
    notify(READY=1)  # nobody listens any more: that must not matter
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY=1)


def test_an_endless_answer_is_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def flood() -> None:
            connection, _ = server.accept()
            with connection:
                try:
                    while True:
                        connection.sendall(b"x" * 65536)
                except OSError:
                    pass

        thread = threading.Thread(target=flood)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(ValueError, match="more than"):
            asyncio.run(http_get(f"127.0.0.1:{port}", "/health"))
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
