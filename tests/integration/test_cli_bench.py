"""bench, profiles and models --explain, with daemons of simulated models."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gridcore.cli.app import main
from gridcore.store.profiles import Profile, ProfileStore
from tests.support.daemon import ROOT, Daemon, daemon
from tests.support.runtimes import short_directory

CONFIG: dict[str, Any] = {
    "gpu": {"device": "simulation", "simulation": {"total_mb": 2048}},
    "metrics": {"listen": None},
    "models": {
        "chat": {
            "simulated": {"vram_mb": 400, "load_time": "100ms", "tokens_per_second": 200},
            "parallel": 2,
        },
        "embed": {
            "simulated": {"vram_mb": 300, "load_time": "100ms", "embedding_ms": 20},
            "capabilities": ["embedding"],
        },
    },
}


def by_model(state_dir: Path) -> dict[str, Profile]:
    store = ProfileStore(state_dir / "profiles.json")
    return {profile.model_id: profile for profile in store.all().values()}


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def write(directory: Path, config: dict[str, Any]) -> Path:
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_without_a_daemon_one_is_started_and_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with short_directory() as directory:
        config, state_dir = write(directory, CONFIG), directory / "state"
        where = ["--config", config, "--state-dir", state_dir]
        code, out, err = run(capsys, "bench", "--all", *where)
        assert code == 0, err
        steps = [line.split(": ")[1] for line in err.splitlines() if line.startswith("chat: ")]
        assert steps == ["loading", "one stream", "2 streams", "done"]
        lines = out.splitlines()
        assert lines[0] == "no daemon is running: one is started for this"
        assert lines[2].split()[:3] == ["chat", "400", "MB"]
        found = by_model(state_dir)
        chat, embed = found["chat"], found["embed"]
        assert chat.load_ns is not None
        assert chat.footprint_bytes == 400 << 20
        assert chat.speeds is not None
        assert chat.speeds.generation is not None
        assert chat.speeds.generation == pytest.approx(200, rel=0.25)
        assert chat.speeds.prompt == pytest.approx(2000, rel=0.25)
        assert chat.speeds.streams == 2
        assert chat.speeds.together is not None
        assert chat.speeds.together > 1.3 * chat.speeds.generation
        assert embed.speeds is not None
        assert embed.speeds.prompt is not None
        assert embed.speeds.generation is None

        code, out, _ = run(capsys, "profiles", *where)
        assert code == 0
        assert [line.split()[-1] for line in out.splitlines()] == ["APPLIES", "yes", "yes"]

        code, out, _ = run(capsys, "models", "--explain", "chat", *where)
        assert "chat: 400 MB, simulated: vram_mb in the config, no file is read" in out
        assert "measured: 400 MB" in out
        assert "embed" not in out

        changed = {**CONFIG, "models": {"chat": CONFIG["models"]["chat"] | {
            "simulated": {"vram_mb": 500}}}}  # fmt: skip
        write(directory, changed)
        code, out, _ = run(capsys, "profiles", *where)
        assert "no: changed settings (vram_mb=400, now vram_mb=500)" in out
        assert "no: no such model in the config" in out
        code, out, _ = run(capsys, "profiles", "prune", *where)
        assert out.splitlines()[-1] == "2 forgotten, 0 kept"
        assert by_model(state_dir) == {}
        assert run(capsys, "profiles", *where)[1].startswith("nothing has been measured yet")


def test_through_the_daemon_what_was_loaded_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(CONFIG) as running:
        assert running.chat("chat").status_code == 200
        code, out, err = bench(capsys, running, "chat", "embed")
        assert code == 0, err
        assert out.startswith(f"through the daemon at {running.url}")
        assert "chat: loading" not in err
        assert running.model("chat")["phase"] == "ready"
        assert running.model("embed")["phase"] != "ready"
        assert by_model(running.state_dir).keys() == {"chat", "embed"}


def test_a_model_that_does_not_load_is_told_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = tmp_path / "llama-server"
    broken.write_text("#!/bin/sh\necho 'error: unknown argument: --frob'\nexit 1\n")
    broken.chmod(0o755)
    model = tmp_path / "m.gguf"
    header = ROOT / "tests" / "data" / "ground_truth" / "headers" / "smollm2-135m-real.gguf"
    model.write_bytes(header.read_bytes())
    with model.open("ab") as file:
        file.truncate(200 << 20)
    config = {
        **CONFIG,
        "runtimes": {"llamacpp": {"binary": str(broken)}},
        "models": {**CONFIG["models"], "bad": {"path": str(model), "runtime": "llamacpp"}},
    }
    with daemon(config) as running:
        code, out, err = bench(capsys, running, "bad", "embed")
        assert code == 1
        assert "✗ bad: " in err
        assert "unknown argument: --frob" in err
        assert any(line.startswith("embed") for line in out.splitlines())


def bench(
    capsys: pytest.CaptureFixture[str], running: Daemon, *models: str
) -> tuple[int, str, str]:
    return run(capsys, "bench", *models, "--state-dir", running.state_dir)


def test_a_daemon_that_cannot_start_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with short_directory() as directory:
        path = directory / "config.yaml"
        path.write_text("gpu: { devise: cpu }")
        code, _, err = run(
            capsys, "bench", "--all", "--config", path, "--state-dir", directory / "state"
        )
        assert code == 1
        assert "gpu.devise: unknown key; did you mean device?" in err


@pytest.mark.parametrize("args", [["bench"], ["bench", "m", "--all"], ["profiles", "--all"]])
def test_usage(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert run(capsys, *args)[0] == 1


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(CONFIG) as running:
        code, _, err = bench(capsys, running, "chatt")
        assert code == 1
        assert err.splitlines() == ["gridcore: there is no model chatt; the config has chat, embed"]


def test_a_terminal_gets_bars() -> None:
    with daemon(CONFIG) as running:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gridcore.cli.app", "bench", "embed", "--state-dir",
             str(running.state_dir)],
            stdout=subprocess.DEVNULL, stderr=theirs, stdin=theirs,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # its end, on Linux
                break
            if not chunk:
                break
            seen += chunk
        os.close(ours)
        assert process.wait(30) == 0
        assert b"embed: done" in seen
        assert b"\x1b[" in seen
