"""Writes docs/config.md from the schema; with --check, tells whether it is current.

``--check`` also reads config.example.yaml: every key must stand there, live or commented out,
below the schema's own sentence, with its default as the value or named as ``Default: ...``.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from msgspec import inspect as mi

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gridcore.config.keys import Key, Shape, default_of, keys_of, shape_of  # noqa: E402
from gridcore.config.load import load_config  # noqa: E402
from gridcore.config.schema import Config, Section  # noqa: E402
from gridcore.errors import ConfigError  # noqa: E402
from gridcore.units import NS_PER_MS, NS_PER_S  # noqa: E402

DOCS = ROOT / "docs" / "config.md"
EXAMPLE = ROOT / "config.example.yaml"

HEAD = """\
# Configuration

<!-- Written by scripts/config-docs.py from gridcore/config/schema.py; edit that instead. -->

GridCore reads one YAML file: `--config`, else `$GRIDCORE_CONFIG`, else
`$XDG_CONFIG_HOME/gridcore/config.yaml` (`~/.config` without the variable).
[`config.example.yaml`](../config.example.yaml) holds every key with its default.

- A key that is unknown, of the wrong type or out of range is an error that names the file, the
  line and the likely key; `gridcore check` lists all of them at once, and `gridcore serve` refuses
  to start.
- A **duration** is a number with a unit: `500ms`, `3s`, `2m`, `1m30s`, `1h`, `1d`.
- **MB** are 2^20 bytes.
- A **path** may begin with `~` and hold `$VARIABLES`; a relative one starts at the config file.
- Anchors and merge keys (`<<: *base`) work; a key of the mapping itself wins.
- Names (model ids, families, aliases of both) are unique: each leads to one model or family.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if stale")
    check = parser.parse_args().check
    text = document()
    if not check:
        DOCS.parent.mkdir(exist_ok=True)
        DOCS.write_text(text, encoding="utf-8")
        print(f"wrote {DOCS.relative_to(ROOT)}")
    problems = example_problems()
    if check and (not DOCS.exists() or DOCS.read_text(encoding="utf-8") != text):
        problems.append("docs/config.md is not what the schema says: run scripts/config-docs.py")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def document() -> str:
    return HEAD + "".join(_sections(Config, ""))


def _sections(section: type[Section], at: str) -> Iterator[str]:
    keys = list(keys_of(section).values())
    plain = [key for key in keys if key.section is None]
    if plain:
        rows = "".join(_row(key) for key in plain)
        yield f"\n| Key | Value | Default | |\n|---|---|---|---|\n{rows}"
    for key in keys:
        if key.section is not None:
            path = f"{at}{key.name}" + (".\\<id\\>" if key.is_mapping else "")
            depth = "#" * min(2 + path.count(".") - path.count("<id"), 4)
            yield f"\n{depth} {path}\n\n{key.shape.description}\n"
            yield from _sections(key.section, f"{path}.")


def _row(key: Key) -> str:
    default = "required" if key.is_required else f"`{yaml_text(key.default, key.shape)}`"
    meaning = key.shape.description.replace("<", "\\<")  # else Markdown takes it for a tag
    return f"| `{key.name}` | {kind_text(key.shape)} | {default} | {meaning} |\n"


def kind_text(shape: Shape) -> str:
    """What may stand there, in words."""
    inner = shape.type
    match inner:
        case _ if shape.kind is not None:
            text = shape.kind
        case mi.EnumType():
            text = ", ".join(f"`{choice.value}`" for choice in inner.cls)
        case mi.BoolType():
            text = "`true`, `false`"
        case mi.IntType():
            text = "whole number" + _bounds(inner)
        case mi.FloatType():
            text = "number" + _bounds(inner)
        case mi.VarTupleType():
            text = f"list of {kind_text(shape_of(inner.item_type))}"
        case mi.TupleType():
            text = f"list of {len(inner.item_types)} whole numbers"
        case mi.DictType():
            text = "mapping of text"
        case _:
            text = "text"
    return f"{text} or `null`" if shape.nullable else text


def _bounds(type_: mi.IntType | mi.FloatType) -> str:
    parts = [
        text
        for limit, text in (
            (type_.ge, f"at least {type_.ge}"),
            (type_.gt, f"above {type_.gt}"),
            (type_.le, f"at most {type_.le}"),
        )
        if limit is not None
    ]
    return f", {', '.join(parts)}" if parts else ""


def yaml_text(value: Any, shape: Shape | None = None) -> str:
    """A value as a person writes it in the file."""
    if value is None:
        return "null"
    if shape is not None and shape.kind == "duration":
        return duration_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return f"[{', '.join(yaml_text(item) for item in value)}]"
    if isinstance(value, dict):
        return "{}"
    return str(value)


def duration_text(ns: int) -> str:
    if ns == 0:
        return "0s"
    for unit, size in (("h", 3600 * NS_PER_S), ("m", 60 * NS_PER_S), ("s", NS_PER_S)):
        if ns % size == 0:
            return f"{ns // size}{unit}"
    return f"{ns // NS_PER_MS}ms"


# --- config.example.yaml ---------------------------------------------------------------------


def example_problems(path: Path = EXAMPLE) -> list[str]:
    """What config.example.yaml lacks; empty when it documents every key."""
    try:
        config = load_config(path)
    except ConfigError as error:
        return error.problems
    lines = path.read_text(encoding="utf-8").splitlines()
    root = yaml.compose("\n".join(lines))
    assert root is not None, "it has just been loaded"
    found: dict[str, list[tuple[int, bool]]] = {}
    for dotted, line, is_default in _live_keys(root, Config, config, ""):
        found.setdefault(dotted, []).append((line, is_default))
    problems = []
    for dotted, key in _all_keys(Config, ""):
        places = found.get(dotted) or _commented_places(lines, key)
        if not any(_is_documented(lines, line, key, is_default) for line, is_default in places):
            default = "" if key.is_required else f", default {yaml_text(key.default, key.shape)}"
            where = "is missing" if not places else "lacks its sentence or default"
            problems.append(f"{path.name}: {dotted} {where}: {key.shape.description!r}{default}")
    return problems


def _all_keys(section: type[Section], at: str) -> Iterator[tuple[str, Key]]:
    for key in keys_of(section).values():
        yield f"{at}{key.name}", key
        if key.section is not None:
            below = f"{at}{key.name}.<id>." if key.is_mapping else f"{at}{key.name}."
            yield from _all_keys(key.section, below)


def _live_keys(
    node: yaml.Node, section: type[Section], values: Section, at: str
) -> Iterator[tuple[str, int, bool]]:
    """Dotted path, line index and "holds its default" of every key in the file."""
    assert isinstance(node, yaml.MappingNode)
    keys = keys_of(section)
    for name_node, value_node in node.value:
        key = keys[name_node.value]
        value = default_of(values, key)
        yield f"{at}{key.name}", name_node.start_mark.line, value == key.default
        if key.section is None:
            continue
        if not key.is_mapping:
            yield from _live_keys(value_node, key.section, value, f"{at}{key.name}.")
            continue
        for id_node, entry_node in value_node.value:
            entry = value[id_node.value]
            yield from _live_keys(entry_node, key.section, entry, f"{at}{key.name}.<id>.")


def _commented_places(lines: list[str], key: Key) -> list[tuple[int, bool]]:
    pattern = re.compile(rf"\s*#\s+{re.escape(key.name)}:\s*(.*)")
    matches = ((index, pattern.fullmatch(line)) for index, line in enumerate(lines))
    return [(i, match[1] == yaml_text(key.default, key.shape)) for i, match in matches if match]


def _is_documented(lines: list[str], line: int, key: Key, is_default: bool) -> bool:
    comment: list[str] = []
    for above in reversed(lines[:line]):
        if not above.lstrip().startswith("#"):
            break
        comment.insert(0, above.lstrip(" #").strip())
    text = " ".join(comment)
    shown = key.is_required or is_default or key.section is not None
    default = f"Default: {yaml_text(key.default, key.shape)}."
    return key.shape.description in text and (shown or default in text)


if __name__ == "__main__":
    raise SystemExit(main())
