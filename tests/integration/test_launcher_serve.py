"""``launcher.run`` with the real services on the simulated card."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gridcore.group.listen import address_of, open_listener
from gridcore.group.ready import http_get
from tests.support.bus import short_dir

ROOT = Path(__file__).parents[2]
CONFIG = """
gpu: {device: simulation}
metrics: {listen: null}
models:
  tiny:
    runtime: simulated
    simulated: {vram_mb: 100, load_time: 100ms}
"""
SERVE = """
import sys
from pathlib import Path
from services import launcher
config, state, listen = sys.argv[1:]
sys.exit(launcher.run(
    config_path=Path(config), state_dir=Path(state), listen=listen, log_level=None
))
"""
DEADLINE_S = 30.0


@contextmanager
def serving(
    directory: Path, listen: str = "127.0.0.1:0", *options: str, config: str = CONFIG
) -> Iterator["subprocess.Popen[str]"]:
    path = directory / "config.yaml"
    path.write_text(config)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(directory)}
    with (directory / "stderr").open("a") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                *options,
                "-c",
                SERVE,
                str(path),
                str(directory / "state"),
                listen,
            ],
            env=environment,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def read_block(process: "subprocess.Popen[str]") -> str:
    """What is printed when it is ready: from one empty line to the next."""
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while (line := process.stdout.readline()).strip():
        lines.append(line)
    return "".join(lines)


def test_it_says_where_it_is_serves_and_leaves_nothing_behind() -> None:
    with short_dir() as directory:
        # A folder of this name where the user stands must not be taken for ours.
        (directory / "services").mkdir()
        (directory / "services" / "__init__.py").write_text("raise RuntimeError('not mine')")
        with serving(directory) as process:
            block = read_block(process)
            assert "curl http://127.0.0.1:" in block
            assert '"model": "tiny"' in block
            assert "gridcore status" in block
            address = block.partition("http://")[2].partition("/v1")[0]
            assert asyncio.run(http_get(address, "/health"))[0] == 200
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) == 5
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
            assert not [child for child in family if child.is_running()]


def test_a_second_daemon_gets_3_and_a_taken_port_4() -> None:
    with short_dir() as directory, serving(directory) as first:
        address = read_block(first).partition("http://")[2].partition("/v1")[0]
        with serving(directory) as second:
            assert second.wait(DEADLINE_S) == 3
        with short_dir() as elsewhere, serving(elsewhere, address) as third:
            assert third.wait(DEADLINE_S) == 4
            assert address in (elsewhere / "stderr").read_text()
        assert f"pid {first.pid}" in (directory / "stderr").read_text()
        assert asyncio.run(http_get(address, "/health"))[0] == 200


@pytest.mark.parametrize("option", ["-O", "-OO"])
def test_it_refuses_to_run_without_assertions(option: str) -> None:
    with short_dir() as directory, serving(directory, "127.0.0.1:0", option) as process:
        assert process.wait(DEADLINE_S) == 1
        assert "without -O" in (directory / "stderr").read_text()
        assert not (directory / "state").exists()


def test_a_bad_config_is_one_line_a_problem_and_nothing_is_touched() -> None:
    with (
        short_dir() as directory,
        serving(directory, config="servr: {}\n") as process,
    ):
        assert process.wait(DEADLINE_S) == 1
        stderr = (directory / "stderr").read_text()
        assert "servr" in stderr
        assert "Traceback" not in stderr
        assert not (directory / "state").exists()


def test_the_port_is_free_again_at_once() -> None:
    with open_listener("127.0.0.1:0") as listener:
        address = address_of(listener)
    with short_dir() as directory:
        for _ in range(2):
            with serving(directory, address) as process:
                assert address in read_block(process)
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_S) == 0
