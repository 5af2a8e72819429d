"""The daemon as a whole: a process dies, a client leaves, SIGTERM comes, a second one starts."""

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gridcore.core.notes import Verb
from tests.support.daemon import ROOT, Daemon, daemon, until, watched


def config(*, slots: int = 1, rate: float = 50.0, **policy: Any) -> dict[str, Any]:
    """Two models that do not fit together, and an embedder beside them."""

    def model(mb: int, **more: Any) -> dict[str, Any]:
        speeds = {"vram_mb": mb, "load_time": "500ms", "tokens_per_second": rate}
        return {"runtime": "simulated", "parallel": slots, "simulated": speeds, **more}

    return {
        "gpu": {"device": "simulation", "simulation": {"total_mb": 10000}},
        "server": {"drain_timeout": "4s"},
        "models": {
            "a": model(6000, aliases=["gpt-4o"]),
            "b": model(6000),
            "embed": model(500, capabilities=["embedding"]),
        },
        "policy": policy,
    }


def stream(running: Daemon, model: str, tokens: int, **more: Any) -> Any:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "tell me"}],
        "stream": True,
        "max_tokens": tokens,
        **more,
    }
    return running.http.stream("POST", "/v1/chat/completions", json=body)


def test_the_supervisor_killed_with_jobs_queued_loses_nothing() -> None:
    """Killed with -9 while one answer streams, one job waits for a slot and one for a load."""
    with daemon(config(rate=20)) as running, watched(running) as watch:
        assert running.chat("a", max_tokens=1).status_code == 200
        pid = running.pids()["supervisor"]
        with ThreadPoolExecutor(4) as pool:
            jobs = [
                pool.submit(running.chat, "a", max_tokens=40),
                pool.submit(running.chat, "a", max_tokens=2),
                pool.submit(running.chat, "b", max_tokens=2),
            ]
            until(lambda: len(running.state()["jobs"]) == 3, "three open jobs")
            os.kill(pid, signal.SIGKILL)
            watch.wait_for("peer", peer="supervisor")
            answers = [job.result(60) for job in jobs]
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert running.pids()["supervisor"] != pid
        # Its runtime lived on and was adopted, not loaded again: the streams never noticed.
        assert len([note for note in watch.notes("loaded") if note.model_id == "a"]) == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_c01_a_client_that_leaves_frees_its_slot_at_once(streamed: bool) -> None:
    with daemon(config(rate=10)) as running, watched(running) as watch:
        assert running.chat("a", max_tokens=1).status_code == 200
        body = {
            "model": "a",
            "messages": [{"role": "user", "content": "a long one"}],
            "max_tokens": 600,
            "stream": streamed,
        }
        connection = http.client.HTTPConnection(running.url.removeprefix("http://"))
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        until(lambda: running.model("a")["slots_used"] == 1, "the step runs")
        connection.sock.close()
        connection.close()
        left = time.monotonic()
        until(lambda: running.model("a")["slots_used"] == 0, "the slot is free", 2.0)
        assert running.chat("a", max_tokens=1).status_code == 200
        assert time.monotonic() - left < 3
        cancelled = watch.wait_for("cancel")
        assert not [note for note in watch.notes("fail") if note.job_id == cancelled.job_id]


def test_c03_dropping_a_queued_request_leaves_the_running_one_alone() -> None:
    with daemon(config(rate=20)) as running, watched(running) as watch:
        assert running.chat("a", max_tokens=1).status_code == 200
        with stream(running, "a", 60) as answer:
            lines = answer.iter_lines()
            next(lines)
            body = {"model": "a", "messages": [{"role": "user", "content": "queued"}]}
            with httpx.Client(base_url=running.url) as leaver, pytest.raises(httpx.ReadTimeout):
                leaver.post("/v1/chat/completions", json=body, timeout=0.5)
            gone = watch.wait_for("cancel")
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert not [n for n in watch.notes("dispatch") if n.job_id == gone.job_id]


def test_c05_tokens_arrive_one_by_one() -> None:
    """Each event within 100 ms of being sent, whatever the client says it can unpack."""
    with daemon(config(rate=10)) as running:
        assert running.chat("a", max_tokens=1).status_code == 200
        body = {
            "model": "a",
            "messages": [{"role": "user", "content": "x"}],
            "stream": True,
            "max_tokens": 15,
        }
        headers = {"Accept-Encoding": "gzip"}
        with running.http.stream(
            "POST", "/v1/chat/completions", json=body, headers=headers
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers["cache-control"] == "no-cache"
            assert "content-length" not in answer.headers
            assert "content-encoding" not in answer.headers
            lines = answer.iter_lines()
            arrived = [time.monotonic() for line in lines if '"content":"' in line]
        gaps = [later - earlier for earlier, later in itertools.pairwise(arrived)]
        assert len(gaps) >= 10
        together = [gap for gap in gaps if gap < 0.02]
        assert not together, f"tokens 100 ms apart came in lumps: {gaps}"


def test_sigterm_lets_streams_end_refuses_the_queue_and_leaves_no_child() -> None:
    """C23: a load that waits is not started; the stream gets its time; exit 0 within it."""
    with daemon(config(rate=20)) as running:
        assert running.chat("a", max_tokens=1).status_code == 200
        children = running.descendants()
        assert len(children) >= 6
        with ThreadPoolExecutor(2) as pool, stream(running, "a", 30) as answer:
            lines = answer.iter_lines()
            next(lines)
            queued = pool.submit(running.chat, "b")
            until(lambda: len(running.state()["jobs"]) == 2, "a queued job")
            started = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            refused = queued.result(10)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
        assert running.process.wait(20) == 0
        assert time.monotonic() - started < 4 + 10
        assert "loading b" not in running.log()
        until(lambda: not [c for c in children if c.is_running()], "no child is left", 5)


def test_a_second_daemon_is_refused_and_the_first_untouched() -> None:
    """C58: exit code 3, and the first keeps its processes and serves on."""
    with daemon(config()) as running:
        assert running.chat("a", max_tokens=1).status_code == 200
        pids, runtime = running.pids(), running.model("a")["pid"]
        second = subprocess.run(
            [
                *(sys.executable, "-m", "gridcore.cli.app", "serve"),
                *("--config", str(running.state_dir.parent / "config.yaml")),
                *("--state-dir", str(running.state_dir), "--listen", "127.0.0.1:0"),
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert second.returncode == 3
        assert str(running.process.pid) in second.stderr
        assert "Traceback" not in second.stderr
        assert running.pids() == pids
        assert running.model("a")["pid"] == runtime
        assert running.chat("a", max_tokens=1).status_code == 200


def test_a_taken_port_is_exit_code_4() -> None:
    with daemon(config()) as running:
        other = running.state_dir.parent / "other"
        second = subprocess.run(
            [
                *(sys.executable, "-m", "gridcore.cli.app", "serve"),
                *("--config", str(running.state_dir.parent / "config.yaml")),
                *("--state-dir", str(other), "--listen", running.url.removeprefix("http://")),
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert second.returncode == 4, second.stderr
        assert running.url.removeprefix("http://") in second.stderr


def test_c19_fifty_first_requests_start_one_process() -> None:
    """Fifty at once, an admin load among them, and the first client leaves while it loads."""
    with daemon(config(slots=4, rate=500)) as running, watched(running) as watch:
        with ThreadPoolExecutor(52) as pool:
            jobs = [pool.submit(running.chat, "a", max_tokens=1) for _ in range(50)]
            loading = pool.submit(running.http.post, "/admin/models/a/load")
            assert {job.result(60).status_code for job in jobs} == {200}
            assert loading.result(10).status_code in (200, 202)
        assert len([n for n in watch.notes("load") if n.model_id == "a"]) == 1


def test_class_by_header_over_body_over_suffix() -> None:
    with daemon(config()) as running, watched(running) as watch:
        wanted = [
            ({}, {}, "a", "interactive", "default"),
            ({}, {}, "a@batch", "batch", "suffix"),
            ({}, {"gridcore": {"class": "background"}}, "a@batch", "background", "body"),
            (
                {"X-GridCore-Class": "batch"},
                {"gridcore": {"class": "background"}},
                "a@interactive",
                "batch",
                "header",
            ),
        ]
        for headers, body, model, workload, channel in wanted:
            answer = running.chat(model, headers=headers, max_tokens=1, **body)
            assert answer.status_code == 200
            assert answer.headers["x-gridcore-class"] == f"{workload}; from={channel}"
            assert answer.headers["x-gridcore-model"] == "a"
            assert int(answer.headers["x-gridcore-queue-ms"]) >= 0
            job_id = answer.headers["x-gridcore-job-id"]
            note = watch.wait_for("enqueue", job_id=job_id)
            assert (note.workload, note.data["class_from"]) == (workload, channel)


def test_admin_loads_unloads_and_enables() -> None:
    with daemon(config()) as running, watched(running) as watch:
        assert running.http.post("/admin/models/b/load").status_code == 202
        watch.wait_for("loaded", model_id="b")
        assert running.http.post("/admin/models/b/load").status_code == 200
        assert running.http.post("/admin/models/b/unload").status_code == 202
        watch.wait_for("unloaded", model_id="b")
        until(lambda: running.model("b")["phase"] == "cold", "b is cold")
        assert running.http.post("/admin/models/b/enable").status_code == 200
        assert running.http.post("/admin/models/nobody/load").status_code == 404


def test_metadata_loads_nothing() -> None:
    """C33: lists, health, metrics and state never cause a load or a job."""
    with daemon(config()) as running, watched(running) as watch:
        for method in ("GET", "HEAD"):
            for path in ("/v1/models", "/v1/models/a", "/health", "/metrics", "/admin/state"):
                answer = running.http.request(method, path)
                assert answer.status_code == 200, (method, path, answer.text)
        assert {model["phase"] for model in running.state()["models"]} == {"cold"}
        assert not watch.notes("enqueue")
        assert not watch.notes("load")


def test_metrics_count_what_was_done() -> None:
    with daemon(config()) as running:
        for _ in range(3):
            assert running.chat("a", max_tokens=1).status_code == 200

        def counted() -> bool:
            text = running.http.get("/metrics").text
            return 'gridcore_jobs_total{class="interactive",outcome="done"} 3.0' in text

        until(counted, "three finished jobs in /metrics")


def test_a_dead_gateway_is_replaced_and_its_slot_freed() -> None:
    with daemon(config(rate=5)) as running, watched(running) as watch:
        assert running.chat("a", max_tokens=1).status_code == 200
        dead = running.pids()["gateway-0"]
        failed = threading.Event()

        def cut() -> None:
            try:
                with httpx.Client(base_url=running.url, timeout=30) as client:
                    body = {"model": "a", "messages": [{"role": "user", "content": "x"}]}
                    client.post("/v1/chat/completions", json={**body, "max_tokens": 400})
            except httpx.HTTPError:
                failed.set()

        thread = threading.Thread(target=cut)
        thread.start()
        watch.wait_for("dispatch", model_id="a", step=1)
        until(lambda: running.model("a")["slots_used"] == 1, "a step runs")
        os.kill(dead, signal.SIGKILL)
        thread.join(15)
        assert failed.is_set()
        until(lambda: running.chat("a", max_tokens=1).status_code == 200, "served again")
        assert running.pids()["gateway-0"] != dead


def test_the_example_subscriber_prints_the_decisions() -> None:
    with daemon(config()) as running:
        example = subprocess.Popen(
            [sys.executable, str(ROOT / "examples/subscribe.py"), str(running.runtime.events)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert example.stdout is not None
            with watched(running) as watch:
                until(lambda: running.chat("a", max_tokens=1).status_code == 200, "an answer")
                watch.wait_for("complete")
                running.chat("a", max_tokens=1)
            verbs: list[str] = []
            while "complete" not in verbs:
                verbs.append(example.stdout.readline().split()[1])
            assert set(verbs) <= set(Verb)
        finally:
            example.kill()
            example.wait()
            assert example.stdout is not None
            example.stdout.close()


def test_every_verb_is_in_the_catalogue() -> None:
    page = (ROOT / "docs/events.md").read_text()
    assert not [verb for verb in Verb if f"| `{verb}` |" not in page]
