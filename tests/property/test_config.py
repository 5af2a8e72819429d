"""Misspelt and damaged configs: always a ConfigError that names the line, never anything else."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gridcore.config.keys import keys_of
from gridcore.config.load import parse_config
from gridcore.config.schema import Config, Section
from gridcore.config.suggest import closest, edits
from gridcore.errors import ConfigError

EXAMPLE = (Path(__file__).parents[2] / "config.example.yaml").read_text()
SIMULATION = (Path(__file__).parents[2] / "examples" / "simulation.yaml").read_text()
LETTERS = st.sampled_from("abcdefghijklmnopqrstuvwxyz_")


def keys_in(
    node: yaml.Node, section: type[Section]
) -> Iterator[tuple[yaml.Mark, str, frozenset[str]]]:
    """Where each key of the schema stands in a document, and its siblings' names."""
    assert isinstance(node, yaml.MappingNode)
    keys = keys_of(section)
    for key_node, value_node in node.value:
        key = keys[key_node.value]
        yield key_node.start_mark, key.name, frozenset(keys)
        if key.section is None:
            continue
        entries = [value for _, value in value_node.value] if key.is_mapping else [value_node]
        for entry in entries:
            yield from keys_in(entry, key.section)


def all_keys(text: str) -> list[tuple[str, int, int, str, frozenset[str]]]:
    root = yaml.compose(text)
    assert root is not None
    return [
        (text, mark.index, mark.line + 1, name, siblings)
        for mark, name, siblings in keys_in(root, Config)
    ]


KEYS = [*all_keys(EXAMPLE), *all_keys(SIMULATION)]


@st.composite
def one_edit(draw: st.DrawFn, word: str) -> str:
    at = draw(st.integers(0, len(word) - 1))
    match draw(st.sampled_from(["insert", "delete", "replace", "swap"])):
        case "insert":
            return word[:at] + draw(LETTERS) + word[at:]
        case "delete":
            return word[:at] + word[at + 1 :]
        case "replace":
            return word[:at] + draw(LETTERS) + word[at + 1 :]
        case _:
            return word[:at] + word[at : at + 2][::-1] + word[at + 2 :]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_misspelt_key_is_named_with_its_line_and_what_it_was_meant_to_be(
    data: st.DataObject,
) -> None:
    text, index, line, name, siblings = data.draw(st.sampled_from(KEYS))
    misspelt = data.draw(one_edit(name))
    assume(misspelt not in siblings)
    damaged = text[:index] + misspelt + text[index + len(name) :]
    try:
        parse_config(damaged)
    except ConfigError as error:
        problems = error.problems
    else:
        raise AssertionError(f"{misspelt} was taken for a key")
    [problem] = [each for each in problems if "unknown key" in each]
    found = re.fullmatch(r"config\.yaml:(\d+): (.+): unknown key; did you mean (.+)\?", problem)
    assert found is not None, problem
    assert int(found[1]) == line
    assert found[2].rpartition(".")[2] == misspelt
    assert name in found[3].split(" or ")


VALUES = st.sampled_from(
    [
        *("", "7", "-7", "1.5", "true", "off", "~", "[]", "{}", "[a, 1]", "{a: 1}", "3s", "'x'"),
        *("*a", "1" * 5000, "0x", "2024-01-01", "!!python/object:os.system x", "&b [*b]", "? [x]"),
        *("|\n  a", ">", "!!int x", "!!float y", "!!bool z", "!!merge <<", "<<"),
    ]
)


@given(st.sampled_from(KEYS), VALUES)
@settings(max_examples=80, deadline=None)
def test_any_value_anywhere_is_a_config_or_a_list_of_problems(
    key: tuple[str, int, int, str, frozenset[str]], value: str
) -> None:
    text, index, _, name, _ = key
    end = text.find("\n", index)
    check_only_config_errors(text[: index + len(name)] + f": {value}" + text[end:])


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_config_or_a_list_of_problems(text: str) -> None:
    check_only_config_errors(text)


@given(st.integers(0, len(SIMULATION)), st.integers(0, 40), st.text(max_size=5))
@settings(max_examples=100, deadline=None)
def test_a_damaged_file_is_a_config_or_a_list_of_problems(at: int, cut: int, put: str) -> None:
    check_only_config_errors(SIMULATION[:at] + put + SIMULATION[at + cut :])


def check_only_config_errors(text: str) -> None:
    problems = ["config.yaml: none"]
    try:
        parse_config(text)
    except ConfigError as error:
        problems = error.problems
    assert problems
    for problem in problems:
        assert re.match(r"config\.yaml(:\d+)?: \S", problem), problem
        assert "\n" not in problem


@given(st.text(alphabet="abc", max_size=6), st.text(alphabet="abc", max_size=6))
def test_edits_are_a_distance(left: str, right: str) -> None:
    distance = edits(left, right)
    assert distance == edits(right, left)
    assert (distance == 0) == (left == right)
    assert abs(len(left) - len(right)) <= distance <= max(len(left), len(right))


@given(st.data())
def test_one_edit_is_one_edit(data: st.DataObject) -> None:
    word = data.draw(st.text(alphabet="abcd_", min_size=1, max_size=12))
    edited = data.draw(one_edit(word))
    assert edits(word, edited) <= 1
    assert word in closest(edited, [word, "something_else_entirely"])
