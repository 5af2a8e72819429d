"""The reader of GGUF headers: what it reads, and what it refuses with file and offset."""

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from gridcore.gguf.header import ArrayInfo, GgufError, LongString, read_header
from gridcore.gguf.quant import QUANT_TYPE_BY_ID, gguf_package_types
from tests.support.gguf_files import STRING, Writer, array, gguf_bytes, text, u32, write
from tests.support.ground_truth import GROUND_TRUTH

Q4_K = 12
MODEL = {"general.architecture": text("llama"), "llama.block_count": u32(1)}
TENSORS = [("token_embd.weight", (256, 8), Q4_K, 0), ("output_norm.weight", (256,), 0, 1152)]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_reads_metadata_and_tensor_table_in_both_byte_orders(
    tmp_path: Path, order: str, version: int
) -> None:
    metadata = {**MODEL, "llama.heads": array(4, [1, 2, 3]), "a.float": (6, 0.5), "a.flag": (7, 1)}
    content = gguf_bytes(metadata, TENSORS, order=order, version=version, data_bytes=2176)
    header = read_header(write(tmp_path / "m.gguf", content))
    assert (header.version, header.byte_order) == (version, "little" if order == "<" else "big")
    assert header.architecture == "llama"
    assert header.metadata["llama.heads"] == (1, 2, 3)
    assert header.metadata["a.float"] == 0.5
    assert header.metadata["a.flag"] is True
    assert [(t.name, t.shape, t.type.name, t.size_bytes) for t in header.tensors] == [
        ("token_embd.weight", (256, 8), "Q4_K", 8 * 144),
        ("output_norm.weight", (256,), "F32", 1024),
    ]
    assert header.missing_bytes == 0


def test_long_values_are_remembered_by_type_and_length(tmp_path: Path) -> None:
    tokens = [f"token{n}" for n in range(2000)]
    metadata = {
        **MODEL,
        "tokenizer.ggml.tokens": array(STRING, tokens),
        "tokenizer.ggml.scores": array(6, [0.0] * 9000),
        "tokenizer.chat_template": text("x" * 70_000),
        "after": u32(7),
    }
    header = read_header(write(tmp_path / "m.gguf", gguf_bytes(metadata)))
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayInfo("string", 2000)
    assert header.metadata["tokenizer.ggml.scores"] == ArrayInfo("float32", 9000)
    assert header.metadata["tokenizer.chat_template"] == LongString(70_000)
    assert header.metadata["after"] == 7


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    "tokens",
    [
        [""] * 700,
        ["x" * 65] * 700,
        ["x" * n for n in range(700)],
        ["a"] * 255 + ["b" * 300] + ["c"] * 400,
        ["ä" * 20] * 257,
        ["y" * 3_000_000, *["z"] * 600, "y" * 1_500_000, *[""] * 600],
    ],
)
def test_any_string_lengths_are_stepped_over_exactly(
    tmp_path: Path, order: str, tokens: list[str]
) -> None:
    """The fast path and the slow one must agree, or every later key would be garbage."""
    metadata = {**MODEL, "t": array(STRING, tokens), "after": text("here")}
    header = read_header(write(tmp_path / "m.gguf", gguf_bytes(metadata, order=order)))
    assert header.metadata["t"] == ArrayInfo("string", len(tokens))
    assert header.metadata["after"] == "here"


def test_a_large_vocabulary_is_read_quickly(tmp_path: Path) -> None:
    """About 22 ms on two slow cores; the bound leaves room for a busy machine."""
    writer = Writer()
    for n in range(262_144):
        writer.string(f"t{n:x}")
    body = bytes(writer.out)
    head = gguf_bytes({**MODEL, "tokenizer.ggml.tokens": (STRING, "")})
    start = head.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    content = head[:start] + struct.pack("<IIQ", 9, STRING, 262_144) + body + bytes(32)
    path = write(tmp_path / "m.gguf", content)
    best_s = min(_seconds(path) for _ in range(5))
    assert best_s < 0.15
    assert read_header(path).metadata["tokenizer.ggml.tokens"] == ArrayInfo("string", 262_144)


def _seconds(path: Path) -> float:
    start = time.perf_counter()
    read_header(path)
    return time.perf_counter() - start


def _refused(path: Path, *words: str) -> None:
    with pytest.raises(GgufError) as caught:
        read_header(path)
    message = str(caught.value)
    assert str(path) in message or path.stem[:5] in message
    for word in words:
        assert word in message


def test_what_is_not_a_gguf_file_is_refused(tmp_path: Path) -> None:
    _refused(write(tmp_path / "m.gguf", b"PK\x03\x04 a zip"), "not a GGUF file", "offset 0")
    _refused(write(tmp_path / "n.gguf", b""), "not a GGUF file")
    _refused(tmp_path / "missing.gguf", "No such file")
    _refused(tmp_path, "not a file")
    os.mkfifo(tmp_path / "pipe.gguf")
    _refused(tmp_path / "pipe.gguf", "not a file")
    _refused(write(tmp_path / "one.gguf", gguf_bytes(MODEL, version=1)), "version 1")


def test_every_truncation_of_a_header_is_refused(tmp_path: Path) -> None:
    content = gguf_bytes({**MODEL, "t": array(STRING, ["a", "bb"])}, TENSORS)
    end = content.rindex(b"output_norm.weight") + len("output_norm.weight") + 4 + 8 + 4 + 8
    for length in range(end):
        path = write(tmp_path / "m.gguf", content[:length])
        with pytest.raises(GgufError, match="offset"):
            read_header(path)


def test_missing_data_is_told_apart_from_a_damaged_header(tmp_path: Path) -> None:
    """What a model takes is known from a header alone; loading it needs the rest."""
    whole = gguf_bytes(MODEL, TENSORS, data_bytes=2176)
    header = read_header(write(tmp_path / "m.gguf", whole[:-1000]))
    assert header.missing_bytes == 1000
    with pytest.raises(GgufError, match="1000 bytes short"):
        header.require_data()
    read_header(write(tmp_path / "n.gguf", whole)).require_data()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([("x", (256,), 99, 0)], "type 99"),
        ([("x", (256,), 4, 0)], "type 4"),
        ([("x", (255,), Q4_K, 0)], "not a multiple of the 256"),
        ([("x", (), 0, 0)], "0 dimensions"),
        ([("x", (1, 1, 1, 1, 1), 0, 0)], "5 dimensions"),
        ([("x", (256,), 0, 1)], "not aligned"),
        ([("x", (1 << 40, 1 << 40), 0, 0)], "larger than any file"),
        ([("x", (32,), 0, 0), ("x", (32,), 0, 128)], "appears twice"),
        ([("x" * 64, (32,), 0, 0)], "above the limit of 63"),
    ],
)
def test_impossible_tensors_are_refused(
    tmp_path: Path, tensors: list[tuple[str, tuple[int, ...], int, int]], words: str
) -> None:
    _refused(write(tmp_path / "m.gguf", gguf_bytes(MODEL, tensors)), words, "offset")


def test_impossible_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    _refused(write(path, _key_of_type(13)), "value type 13")
    _refused(write(path, gguf_bytes({"general.alignment": u32(3)})), "power of two")
    _refused(write(path, gguf_bytes({"general.alignment": u32(0)})), "power of two")
    twice = gguf_bytes({"aa": u32(1), "ab": u32(2)}).replace(b"ab", b"aa")
    _refused(write(path, twice), "appears twice")


def _key_of_type(type_id: int) -> bytes:
    return gguf_bytes({"k": u32(0)}).replace(b"k\x04", b"k" + bytes([type_id]))


@pytest.mark.parametrize(
    ("offset", "what"),
    [(8, "tensors"), (16, "metadata keys"), (24, "bytes of a metadata key")],
)
def test_hostile_counts_are_refused_before_anything_is_allocated(
    tmp_path: Path, offset: int, what: str
) -> None:
    content = bytearray(gguf_bytes(MODEL))
    for count in (1 << 63, (1 << 64) - 1, 1 << 40, 60_000):
        content[offset : offset + 8] = struct.pack("<Q", count)
        path = write(tmp_path / "m.gguf", bytes(content))
        tracemalloc.start()
        _refused(path, what)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20


def test_split_files_are_read_as_one(tmp_path: Path) -> None:
    split = {"split.count": (2, 2), "split.tensors.count": (5, 2)}
    first = gguf_bytes({**MODEL, **split, "split.no": (2, 0)}, [TENSORS[0]], data_bytes=1152)
    second = gguf_bytes({**split, "split.no": (2, 1)}, [("z", (8,), 0, 0)], data_bytes=32)
    one = write(tmp_path / "m-00001-of-00002.gguf", first)
    _refused(one, "m-00002-of-00002.gguf is missing")
    two = write(tmp_path / "m-00002-of-00002.gguf", second)
    header = read_header(one)
    assert [tensor.name for tensor in header.tensors] == ["token_embd.weight", "z"]
    assert header.file_bytes == len(first) + len(second)
    assert header.files == (str(one), str(two))
    _refused(two, "name the first part", str(one))
    write(two, gguf_bytes({**split, "split.no": (2, 1)}, []))
    _refused(one, "split.tensors.count says 2")
    _refused(write(tmp_path / "renamed.gguf", first), "model-00001-of-00002.gguf")


def test_type_sizes_are_those_of_the_gguf_package() -> None:
    """Q8_1 is only ever an intermediate; the package counts a layout that ggml left."""
    theirs = gguf_package_types()
    assert theirs
    for type_id, kind in QUANT_TYPE_BY_ID.items():
        if type_id in theirs and kind.name != "Q8_1":
            assert theirs[type_id] == kind


def test_real_headers_are_read_whole() -> None:
    for path in sorted((GROUND_TRUTH / "headers").glob("*.gguf")):
        header = read_header(path)
        assert header.tensors
        assert header.header_bytes <= path.stat().st_size
