"""Reads the header of a GGUF file: metadata and tensor table, nothing of the data.

It decides what is a GGUF file and what is not. Every count and size is checked against the
file before anything is allocated for it. Token lists are stepped over, only their type and
length are kept: building them is what makes other readers take seconds.
"""

import os
import re
import stat
import struct
from collections.abc import Callable, Mapping
from functools import cache
from io import FileIO
from pathlib import Path
from typing import NoReturn

import msgspec

from gridcore.errors import GridcoreError
from gridcore.gguf.quant import QuantType, quant_type

MAGIC = b"GGUF"
ALIGNMENT_DEFAULT = 32

# The largest headers in the wild are about 30 MB (a 262k vocabulary with 514k merges). At 128
# MiB the slowest possible content, empty strings, still ends within a few seconds.
HEADER_BYTES_MAX = 128 << 20
# The longest header known has 60 keys and 1,700 tensors.
KEY_COUNT_MAX = 1 << 16
TENSOR_COUNT_MAX = 1 << 17
SHARD_COUNT_MAX = 1 << 12
KEY_BYTES_MAX = (1 << 16) - 1  # the format's own limit
TENSOR_NAME_BYTES_MAX = 63  # ggml.h GGML_MAX_NAME, with its terminator
TENSOR_DIMENSIONS_MAX = 4  # ggml.h GGML_MAX_DIMS
TENSOR_BYTES_MAX = 1 << 62
STRING_KEPT_BYTES_MAX = 64 << 10  # longer ones (some chat templates) are remembered by length
ARRAY_KEPT_LENGTH_MAX = 1 << 12  # per-layer values are kept, scores and token types are not
READ_BYTES = 1 << 20


class GgufError(GridcoreError):
    """A file cannot be used as GGUF; the text names the file and the offset."""


class ArrayInfo(msgspec.Struct, frozen=True):
    """An array that was stepped over: element type name and length."""

    element_type: str
    length: int


class LongString(msgspec.Struct, frozen=True):
    """A string that was stepped over, too long to keep."""

    length_bytes: int


Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...] | ArrayInfo | LongString


class Tensor(msgspec.Struct, frozen=True):
    """One entry of the tensor table; ``shape`` has ggml's order, the row length first."""

    name: str
    shape: tuple[int, ...]
    type: QuantType
    size_bytes: int


class Header(msgspec.Struct, frozen=True):
    """All that is known of a model without its data; the shards of a split file as one.

    ``files`` are the shards in order and ``file_bytes`` their sizes summed. ``missing_bytes``
    is what the files lack of the data their tables describe: 0 unless a download stopped.
    """

    path: str
    version: int
    byte_order: str
    alignment: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    files: tuple[str, ...]
    file_bytes: int
    header_bytes: int
    missing_bytes: int

    @property
    def architecture(self) -> str:
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    def require_data(self) -> None:
        """Raise GgufError unless the files hold all the data their tables describe."""
        if self.missing_bytes:
            raise GgufError(
                f"{self.path}: the data ends at offset {self.file_bytes}, "
                f"{self.missing_bytes} bytes short of what the tensor table describes: "
                "the file is incomplete, fetch it again"
            )


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read the header of a GGUF file and, if it is split, of its other shards.

    Raises:
        GgufError: no file, not GGUF, damaged or hostile; the text says where.
    """
    first = _read_file(os.fspath(path))
    shard_count = _split_number(first, "split.count")
    if shard_count <= 1:
        return first
    shards = [first]
    for other in _other_shards(first, shard_count):
        shard = _read_file(other)
        number = _split_number(shard, "split.no")
        if number != len(shards):
            raise GgufError(
                f"{other}: says it is part {number + 1}, its name says {len(shards) + 1}"
            )
        shards.append(shard)
    tensors = tuple(tensor for shard in shards for tensor in shard.tensors)
    expected = first.metadata.get("split.tensors.count")
    if isinstance(expected, int) and expected != len(tensors):
        raise GgufError(
            f"{first.path}: its {shard_count} parts hold {len(tensors)} tensors, "
            f"split.tensors.count says {expected}"
        )
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise GgufError(f"{first.path}: two of its parts hold a tensor of the same name")
    return Header(
        path=first.path,
        version=first.version,
        byte_order=first.byte_order,
        alignment=first.alignment,
        metadata=first.metadata,
        tensors=tensors,
        files=tuple(shard.path for shard in shards),
        file_bytes=sum(shard.file_bytes for shard in shards),
        header_bytes=sum(shard.header_bytes for shard in shards),
        missing_bytes=sum(shard.missing_bytes for shard in shards),
    )


_SHARD_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def _split_number(header: Header, key: str) -> int:
    value = header.metadata.get(key, 0)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _other_shards(first: Header, shard_count: int) -> list[str]:
    """Name shards 2 to ``shard_count``; a missing one is an error that names it."""
    name = _SHARD_NAME.search(first.path)
    if shard_count > SHARD_COUNT_MAX:
        raise GgufError(f"{first.path}: split into {shard_count} parts, above any real model")
    if name is None or int(name[2]) != shard_count:
        raise GgufError(
            f"{first.path}: part of a model split into {shard_count} files; "
            f"llama.cpp finds them only under names like "
            f"model-00001-of-{shard_count:05d}.gguf"
        )
    stem = first.path[: name.start()]
    paths = [f"{stem}-{n:05d}-of-{shard_count:05d}.gguf" for n in range(1, shard_count + 1)]
    if int(name[1]) != 1 or _split_number(first, "split.no") != 0:
        raise GgufError(
            f"{first.path}: part {int(name[1])} of {shard_count}; name the first part, {paths[0]}"
        )
    for other in paths[1:]:
        if not Path(other).exists():
            raise GgufError(f"{first.path}: its part {other} is missing")
    return paths[1:]


def _read_file(path: str) -> Header:
    try:
        # A pipe has no header to come back to, and opening one without a writer never returns.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise GgufError(f"{path}: not a file")
        with Path(path).open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            return _Reader(path, file, size_bytes).header()
    except OSError as error:
        raise GgufError(f"{path}: {error.strerror or error}") from error


class _Reader:
    """A window of READ_BYTES or a little more that moves forward over one file."""

    def __init__(self, path: str, file: FileIO, file_bytes: int) -> None:
        self.path = path
        self.file = file
        self.file_bytes = file_bytes
        self.buffer = b""
        self.start = 0  # offset of the window in the file
        self.at = 0  # position in the window
        self.order = "<"
        self.metadata: dict[str, Value] = {}

    @property
    def offset(self) -> int:
        return self.start + self.at

    def fail(self, what: str, offset: int | None = None) -> NoReturn:
        at = self.offset if offset is None else offset
        raise GgufError(f"{self.path}: {what} (at offset {at} of {self.file_bytes})")

    def need(self, n_bytes: int) -> None:
        """Make the next ``n_bytes`` available in the window."""
        if self.at + n_bytes <= len(self.buffer):
            return
        if self.offset + n_bytes > self.file_bytes:
            self.fail(f"the file ends inside its header: {n_bytes} bytes more are due here")
        if self.offset + n_bytes > HEADER_BYTES_MAX:
            self.fail(f"the header is longer than {HEADER_BYTES_MAX >> 20} MB")
        self.start, self.buffer, self.at = self.offset, self.buffer[self.at :], 0
        chunks = [self.buffer]
        missing = max(n_bytes, READ_BYTES) - len(self.buffer)
        while missing > 0 and (chunk := self.file.read(missing)):
            chunks.append(chunk)
            missing -= len(chunk)
        self.buffer = b"".join(chunks)
        if len(self.buffer) < n_bytes:
            self.fail("the file became shorter while it was read")

    def skip(self, n_bytes: int) -> None:
        """Step over bytes without reading those outside the window."""
        target = self.offset + n_bytes
        if target > self.file_bytes:
            self.fail(f"the file ends inside its header: {n_bytes} bytes more are due here")
        if target > HEADER_BYTES_MAX:
            self.fail(f"the header is longer than {HEADER_BYTES_MAX >> 20} MB")
        if self.at + n_bytes <= len(self.buffer):
            self.at += n_bytes
            return
        self.file.seek(target)
        self.start, self.buffer, self.at = target, b"", 0

    def number(self, code: str) -> int:
        layout = _LAYOUTS[self.order + code]
        self.need(layout.size)
        (value,) = layout.unpack_from(self.buffer, self.at)
        self.at += layout.size
        assert isinstance(value, int)
        return value

    def count(self, what: str, limit: int, item_bytes_min: int) -> int:
        """Read a count that the rest of the file must be able to hold."""
        offset = self.offset
        value = self.number("Q")
        if value > limit:
            self.fail(f"{value} {what}, above the limit of {limit}", offset)
        if value * item_bytes_min > self.file_bytes - self.offset:
            self.fail(f"{value} {what} cannot fit into the rest of the file", offset)
        return value

    def text(self, what: str, limit: int) -> str:
        offset = self.offset
        length = self.count(f"bytes of {what}", limit, 1)
        self.need(length)
        raw = self.buffer[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8", offset)

    # ---- the parts of a header, in file order ----

    def header(self) -> Header:
        version = self.preamble()
        n_tensors = self.count("tensors", TENSOR_COUNT_MAX, 8 + 4 + 4 + 8)
        n_keys = self.count("metadata keys", KEY_COUNT_MAX, 8 + 4 + 1)
        for _ in range(n_keys):
            self.entry()
        alignment = self.alignment()
        tensors, data_bytes = self.tensor_table(n_tensors, alignment)
        data_start = _round_up(self.offset, alignment)
        return Header(
            path=self.path,
            version=version,
            byte_order="little" if self.order == "<" else "big",
            alignment=alignment,
            metadata=self.metadata,
            tensors=tensors,
            files=(self.path,),
            file_bytes=self.file_bytes,
            header_bytes=data_start,
            missing_bytes=max(0, data_start + data_bytes - self.file_bytes),
        )

    def preamble(self) -> int:
        self.need(min(4, self.file_bytes))
        if self.buffer[:4] != MAGIC:
            found = self.buffer[:4].decode("ascii", "backslashreplace") or "nothing"
            self.fail(f"not a GGUF file: it begins with {found!r} instead of 'GGUF'", 0)
        self.at = 4
        version = self.number("I")
        if version & 0xFFFF == 0:  # gguf.cpp: a version with empty low half is byte-swapped
            self.order = ">"
            version = struct.unpack("<I", struct.pack(">I", version))[0]
        if version not in (2, 3):
            self.fail(f"GGUF version {version} is not supported; versions 2 and 3 are", 4)
        return version

    def alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", ALIGNMENT_DEFAULT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            self.fail(f"general.alignment is {alignment!r}, not a power of two")
        if alignment > READ_BYTES:
            self.fail(f"general.alignment is {alignment}, above any real one")
        return alignment

    def entry(self) -> None:
        offset = self.offset
        key = self.text("a metadata key", KEY_BYTES_MAX)
        if key in self.metadata:
            self.fail(f"the metadata key {key!r} appears twice", offset)
        type_id = self.number("I")
        if type_id == _STRING:
            self.metadata[key] = self.string_value(key)
        elif type_id == _ARRAY:
            self.metadata[key] = self.array_value(key)
        elif type_id in _SCALARS:
            self.metadata[key] = self.scalars(type_id, 1)[0]
        else:
            self.fail(f"the value type {type_id} of {key!r} is unknown", offset)

    def string_value(self, key: str) -> str | LongString:
        length = self.count(f"bytes of {key!r}", HEADER_BYTES_MAX, 1)
        if length > STRING_KEPT_BYTES_MAX:
            self.skip(length)
            return LongString(length)
        self.need(length)
        raw = self.buffer[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", "replace")  # names and templates are shown, never parsed

    def scalars(self, type_id: int, length: int) -> tuple[Scalar, ...]:
        code, size_bytes, _ = _SCALARS[type_id]
        self.need(length * size_bytes)
        values = struct.unpack_from(f"{self.order}{length}{code}", self.buffer, self.at)
        self.at += length * size_bytes
        return values

    def array_value(self, key: str) -> tuple[Scalar, ...] | ArrayInfo:
        offset = self.offset
        type_id = self.number("I")
        if type_id == _STRING:
            length = self.count(f"strings in {key!r}", HEADER_BYTES_MAX, 8)
            self.skip_strings(length)
            return ArrayInfo("string", length)
        if type_id not in _SCALARS:
            self.fail(f"the element type {type_id} of the array {key!r} is unknown", offset)
        _, size_bytes, name = _SCALARS[type_id]
        length = self.count(f"values in {key!r}", HEADER_BYTES_MAX, size_bytes)
        if length > ARRAY_KEPT_LENGTH_MAX:
            self.skip(length * size_bytes)
            return ArrayInfo(name, length)
        return self.scalars(type_id, length)

    def skip_strings(self, length: int) -> None:
        """Step over an array of strings.

        A loop in Python takes 0.2 us a string; the regular expression engine walks over a
        block of short strings, length prefix by length prefix, three times as fast. A block
        with an empty, long or damaged string in it does not match and is walked in Python.
        """
        match = _short_strings(self.order)
        left = length
        while left >= _BLOCK:
            self.need(min(_BLOCK * (8 + _SHORT_MAX), self.file_bytes - self.offset))
            found = match(self.buffer, self.at)
            if found is not None:
                self.at = found.end()
            else:
                self.skip_strings_slowly(_BLOCK)
            left -= _BLOCK
        self.skip_strings_slowly(left)

    def skip_strings_slowly(self, length: int) -> None:
        unpack = _LAYOUTS[self.order + "Q"].unpack_from
        buffer, at, end = self.buffer, self.at, len(self.buffer)
        for _ in range(length):
            if at + 8 > end:
                self.at = at
                self.need(8)
                buffer, at, end = self.buffer, self.at, len(self.buffer)
            (n_bytes,) = unpack(buffer, at)
            at += 8 + n_bytes
            if at > end:
                self.at = at - n_bytes
                self.skip(n_bytes)
                buffer, at, end = self.buffer, self.at, len(self.buffer)
        self.at = at

    def tensor_table(self, n_tensors: int, alignment: int) -> tuple[tuple[Tensor, ...], int]:
        tensors: list[Tensor] = []
        names: set[str] = set()
        data_bytes = 0
        for _ in range(n_tensors):
            offset = self.offset
            tensor, data_offset = self.tensor()
            if tensor.name in names:
                self.fail(f"the tensor {tensor.name!r} appears twice", offset)
            if data_offset % alignment:
                self.fail(f"the data of {tensor.name!r} is not aligned to {alignment}", offset)
            names.add(tensor.name)
            tensors.append(tensor)
            data_bytes = max(data_bytes, data_offset + tensor.size_bytes)
        return tuple(tensors), data_bytes

    def tensor(self) -> tuple[Tensor, int]:
        start = self.offset
        name = self.text("a tensor name", TENSOR_NAME_BYTES_MAX)
        n_dimensions = self.number("I")
        if not 1 <= n_dimensions <= TENSOR_DIMENSIONS_MAX:
            self.fail(f"the tensor {name!r} has {n_dimensions} dimensions", start)
        layout = _LAYOUTS[f"{self.order}{n_dimensions}QIQ"]
        self.need(layout.size)
        *shape, type_id, data_offset = layout.unpack_from(self.buffer, self.at)
        self.at += layout.size
        kind = quant_type(type_id)
        if kind is None:
            self.fail(
                f"the tensor {name!r} has type {type_id}, which this GridCore and the "
                "installed gguf package do not know; a newer gguf package may",
                start,
            )
        if shape[0] % kind.block:
            self.fail(
                f"a row of {name!r} has {shape[0]} elements, not a multiple of the "
                f"{kind.block} that {kind.name} packs together",
                start,
            )
        size_bytes = shape[0] // kind.block * kind.size_bytes
        for extent in shape[1:]:
            size_bytes *= extent
        if size_bytes > TENSOR_BYTES_MAX or data_offset > TENSOR_BYTES_MAX:
            self.fail(f"the tensor {name!r} is larger than any file", start)
        return Tensor(name, tuple(shape), kind, size_bytes), data_offset


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_STRING = 8
_ARRAY = 9
# gguf.h enum gguf_type: struct code, size and name of the types of fixed size.
_SCALARS: dict[int, tuple[str, int, str]] = {
    0: ("B", 1, "uint8"),
    1: ("b", 1, "int8"),
    2: ("H", 2, "uint16"),
    3: ("h", 2, "int16"),
    4: ("I", 4, "uint32"),
    5: ("i", 4, "int32"),
    6: ("f", 4, "float32"),
    7: ("?", 1, "bool"),
    10: ("Q", 8, "uint64"),
    11: ("q", 8, "int64"),
    12: ("d", 8, "float64"),
}
_LAYOUTS = {
    order + code: struct.Struct(order + code)
    for order in "<>"
    for code in ("I", "Q", *(f"{n}QIQ" for n in range(1, TENSOR_DIMENSIONS_MAX + 1)))
}

_BLOCK = 256  # strings a match steps over: its cost outweighs the call's, and a miss is cheap
_SHORT_MAX = 64  # bytes; longer tokens are rare

# Lengths of tokens by how often they occur: the engine tries the alternatives in this order.
_LENGTHS = [6, 7, 5, 8, 4, 9, 3, 10, 2, 11, 12, 13, 14, 1, *range(15, _SHORT_MAX + 1)]


@cache
def _short_strings(order: str) -> Callable[[bytes, int], re.Match[bytes] | None]:
    layout = struct.Struct(order + "Q")
    one = b"|".join(re.escape(layout.pack(n)) + b".{%d}" % n for n in _LENGTHS)
    return re.compile(b"(?:%s){%d}+" % (one, _BLOCK), re.DOTALL).match
