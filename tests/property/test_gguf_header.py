"""Whatever the bytes, the reader of GGUF headers answers or raises GgufError, soon and small."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridcore.gguf.estimate import estimate
from gridcore.gguf.flags import FlagError
from gridcore.gguf.header import GgufError, read_header
from tests.support.gguf_files import STRING, array, gguf_bytes, text, u32
from tests.support.ground_truth import GROUND_TRUTH

PEAK_BYTES_MAX = 16 << 20

SMALL = gguf_bytes(
    {
        "general.architecture": text("llama"),
        "llama.block_count": u32(2),
        "llama.embedding_length": u32(64),
        "llama.attention.head_count": array(4, [4, 4]),
        "tokenizer.ggml.tokens": array(STRING, [f"t{n}" for n in range(600)]),
        "split.count": (2, 1),
    },
    [("token_embd.weight", (64, 600), 0, 0), ("blk.0.attn_q.weight", (64, 64), 0, 153_600)],
)
HYBRID = (GROUND_TRUTH / "headers" / "nemotron-3-nano-30b-a3b-q4_k_m.gguf").read_bytes()

SLOW_OK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def check(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        header = read_header(path)
        estimate(header, ["-c", "4096"])
    except (GgufError, FlagError):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < PEAK_BYTES_MAX


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


@SLOW_OK
@given(length=st.integers(0, len(SMALL)))
def test_truncation(path: Path, length: int) -> None:
    check(path, SMALL[:length])


@SLOW_OK
@given(
    flips=st.lists(
        st.tuples(st.integers(0, len(SMALL) - 1), st.integers(1, 255)), min_size=1, max_size=8
    )
)
def test_flipped_bits(path: Path, flips: list[tuple[int, int]]) -> None:
    content = bytearray(SMALL)
    for at, mask in flips:
        content[at] ^= mask
    check(path, bytes(content))


@SLOW_OK
@given(at=st.integers(0, 2000), patch=st.binary(min_size=1, max_size=16), keep=st.floats(0.5, 1.0))
def test_patched_real_header(path: Path, at: int, patch: bytes, keep: float) -> None:
    content = bytearray(HYBRID)
    content[at : at + len(patch)] = patch
    check(path, bytes(content[: int(len(content) * keep)]))


@SLOW_OK
@given(content=st.binary(max_size=400))
def test_noise_after_the_magic(path: Path, content: bytes) -> None:
    check(path, b"GGUF\x03\x00\x00\x00" + content)
