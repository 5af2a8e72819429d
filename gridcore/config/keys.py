"""Reads the schema: what the loader and the documentation must know of each key.

Everything follows from the types in ``schema.py``; no key is named here.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec import inspect as mi

from gridcore.config.schema import Config, Section

KeyPath = tuple[str | int, ...]
"""Where a value stands: ``("models", "gemma4-12b", "aliases", 0)``."""


class Shape(Struct, frozen=True, kw_only=True):
    """What may stand in one place.

    Args:
        type: the type without null and without its notes.
        kind: "duration" or "path" where YAML spells the value differently.
    """

    type: mi.Type
    nullable: bool = False
    kind: str | None = None
    description: str = ""


class Key(Struct, frozen=True, kw_only=True):
    """One key of a section, as YAML names it."""

    name: str
    shape: Shape
    default: Any
    """What the section holds without the key; NODEFAULT where it must be given."""

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT

    @property
    def section(self) -> type[Section] | None:
        """The section that the key holds, or that every entry of its mapping holds."""
        inner = self.shape.type
        if isinstance(inner, mi.DictType):
            inner = shape_of(inner.value_type).type
        if isinstance(inner, mi.StructType) and issubclass(inner.cls, Section):
            return inner.cls
        return None

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.shape.type, mi.DictType)


def shape_of(type_: mi.Type) -> Shape:
    nullable, notes = False, dict[str, Any]()
    while True:
        if isinstance(type_, mi.Metadata):
            notes = {**(type_.extra_json_schema or {}), **notes}
            type_ = type_.type
        elif isinstance(type_, mi.UnionType):
            inner = [member for member in type_.types if not isinstance(member, mi.NoneType)]
            assert len(inner) == 1, "the schema unites a type with null only"
            nullable, type_ = True, inner[0]
        else:
            return Shape(
                type=type_,
                nullable=nullable,
                kind=notes.get("kind"),
                description=notes.get("description", ""),
            )


@cache
def keys_of(section: type[Section]) -> dict[str, Key]:
    """The keys of a section by name, in the order of the schema."""
    info = mi.type_info(section)
    assert isinstance(info, mi.StructType)
    return {field.encode_name: _key(field) for field in info.fields}


def _key(field: mi.Field) -> Key:
    default = field.default
    if field.default_factory is not NODEFAULT:
        default = field.default_factory()
    return Key(name=field.encode_name, shape=shape_of(field.type), default=default)


def walk(section: type[Section] = Config, at: str = "") -> Iterator[tuple[str, Key]]:
    """Every key with its dotted path; an entry of a mapping is written ``<id>``."""
    for key in keys_of(section).values():
        path = f"{at}{key.name}"
        yield path, key
        if key.section is not None:
            yield from walk(key.section, f"{path}.<id>." if key.is_mapping else f"{path}.")


@cache
def homes_of_keys() -> dict[str, tuple[str, ...]]:
    """Where each key name belongs, for a key written in the wrong section."""
    homes: dict[str, list[str]] = {}
    for path, key in walk():
        homes.setdefault(key.name, []).append(path)
    return {name: tuple(paths) for name, paths in homes.items()}


def default_of(section: Section, key: Key) -> Any:
    """The value that an instance of a section holds for a key."""
    for field in msgspec.structs.fields(section):
        if field.encode_name == key.name:
            return getattr(section, field.name)
    raise KeyError(key.name)


def dotted(path: KeyPath) -> str:
    """``models.gemma4-12b.aliases[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
