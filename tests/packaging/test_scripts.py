"""The shell scripts parse, are executable, and say what is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / ".ci/run", *sorted((ROOT / "scripts").glob("*.sh"))]
BASH = shutil.which("bash")


def run_quickstart(
    checkout: Path, path_dir: Path, home: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    assert BASH is not None
    return subprocess.run(
        [BASH, str(checkout / "scripts/quickstart.sh")],
        cwd="/",
        env={"PATH": str(path_dir), "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy with no environment of its own, so that nothing real is touched."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", copy / "scripts")
    shutil.copytree(ROOT / "gridcore", copy / "gridcore")
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


@pytest.fixture
def path_dir(tmp_path: Path) -> Path:
    """A PATH with the tools of any machine, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "dirname", "sed", "grep", "cut", "tail", "cat"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_parses(script: Path) -> None:
    assert BASH is not None
    subprocess.run([BASH, "-n", str(script)], check=True)


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.name != "bootstrap.sh"])
def test_is_executable(script: Path) -> None:
    assert os.access(script, os.X_OK)


def test_ci_calls_the_test_script_and_nothing_else() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    code = [line for line in lines if line and not line.startswith("#")]
    assert len(code) == 1
    assert "scripts/test.sh" in code[0]


def test_no_python_is_said_plainly(checkout: Path, path_dir: Path, tmp_path: Path) -> None:
    done = run_quickstart(checkout, path_dir, tmp_path)
    assert done.returncode == 1
    assert "GridCore needs Python 3.11 or newer; there is no python3 on PATH" in done.stderr
    assert "apt install python3" in done.stderr


def test_an_old_python_is_named(checkout: Path, path_dir: Path, tmp_path: Path) -> None:
    executable(
        path_dir / "python3",
        '#!/bin/sh\n[ "$1" = -V ] && { echo Python 3.9.2; exit 0; }\n[ -z "$2" ]\n',
    )
    done = run_quickstart(checkout, path_dir, tmp_path)
    assert done.returncode == 1
    assert f"{path_dir}/python3 is Python 3.9.2" in done.stderr


def test_a_missing_venv_module_names_its_package(
    checkout: Path, path_dir: Path, tmp_path: Path
) -> None:
    real = sys.executable
    executable(
        path_dir / "python3",
        f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec {real} "$@"\n',
    )
    done = run_quickstart(checkout, path_dir, tmp_path)
    assert done.returncode == 1
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"apt install python{version}-venv" in done.stderr


def test_an_unreachable_index_is_named_with_the_next_step(
    checkout: Path, path_dir: Path, tmp_path: Path
) -> None:
    (path_dir / "python3").symlink_to(sys.executable)
    done = run_quickstart(
        checkout,
        path_dir,
        tmp_path,
        PYTHON=sys.executable,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_NO_CACHE_DIR="1",
        PIP_CONFIG_FILE="/dev/null",
        PIP_RETRIES="0",
    )
    assert done.returncode == 1
    assert "pip could not install GridCore" in done.stderr
    assert "PIP_INDEX_URL" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_nothing(checkout: Path, path_dir: Path, tmp_path: Path) -> None:
    assert BASH is not None
    done = subprocess.run(
        [BASH, str(checkout / "scripts/quickstart.sh"), "--help"],
        env={"PATH": str(path_dir), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert "--state-dir" in done.stdout
