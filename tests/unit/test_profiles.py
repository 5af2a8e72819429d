"""profiles.py: measurements survive, apply to what they were made of, and correct themselves."""

import logging
from pathlib import Path

import pytest

from gridcore.store.profiles import (
    PROFILES_KEPT_MAX,
    Conditions,
    Profile,
    ProfileStore,
    Speeds,
    file_identity,
)


def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "state" / "profiles.json")


def at(name: str) -> Conditions:
    return Conditions(build=name, card="card", file="file")


def test_a_measurement_survives_and_keeps_the_largest_footprint(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    profiles.loaded(at("k"), "m", load_ns=5, footprint_bytes=100, free_bytes=None)
    profiles.grew(at("k"), "m", 130)
    profiles.grew(at("k"), "m", 90)
    again = store(tmp_path)
    assert again.get(at("k")).footprint_bytes == 130
    assert again.get(at("k")).load_ns == 5
    again.loaded(at("k"), "m", load_ns=7, footprint_bytes=100, free_bytes=None)
    assert store(tmp_path).get(at("k")).footprint_bytes == 130
    assert store(tmp_path).get(at("k")).load_ns == 7
    assert again.get(at("other")).footprint_bytes is None


def test_out_of_memory_drops_the_measurement_and_remembers_where(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    profiles.loaded(at("k"), "m", load_ns=5, footprint_bytes=100, free_bytes=500)
    profiles.ran_out_of_memory(at("k"), "m", 120)
    profiles.ran_out_of_memory(at("k"), "m", 110)
    again = store(tmp_path).get(at("k"))
    assert again.footprint_bytes is None
    assert again.out_of_memory_at_bytes == 120


def test_a_load_below_the_floor_lifts_it(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    profiles.ran_out_of_memory(at("k"), "m", 120)
    profiles.loaded(at("k"), "m", load_ns=5, footprint_bytes=100, free_bytes=200)
    assert profiles.get(at("k")).out_of_memory_at_bytes == 120
    profiles.loaded(at("k"), "m", load_ns=5, footprint_bytes=100, free_bytes=115)
    assert profiles.get(at("k")).out_of_memory_at_bytes is None


def test_two_writers_do_not_lose_each_others_measurements(tmp_path: Path) -> None:
    one, two = store(tmp_path), store(tmp_path)
    one.loaded(at("a"), "a", load_ns=1, footprint_bytes=1, free_bytes=None)
    two.loaded(at("b"), "b", load_ns=2, footprint_bytes=2, free_bytes=None)
    one.loaded(at("c"), "c", load_ns=3, footprint_bytes=3, free_bytes=None)
    merged = store(tmp_path)
    assert [merged.get(at(key)).load_ns for key in "abc"] == [1, 2, 3]


def test_a_writer_that_read_long_ago_undoes_nothing(tmp_path: Path) -> None:
    """The daemon holds its copy for weeks; bench and prune write in between."""
    daemon = store(tmp_path)
    daemon.loaded(at("a"), "a", load_ns=1, footprint_bytes=100, free_bytes=None)
    daemon.loaded(at("gone"), "gone", load_ns=1, footprint_bytes=1, free_bytes=None)
    other = store(tmp_path)
    other.grew(at("a"), "a", 500)
    other.timed(at("a"), "a", Speeds(generation=40.0))
    other.remove([at("gone").key])
    daemon.grew(at("a"), "a", 200)
    daemon.loaded(at("b"), "b", load_ns=1, footprint_bytes=1, free_bytes=None)
    merged = store(tmp_path)
    assert merged.get(at("a")).footprint_bytes == 500
    assert merged.get(at("a")).speeds == Speeds(generation=40.0)
    assert {profile.model_id for profile in merged.all().values()} == {"a", "b"}


def test_a_load_that_was_made_smaller_leaves_the_measurement_alone(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    profiles.loaded(at("k"), "m", load_ns=5, footprint_bytes=100, free_bytes=None)
    profiles.loaded_smaller(at("k"), "m", "a context of 4096 instead of 16384")
    assert store(tmp_path).get(at("k")).footprint_bytes == 100
    assert "4096" in store(tmp_path).get(at("k")).shrunk
    profiles.loaded(at("k"), "m", load_ns=5, footprint_bytes=90, free_bytes=None)
    assert store(tmp_path).get(at("k")).shrunk == ""


def test_what_cannot_be_written_is_kept_and_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profiles = store(tmp_path)
    blocker = tmp_path / "state"
    blocker.write_text("a file where the directory should be")
    profiles.loaded(at("k"), "m", load_ns=5, footprint_bytes=100, free_bytes=None)
    assert "cannot be written" in caplog.text
    assert profiles.get(at("k")).footprint_bytes == 100
    blocker.unlink()
    profiles.loaded(at("other"), "m", load_ns=1, footprint_bytes=1, free_bytes=None)
    assert store(tmp_path).get(at("k")).footprint_bytes == 100


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
    profiles.loaded(at("k"), "m", load_ns=1, footprint_bytes=1, free_bytes=None)
    assert ProfileStore(path).get(at("k")).load_ns == 1


def test_the_file_stays_bounded(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    for n in range(PROFILES_KEPT_MAX + 3):
        profiles._unsaved[f"k{n}"] = Profile()
    profiles.loaded(at("new"), "m", load_ns=1, footprint_bytes=1, free_bytes=None)
    again = store(tmp_path)
    assert len(again._profiles) == PROFILES_KEPT_MAX
    assert again.get(at("new")).load_ns == 1


def test_a_key_changes_with_all_that_changes_a_footprint(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"one")
    first = file_identity(str(model))

    def key(build: str = "b", card: str = "c", file: str = first, ctx: str = "4096") -> str:
        return Conditions(build=build, card=card, file=file, args=("-c", ctx)).key

    base = key()
    assert base == key(file=file_identity(str(model)))
    model.write_bytes(b"other")
    others = [
        key(build="b2"),
        key(card="c2"),
        key(file=file_identity(str(model))),
        key(ctx="8192"),
    ]
    assert len({base, *others}) == 5
    assert file_identity(str(tmp_path / "none")).endswith("missing")
