"""profiles.py: measurements survive, apply to what they were made of, and correct themselves."""

import logging
from pathlib import Path

import pytest

from gridcore.store.profiles import PROFILES_KEPT_MAX, ProfileStore, file_identity, profile_key


def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "state" / "profiles.json")


def test_a_measurement_survives_and_keeps_the_largest_footprint(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    profiles.loaded("k", "m", load_ns=5, footprint_bytes=100, free_bytes=None)
    profiles.grew("k", 130)
    profiles.grew("k", 90)
    again = store(tmp_path)
    assert again.get("k").footprint_bytes == 130
    assert again.get("k").load_ns == 5
    again.loaded("k", "m", load_ns=7, footprint_bytes=100, free_bytes=None)
    assert store(tmp_path).get("k").footprint_bytes == 130
    assert store(tmp_path).get("k").load_ns == 7
    assert again.get("other").footprint_bytes is None


def test_out_of_memory_drops_the_measurement_and_remembers_where(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    profiles.loaded("k", "m", load_ns=5, footprint_bytes=100, free_bytes=500)
    profiles.ran_out_of_memory("k", "m", 120)
    profiles.ran_out_of_memory("k", "m", 110)
    again = store(tmp_path).get("k")
    assert again.footprint_bytes is None
    assert again.out_of_memory_at_bytes == 120


def test_a_load_below_the_floor_lifts_it(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    profiles.ran_out_of_memory("k", "m", 120)
    profiles.loaded("k", "m", load_ns=5, footprint_bytes=100, free_bytes=200)
    assert profiles.get("k").out_of_memory_at_bytes == 120
    profiles.loaded("k", "m", load_ns=5, footprint_bytes=100, free_bytes=115)
    assert profiles.get("k").out_of_memory_at_bytes is None


def test_two_writers_do_not_lose_each_others_measurements(tmp_path: Path) -> None:
    one, two = store(tmp_path), store(tmp_path)
    one.loaded("a", "a", load_ns=1, footprint_bytes=1, free_bytes=None)
    two.loaded("b", "b", load_ns=2, footprint_bytes=2, free_bytes=None)
    one.loaded("c", "c", load_ns=3, footprint_bytes=3, free_bytes=None)
    merged = store(tmp_path)
    assert [merged.get(key).load_ns for key in "abc"] == [1, 2, 3]


@pytest.mark.parametrize("content", ["{", "[]", '{"profiles": {"k": {"load_ns": "soon"}}}', ""])
def test_an_unreadable_file_is_set_aside_not_lost(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(content)
    with caplog.at_level(logging.WARNING):
        profiles = ProfileStore(path)
    assert "set aside" in caplog.text
    assert (tmp_path / "profiles.bad").read_text() == content
    profiles.loaded("k", "m", load_ns=1, footprint_bytes=1, free_bytes=None)
    assert ProfileStore(path).get("k").load_ns == 1


def test_the_file_stays_bounded(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    for n in range(PROFILES_KEPT_MAX + 3):
        profiles._profiles[f"k{n}"] = profiles.get("none")
    profiles.loaded("new", "m", load_ns=1, footprint_bytes=1, free_bytes=None)
    again = store(tmp_path)
    assert len(again._profiles) == PROFILES_KEPT_MAX
    assert again.get("new").load_ns == 1


def test_a_key_changes_with_all_that_changes_a_footprint(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"one")
    first = file_identity(str(model))
    base = profile_key("build", "card", first, ["-c", "4096"])
    assert base == profile_key("build", "card", file_identity(str(model)), ["-c", "4096"])
    model.write_bytes(b"other")
    others = [
        profile_key("build2", "card", first, ["-c", "4096"]),
        profile_key("build", "card2", first, ["-c", "4096"]),
        profile_key("build", "card", file_identity(str(model)), ["-c", "4096"]),
        profile_key("build", "card", first, ["-c", "8192"]),
    ]
    assert len({base, *others}) == 5
    assert file_identity(str(tmp_path / "none")).endswith("missing")
