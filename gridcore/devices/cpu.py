"""Main memory as a card: llama.cpp on the CPU.

The total is the smallest of what the machine has and what every control group above us allows;
a group's page cache counts as free, because the mapped model file is most of it. Reads /proc and
/sys/fs/cgroup and nothing else; their roots are arguments, so that tests use recorded trees.
"""

import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import Struct

from gridcore.core.events import Pressure
from gridcore.devices.device import Sample
from gridcore.ids import CardId
from gridcore.runtime import identity

NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes 9223372036854771712 for none."""
THRASHING_PERCENT = 10.0
STRAINED_PERCENT = 5.0
"""Share of the last ten seconds in which all tasks waited for memory."""


class CpuDevice:
    def __init__(
        self,
        card_id: CardId,
        *,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self.card_id = card_id
        self.name = "CPU"
        self.unified = True
        self._proc = proc
        self._cgroup = cgroup
        self._busy: tuple[int, int] | None = None

    def sample(self, pids: Collection[int] = ()) -> Sample:
        total, available = self._memory()
        return Sample(
            total_bytes=total,
            used_bytes=max(0, total - available),
            used_by_pid={pid: self._family_bytes(pid) for pid in sorted(pids)},
            utilization_percent=self._utilization(),
            pressure=self._pressure(),
        )

    def footprint(self, pids: Collection[int]) -> int | None:
        return sum(held_bytes(self._proc, pid) for pid in pids)

    def _family_bytes(self, pid: int) -> int:
        return sum(held_bytes(self._proc, each) for each in identity.family_of([pid]) | {pid})

    def _memory(self) -> tuple[int, int]:
        """Return the total and what is available of it."""
        total, available = _machine_memory(self._proc)
        for group in memory_groups(self._proc, self._cgroup):
            total = min(total, group.limit_bytes)
            available = min(available, group.available_bytes)
        return total, max(0, available)

    def _utilization(self) -> int | None:
        """Return the share of processor time spent working since the last sample."""
        try:
            first = (self._proc / "stat").read_text().partition("\n")[0]
        except OSError:
            return None
        ticks = [int(field) for field in first.split()[1:9]]
        idle, total = ticks[3] + ticks[4], sum(ticks)
        before, self._busy = self._busy, (idle, total)
        if before is None or total <= before[1]:
            return None
        return round(100 * (1 - (idle - before[0]) / (total - before[1])))

    def _pressure(self) -> Pressure:
        try:
            lines = (self._proc / "pressure/memory").read_text().splitlines()
        except OSError:
            return Pressure.UNKNOWN  # not built in, or not Linux
        full = next((line for line in lines if line.startswith("full ")), "")
        averages = [word.partition("=")[2] for word in full.split() if word.startswith("avg10=")]
        if not averages:
            return Pressure.UNKNOWN
        percent = float(averages[0])
        if percent >= THRASHING_PERCENT:
            return Pressure.CRITICAL
        return Pressure.WARN if percent >= STRAINED_PERCENT else Pressure.NORMAL


def held_bytes(proc: Path, pid: int) -> int:
    """Return what a process holds that only its end gives back: private, shared memory, swap.

    Mapped files are not in it: they are reclaimable, and shared with every other process.
    """
    if sys.platform == "darwin":
        import psutil  # noqa: PLC0415 - only where there is no /proc

        try:
            return int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            return 0
    fields = _kilobytes(proc / str(pid) / "status")
    return sum(fields.get(name, 0) for name in ("RssAnon", "RssShmem", "VmSwap"))


class MemoryGroup(Struct, frozen=True, kw_only=True):
    """A control group with a limit of its own."""

    limit_bytes: int
    available_bytes: int


def memory_groups(proc: Path, cgroup: Path) -> Iterator[MemoryGroup]:
    """Find our control group and all above it that have a limit; both versions, also mixed."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for directory in _upwards(cgroup, path):
                yield from _version_2(directory)
        elif "memory" in controllers.split(","):
            for directory in _upwards(cgroup / "memory", path):
                yield from _version_1(directory)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the group's directory and its parents up to the mount.

    In a container the path may be the host's; what does not exist here is skipped, and the
    mount itself is then our group.
    """
    directory = mount
    chain = [mount]
    for part in path.split("/"):
        if part not in ("", ".", ".."):
            directory /= part
            chain.append(directory)
    return reversed(chain)


def _version_2(directory: Path) -> Iterator[MemoryGroup]:
    limits = [_number(directory / name) for name in ("memory.max", "memory.high")]
    known = [limit for limit in limits if limit is not None]
    current = _number(directory / "memory.current")
    if known and current is not None:
        cache = _stat(directory / "memory.stat", "inactive_file", "active_file")
        limit = min(known)
        yield MemoryGroup(limit_bytes=limit, available_bytes=limit - (current - cache))


def _version_1(directory: Path) -> Iterator[MemoryGroup]:
    limit = _number(directory / "memory.limit_in_bytes")
    current = _number(directory / "memory.usage_in_bytes")
    if limit is not None and current is not None:
        cache = _stat(directory / "memory.stat", "total_inactive_file", "total_active_file")
        yield MemoryGroup(limit_bytes=limit, available_bytes=limit - (current - cache))


def _number(path: Path) -> int | None:
    """Read a limit or a reading; "max" and absurd numbers mean none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    if not text.isdigit() or int(text) >= NO_LIMIT_BYTES:
        return None
    return int(text)


def _stat(path: Path, *names: str) -> int:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names)
    except OSError:
        return 0


def _machine_memory(proc: Path) -> tuple[int, int]:
    fields = _kilobytes(proc / "meminfo")
    if "MemTotal" in fields:
        return fields["MemTotal"], fields.get("MemAvailable", fields.get("MemFree", 0))
    import psutil  # noqa: PLC0415 - only where there is no /proc

    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def _kilobytes(path: Path) -> dict[str, int]:
    """Read lines such as ``MemTotal:  24683656 kB`` as bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    parsed = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in parsed}
