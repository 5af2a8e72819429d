"""No silent skips: on CI a test that needs the real models runs or fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

SKIPPING = """
import pytest

@pytest.mark.llama
def test_real_model():
    pytest.skip("no model here")

def test_other():
    pytest.skip("only on macOS")
"""
ABSENT_FILE = "import pytest\npytest.importorskip('no_such_module_anywhere')\n"


def outcome(folder: Path, ci: str) -> tuple[int, str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = llama: needs the real models\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_skipped_llama_test_fails_on_ci_and_other_skips_do_not(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SKIPPING)
    status, output = outcome(tmp_path, ci="true")
    assert status == 1
    assert "1 failed, 1 skipped" in output
    assert "no model here" in output


@pytest.mark.parametrize("source", [SKIPPING, ABSENT_FILE], ids=["test", "file"])
def test_a_skip_is_a_skip_elsewhere(tmp_path: Path, source: str) -> None:
    (tmp_path / "test_it.py").write_text(source)
    status, output = outcome(tmp_path, ci="")
    assert status in (0, 5)
    assert "failed" not in output


def test_a_file_that_skips_itself_fails_on_ci(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ABSENT_FILE)
    status, output = outcome(tmp_path, ci="true")
    assert status != 0
    assert "a whole file skipped on CI" in output
