"""``gridcore fit``: the answer for a person and the one for a program."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gridcore.cli.fit import fit
from gridcore.errors import GridcoreError
from gridcore.gguf.header import GgufError
from gridcore.units import MB
from tests.support.ground_truth import GROUND_TRUTH

HEADERS = GROUND_TRUTH / "headers"


def _run(*args: str | Path) -> str:
    app = typer.Typer()
    app.command()(fit)
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def _json(*args: str | Path) -> dict[str, Any]:
    report = json.loads(_run("--json", *args))
    assert isinstance(report, dict)
    return report


def test_json_has_the_promised_keys() -> None:
    report = _json(HEADERS / "llama-3.1-8b-q4_k_m.gguf", "--", "-c", "4096", "-np", "1")
    parts = ["weights_bytes", "context_bytes", "compute_bytes", "overhead_bytes", "total_bytes"]
    assert list(report["device"]) == parts
    assert list(report["host"]) == parts
    assert report["device"]["total_bytes"] == pytest.approx(5035.5 * MB, rel=0.001)
    assert report["device"]["overhead_bytes"] == 0
    assert (report["verified"], report["source"]) == (True, "rules")
    assert any("lacks" in note for note in report["notes"])
    assert "fits" not in report


def test_a_card_gets_a_verdict_and_flags_that_help() -> None:
    model = HEADERS / "qwen3-30b-a3b-q4_k_m.gguf"
    report = _json(model, "--card", "12000", "--backend", "cuda", "--", "-c", "32768", "-np", "2")
    assert report["fits"] is False
    assert report["largest_context"] is None
    suggested = {suggestion["flags"][0] for suggestion in report["suggestions"]}
    assert suggested == {"--n-cpu-moe", "-ngl"}
    for suggestion in report["suggestions"]:
        assert suggestion["device_total_bytes"] <= 12000 * MB
        again = _json(
            model, "--card", "12000", "--backend", "cuda", "--", "-c", "32768", "-np", "2",
            *suggestion["flags"],
        )  # fmt: skip
        assert again["fits"] is True
    assert _json(model, "--card", "24000", "--", "-c", "8192")["fits"] is True


def test_the_suggested_context_is_the_largest() -> None:
    report = _json(HEADERS / "gemma-3-12b-q4_0.gguf", "--card", "8192", "--", "-np", "1")
    assert report["suggestions"][0]["flags"] == ["-c", str(report["largest_context"])]


def test_people_get_tables_without_colours_in_a_pipe() -> None:
    shown = _run(HEADERS / "gemma-3-12b-q4_0.gguf", "--card", "8192", "--", "-np", "1")
    assert "\x1b" not in shown
    for words in ("KV cache, sliding window", "second copy", "does not fit", "-ctk q8_0"):
        assert words in shown


def test_one_memory_for_both_counts_both() -> None:
    model = HEADERS / "smollm2-135m-real.gguf"
    report = _json(model, "--backend", "cpu", "--card", "1000", "--", "-c", "4096")
    assert report["device"]["total_bytes"] == 0
    assert report["needed_bytes"] == report["unified_total_bytes"]


def test_problems_name_file_and_flag(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="No such file"):
        _run(tmp_path / "none.gguf")
    model = HEADERS / "smollm2-135m-real.gguf"
    with pytest.raises(GridcoreError, match="-c: 'many' is not a number"):
        _run(model, "--", "-c", "many")
    with pytest.raises(GridcoreError, match=r"--mmproj: .*none"):
        _run(model, "--", "--mmproj", str(tmp_path / "none.gguf"))
