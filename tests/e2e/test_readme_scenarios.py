"""The two stories the product is about, on the simulated card: over HTTP, five processes, and
asserted from an outside subscriber of the event socket."""

import subprocess
import threading
import time
from typing import Any

import httpx

from tests.support.daemon import ROOT, SERVICES, Daemon, Watch, daemon, until, watched

SIMULATION = ROOT / "examples" / "simulation.yaml"


def seq_of(watch: Watch, wanted: Any) -> int:
    return next(event.seq for event in watch.events() if event.note is wanted)


def warm(running: Daemon, *models: str) -> None:
    for model in models:
        assert running.chat(model, max_tokens=1).status_code == 200


def test_a_chat_arrives_while_an_indexer_runs() -> None:
    """1,000 documents are indexed in chunks; a chat 150 ms later goes first, and no background
    step starts until the card has been quiet for two seconds."""
    with daemon(SIMULATION) as running, watched(running) as watch:
        pids = running.pids()
        assert len({pids[name] for name in SERVICES}) == 5
        watch.wait_for("loaded", model_id="nomic-embed")
        warm(running, "gemma4-12b")
        until(lambda: running.state()["cards"][0]["mode"] == "idle", "an idle card")

        indexed: list[httpx.Response] = []

        def index() -> None:
            documents = [f"document {number}" for number in range(1000)]
            body = {"model": "nomic-embed", "input": documents}
            headers = {"X-GridCore-Class": "background"}
            indexed.append(running.http.post("/v1/embeddings", json=body, headers=headers))

        indexer = threading.Thread(target=index)
        indexer.start()
        watch.wait_for("dispatch", model_id="nomic-embed")
        time.sleep(0.15)
        answer = running.chat("gpt-4o", max_tokens=16)
        assert answer.status_code == 200
        assert int(answer.headers["x-gridcore-queue-ms"]) < 100
        indexer.join(60)

        assert indexed[0].status_code == 200
        vectors = indexed[0].json()["data"]
        assert [vector["index"] for vector in vectors] == list(range(1000))

        chat_id = answer.headers["x-gridcore-job-id"]
        arrived = seq_of(watch, watch.wait_for("enqueue", job_id=chat_id))
        done = seq_of(watch, watch.wait_for("complete", job_id=chat_id))
        events = [event for event in watch.events() if event.note is not None]
        idle = next(
            event
            for event in events
            if event.seq > done and event.note.verb == "mode" and event.note.data["mode"] == "idle"
        )
        background = [
            event
            for event in events
            if event.note.verb == "dispatch" and event.note.workload == "background"
        ]
        assert [event for event in background if event.seq < arrived]
        assert [event for event in background if event.seq > idle.seq]
        assert not [event for event in background if arrived < event.seq < idle.seq]
        completed = next(event for event in events if event.seq == done)
        assert idle.time_s - completed.time_s > 1.9


def test_eviction_for_a_person_and_none_for_background() -> None:
    """qwen3-14b does not fit beside gemma4-12b: the idle one leaves for a chat. Then background
    asks for it back: the hot model stays, and max_wait turns the wait into a 503."""
    with daemon(SIMULATION) as running, watched(running) as watch:
        watch.wait_for("loaded", model_id="nomic-embed")
        warm(running, "gemma4-12b")
        answer = running.chat("qwen3-14b", max_tokens=4)
        assert answer.status_code == 200
        assert int(answer.headers["x-gridcore-queue-ms"]) > 3000
        evicted = watch.wait_for("evict", model_id="gemma4-12b")
        assert evicted.data["running"] == 0
        assert "make room for qwen3-14b" in evicted.text
        order = [
            (note.verb, note.model_id)
            for note in watch.notes()
            if (note.verb, note.model_id)
            in {
                ("evict", "gemma4-12b"),
                ("unloaded", "gemma4-12b"),
                ("load", "qwen3-14b"),
                ("loaded", "qwen3-14b"),
            }
        ]
        assert order == [
            ("evict", "gemma4-12b"),
            ("unloaded", "gemma4-12b"),
            ("load", "qwen3-14b"),
            ("loaded", "qwen3-14b"),
        ]

        pid = running.model("qwen3-14b")["pid"]
        started = time.monotonic()
        body = {
            "model": "gemma4-12b",
            "messages": [{"role": "user", "content": "hi"}],
            "gridcore": {"class": "background", "max_wait_ms": 3000},
        }
        refused = running.http.post("/v1/chat/completions", json=body)
        waited = time.monotonic() - started
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "queue_timeout"
        assert int(refused.headers["retry-after"]) >= 1
        assert 2.9 < waited < 4.5
        assert "qwen3-14b (hot)" in refused.json()["error"]["message"]
        assert running.model("qwen3-14b")["pid"] == pid
        assert len(watch.notes("evict")) == 1


def test_a_curl_line_without_a_content_type_works() -> None:
    with daemon(SIMULATION) as running:
        body = '{"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}'
        command = ["curl", "-s", f"{running.url}/v1/chat/completions", "-d", body]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert '"role":"assistant"' in done.stdout
