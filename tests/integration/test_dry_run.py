"""The user's llama-server is asked where the rules do not know: a real process, ended at once."""

import json
import os
from pathlib import Path

import psutil
import pytest

from gridcore.cli.app import main
from gridcore.config.load import parse_config
from gridcore.config.resolve import examine
from gridcore.runtime import dry_run
from gridcore.units import MB
from tests.support.fake_llama_server import write_wrapper
from tests.support.gguf_files import gguf_bytes, text, u32, write

ROWS = [
    {"kind": "host", "name": "Host", "self": 9, "model": 700, "context": 34, "compute": 5},
]


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A model of an architecture that nobody has compared."""
    metadata = {
        "general.architecture": text("newnet"),
        "newnet.block_count": u32(2),
        "newnet.embedding_length": u32(64),
        "newnet.context_length": u32(4096),
        "newnet.attention.head_count": u32(4),
        "newnet.vocab_size": u32(1000),
    }
    return write(tmp_path / "new.gguf", gguf_bytes(metadata))


def still_running(binary: Path) -> list[int]:
    me = os.getpid()
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if process.pid != me and "--log-jsonl" in (process.info["cmdline"] or ())
        and str(binary.parent) in " ".join(process.info["cmdline"])
    ]  # fmt: skip


def test_the_first_breakdown_is_taken_and_nothing_is_left(tmp_path: Path) -> None:
    binary = write_wrapper(tmp_path, FAKE_DRY_RUN=json.dumps(ROWS))
    (row,) = dry_run.ask(str(binary), str(tmp_path / "m.gguf"), ["-c", "4096"], {})
    assert (row.name, row.model, row.context, row.compute) == ("Host", 700, 34, 5)
    assert still_running(binary) == []


def test_a_variable_of_the_model_reaches_it(tmp_path: Path) -> None:
    binary = write_wrapper(tmp_path)
    rows = dry_run.ask(str(binary), "m.gguf", [], {"FAKE_DRY_RUN": json.dumps(ROWS)})
    assert len(rows) == 1


def test_what_cannot_be_asked_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dry_run.DryRunError, match="/no/such is not a program"):
        dry_run.ask("/no/such", "m.gguf", [], {})
    silent = write_wrapper(tmp_path)
    with pytest.raises(dry_run.DryRunError, match=r"printed no breakdown.*initializing"):
        dry_run.ask(str(silent), "m.gguf", [], {})
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\necho error: something\nsleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(dry_run, "TIMEOUT_S", 0.5)
    with pytest.raises(dry_run.DryRunError, match="its last line: error: something"):
        dry_run.ask(str(slow), "m.gguf", [], {})


def test_an_unknown_architecture_is_asked_about(tmp_path: Path, unknown: Path) -> None:
    binary = write_wrapper(tmp_path, FAKE_DRY_RUN=json.dumps(ROWS))
    config = parse_config(
        f"gpu: {{ device: cpu }}\nruntimes: {{ llamacpp: {{ binary: '{binary}' }} }}\n"
        f"models: {{ m: {{ path: '{unknown}' }} }}"
    )
    by_rules = examine(config).models["m"].footprint
    assert by_rules.estimate is not None
    assert not by_rules.estimate.is_known
    asked = examine(config, dry_run.ask).models["m"].footprint
    assert asked.source == "llama-server's own dry run"
    assert asked.estimate is not None
    overhead = asked.estimate.host.overhead_bytes
    assert asked.total_bytes == 739 * MB + overhead


def test_without_an_answer_the_rules_stay(tmp_path: Path, unknown: Path) -> None:
    binary = write_wrapper(tmp_path)
    config = parse_config(
        f"gpu: {{ device: cpu }}\nruntimes: {{ llamacpp: {{ binary: '{binary}' }} }}\n"
        f"models: {{ m: {{ path: '{unknown}' }} }}"
    )
    found = examine(config, dry_run.ask).models["m"].footprint
    assert found.source == "estimated from the file"
    assert "could not be asked instead" in found.notes[-1]


def test_fit_asks_for_an_unknown_architecture_or_when_told_to(
    tmp_path: Path, unknown: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = write_wrapper(tmp_path, FAKE_DRY_RUN=json.dumps(ROWS))
    for more in ([], ["--dry-run"]):
        args = ["fit", str(unknown), "--json", "--llama-server", str(binary), *more]
        assert main(args) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["source"], report["verified"]) == ("dry-run", True)
        assert report["host"]["weights_bytes"] == 700 * MB


def test_fit_says_when_nobody_could_be_asked(
    unknown: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["fit", str(unknown), "--json", "--llama-server", "/no/such"]
    assert main(args) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["source"], report["verified"]) == ("rules", False)
    assert any("/no/such is not a program" in note for note in report["notes"])
    assert main([*args, "--dry-run"]) == 1
    assert "/no/such is not a program" in capsys.readouterr().err
