"""breakdown.py: a line of llama-server's log in place of the rules."""

import json

import pytest

from gridcore.gguf.breakdown import Row, read_breakdown, with_breakdown
from gridcore.gguf.estimate import Backend, estimate
from gridcore.units import MB
from tests.support.ground_truth import header

HOST = {"kind": "host", "name": "Host", "self": 262, "model": 222, "context": 34, "compute": 5}
REPACK = {"kind": "buffer_type", "name": "CPU_REPACK", "model": 12, "context": 0, "compute": 0}


def card(n: int, model: int) -> dict[str, object]:
    return {"kind": "device", "name": f"CUDA{n}", "total": 9, "model": model, "context": 7,
            "compute": 3}  # fmt: skip


def line(*rows: dict[str, object]) -> bytes:
    data = {"unit": "MiB", "rows": rows}
    return json.dumps({"type": "fit_memory_breakdown", "data": data}).encode()


def test_a_line_is_read() -> None:
    rows = read_breakdown(line(card(0, 100), HOST))
    assert rows == (
        Row(kind="device", name="CUDA0", model=100, context=7, compute=3),
        Row(kind="host", name="Host", model=222, context=34, compute=5),
    )


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b'{"type":"log","msg":"a \\"fit_memory_breakdown\\" soon"}',
        b'{"type":"fit_memory_breakdown","data":{"unit":"GiB","rows":[]}}',
        b'0.1 "fit_memory_breakdown" is not JSON',
    ],
)
def test_other_lines_are_not(other: bytes) -> None:
    assert read_breakdown(other) is None


def test_it_replaces_the_rules_and_keeps_what_it_does_not_contain() -> None:
    rules = estimate(header("llama-3.1-8b-q4_k_m"), ["-c", "4096"], backend=Backend.CUDA)
    rows = read_breakdown(line(card(0, 100), card(1, 200), HOST, REPACK))
    assert rows is not None
    asked = with_breakdown(rules, rows)
    assert (asked.source, asked.verified) == ("dry-run", True)
    assert asked.device.weights_bytes == 300 * MB
    assert [each.weights_bytes for each in asked.per_device] == [100 * MB, 200 * MB]
    assert asked.host.weights_bytes == 234 * MB
    assert asked.host.overhead_bytes == rules.host.overhead_bytes
    assert sum(part.bytes for part in asked.parts if part.where == "host") == asked.host.total_bytes
