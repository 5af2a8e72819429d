"""The exporter as a process: a real event socket on one side, real HTTP on the other."""

import asyncio
import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import httpx
import pytest

from gridcore.config.schema import Config, MetricsConfig
from gridcore.core.settings import Settings
from gridcore.core.snapshot import Snapshot, Totals
from gridcore.ids import Epoch
from gridcore.instance import Instance, write_instance
from gridcore.ipc.events import EventPublisher
from gridcore.metrics.server import CONNECTIONS_MAX

DEADLINE_S = 10.0


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("metrics", timeout=DEADLINE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Exporter:
    """A running exporter and what it wrote to stderr."""

    def __init__(self, instance: Instance, log_path: Path, *, parent_fd: int | None = None) -> None:
        self.instance = instance
        self._log_path = log_path
        command = [sys.executable, "-P", "-m", "services.metrics_exporter"]
        command += ["--instance", str(instance.runtime.instance), "--name", "metrics-exporter"]
        if parent_fd is not None:
            command += ["--parent-fd", str(parent_fd)]
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stderr=log,
                pass_fds=() if parent_fd is None else (parent_fd,),
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )

    def log(self) -> str:
        return self._log_path.read_text()

    def get(self, path: str = "/metrics", method: str = "GET") -> Answer:
        with UnixConnection(self.instance.runtime.metrics) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read().decode()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, body)

    def answers(self) -> bool:
        """Is it the process behind the socket (a killed one leaves its file)?"""
        try:
            return self.get().status == 200
        except OSError:
            return False

    def value(self, sample: str) -> float | None:
        """One sample of the page, by its name with labels; None while there is none."""
        try:
            page = self.get().text
        except OSError:
            return None
        found = re.search(rf"^{re.escape(sample)} (\S+)$", page, re.MULTILINE)
        return None if found is None else float(found[1])


class Scheduler:
    """The event socket as the scheduler binds it, with a snapshot one can change."""

    def __init__(self, endpoint: Path, epoch: str = "e1") -> None:
        self.loads = 0
        self._epoch = Epoch(epoch)
        self._endpoint = endpoint

    def snapshot(self) -> Snapshot:
        fields: dict[str, dict[str, int]] = {name: {} for name in Totals.__struct_fields__}
        totals = Totals(**{**fields, "loads": {"m": self.loads}})
        return Snapshot(
            epoch=self._epoch,
            revision=1,
            cards=(),
            models=(),
            jobs=(),
            services=(),
            counts={},
            totals=totals,
        )

    def run_while(self, condition: Callable[[], bool]) -> None:
        """Publish (on subscription only) until the condition, asked in a thread, is false."""

        async def run() -> None:
            publisher = EventPublisher(self._endpoint, self._epoch)
            publisher.on_subscribe = lambda: publisher.snapshot(self.snapshot())
            serving = asyncio.create_task(publisher.run())
            deadline = time.monotonic() + DEADLINE_S
            try:
                while await asyncio.to_thread(condition):
                    assert time.monotonic() < deadline, "the condition did not change in time"
                    await asyncio.sleep(0.02)
            finally:
                serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await serving

        asyncio.run(run())


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


def differs(exporter: Exporter, sample: str, expected: float) -> bool:
    return exporter.value(sample) != expected


def make_instance(directory: Path, listen: str | None) -> Instance:
    instance = Instance(
        instance_id="test",
        config_path=None,
        state_dir=str(directory / "state"),
        runtime_dir=str(directory),
        device="simulation",
        llama_server=None,
        listen="127.0.0.1:0",
        config=Config(metrics=MetricsConfig(listen=listen)),
        settings=Settings(cards=(), models=()),
    )
    write_instance(instance)
    return instance


@pytest.fixture
def instance(short_dir: Path) -> Instance:
    return make_instance(short_dir, listen=None)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """pytest's own directories are too long for a socket path on some systems."""
    with tempfile.TemporaryDirectory(prefix="gc-", dir="/tmp") as name:
        yield Path(name)


@contextlib.contextmanager
def exporting(instance: Instance, tmp_path: Path) -> Iterator[Exporter]:
    exporter = Exporter(instance, tmp_path / "exporter.log")
    try:
        wait_until(exporter.answers, "an answer on the metrics socket")
        yield exporter
    finally:
        exporter.process.kill()
        exporter.process.wait()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """An exporter without a scheduler, for what only HTTP clients can do to it."""
    with tempfile.TemporaryDirectory(prefix="gc-", dir="/tmp") as name:
        instance = make_instance(Path(name), listen=None)
        with exporting(instance, tmp_path_factory.mktemp("exporter")) as exporter:
            yield exporter


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_scheduler_that_comes_later_is_found(instance: Instance, tmp_path: Path) -> None:
    with exporting(instance, tmp_path) as exporter:
        assert exporter.value("gridcore_scheduler_up") == 0
        scheduler = Scheduler(instance.runtime.events)
        scheduler.loads = 3
        scheduler.run_while(lambda: exporter.value('gridcore_model_loads_total{model="m"}') != 3.0)


def test_a_scrape_of_a_silent_scheduler_asks_for_a_snapshot(
    instance: Instance, tmp_path: Path
) -> None:
    """Nothing is published but on subscription, so a new number proves a new subscription."""
    scheduler = Scheduler(instance.runtime.events)
    scheduler.loads = 1
    with exporting(instance, tmp_path) as exporter:

        def is_behind() -> bool:
            found = exporter.value('gridcore_model_loads_total{model="m"}')
            if found == 1.0:
                scheduler.loads = 2
            return found != 2.0

        scheduler.run_while(is_behind)


def test_numbers_outlive_the_scheduler_and_say_so(instance: Instance, tmp_path: Path) -> None:
    scheduler = Scheduler(instance.runtime.events)
    scheduler.loads = 5
    loads = 'gridcore_model_loads_total{model="m"}'
    with exporting(instance, tmp_path) as exporter:
        scheduler.run_while(lambda: exporter.value(loads) != 5.0)
        wait_until(lambda: exporter.value("gridcore_scheduler_up") == 0, "the outage on the page")
        assert exporter.value(loads) == 5.0
        successor = Scheduler(instance.runtime.events, epoch="e2")
        successor.run_while(lambda: exporter.value(loads) != 0.0)
        assert exporter.value("gridcore_events_dropped_total") == 0


def test_a_restarted_exporter_shows_the_same_totals(instance: Instance, tmp_path: Path) -> None:
    scheduler = Scheduler(instance.runtime.events)
    scheduler.loads = 4
    loads = 'gridcore_model_loads_total{model="m"}'
    for _ in range(2):
        with exporting(instance, tmp_path) as exporter:
            scheduler.run_while(partial(differs, exporter, loads, 4.0))


def test_http_is_spoken_properly(alone: Exporter) -> None:
    page = alone.get()
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/plain; version=")
    assert alone.get("/metrics?x=1").status == 200
    assert alone.get("/").status == 404
    assert alone.get(method="POST").status == 405
    head = alone.get(method="HEAD")
    assert head.status == 200
    assert head.text == ""
    assert int(head.headers["content-length"]) > 0


def test_a_connection_serves_one_scrape_after_the_other(alone: Exporter) -> None:
    with UnixConnection(alone.instance.runtime.metrics) as connection:
        for _ in range(3):
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            assert b"gridcore_scheduler_up 0.0" in response.read()
            assert not response.will_close


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 40_000, b"431"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"\xff\xfe \x00 \x01\r\n\r\n", b"404"),
    ],
    ids=["nonsense", "endless head", "http/1.0", "binary"],
)
def test_bad_clients_get_an_answer_and_harm_nobody(
    alone: Exporter, sent: bytes, status: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_S)
        client.connect(str(alone.instance.runtime.metrics))
        client.sendall(sent)
        assert client.recv(65536).split(b" ")[1] == status
    assert alone.get().status == 200
    assert "Traceback" not in alone.log()


def test_silent_connections_do_not_lock_others_out_for_good(alone: Exporter) -> None:
    """More than the limit are refused with a 503; room comes back when they leave."""
    silent = []
    try:
        for _ in range(CONNECTIONS_MAX):
            client = socket.socket(socket.AF_UNIX)
            silent.append(client)
            client.connect(str(alone.instance.runtime.metrics))
        wait_until(lambda: alone.get().status == 503, "the limit")
    finally:
        for client in silent:
            client.close()
    wait_until(alone.answers, "room for a scrape")


def test_the_socket_is_ours_alone(alone: Exporter) -> None:
    assert alone.instance.runtime.metrics.stat().st_mode & 0o077 == 0


def test_the_extra_port_serves_the_same(short_dir: Path, tmp_path: Path) -> None:
    port = free_port()
    with exporting(make_instance(short_dir, f"127.0.0.1:{port}"), tmp_path) as exporter:
        wait_until(lambda: "metrics at" in exporter.log(), "the log line of the port")
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S)
        assert "gridcore_scheduler_up" in answer.text


def test_a_taken_port_is_a_warning_and_the_socket_still_serves(
    short_dir: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with exporting(make_instance(short_dir, listen), tmp_path) as exporter:
            wait_until(lambda: "WARNING" in exporter.log(), "the warning")
            assert f"metrics.listen {listen} cannot be used" in exporter.log()
            assert exporter.get().status == 200
            assert exporter.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(
    instance: Instance, tmp_path: Path, number: signal.Signals
) -> None:
    with exporting(instance, tmp_path) as exporter:
        exporter.process.send_signal(number)
        assert exporter.process.wait(DEADLINE_S) == 0
        assert "Traceback" not in exporter.log()


def test_a_killed_predecessor_leaves_no_obstacle(instance: Instance, tmp_path: Path) -> None:
    with exporting(instance, tmp_path):
        pass  # killed at the end of the block: its socket file stays
    assert instance.runtime.metrics.exists()
    with exporting(instance, tmp_path) as exporter:
        assert exporter.value("gridcore_scheduler_up") == 0


def test_it_ends_with_its_launcher(instance: Instance, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    exporter = Exporter(instance, tmp_path / "exporter.log", parent_fd=read_end)
    os.close(read_end)
    try:
        wait_until(exporter.answers, "an answer on the metrics socket")
        os.close(write_end)
        assert exporter.process.wait(DEADLINE_S) == 0
    finally:
        exporter.process.kill()
        exporter.process.wait()
