"""The documentation of the config follows from the schema, and says so when it does not."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "config-docs.py"


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docs_and_example_are_current() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("  keep: 2\n", "", "logs.keep is missing"),
        ("  keep: 2\n", "  keep: 3\n", "logs.keep lacks its sentence or default"),
        ("# Rotated log files kept per model.", "# Files.", "logs.keep lacks its sentence"),
        (" Default: 4096.", "", "models.<id>.ctx lacks its sentence or default"),
        ("  #     dimensions: 16\n", "", "models.<id>.simulated.dimensions is missing"),
        ("hot_ttl: 5m", "hot_ttl: 6m", "policy.classes.interactive.hot_ttl lacks"),
    ],
)
def test_a_gap_in_the_example_is_found(
    docs: ModuleType, tmp_path: Path, old: str, new: str, missing: str
) -> None:
    text = (ROOT / "config.example.yaml").read_text()
    assert old in text
    path = tmp_path / "config.example.yaml"
    path.write_text(text.replace(old, new))
    problems = docs.example_problems(path)
    assert any(missing in problem for problem in problems), problems
    assert len(problems) == 1


def test_every_key_stands_in_the_page(docs: ModuleType) -> None:
    page = docs.document()
    for key in ("hold_timeout", "vram_mb", "background_share", "backoff_max", "preferred"):
        assert f"`{key}`" in page
