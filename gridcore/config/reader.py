"""Walks a YAML node tree along the schema and gives plain values, or problems with lines.

Strict: a value of the wrong type is never converted, an unknown key never skipped. Two
kindnesses that cannot go wrong: ``off`` and ``7`` in a place for text inside a list (arguments,
environment) are taken as they are written, and a section without content is its defaults.
"""

import math
import os
import re
from pathlib import Path
from typing import Any

import yaml
from msgspec import inspect as mi

from gridcore.config.keys import Key, KeyPath, Shape, homes_of_keys, keys_of, shape_of
from gridcore.config.report import Report
from gridcore.config.schema import Section
from gridcore.config.suggest import did_you_mean
from gridcore.units import NS_PER_S, parse_duration_ns

INT_MAX = 2**31 - 1
"""MB of 2**31 are still 51 bits of bytes; every integer of the wire has 64."""
DURATION_NS_MAX = 3650 * 86400 * NS_PER_S
TEXT_LENGTH_MAX = 64 * 1024

INVALID: Any = object()
"""Stands for a value that has been reported and must not reach the config."""

Entries = dict[str, tuple[yaml.Node, yaml.Node]]
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null"))
_VARIABLE = re.compile(r"\$(?:\w+|\{[^}]*\})")


class Reader:
    """One pass over one document; ``read`` is called with its root."""

    def __init__(self, *, directory: Path, report: Report) -> None:
        self._directory = directory
        self._report = report
        self._merged: dict[int, Entries] = {}
        self._merging: set[int] = set()
        self._numbers = yaml.constructor.SafeConstructor()

    def read(self, node: yaml.Node, shape: Shape, path: KeyPath = ()) -> Any:
        """The value of a node as msgspec expects it, or INVALID after a report."""
        if _is_null(node):
            return self._read_null(node, shape, path)
        inner = shape.type
        if shape.kind == "duration":
            return self._read_duration(node, path)
        if isinstance(inner, mi.StructType) and issubclass(inner.cls, Section):
            return self._read_section(node, inner.cls, path)
        if isinstance(inner, mi.DictType):
            return self._read_mapping(node, inner, path)
        if isinstance(inner, mi.VarTupleType | mi.TupleType):
            return self._read_list(node, inner, path)
        if isinstance(inner, mi.EnumType):
            return self._read_choice(node, [str(choice.value) for choice in inner.cls], path)
        if isinstance(inner, mi.BoolType):
            return self._read_bool(node, path)
        if isinstance(inner, mi.IntType | mi.FloatType):
            return self._read_number(node, inner, path)
        assert isinstance(inner, mi.StrType), f"the schema has a type unknown here: {inner}"
        text = self._read_text(node, shape, path)
        if shape.kind == "path" and text is not INVALID:
            return self._read_path(node, text, path)
        return text

    # --- collections ---------------------------------------------------------------------

    def _read_section(self, node: yaml.Node, section: type[Section], path: KeyPath) -> Any:
        entries = self._entries(node, path)
        if entries is None:
            return INVALID
        keys = keys_of(section)
        values: dict[str, Any] = {}
        for name, (key_node, value_node) in entries.items():
            line = _line(key_node)
            self._report.mark((*path, name), line)
            if name not in keys:
                self._report.add((*path, name), unknown_key(name, keys), line)
                continue
            value = self.read(value_node, keys[name].shape, (*path, name))
            if value is not INVALID:
                values[name] = value
        return INVALID if self._lacks_a_key(keys, entries, values, path) else values

    def _lacks_a_key(
        self, keys: dict[str, Key], entries: Entries, values: dict[str, Any], path: KeyPath
    ) -> bool:
        lacking = [key for key in keys.values() if key.is_required and key.name not in values]
        for key in lacking:
            if key.name not in entries:
                text = f"is missing and has no default: {key.shape.description}"
                self._report.add((*path, key.name), text)
        return bool(lacking)

    def _read_mapping(self, node: yaml.Node, type_: mi.DictType, path: KeyPath) -> Any:
        entries = self._entries(node, path)
        if entries is None:
            return INVALID
        shape = shape_of(type_.value_type)
        values: dict[str, Any] = {}
        for name, (key_node, value_node) in entries.items():
            self._report.mark((*path, name), _line(key_node))
            value = self._read_item(value_node, shape, (*path, name))
            if value is not INVALID:
                values[name] = value
        return values

    def _read_list(
        self, node: yaml.Node, type_: mi.VarTupleType | mi.TupleType, path: KeyPath
    ) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            hint = f": [{node.value}]" if isinstance(node, yaml.ScalarNode) else ""
            return self._wrong(node, f"must be a list{hint}", path)
        if isinstance(type_, mi.TupleType):
            shapes = [shape_of(item) for item in type_.item_types]
            if len(node.value) != len(shapes):
                text = f"must have {len(shapes)} items, not {len(node.value)}"
                self._report.add(path, text, _line(node))
                return INVALID
        else:
            shapes = [shape_of(type_.item_type)] * len(node.value)
        values = []
        for index, (item, shape) in enumerate(zip(node.value, shapes, strict=True)):
            self._report.mark((*path, index), _line(item))
            values.append(self._read_item(item, shape, (*path, index)))
        return INVALID if any(value is INVALID for value in values) else values

    def _read_item(self, node: yaml.Node, shape: Shape, path: KeyPath) -> Any:
        """A list item or a mapping's value: text is taken as written, ``99`` and ``on`` too."""
        is_scalar = isinstance(node, yaml.ScalarNode) and node.tag in _SCALAR_TAGS
        if isinstance(shape.type, mi.StrType) and is_scalar and not _is_null(node):
            return node.value
        return self.read(node, shape, path)

    def _entries(self, node: yaml.Node, path: KeyPath) -> Entries | None:
        """The keys of a mapping with what ``<<`` merges into it; None when it is none."""
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, "must be a mapping (key: value)", path)
            return None
        if id(node) in self._merged:
            return self._merged[id(node)]
        if id(node) in self._merging:
            self._report.add(path, "merges itself (<<)", _line(node))
            return {}
        self._merging.add(id(node))
        own: Entries = {}
        merged: Entries = {}
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                for name, entry in self._merge(value, path).items():
                    merged.setdefault(name, entry)
            elif not isinstance(key, yaml.ScalarNode) or key.tag != _TAG + "str":
                text = f"a key must be text, not {_describe(key)}"
                hint = f': write "{key.value}"' if isinstance(key, yaml.ScalarNode) else ""
                self._report.add(path, text + hint, _line(key))
            elif key.value in own:
                first = _line(own[key.value][0])
                text = f"is given twice; the first one is in line {first}"
                self._report.add((*path, key.value), text, _line(key))
            else:
                own[key.value] = (key, value)
        self._merging.discard(id(node))
        entries = own | {name: entry for name, entry in merged.items() if name not in own}
        self._merged[id(node)] = entries
        return entries

    def _merge(self, node: yaml.Node, path: KeyPath) -> Entries:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: Entries = {}
        for source in sources:
            for name, entry in (self._entries(source, path) or {}).items():
                merged.setdefault(name, entry)
        return merged

    # --- scalars -------------------------------------------------------------------------

    def _read_null(self, node: yaml.Node, shape: Shape, path: KeyPath) -> Any:
        if shape.nullable:
            return None
        if isinstance(shape.type, mi.StructType | mi.DictType) and not _has_required(shape):
            return {}
        if isinstance(shape.type, mi.VarTupleType):
            return []
        self._report.add(path, "has no value; leave the key out for its default", _line(node))
        return INVALID

    def _read_duration(self, node: yaml.Node, path: KeyPath) -> Any:
        if not isinstance(node, yaml.ScalarNode) or _name_of_tag(node) not in _DURATION_TAGS:
            return self._wrong(node, "must be a duration (500ms, 3s, 2m)", path)
        text = node.value
        if node.tag != _TAG + "str":
            example = f"{text}s" if text.isdigit() else "3s"
            problem = f"{text} has no unit: write {example}, or another of ms, s, m, h, d"
            self._report.add(path, problem, _line(node))
            return INVALID
        if text.startswith("-"):
            self._report.add(path, f"must not be negative, got {text!r}", _line(node))
            return INVALID
        try:
            duration_ns = parse_duration_ns(text)
        except OverflowError:
            duration_ns = DURATION_NS_MAX + 1
        except ValueError as error:
            self._report.add(path, str(error), _line(node))
            return INVALID
        if duration_ns > DURATION_NS_MAX:
            self._report.add(path, "is longer than 3650d", _line(node))
            return INVALID
        return duration_ns

    def _read_choice(self, node: yaml.Node, choices: list[str], path: KeyPath) -> Any:
        # YAML reads off as false; the text as written tells what was meant.
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALAR_TAGS:
            return self._wrong(node, f"must be {_either(choices)}", path)
        if node.value not in choices:
            hint = did_you_mean(node.value, choices)
            text = f"must be {_either(choices)}, got {_describe(node)}{hint}"
            self._report.add(path, text, _line(node))
            return INVALID
        return node.value

    def _read_bool(self, node: yaml.Node, path: KeyPath) -> Any:
        is_bool = isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "bool"
        if not is_bool or node.value.lower() not in self._numbers.bool_values:
            return self._wrong(node, "must be true or false", path)
        return self._numbers.bool_values[node.value.lower()]

    def _read_number(self, node: yaml.Node, type_: mi.IntType | mi.FloatType, path: KeyPath) -> Any:
        whole = isinstance(type_, mi.IntType)
        wanted = "a whole number" if whole else "a number"
        tags = {"int"} if whole else {"int", "float"}
        if not isinstance(node, yaml.ScalarNode):
            return self._wrong(node, f"must be {wanted}", path)
        # YAML 1.1 reads 1:30 as 90; nobody means that here.
        if _name_of_tag(node) not in tags or ":" in node.value:
            quoted = _name_of_tag(node) == "str" and re.fullmatch(r"-?[\d.]+", node.value)
            hint = " without quotes" if quoted else ""
            return self._wrong(node, f"must be {wanted}{hint}", path)
        value: float
        try:
            if _name_of_tag(node) == "int":
                value = self._numbers.construct_yaml_int(node)
            else:
                value = self._numbers.construct_yaml_float(node)
        except (ValueError, OverflowError):
            return self._wrong(node, f"must be {wanted}", path)
        problem = _out_of_bounds(value, type_)
        if problem:
            self._report.add(path, f"{problem}, got {_shorten(node.value)}", _line(node))
            return INVALID
        return value if whole else float(value)

    def _read_text(self, node: yaml.Node, shape: Shape, path: KeyPath) -> Any:
        assert isinstance(shape.type, mi.StrType)
        if not isinstance(node, yaml.ScalarNode) or node.tag != _TAG + "str":
            quote = isinstance(node, yaml.ScalarNode) and node.tag in _SCALAR_TAGS
            hint = f': write "{node.value}"' if quote else ""
            return self._wrong(node, f"must be text{hint}", path)
        text = node.value
        if len(text) > TEXT_LENGTH_MAX:
            return self._wrong(node, f"must not exceed {TEXT_LENGTH_MAX} characters", path)
        if not text.strip():
            self._report.add(path, "is empty", _line(node))
            return INVALID
        if shape.type.pattern and not re.fullmatch(shape.type.pattern, text):
            wanted = shape.description.rstrip(".")
            self._report.add(path, f"{text!r} is not possible: {wanted}", _line(node))
            return INVALID
        return text

    def _read_path(self, node: yaml.Node, text: str, path: KeyPath) -> Any:
        """Expand ``~`` and variables; a relative path starts at the config file."""
        expanded = os.path.expandvars(text)
        unset = _VARIABLE.search(expanded)
        if unset:
            self._report.add(path, f"{unset[0]} is not set in the environment", _line(node))
            return INVALID
        try:
            return str(self._directory / Path(expanded).expanduser())
        except RuntimeError:
            user = expanded.partition("/")[0]
            self._report.add(path, f"{user} has no home directory", _line(node))
            return INVALID

    def _wrong(self, node: yaml.Node, wanted: str, path: KeyPath) -> Any:
        self._report.add(path, f"{wanted}, got {_describe(node)}", _line(node))
        return INVALID


_DURATION_TAGS = frozenset({"str", "int", "float"})


def unknown_key(name: str, keys: dict[str, Key]) -> str:
    """Say what the key was meant to be, or where it belongs, or what there is."""
    hint = did_you_mean(name, keys)
    if not hint and name in homes_of_keys():
        hint = f"; did you mean {' or '.join(homes_of_keys()[name][:2])}?"
    if not hint:
        hint = f"; known here: {', '.join(keys)}"
    return f"unknown key{hint}"


def _out_of_bounds(value: float, type_: mi.IntType | mi.FloatType) -> str | None:
    if not math.isfinite(value):
        return "must be a finite number"
    if type_.ge is not None and value < type_.ge:
        return "must not be negative" if type_.ge == 0 else f"must be at least {type_.ge}"
    if type_.gt is not None and value <= type_.gt:
        return f"must be above {type_.gt}"
    upper = INT_MAX if type_.le is None else type_.le
    return f"must be at most {upper}" if value > upper else None


def _has_required(shape: Shape) -> bool:
    inner = shape.type
    if not isinstance(inner, mi.StructType) or not issubclass(inner.cls, Section):
        return False
    return any(key.is_required for key in keys_of(inner.cls).values())


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _name_of_tag(node: yaml.Node) -> str:
    return str(node.tag).removeprefix(_TAG)


def _either(choices: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _describe(node: yaml.Node) -> str:
    """What stands in the file, in words."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = _shorten(node.value)
    match _name_of_tag(node):
        case "str":
            return f"text {text!r}"
        case "int" | "float":
            return f"the number {text}"
        case "null":
            return "nothing"
        case "bool":
            return text
        case tag:
            return f"{text!r} (YAML type {tag})"
