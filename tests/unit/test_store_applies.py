"""applies.py: why a measurement does not hold for what is configured now."""

import msgspec
import pytest

from gridcore.store.applies import why_not
from gridcore.store.profiles import Conditions, Profile

THEN = Conditions(
    build="/usr/bin/llama-server 0123456789ab",
    card="nvidia:0",
    file="/m.gguf:1:2",
    args=("-c", "4096", "-np", "2", "--fit", "off", "-ot", "exps=CPU", "FOO=1"),
)


def test_the_same_conditions_apply() -> None:
    assert why_not(Profile(conditions=THEN), THEN) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"card": "cpu"}, "other card (nvidia:0, now cpu)"),
        (
            {"build": "/opt/llama-server fedcba987654"},
            "other build (llama-server 0123456789ab, now llama-server fedcba987654)",
        ),
        ({"file": "/m.gguf:1:3"}, "the model's file has changed"),
        (
            {"args": ("-c", "8192", "-np", "2", "--fit", "off", "-ot", "exps=CPU", "FOO=1")},
            "changed settings (-c 4096, now -c 8192)",
        ),
        (
            {"args": ("-c", "4096", "-np", "2", "--fit", "off", "-ot", "exps=CPU", "FOO=2")},
            "changed settings (FOO=1, now FOO=2)",
        ),
        (
            {"args": (*THEN.args, "-nkvo")},
            "changed settings (nothing, now -nkvo)",
        ),
    ],
)
def test_what_changed_is_named(changes: dict[str, object], words: str) -> None:
    now = msgspec.structs.replace(THEN, **changes)
    assert why_not(Profile(conditions=THEN), now) == words


def test_several_changes_are_all_named() -> None:
    now = msgspec.structs.replace(THEN, card="cpu", file="x")
    assert why_not(Profile(conditions=THEN), now).count(";") == 1


def test_without_a_model_or_without_conditions() -> None:
    assert why_not(Profile(conditions=THEN), None) == "no such model in the config"
    assert why_not(Profile(), THEN) == "written by an earlier version"
