"""What a wheel contains: the library, the services, the examples, the page; nothing else."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from gridcore import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with the hatchling of this environment, so that no network is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_module_is_in_it(names: set[str]) -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for top in ("gridcore", "services")
        for path in (ROOT / top).rglob("*.py")
    }
    assert modules <= names


@pytest.mark.parametrize(
    "name",
    [
        "gridcore/examples/simulation.yaml",
        "gridcore/examples/config.example.yaml",
        "gridcore/http/ui/index.html",
    ],
)
def test_examples_and_page_are_in_it(names: set[str], name: str) -> None:
    assert name in names


def test_nothing_else_is_in_it(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert tops - {"gridcore", "services"} == {top for top in tops if top.endswith(".dist-info")}
    strange = {
        name
        for name in names
        if "test" in Path(name).parts[0] or name.endswith((".pyc", ".log", ".gguf", ".sh"))
    }
    assert strange == set()


def test_the_command_is_declared(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        assert "gridcore = gridcore.cli.app:main" in archive.read(entry).decode()


def test_the_licence_travels_with_it(names: set[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_version_is_the_module_s(wheel: Path) -> None:
    assert wheel.name.startswith(f"gridcore-{__version__}-")


def test_what_the_project_needs_to_run_is_no_development_tool() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {requirement.split(">")[0].split(";")[0] for requirement in project["dependencies"]}
    tools = {r.split(">")[0] for r in project["optional-dependencies"]["dev"]}
    assert needed.isdisjoint(tools)
