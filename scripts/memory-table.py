#!/usr/bin/env python3
"""Write docs/memory.md: how GridCore knows what fits, beside llama.cpp's own figures.

``--check`` fails if the file is not what would be written.
"""

import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gridcore.units import MB  # noqa: E402 - found through the line above
from tests.support.ground_truth import CUDA_EMULATED, DRY_RUN, Case, cases  # noqa: E402

TARGET = ROOT / "docs" / "memory.md"

INTRODUCTION = """\
# What fits

Before GridCore loads a model it knows what the model will take, from the first bytes of its file
and llama-server's arguments: no load, no GPU and no llama-server are needed. After the first load
the measured footprint replaces the estimate.

Ask it yourself, for any GGUF file and without a config:

    gridcore fit model.gguf --backend cuda --card 12288 -- -c 32768 -np 2

The answer says where each part lies and by which rule, whether the card holds it, the largest
context that fits, and flags with which it would fit. `--json` prints the same for a program.

## What takes memory

- **Weights**: every tensor with its exact size, on the device that `-ngl`, `-ts`, `--cpu-moe`,
  `--n-cpu-moe`, `--n-cpu-ffn` and `-ot` give it. The output layer goes first (`-ngl 1`). A model
  without an output matrix has its token embeddings twice, once for each side.
- **Context**: the key-value cache, layer by layer. Sliding-window layers keep only their window
  (times the slots, where these share one cache), MLA models one compressed row a token, layers
  that share a cache none. Recurrent layers keep a state for every slot, whatever the context.
- **Compute buffers**: what the widest layer needs for one batch of `-ub` tokens, and the
  attention masks. Without flash attention all scores of a layer are there at once.
- **Output buffer**: logits of every slot, in host memory; llama.cpp lists it nowhere. With
  embeddings it is a row for every token of a batch, taken with the first full one: a model with
  a large vocabulary and `-ub 2048` needs hundreds of MB there. A smaller `batch` in the config
  lowers it (and the longest input).
- **Projector** (`--mmproj`): its weights and the buffer for the largest image.
- **Draft model or MTP**: a second context with buffers of its own.
- **Overhead**: what the backend needs beside llama.cpp's buffers. It depends on card and driver;
  the estimate uses a typical figure until a load has been measured. The process itself takes 14 MB
  of host memory (32 MB in the embedded runtime, with Python) and about 150 bytes for each entry
  of the vocabulary.

On a CPU, and where card and processor share one memory, device and host add up.

`gridcore models --explain` shows the same for the models of a config, and what another `ctx`,
`parallel` or cache type would change.

## When the rules do not know a model

An architecture that has not been compared with llama.cpp is estimated all the same, as an upper
bound. If there is a `llama-server`, it is asked instead: its fit pass prints what it would take,
in whole MB, before it loads anything, and is ended then (`--fit on --log-jsonl`). `gridcore fit
--dry-run` asks it about any model. What that pass leaves out (output buffer, projector, draft,
the process) stays as estimated. `"source"` says which it was.

## What was measured

The footprint of a model replaces its estimate after the first load. It is the largest that was
seen: the supervisor looks when a model is ready and every five seconds after, because a model
takes more with its first full batch, and one with a projector with its first image. A model for
which a full batch takes less than a second gets one as its probe.

    gridcore profiles           # what was measured, and whether it still applies
    gridcore profiles prune     # forget what does not
    gridcore bench --all        # load and measure every model now, with its speeds

A measurement holds for one build of the runtime, one card, one file and one set of arguments;
after a change the estimate is used again until the next load. `bench` works through the running
daemon, whose other models it leaves alone, or starts one for as long as it takes.

It is not kept when the runtime made something smaller by itself (a context or a number of layers
other than configured, which `--fit on` among the arguments can cause); the log and `gridcore
profiles` say so. After a load that ran out of memory it is dropped, and the free memory at which
that happened is remembered.

## How far off it is

Each row is one case of llama.cpp b11434 with its own accounting beside the estimate; MB are
2^20 bytes. *error* is that of the device total. *dry-run* rows come from llama.cpp with memory
allocation turned off; *cuda* rows from the same with devices that answer as the CUDA backend
does, which is not a measurement on a GPU; *real-load* rows from the log of a load.
Estimates say `"verified": true` for architectures that were compared with llama.cpp; an unknown
one is estimated all the same, and says so.
"""


def main() -> int:
    text = INTRODUCTION + "\n" + summary() + "\n" + details()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, encoding="utf-8")
        print(f"wrote {TARGET.relative_to(ROOT)}: {len(cases())} cases")
        return 0
    if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        print("docs/memory.md is out of date: run scripts/memory-table.py", file=sys.stderr)
        return 1
    print(f"docs/memory.md is up to date: {len(cases())} cases")
    return 0


def errors(source: str) -> list[float]:
    found = (case.error_percent for case in cases() if case.source == source)
    return [error for error in found if error is not None]


def summary() -> str:
    lines = [
        "| source | cases | median error | worst too high | worst too low |",
        "|---|---:|---:|---:|---:|",
    ]
    for source, name in ((DRY_RUN, "dry-run"), (CUDA_EMULATED, "cuda"), ("real-load",) * 2):
        found = errors(source)
        lines.append(
            f"| {name} | {len(found)} | {statistics.median(map(abs, found)):.4f} % "
            f"| {max(found):+.2f} % | {min(found):+.2f} % |"
        )
    return "\n".join(lines) + "\n"


def details() -> str:
    blocks = []
    for model in dict.fromkeys(case.model for case in cases()):
        blocks.append(f"### {model}\n")
        blocks.append("| arguments | source | estimate MB | llama.cpp MB | error |")
        blocks.append("|---|---|---:|---:|---:|")
        blocks.extend(row(case) for case in cases() if case.model == model)
        blocks.append("")
    return "\n".join(blocks)


def row(case: Case) -> str:
    error = case.error_percent
    shown = "host only" if error is None else f"{error:+.2f} %".replace("-0.00", "+0.00")
    if error is None:
        estimated = case.estimate.host.total_bytes - case.estimate.host.overhead_bytes
        reported = sum(case.host)
    else:
        estimated, reported = case.estimated_device_bytes, case.device_bytes
    source = "cuda" if case.source == CUDA_EMULATED else case.source
    args = "`" + case.args.replace("|", "\\|") + "`"
    if case.n_devices > 1:
        args += f" on {case.n_devices} devices"
    return f"| {args} | {source} | {estimated / MB:.1f} | {reported / MB:.1f} | {shown} |"


if __name__ == "__main__":
    raise SystemExit(main())
