"""Writes small GGUF files byte by byte, also wrong ones."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

STRING, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Typed = tuple[int, object]


def u32(value: int) -> Typed:
    return (4, value)


def text(value: str) -> Typed:
    return (STRING, value)


def array(element_type: int, values: Sequence[object]) -> Typed:
    return (ARRAY, (element_type, values))


class Writer:
    def __init__(self, order: str = "<") -> None:
        self.order = order
        self.out = bytearray()

    def number(self, code: str, value: object) -> None:
        self.out += struct.pack(self.order + code, value)

    def string(self, value: str | bytes) -> None:
        raw = value.encode() if isinstance(value, str) else value
        self.number("Q", len(raw))
        self.out += raw

    def value(self, type_id: int, value: object) -> None:
        if type_id == STRING:
            assert isinstance(value, str | bytes)
            self.string(value)
        elif type_id == ARRAY:
            assert isinstance(value, tuple)
            element_type, items = value
            self.number("I", element_type)
            self.number("Q", len(items))
            for item in items:
                self.value(element_type, item)
        else:
            self.number(CODES[type_id], value)


def gguf_bytes(
    metadata: Mapping[str, Typed] | None = None,
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = (),
    *,
    order: str = "<",
    version: int = 3,
    data_bytes: int = 0,
    alignment: int = 32,
) -> bytes:
    """A file; each tensor is name, shape, type id and offset of its data."""
    writer = Writer(order)
    writer.out += b"GGUF"
    writer.number("I", version)
    writer.number("Q", len(tensors))
    writer.number("Q", len(metadata or {}))
    for key, (type_id, value) in (metadata or {}).items():
        writer.string(key)
        writer.number("I", type_id)
        writer.value(type_id, value)
    for name, shape, type_id, offset in tensors:
        writer.string(name)
        writer.number("I", len(shape))
        for extent in shape:
            writer.number("Q", extent)
        writer.number("I", type_id)
        writer.number("Q", offset)
    writer.out += bytes(-len(writer.out) % alignment) + bytes(data_bytes)
    return bytes(writer.out)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
