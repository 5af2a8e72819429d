"""Starts, signals and awaits runtime processes; with the launcher the only place that does.

A runtime gets a session of its own, so that it survives us and its helpers can be signalled
with it. Its output is a file. Nothing of ours is inherited: no descriptor, no lock, no pipe.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gridcore.errors import GridcoreError
from gridcore.runtime import identity

OOM_SCORE = "500"
"""Half of the scale above us, whatever our own is; raising it needs no privilege."""
EXIT_POLL_S = 0.1
"""Only where the system has no pidfd."""
LINES_KEPT = 20
LINE_BYTES_MAX = 1 << 20


class SpawnError(GridcoreError):
    """The program could not be started at all."""


class RuntimeProcess:
    """One process group; ``on_exit`` is called once, in the loop, when its leader has ended."""

    def __init__(self, pid: int, child: "subprocess.Popen[bytes] | None") -> None:
        self.pid = pid
        self.start_ticks = identity.start_ticks(pid)
        self._child = child
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    @classmethod
    def spawn(cls, argv: Sequence[str], env: Mapping[str, str], log: Path) -> "RuntimeProcess":
        """Start a runtime.

        Raises:
            SpawnError: the file is missing, not executable, or not a program.
        """
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise SpawnError(f"{argv[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(output)
        _prefer_as_victim(child.pid)
        return cls(child.pid, child)

    @classmethod
    def adopt(cls, pid: int) -> "RuntimeProcess":
        """Take over a process that is not our child."""
        return cls(pid, None)

    def watch(self, on_exit: Callable[[int | None], None]) -> None:
        """Call back with the exit status, or None where only a parent could know it."""
        loop = asyncio.get_running_loop()
        if hasattr(os, "pidfd_open"):
            try:
                self._descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:
                loop.call_soon(self._on_readable, on_exit)
                return
            except OSError:  # a kernel or a sandbox without it
                pass
            else:
                loop.add_reader(self._descriptor, self._on_readable, on_exit)
                return
        self._timer = loop.call_later(EXIT_POLL_S, self._on_timer, on_exit)

    def signal_group(self, signum: int) -> None:
        """Signal the runtime and its helpers, if it is still the process we know."""
        if not self._ended and identity.is_alive(self.pid, self.start_ticks):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    def family(self) -> set[int]:
        return identity.family_of([self.pid])

    def forget(self) -> None:
        """Stop watching; the process lives on."""
        if self._descriptor is not None:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._child is not None:
            # Python would warn about a child that nobody waits for; it is init's from now on.
            self._child.returncode = self._child.returncode or 0

    def _on_timer(self, on_exit: Callable[[int | None], None]) -> None:
        if identity.is_alive(self.pid, self.start_ticks):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(EXIT_POLL_S, self._on_timer, on_exit)
        else:
            self._on_readable(on_exit)

    def _on_readable(self, on_exit: Callable[[int | None], None]) -> None:
        if self._ended:
            return
        self._ended = True
        # Helpers that outlive their leader hold its memory. An unreaped child keeps its pid, so
        # that the group cannot be another's; an adopted one's helpers would keep it as well.
        if self._child is not None or self._group_is_ours():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        status = self._child.wait() if self._child is not None else None
        self.forget()
        on_exit(status)

    def _group_is_ours(self) -> bool:
        # The leader is dead. If its number is alive again it belongs to a stranger.
        return identity.start_ticks(self.pid) is None


def _prefer_as_victim(pid: int) -> None:
    """Let the kernel, when memory runs out, end a model before the daemon."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(OOM_SCORE)


def own_command(module: str, spec: Path) -> list[str]:
    """Return the command line of a child that is a module of ours."""
    return [sys.executable, "-P", "-m", module, "--spec", str(spec)]


async def output_of(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> str:
    """Run a short command and return what it printed; empty if it fails or takes too long."""
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await child.communicate()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        return ""
    return output.decode("utf-8", "replace")


async def stop_group(pid: int, ticks: int | None, timeout_s: float) -> None:
    """End a process group that is not ours to watch: SIGTERM, then SIGKILL; wait for the end."""
    for signum, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)):
        for each in (signal.SIGCONT, signum):
            if identity.is_alive(pid, ticks):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, each)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while identity.is_alive(pid, ticks):
                    await asyncio.sleep(0.02)
            return


def first_line_of(
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float,
    is_wanted: Callable[[bytes], bool],
) -> tuple[bytes, list[str]]:
    """Run a command until it prints a line that is wanted, then end it and what it started.

    Returns:
        The line, or nothing if the command ended or the time was over; and the last lines.

    Raises:
        SpawnError: the program could not be started.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise SpawnError(f"{argv[0]} cannot be started: {error.strerror}") from error
    assert child.stdout is not None

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # not reaped yet: the number is still its own

    timer = threading.Timer(timeout_s, end)
    timer.start()
    last: deque[str] = deque(maxlen=LINES_KEPT)
    try:
        while line := child.stdout.readline(LINE_BYTES_MAX):
            if is_wanted(line):
                return line, list(last)
            if line.strip():
                last.append(line.decode("utf-8", "replace").strip())
        return b"", list(last)
    finally:
        end()
        timer.cancel()
        timer.join()  # before the number can become another's
        child.stdout.close()
        child.wait()
