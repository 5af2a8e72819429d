"""The simulated card: claims of living processes, memory that comes back late."""

import json
import os
from pathlib import Path

from gridcore.config.schema import SimulatedCardConfig
from gridcore.devices.simulation import SimulatedDevice
from gridcore.ids import CardId
from gridcore.runtime.claims import SimulatedCard
from gridcore.units import MB, NS_PER_S

DEAD_PID = (1 << 22) + 7  # above the kernel's largest


def device(tmp_path: Path, **config: int) -> SimulatedDevice:
    return SimulatedDevice(
        CardId("simulation"), SimulatedCardConfig(total_mb=1000, **config), tmp_path / "claims"
    )


def card(tmp_path: Path, foreign_mb: int = 0) -> SimulatedCard:
    return SimulatedCard(
        tmp_path / "claims",
        total_bytes=1000 * MB,
        foreign_bytes=foreign_mb * MB,
        release_delay_s=0.0,
    )


def leave_claim(tmp_path: Path, pid: int, mb: int) -> None:
    claim = {"bytes": mb * MB, "model": "m", "ticks": 1}
    (tmp_path / "claims").mkdir(exist_ok=True)
    (tmp_path / "claims" / f"{pid}.json").write_text(json.dumps(claim))


def test_an_empty_card_holds_what_is_foreign(tmp_path: Path) -> None:
    sample = device(tmp_path, foreign_mb=300).sample()
    assert (sample.total_bytes, sample.used_bytes) == (1000 * MB, 300 * MB)


def test_a_claim_is_ours_and_bounded_by_the_card(tmp_path: Path) -> None:
    assert card(tmp_path, 300).claim("m", 600 * MB)
    sample = device(tmp_path, foreign_mb=300).sample([os.getpid(), DEAD_PID])
    assert sample.used_bytes == 900 * MB
    assert sample.used_by_pid == {os.getpid(): 600 * MB, DEAD_PID: 0}
    assert device(tmp_path).footprint([os.getpid()]) == 600 * MB
    assert not card(tmp_path, 300).claim("n", 101 * MB)


def test_memory_of_a_dead_process_is_back_at_once_or_late(tmp_path: Path) -> None:
    leave_claim(tmp_path, DEAD_PID, 400)
    config = SimulatedCardConfig(total_mb=1000, release_delay_ns=60 * NS_PER_S)
    slow = SimulatedDevice(CardId("simulation"), config, tmp_path / "claims")
    assert slow.sample([DEAD_PID]).used_bytes == 400 * MB
    assert slow.sample([DEAD_PID]).used_by_pid == {DEAD_PID: 0}
    (gone,) = (tmp_path / "claims").glob("*.gone")
    os.utime(gone, (1, 1))
    assert slow.sample().used_bytes == 0
    assert not list((tmp_path / "claims").glob("*.gone"))


def test_a_number_used_again_is_another_process(tmp_path: Path) -> None:
    leave_claim(tmp_path, os.getpid(), 400)  # our pid, but not our start
    assert device(tmp_path).sample([os.getpid()]).used_bytes == 0


def test_a_half_written_claim_is_no_claim(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "12.json").write_text("{")
    assert device(tmp_path).sample().used_bytes == 0
