"""cpu.py against recorded trees: cgroup version 2, version 1, mixed, none."""

from pathlib import Path

import pytest

from gridcore.core.events import Pressure
from gridcore.devices.cpu import CpuDevice, held_bytes
from gridcore.devices.device import Sample, is_news
from gridcore.ids import CardId
from gridcore.units import GB, MB

NO_LIMIT_V1 = "9223372036854771712"


class Machine:
    """A recorded /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        self.write(
            "proc/meminfo", f"MemTotal: {64 * MB} kB\nMemFree: 1 kB\nMemAvailable: {40 * MB} kB\n"
        )
        self.root = root

    def write(self, name: str, content: str) -> None:
        path = self.proc.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def group(self, path: str, **files: str) -> None:
        for name, content in files.items():
            self.write(f"cgroup/{path}/memory.{name}", f"{content}\n")

    def device(self) -> CpuDevice:
        return CpuDevice(CardId("cpu"), proc=self.proc, cgroup=self.cgroup)

    def sample(self) -> Sample:
        return self.device().sample()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_groups_the_machine_is_the_card(machine: Machine) -> None:
    sample = machine.sample()
    assert (sample.total_bytes, sample.used_bytes) == (64 * GB, 24 * GB)
    assert sample.free_bytes == 40 * GB
    assert sample.pressure is Pressure.UNKNOWN


def test_the_tightest_group_above_us_counts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/system.slice/gridcore.service\n")
    machine.group(
        "system.slice/gridcore.service", max="max", high="max", current=str(30 * GB), stat=""
    )
    machine.group(
        "system.slice",
        max=str(32 * GB),
        high="max",
        current=str(30 * GB),
        stat=f"anon 1\ninactive_file {20 * GB}\nactive_file {2 * GB}",
    )
    sample = machine.sample()
    assert sample.total_bytes == 32 * GB
    assert sample.used_bytes == 8 * GB, "the mapped model file in the page cache is not used up"


def test_a_throttling_limit_is_a_limit(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/\n")
    machine.group("", max=str(32 * GB), high=str(16 * GB), current=str(GB), stat="")
    assert machine.sample().total_bytes == 16 * GB


def test_version_1_in_a_container_whose_path_is_the_hosts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "12:cpu:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n")
    machine.group(
        "memory",
        limit_in_bytes=str(8 * GB),
        usage_in_bytes=str(7 * GB),
        stat=f"total_inactive_file {3 * GB}\ntotal_active_file {GB}\ninactive_file 7",
    )
    sample = machine.sample()
    assert (sample.total_bytes, sample.used_bytes) == (8 * GB, 3 * GB)


def test_no_limit_of_either_version_is_none(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/a\n0::/a\n")
    machine.group("memory/a", limit_in_bytes=NO_LIMIT_V1, usage_in_bytes=str(GB), stat="")
    machine.group("a", max="max", current=str(GB), stat="")
    assert machine.sample().total_bytes == 64 * GB


def test_a_group_with_room_on_a_full_machine_is_not_free(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/a\n")
    machine.group("a", max=str(50 * GB), current=str(GB), stat="")
    sample = machine.sample()
    assert sample.total_bytes == 50 * GB
    assert sample.free_bytes == 40 * GB


def test_a_footprint_is_what_only_the_end_gives_back(machine: Machine) -> None:
    status = "Name:\tllama\nVmRSS:\t 900 kB\nRssAnon:\t 300 kB\nRssFile:\t 500 kB\n"
    machine.write("proc/7/status", status + "RssShmem:\t 100 kB\nVmSwap:\t  20 kB\nThreads:\t1\n")
    assert held_bytes(machine.proc, 7) == 420 * 1024
    assert machine.device().footprint([7, 8]) == 420 * 1024


@pytest.mark.parametrize(
    ("full", "pressure"),
    [("0.00", Pressure.NORMAL), ("6.10", Pressure.WARN), ("12.00", Pressure.CRITICAL)],
)
def test_pressure_is_time_in_which_everything_waits(
    machine: Machine, full: str, pressure: Pressure
) -> None:
    some = "some avg10=99.00 avg60=0.00 avg300=0.00 total=0\n"
    machine.write("proc/pressure/memory", f"{some}full avg10={full} avg60=0 avg300=0 total=1\n")
    assert machine.sample().pressure is pressure


def test_utilization_is_between_two_samples(machine: Machine) -> None:
    device = machine.device()
    machine.write("proc/stat", "cpu  100 0 0 800 100 0 0 0 0 0\ncpu0 1\n")
    assert device.sample().utilization_percent is None
    machine.write("proc/stat", "cpu  175 0 0 820 105 0 0 0 0 0\ncpu0 1\n")
    assert device.sample().utilization_percent == 75


def test_this_very_machine_can_be_sampled() -> None:
    sample = CpuDevice(CardId("cpu")).sample()
    assert sample.used_bytes is not None
    assert 0 < sample.used_bytes < sample.total_bytes


def test_news_is_one_percent_or_pressure() -> None:
    base = Sample(total_bytes=100 * GB, used_bytes=50 * GB, used_by_pid={1: GB})

    def with_used(used_bytes: int | None, **more: object) -> Sample:
        fields = {"total_bytes": base.total_bytes, "used_by_pid": base.used_by_pid, **more}
        return Sample(used_bytes=used_bytes, **fields)  # type: ignore[arg-type]

    assert is_news(None, base)
    assert not is_news(base, with_used(51 * GB))
    assert is_news(base, with_used(51 * GB + 1))
    assert is_news(base, with_used(None))
    assert is_news(base, with_used(50 * GB, pressure=Pressure.WARN))
    assert is_news(base, with_used(50 * GB, used_by_pid={1: 3 * GB}))
    assert not is_news(base, with_used(50 * GB, utilization_percent=90))
