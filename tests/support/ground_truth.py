"""Cases of llama.cpp's own accounting, each with GridCore's estimate beside it."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gridcore.gguf.estimate import Backend, Estimate, estimate
from gridcore.gguf.header import Header, read_header

GROUND_TRUTH = Path(__file__).parents[1] / "data" / "ground_truth"

DRY_RUN = "dry-run"
CUDA_EMULATED = "dry-run-cuda-emulated"
REAL_LOAD = "real-load"


@dataclass(frozen=True)
class Case:
    """Bytes as llama.cpp reports them: weights, context, compute."""

    model: str
    args: str
    source: str
    n_devices: int
    device: tuple[int, int, int]
    host: tuple[int, int, int]
    output_bytes: int
    estimate: Estimate

    @property
    def device_bytes(self) -> int:
        return sum(self.device)

    @property
    def estimated_device_bytes(self) -> int:
        """Without the backend's overhead, which llama.cpp does not account for."""
        device = self.estimate.device
        return device.weights_bytes + device.context_bytes + device.compute_bytes

    @property
    def error_percent(self) -> float | None:
        """Of the device total; None where nothing lies on a device."""
        if not self.device_bytes:
            return None
        return 100 * (self.estimated_device_bytes - self.device_bytes) / self.device_bytes

    def __str__(self) -> str:
        return f"{self.model} {self.args} ({self.source})"


@cache
def header(model: str) -> Header:
    return read_header(GROUND_TRUTH / "headers" / f"{model}.gguf")


def rows() -> Iterator[dict[str, Any]]:
    with gzip.open(GROUND_TRUTH / "rows.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


@cache
def cases() -> tuple[Case, ...]:
    """All cases, estimated once for a whole test run."""
    return tuple(_case(row) for row in rows())


def _case(row: dict[str, Any]) -> Case:
    args = row["args"].split()
    draft = None
    if "-md" in args:
        draft = header(args[args.index("-md") + 1].removesuffix(".gguf"))
    devices = [f"RPC{n}" for n in range(row["n_devices"])]
    found = estimate(
        header(row["model"]),
        [*args, "-dev", ",".join(devices) or "none"],
        draft=draft,
        backend=Backend.CUDA if row["source"] == CUDA_EMULATED else Backend.PLAIN,
    )
    return Case(
        model=row["model"],
        args=row["args"],
        source=row["source"],
        n_devices=row["n_devices"],
        device=tuple(row["device"]),
        host=tuple(row["host"]),
        output_bytes=row["output"],
        estimate=found,
    )
