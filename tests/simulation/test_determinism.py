"""Same seed, same commands: in another process, under another hash seed, at another time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gridcore.sim.draw import draw
from gridcore.sim.world import START_NS, World
from gridcore.units import NS_PER_S

ROOT = Path(__file__).parents[2]
SEEDS, EVENTS = "0:6", "600"


def digests(hash_seed: str) -> list[str]:
    out = subprocess.run(
        [sys.executable, "-m", "gridcore.sim.run", "--seeds", SEEDS, "--events", EVENTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stdout
    return [line for line in out.splitlines() if "digest" in line]


def test_two_hash_seeds_give_the_same_commands() -> None:
    one, other = digests("1"), digests("2")
    assert len(one) == 6
    assert one == other


@pytest.mark.parametrize("seed", [0, 3, 7, 12])
def test_shifting_all_times_changes_nothing(seed: int) -> None:
    worlds = [World(draw(seed), start_ns=START_NS + shift) for shift in (0, 12_345 * NS_PER_S + 7)]
    for world in worlds:
        world.run(600)
        world.come_to_rest()
    assert worlds[0].digest == worlds[1].digest
    assert worlds[0].n_events == worlds[1].n_events


def test_another_seed_is_another_day() -> None:
    worlds = [World(draw(seed)) for seed in (0, 1)]
    for world in worlds:
        world.run(200)
    assert worlds[0].digest != worlds[1].digest
