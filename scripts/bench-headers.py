#!/usr/bin/env python3
"""How long it takes to read the headers of thirty models with real token lists.

Writes thirty GGUF files with 32k to 262k tokens and their scores and types into a temporary
directory, reads them all, and lets ``gridcore check`` judge a config of them.

    scripts/bench-headers.py            print the figures
    scripts/bench-headers.py --write    also put them into docs/benchmarks.md
"""

import argparse
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from gridcore.gguf.header import read_header

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- bench-headers:begin -->", "<!-- bench-headers:end -->"
TOKEN_COUNTS = (32_000, 49_152, 65_024, 128_256, 151_936, 262_144)
N_FILES = 30
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
N_EMBD, N_FF = 512, 1024


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, type_id: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", type_id) + value


def array(type_id: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", type_id, count) + values


def model_file(path: Path, n_tokens: int) -> None:
    """A small llama with a vocabulary of a large one; its tensor data is a hole in the file."""
    tokens = b"".join(string(f"\u2581tok{number:x}") for number in range(n_tokens))
    counts = {"block_count": 1, "embedding_length": N_EMBD, "feed_forward_length": N_FF}
    counts |= {"context_length": 8192, "attention.head_count": 8}
    metadata = [entry("general.architecture", STRING, string("llama"))]
    metadata += [
        entry(f"llama.{key}", UINT32, struct.pack("<I", value)) for key, value in counts.items()
    ]
    metadata += [
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, n_tokens, tokens)),
        entry("tokenizer.ggml.scores", ARRAY, array(FLOAT32, n_tokens, bytes(4 * n_tokens))),
        entry("tokenizer.ggml.token_type", ARRAY, array(INT32, n_tokens, bytes(4 * n_tokens))),
    ]
    tensor = string("token_embd.weight") + struct.pack("<IQQIQ", 2, N_EMBD, n_tokens, 1, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(metadata)) + b"".join(metadata) + tensor
    head += bytes(-len(head) % 32)
    path.write_bytes(head)
    os.truncate(path, len(head) + 2 * N_EMBD * n_tokens)


def read_all(files: list[Path]) -> list[float]:
    times = []
    for path in files:
        began = time.perf_counter()
        read_header(path)
        times.append(time.perf_counter() - began)
    return times


def check(directory: Path, files: list[Path]) -> float:
    config = directory / "config.yaml"
    models = {path.stem: {"runtime": "embedded", "path": str(path)} for path in files}
    config.write_text(yaml.safe_dump({"gpu": {"device": "cpu"}, "models": models}))
    began = time.perf_counter()
    command = [sys.executable, "-m", "gridcore.cli.app", "check", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    assert "models" not in done.stderr, done.stderr
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        files = [directory / f"model-{number:02d}.gguf" for number in range(N_FILES)]
        for number, path in enumerate(files):
            model_file(path, TOKEN_COUNTS[number % len(TOKEN_COUNTS)])
        read_all(files)  # the page cache is not what is measured
        times = read_all(files)
        text = (
            f"Measured by `scripts/bench-headers.py`: the headers of {N_FILES} files with "
            f"{min(TOKEN_COUNTS):,} to {max(TOKEN_COUNTS):,} tokens are read in "
            f"**{sum(times):.2f} s** together, {1000 * statistics.median(times):.0f} ms at the "
            f"median, {1000 * max(times):.0f} ms at most; `gridcore check` of a config of all of "
            f"them takes {check(directory, files):.1f} s.\n"
        )
    sys.stdout.write(text)
    if arguments.write:
        page = PAGE.read_text()
        if BEGIN not in page:
            page += f"\n## Headers\n\n{BEGIN}\n{END}\n"
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
