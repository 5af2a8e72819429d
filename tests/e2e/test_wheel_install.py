"""Installed from a wheel, far from the checkout, the daemon serves its simulation."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0

DECOY = "raise SystemExit('the services folder of the current directory was imported')\n"


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("install")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "venv"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.timeout(300)
def test_an_installed_wheel_serves_the_simulation(venv: Path, tmp_path: Path) -> None:
    """From a folder with a ``services`` package of its own, without the checkout on any path."""
    work = tmp_path / "work"
    (work / "services").mkdir(parents=True)
    for name in ("__init__", "launcher", "scheduler", "gateway", "supervisor", "gpu_monitor"):
        (work / "services" / f"{name}.py").write_text(DECOY)
    url = f"http://127.0.0.1:{(port := free_port())}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [str(venv / "bin/gridcore"), "serve", "--simulation"]
    command += ["--state-dir", str(tmp_path / "state"), "--listen", f"127.0.0.1:{port}"]
    log_path = tmp_path / "serve.log"
    with log_path.open("wb") as log:
        daemon = subprocess.Popen(command, cwd=work, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not is_healthy(url):
            assert daemon.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.05)
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            models = json.load(answer)["data"]
        assert any(model["id"] == "qwen3-14b" for model in models)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(DEADLINE_S) == 0, log_path.read_text()
        assert "Traceback" not in log_path.read_text()
    finally:
        daemon.kill()
        daemon.wait()
