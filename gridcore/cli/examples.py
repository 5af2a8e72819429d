"""Finds the files that ship with the package: in a wheel below it, in a checkout beside it."""

from pathlib import Path

from gridcore.errors import GridcoreError

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "examples", _PACKAGE.parent / "examples", _PACKAGE.parent)


def example(name: str) -> Path:
    """The path of an example config, such as ``simulation.yaml``."""
    for folder in _FOLDERS:
        path = folder / name
        if path.is_file():
            return path
    raise GridcoreError(f"{name} is not in {_FOLDERS[0]}: the installation is incomplete")
