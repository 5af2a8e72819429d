"""A daemon for one command: started in the background, ended with it.

It is ``gridcore serve`` as anybody would start it, on a port of its own; it holds the locks of
its state directory, so that no other daemon runs there meanwhile.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gridcore.errors import GridcoreError
from gridcore.group.ready import wait_until_healthy
from gridcore.instance import Instance, read_instance
from gridcore.paths import RuntimePaths, runtime_dir_for

START_S = 60.0
STOP_S = 60.0
POLL_S = 0.05


@contextmanager
def private_daemon(config: Path, state_dir: Path | None, log: Path) -> Iterator[Instance]:
    """Run a daemon until the block ends.

    Args:
        log: where it writes what a person would have seen.

    Raises:
        GridcoreError: it does not start; the text says why.
    """
    paths = RuntimePaths(runtime_dir_for(state_dir))
    argv = [sys.executable, "-P", "-m", "gridcore.cli.app", "serve", "--config", str(config)]
    argv += ["--listen", "127.0.0.1:0"]
    if state_dir is not None:
        argv += ["--state-dir", str(state_dir)]
    before = _instance_id(paths)
    with log.open("wb") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl+C ends us, and we end it in order
        )
    try:
        yield asyncio.run(_ready(child, paths, before, log))
    finally:
        _stop(child)


async def _ready(
    child: "subprocess.Popen[bytes]", paths: RuntimePaths, before: str | None, log: Path
) -> Instance:
    try:
        async with asyncio.timeout(START_S):
            while _instance_id(paths) in (None, before):
                _require_alive(child, log)
                await asyncio.sleep(POLL_S)
            instance = read_instance(paths.instance)
            healthy = asyncio.ensure_future(wait_until_healthy(instance.listen))
            while not healthy.done():
                _require_alive(child, log)
                await asyncio.wait([healthy], timeout=POLL_S)
            return instance
    except TimeoutError:
        raise GridcoreError(f"the daemon did not start within {START_S:.0f} s: {log}") from None


def _instance_id(paths: RuntimePaths) -> str | None:
    try:
        return read_instance(paths.instance).instance_id
    except GridcoreError:
        return None


def _require_alive(child: "subprocess.Popen[bytes]", log: Path) -> None:
    if child.poll() is not None:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.removeprefix("gridcore: ") for line in lines if line.strip()]
        raise GridcoreError(said[-1] if said else f"the daemon ended with {child.returncode}")


def _stop(child: "subprocess.Popen[bytes]") -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_S)
