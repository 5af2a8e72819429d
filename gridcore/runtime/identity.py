"""Which process is that? A pid alone never says: pids are used again.

Identity is the pid, its start in clock ticks since boot, the boot, and the marks of ours in its
environment. A zombie counts as dead: it answers signal 0 and holds nothing.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gridcore.clock import wall_time_s
from gridcore.units import NS_PER_S

PROC = Path("/proc")
_STATE_FIELD, _PARENT_FIELD, _START_FIELD = 0, 1, 19  # after the command's closing parenthesis

if sys.platform == "linux":

    def start_ticks(pid: int) -> int | None:
        """Return when a living process started; None if there is none."""
        fields = _stat_fields(pid)
        if fields is None or fields[_STATE_FIELD] in ("Z", "X"):
            return None
        return int(fields[_START_FIELD])

    def kernel_boot_id() -> str:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()

    def age_ns(pid: int) -> int:
        """Return how long a process has existed; 0 if it does not."""
        ticks = start_ticks(pid)
        if ticks is None:
            return 0
        uptime_s = float((PROC / "uptime").read_text().split()[0])
        return max(0, round((uptime_s - ticks / os.sysconf("SC_CLK_TCK")) * NS_PER_S))

    def environment_of(pid: int) -> dict[str, str]:
        """Return the environment a process was started with; empty if it may not be read."""
        try:
            raw = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return {}
        pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}

    def all_pids() -> Iterator[int]:
        return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())

    def family_of(pids: Iterable[int]) -> set[int]:
        """Return the processes and all their descendants."""
        family: set[int] = set()
        pending = list(pids)
        while pending:
            pid = pending.pop()
            if pid in family or _stat_fields(pid) is None:
                continue
            family.add(pid)
            pending += _children(pid)
        return family

    def out_of_memory_kills() -> int:
        """Return how many processes the kernel has killed for memory since boot."""
        try:
            lines = (PROC / "vmstat").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def _children(pid: int) -> list[int]:
        try:
            tasks = list((PROC / str(pid) / "task").iterdir())
            return [
                int(child) for task in tasks for child in (task / "children").read_text().split()
            ]
        except OSError:
            return []

    def _stat_fields(pid: int) -> list[str] | None:
        try:
            text = (PROC / str(pid) / "stat").read_text()
        except OSError:
            return None
        return text.rpartition(")")[2].split()

else:
    import psutil

    def start_ticks(pid: int) -> int | None:
        """Return when a living process started; None if there is none."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return round(process.create_time() * 100)
        except psutil.Error:
            return None

    def kernel_boot_id() -> str:
        return f"{psutil.boot_time():.0f}"

    def age_ns(pid: int) -> int:
        """Return how long a process has existed; 0 if it does not."""
        try:
            return max(0, round((wall_time_s() - psutil.Process(pid).create_time()) * NS_PER_S))
        except psutil.Error:
            return 0

    def environment_of(pid: int) -> dict[str, str]:
        """Return the environment a process was started with; empty if it may not be read."""
        try:
            return dict(psutil.Process(pid).environ())
        except psutil.Error:
            return {}

    def all_pids() -> Iterator[int]:
        return iter(psutil.pids())

    def family_of(pids: Iterable[int]) -> set[int]:
        """Return the processes and all their descendants."""
        family: set[int] = set()
        for pid in pids:
            try:
                children = psutil.Process(pid).children(recursive=True)
            except psutil.Error:
                continue
            family |= {pid, *(child.pid for child in children)}
        return family

    def out_of_memory_kills() -> int:
        """Return how many processes the kernel has killed for memory since boot."""
        return 0


def is_alive(pid: int, ticks: int | None) -> bool:
    """Is this very process alive?"""
    now = start_ticks(pid)
    return now is not None and (ticks is None or now == ticks)
