"""A whole daemon as a user starts it, and a subscriber that watches it from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from gridcore.core.notes import Note
from gridcore.ids import Epoch
from gridcore.ipc.events import BlockingEventSubscriber
from gridcore.ipc.messages import EventEnvelope
from gridcore.paths import RuntimePaths, runtime_dir_for
from tests.support.runtimes import short_directory

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway-0", "scheduler", "supervisor", "gpu-monitor", "metrics-exporter")
READY_S = 30.0
STOP_S = 45.0


def until(condition: Callable[[], Any], what: str, within_s: float = 20.0) -> Any:
    """Poll for a condition; its value when it is true."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


class Watch:
    """Every event since it began, as any ZeroMQ subscriber would see them."""

    def __init__(self, endpoint: Path) -> None:
        self._subscriber = BlockingEventSubscriber(endpoint)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._events: list[EventEnvelope] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        until(lambda: any(event.snapshot for event in self.events()), "a first snapshot")

    def _read(self) -> None:
        while not self._stopping.is_set():
            event = self._subscriber.receive(timeout_s=0.05)
            if event is not None:
                with self._lock:
                    self._events.append(event)
        self._subscriber.close()

    def events(self) -> list[EventEnvelope]:
        with self._lock:
            return list(self._events)

    @property
    def epoch(self) -> Epoch:
        return self.events()[-1].epoch

    def notes(self, verb: str | None = None, **data: Any) -> list[Note]:
        return [
            event.note
            for event in self.events()
            if event.note is not None
            and verb in (None, event.note.verb)
            and all(event.note.data.get(key) == value for key, value in data.items())
        ]

    def wait_for(self, verb: str, *, within_s: float = 20.0, **fields: Any) -> Note:
        """The first note of a verb whose fields (or data) have these values."""

        def found() -> Note | None:
            for note in self.notes(verb):
                values = {**note.data, "model_id": note.model_id, "job_id": note.job_id}
                values["workload"] = note.workload
                if all(values.get(key) == value for key, value in fields.items()):
                    return note
            return None

        note: Note = until(found, f"a note {verb} {fields}", within_s)
        return note

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5)


class Daemon:
    """``gridcore serve`` in a directory of its own."""

    def __init__(self, directory: Path, config: Path, *arguments: str) -> None:
        self.state_dir = directory / "state"
        self.runtime = RuntimePaths(runtime_dir_for(self.state_dir))
        self.log_path = directory / "serve.log"
        self._log = self.log_path.open("wb")
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "gridcore.cli.app", "serve"]
        self.process = subprocess.Popen(
            [
                *command,
                *("--config", str(config), "--state-dir", str(self.state_dir)),
                *("--listen", "127.0.0.1:0", *arguments),
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=env,
        )
        self.url = ""
        self.http = httpx.Client(timeout=60)

    def wait_ready(self) -> "Daemon":
        def listening() -> str:
            assert self.process.poll() is None, self.log()
            for line in self.log().splitlines():
                if "ready at http://" in line and "/v1" not in line:
                    return line.split("ready at ")[1].split()[0]
            return ""

        self.url = until(listening, "the daemon is ready", READY_S)
        self.http.base_url = httpx.URL(self.url)
        return self

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def watch(self) -> Watch:
        return Watch(self.runtime.events)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.http.get("/admin/state").raise_for_status().json()
        return state

    def model(self, model_id: str) -> dict[str, Any]:
        return next(model for model in self.state()["models"] if model["id"] == model_id)

    def pids(self) -> dict[str, int]:
        return {service["name"]: service["pid"] for service in self.state()["services"]}

    def chat(self, model: str, *, headers: dict[str, str] | None = None, **more: Any) -> Any:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}
        return self.http.post("/v1/chat/completions", json=body, headers=headers)

    def descendants(self) -> list[psutil.Process]:
        """Every process of the group, runtimes included, by its mark in the environment."""
        instance_id = json.loads(self.runtime.instance.read_bytes())["instance_id"]
        found = psutil.Process(self.process.pid).children(recursive=True)
        for process in psutil.process_iter():
            try:
                if process.environ().get("GRIDCORE_INSTANCE") == instance_id:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(
                    f"still there {STOP_S} s after SIGTERM:\n{self.log()}"
                ) from None
        self.http.close()
        self._log.close()
        return self.process.returncode


@contextmanager
def daemon(config: dict[str, Any] | Path, *arguments: str) -> Iterator[Daemon]:
    """A running daemon; its log is shown if the test fails."""
    with short_directory() as directory:
        if isinstance(config, Path):
            path = config
        else:
            path = directory / "config.yaml"
            path.write_text(yaml.safe_dump({"metrics": {"listen": None}, **config}))
        running = Daemon(directory, path, *arguments)
        try:
            yield running.wait_ready()
        except BaseException:
            sys.stderr.write(running.log())
            raise
        finally:
            running.stop()


@contextmanager
def watched(running: Daemon) -> Iterator[Watch]:
    watch = running.watch()
    try:
        yield watch
    finally:
        watch.close()
