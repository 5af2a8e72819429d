#!/usr/bin/env python3
"""What GridCore costs by being there: start-up, memory, idle CPU, added latency of a request.

Starts a daemon of its own in a temporary directory with a simulated model that answers at once,
so that the upstream is trivial and what is measured is GridCore. Every request is sent twice,
to the runtime directly and through the gateway, in turns; one that was not granted by the
scheduler on its own (seen on the event socket) makes the run fail.

    scripts/bench-idle.py                    print the figures
    scripts/bench-idle.py --write            also put them into docs/benchmarks.md
    scripts/bench-idle.py --config FILE      memory and CPU of another config (no latency)
"""

import argparse
import contextlib
import http.client
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from gridcore.core.notes import Verb
from gridcore.ipc.events import BlockingEventSubscriber
from gridcore.paths import RuntimePaths, runtime_dir_for

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- bench-idle:begin -->", "<!-- bench-idle:end -->"
START_TIMEOUT_S = 30.0
SETTLE_S = 5.0
WARM_UP_REQUESTS = 100
SERVICES = ("gateway", "scheduler", "supervisor", "gpu_monitor", "metrics_exporter")
MODEL = "instant"
CONFIG = f"""\
gpu: {{ device: simulation }}
metrics: {{ listen: null }}
models:
  {MODEL}:
    runtime: simulated
    parallel: 4
    simulated:
      vram_mb: 64
      load_time: 0s
      tokens_per_second: 1000000000
      prompt_tokens_per_second: 1000000000
"""


class Memory(NamedTuple):
    rss_mb: float
    pss_mb: float | None
    """A share of pages used by several processes; Linux only."""


class Latency(NamedTuple):
    direct_ms: list[float]
    through_ms: list[float]
    cpu_ms: dict[str, float]
    """Processor time of one request through GridCore, by process; blind to other load."""

    def added(self) -> list[float]:
        return [b - a for a, b in zip(self.direct_ms, self.through_ms, strict=True)]


class Daemon:
    """A `gridcore serve` and the processes below it."""

    def __init__(self, directory: Path, config: Path | None) -> None:
        self.port = free_port()
        state_dir = directory / "state"
        self.paths = RuntimePaths(runtime_dir_for(state_dir))
        self.log_path = directory / "serve.log"
        command = [sys.executable, "-P", "-c", "from gridcore.cli.app import main; main()"]
        command += ["serve", "--state-dir", str(state_dir), "--listen", f"127.0.0.1:{self.port}"]
        command += ["--config", str(config)] if config else ["--simulation"]
        began = time.monotonic()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        while not self._is_healthy():
            if self.process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                raise SystemExit(f"the daemon did not start:\n{self.log_path.read_text()}")
            time.sleep(0.005)
        self.start_s = time.monotonic() - began

    def services(self) -> dict[str, psutil.Process]:
        """The five services by name, and the launcher."""
        launcher = psutil.Process(self.process.pid)
        found = {}
        for child in launcher.children(recursive=True):
            arguments = child.cmdline()
            for name in SERVICES:
                if f"services.{name}" in arguments:
                    found[name] = child
        missing = set(SERVICES) - set(found)
        if missing:
            raise SystemExit(f"no process of {', '.join(sorted(missing))} below the launcher")
        return {**{name: found[name] for name in SERVICES}, "launcher": launcher}

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Grants:
    """Counts the dispatch notes of each job, from outside, while a block runs."""

    def __init__(self, endpoint: Path) -> None:
        self.steps_by_job: Counter[str] = Counter()
        self.events_missed = 0
        self._endpoint = endpoint
        self._stop = threading.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> "Grants":
        self._thread.start()
        if not self._listening.wait(10):
            raise SystemExit("the event socket sent no snapshot")
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(1.0)  # what is still on its way
        self._stop.set()
        self._thread.join()

    def _listen(self) -> None:
        with BlockingEventSubscriber(self._endpoint) as events:
            while not self._stop.is_set():
                envelope = events.receive(0.2)
                if envelope is None:
                    continue
                self._listening.set()  # the first event is the snapshot that we subscribed for
                note = envelope.note
                if note is not None and note.verb is Verb.DISPATCH and note.job_id is not None:
                    self.steps_by_job[note.job_id] += 1
            self.events_missed = events.events_missed


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory_of(process: psutil.Process) -> Memory:
    info = process.memory_full_info()
    pss = getattr(info, "pss", None)
    return Memory(info.rss / 2**20, None if pss is None else pss / 2**20)


def cpu_s(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


def idle_cpu_per_minute(processes: dict[str, psutil.Process], seconds: float) -> dict[str, float]:
    before = cpu_s(processes)
    time.sleep(seconds)
    after = cpu_s(processes)
    return {name: (after[name] - before[name]) * 60 / seconds for name in processes}


def ask(connection: http.client.HTTPConnection, *, stream: bool) -> tuple[float, str | None]:
    """One chat of one token; milliseconds until the whole answer is here, and the job's id."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    payload = json.dumps({**body, "stream": stream}).encode()
    began = time.perf_counter_ns()
    connection.request(
        "POST", "/v1/chat/completions", payload, {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    text = answer.read()
    took_ms = (time.perf_counter_ns() - began) / 1e6
    if answer.status != 200:
        raise SystemExit(f"HTTP {answer.status}: {text[:300]!r}")
    return took_ms, answer.headers.get("X-GridCore-Job-Id")


def measure_latency(
    daemon: Daemon, services: dict[str, psutil.Process], n_requests: int, *, stream: bool
) -> Latency:
    """Requests in turns, directly and through GridCore; each of the latter its own grant."""
    through = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    ask(through, stream=stream)  # loads the model
    (runtime,) = (path for path in daemon.paths.runtimes.iterdir() if path.is_socket())
    direct = UnixConnection(runtime)
    latency, jobs = Latency([], [], {}), []
    before = cpu_s(services)
    with contextlib.closing(through), contextlib.closing(direct), Grants(daemon.paths.events) as it:
        for index in range(WARM_UP_REQUESTS + n_requests):
            through_first = bool(index % 2)
            if through_first:
                through_ms, job_id = ask(through, stream=stream)
            direct_ms, _ = ask(direct, stream=stream)
            if not through_first:
                through_ms, job_id = ask(through, stream=stream)
            if index >= WARM_UP_REQUESTS:
                latency.direct_ms.append(direct_ms)
                latency.through_ms.append(through_ms)
                jobs.append(job_id)
    n_through = WARM_UP_REQUESTS + n_requests
    latency.cpu_ms.update(
        {name: (s - before[name]) * 1000 / n_through for name, s in cpu_s(services).items()}
    )
    lacking = [job for job in jobs if job is None or it.steps_by_job[job] != 1]
    if lacking or len(set(jobs)) != n_requests or it.events_missed:
        raise SystemExit(
            f"{len(lacking)} of {n_requests} requests had no grant of their own on the event "
            f"socket ({it.events_missed} events missed): these figures would prove nothing"
        )
    return latency


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def memory_table(idle: dict[str, Memory], used: dict[str, Memory] | None) -> Iterator[str]:
    yield "| process | idle RSS | idle PSS | RSS after 100 requests | PSS after 100 requests |"
    yield "|---|---:|---:|---:|---:|"
    rows: dict[str, tuple[str, ...]] = {name: (name,) for name in idle}
    rows |= {"**the five services**": SERVICES, "with the launcher": tuple(idle)}
    for title, members in rows.items():
        cells = []
        for state in (idle, used):
            memories = [state[name] for name in members] if state is not None else []
            cells.append(megabytes([memory.rss_mb for memory in memories]))
            cells.append(megabytes([memory.pss_mb for memory in memories]))
        yield f"| {title} | {' | '.join(cells)} |"


def megabytes(values: list[float] | list[float | None]) -> str:
    """Their sum; empty where one is unknown or nothing was measured."""
    known = [value for value in values if value is not None]
    return f"{sum(known):.1f} MB" if known and len(known) == len(values) else ""


def latency_table(rows: dict[str, Latency]) -> Iterator[str]:
    yield "| chat, max_tokens 1 | | directly | through GridCore | added |"
    yield "|---|---|---:|---:|---:|"
    for title, latency in rows.items():
        for label, pick in (("median", 50), ("p99", 99)):
            columns = (latency.direct_ms, latency.through_ms, latency.added())
            cells = " | ".join(f"{percentile(column, pick):.2f} ms" for column in columns)
            yield f"| {title} | {label} | {cells} |"


def cpu_sentences(rows: dict[str, Latency]) -> Iterator[str]:
    for title, latency in rows.items():
        busy = {name: ms for name, ms in latency.cpu_ms.items() if ms >= 0.005}
        parts = ", ".join(f"{name} {ms:.2f} ms" for name, ms in busy.items())
        total = sum(latency.cpu_ms.values())
        yield f"Processor time of one request, {title}: {parts}; in all **{total:.2f} ms**."
        yield ""


def report(
    *,
    start_s: float,
    idle: dict[str, Memory],
    used: dict[str, Memory] | None,
    cpu: dict[str, float],
    latencies: dict[str, Latency],
    n_requests: int,
) -> str:
    where = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores "
        f"(load average {os.getloadavg()[0]:.1f})"
    )
    lines = [
        f"Measured by `scripts/bench-idle.py` on {where}, Python {platform.python_version()}.",
        "",
        f"From `serve` to the first `/health` 200: **{start_s:.2f} s**.",
        "",
        *memory_table(idle, used),
        "",
        "CPU while nothing happens, in seconds of one core per minute: "
        + ", ".join(f"{name} {seconds:.2f}" for name, seconds in cpu.items())
        + f"; in all **{sum(cpu.values()):.2f}**.",
    ]
    if latencies:
        lines += [
            "",
            *latency_table(latencies),
            "",
            *cpu_sentences(latencies),
            f"{n_requests} requests of each kind, in turns with the same request to the runtime's "
            "own socket; each had its own grant on the event socket. The column *added* is of the "
            "differences of neighbours.",
        ]
    return "\n".join(lines)


def write_page(text: str) -> None:
    page = (
        PAGE.read_text(encoding="utf-8") if PAGE.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    )
    if BEGIN not in page:
        page += f"\n## What it costs to be there\n\n{BEGIN}\n{END}\n"
    head, rest = page.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, help="another config: memory and CPU only")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--write", action="store_true", help=f"update {PAGE.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gcb-", dir="/tmp") as name:
        directory = Path(name)
        config = arguments.config
        if config is None:
            config = directory / "bench.yaml"
            config.write_text(CONFIG)
        daemon = Daemon(directory, config)
        try:
            services = daemon.services()
            time.sleep(SETTLE_S)
            idle = {name: memory_of(process) for name, process in services.items()}
            cpu = idle_cpu_per_minute(services, arguments.idle_seconds)
            used, latencies = None, {}
            if arguments.config is None:
                connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
                for _ in range(100):
                    ask(connection, stream=False)
                connection.close()
                used = {name: memory_of(process) for name, process in services.items()}
                for title, stream in (("whole", False), ("streamed", True)):
                    latencies[title] = measure_latency(
                        daemon, services, arguments.requests, stream=stream
                    )
        finally:
            daemon.stop()
    text = report(
        start_s=daemon.start_s,
        idle=idle,
        used=used,
        cpu=cpu,
        latencies=latencies,
        n_requests=arguments.requests,
    )
    print(text)
    if arguments.write:
        write_page(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
