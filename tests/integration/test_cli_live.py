"""status and events against a real event socket, the client against a real HTTP server."""

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gridcore.client import Client, ClientError
from gridcore.core.notes import Note, Verb
from gridcore.core.snapshot import CardView, Snapshot, Totals
from gridcore.ids import Epoch
from gridcore.ipc.events import EventPublisher
from gridcore.paths import RuntimePaths, make_private_dir, runtime_dir_for

ROOT = Path(__file__).parents[2]
DEADLINE_S = 15.0


def snapshot() -> Snapshot:
    card = CardView(
        id="simulation",
        name="Simulated GPU",
        total_bytes=16 << 30,
        budget_bytes=15 << 30,
        used_bytes=8 << 30,
        reserved_bytes=8 << 30,
        foreign_bytes=None,
        utilization_percent=None,
        pressure="normal",
        mode="idle",
    )
    return Snapshot(
        epoch="e",
        revision=7,
        cards=(card,),
        models=(),
        jobs=(),
        services=(),
        counts={},
        totals=Totals(**{name: {} for name in Totals.__struct_fields__}),
    )


class Publisher:
    """The scheduler's end of the event socket, in a thread with a loop of its own."""

    def __init__(self, endpoint: Path, *, answers: bool = True) -> None:
        self._endpoint = endpoint
        self._answers = answers
        self._ready: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.result(DEADLINE_S)
        wait_for(endpoint.exists)

    def note(self, note: Note) -> None:
        self._loop.call_soon_threadsafe(self._events.note, note)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        async def serve() -> None:
            self._events = EventPublisher(self._endpoint, Epoch("e"))
            if self._answers:
                self._events.on_subscribe = lambda: self._events.snapshot(snapshot())
            self._task = asyncio.current_task() or pytest.fail("no task")
            self._ready.set_result(None)
            await self._events.run()

        try:
            self._loop.run_until_complete(serve())
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return RuntimePaths(make_private_dir(runtime_dir_for(None))).events


@pytest.fixture
def publisher(endpoint: Path) -> Iterator[Publisher]:
    publisher = Publisher(endpoint)
    yield publisher
    publisher.close()


def command(*args: str) -> list[str]:
    return [sys.executable, "-P", "-m", "gridcore.cli.app", *args]


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*args), capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def test_status_draws_the_state_without_colours_in_a_pipe(publisher: Publisher) -> None:
    done = run("status")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("gridcore  ")
    assert lines[0].endswith("  IDLE")
    assert lines[1].endswith("] 8.0 / 16.0 GB")
    assert "\x1b" not in done.stdout


def test_status_as_json_has_the_names_of_admin_state(publisher: Publisher) -> None:
    state = json.loads(run("status", "--json").stdout)
    assert (state["epoch"], state["revision"]) == ("e", 7)
    assert state["cards"][0]["reserved_bytes"] == 8 << 30
    assert state["cards"][0]["foreign_bytes"] is None
    assert state["jobs"] == []


def test_status_of_a_silent_daemon_gives_up(endpoint: Path) -> None:
    publisher = Publisher(endpoint, answers=False)
    try:
        done = run("status")
    finally:
        publisher.close()
    assert done.returncode == 1
    assert done.stderr.startswith("gridcore: the daemon sent no state within 5 s")


def test_watch_goes_on_until_it_is_interrupted(publisher: Publisher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    note = Note(verb=Verb.EVICT, text="gemma4-12b       make room for qwen3-14b")
    with out.open("wb") as file:
        process = subprocess.Popen(command("status", "--watch"), stdout=file, stderr=file)

    def shows_the_note() -> bool:
        publisher.note(note)
        assert process.poll() is None, out.read_text()
        return b"evict     gemma4-12b" in out.read_bytes()

    end_of(process, shows_the_note)
    assert process.returncode == 130
    assert out.read_text().count("RESIDENT") >= 2
    assert "\x1b" not in out.read_text()
    assert "Traceback" not in out.read_text()


def test_watch_redraws_a_terminal_in_place(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("status", "-w"), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen = b""

    def is_drawn_twice() -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 65536)
        return seen.count(b"IDLE") >= 2

    end_of(process, is_drawn_twice)
    os.close(ours)
    assert process.returncode == 130
    assert b"\x1b[" in seen, "colours and cursor movement"


def end_of(process: "subprocess.Popen[bytes]", condition: Callable[[], bool]) -> None:
    """Interrupt a process once something is true; never leave it behind."""
    try:
        wait_for(condition)
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("as_json", [False, True])
def test_events_are_tailed(publisher: Publisher, as_json: bool) -> None:
    args = ["events", "--json"] if as_json else ["events"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command(*args), stdout=subprocess.PIPE, env=env, text=True) as process:
        assert process.stdout is not None
        note = Note(verb=Verb.ENQUEUE, text="background embedding nomic-embed steps=32")
        stop = threading.Event()

        def repeat() -> None:
            # The subscription takes a moment to arrive: what is published before is gone.
            while not stop.wait(0.05):
                publisher.note(note)

        repeating = threading.Thread(target=repeat)
        repeating.start()
        line = process.stdout.readline()
        stop.set()
        repeating.join()
        process.send_signal(signal.SIGINT)
        process.stdout.close()
    if as_json:
        event = json.loads(line)
        assert event["note"] == {"verb": "enqueue", "text": note.text}
        assert (event["version"], event["epoch"]) == (1, "e")
    else:
        assert line[12:] == " enqueue   background embedding nomic-embed steps=32\n"
        assert line[2] == line[5] == ":"


def test_events_end_quietly_when_their_reader_leaves(publisher: Publisher) -> None:
    """As in ``gridcore events | head``."""
    stderr = subprocess.PIPE
    with subprocess.Popen(command("events"), stdout=subprocess.PIPE, stderr=stderr) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline:
            publisher.note(Note(verb=Verb.MODE, text="simulation idle"))
            time.sleep(0.05)
        assert process.returncode == 1
        assert process.stderr.read() == b""


class Daemon(BaseHTTPRequestHandler):
    """Answers as the gateway's admin routes do."""

    seen: "list[tuple[str, str, str | None]]"

    def do_GET(self) -> None:
        self._record()
        if self.path == "/admin/state":
            self._send(200, {"epoch": "e", "cards": []})
        elif self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": "m"}]})
        else:
            self._send(404, {"error": {"message": "unknown", "code": "not_found"}})

    def do_POST(self) -> None:
        self._record()
        if "missing" in self.path:
            text = "there is no model missing"
            self._send(404, {"error": {"message": text, "code": "model_not_found"}})
        elif "proxy" in self.path:
            self._send(502, "<html>")
        else:
            self._send(200, {"message": "loaded"})

    def _record(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, self.headers.get("Content-Type")))

    def _send(self, status: int, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Tests are quiet."""


@pytest.fixture
def daemon() -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
    seen: list[tuple[str, str, str | None]] = []
    handler = type("Handler", (Daemon,), {"seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_client_speaks_to_the_admin_routes(
    daemon: tuple[str, list[tuple[str, str, str | None]]],
) -> None:
    url, seen = daemon
    with Client(url) as client:
        assert client.state()["epoch"] == "e"
        assert client.models() == [{"id": "m"}]
        assert client.load("a model") == {"message": "loaded"}
        client.unload("m")
        client.enable("m")
    json_type = "application/json"
    assert seen[2:] == [
        ("POST", "/admin/models/a%20model/load", json_type),
        ("POST", "/admin/models/m/unload", json_type),
        ("POST", "/admin/models/m/enable", json_type),
    ]


def test_a_refusal_keeps_its_message_and_code(
    daemon: tuple[str, list[tuple[str, str, str | None]]],
) -> None:
    with Client(daemon[0]) as client:
        with pytest.raises(ClientError, match="there is no model missing") as refused:
            client.load("missing")
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")
        with pytest.raises(ClientError, match="502 Bad Gateway") as proxied:
            client.load("proxy")
        assert proxied.value.code is None


def test_a_daemon_that_is_not_there() -> None:
    with (
        Client("http://127.0.0.1:1") as client,
        pytest.raises(ClientError, match=r"no daemon answers at http://127\.0\.0\.1:1"),
    ):
        client.state()
