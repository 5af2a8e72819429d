"""Reads config.yaml: one file in, one ``Config`` out, or every problem with its line.

Nothing is skipped, guessed or converted silently. What the machine has (files, cards,
binaries) is not looked at here; see ``resolve.py``.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import yaml
from msgspec import inspect as mi

from gridcore.config.keys import Shape
from gridcore.config.reader import INVALID, Reader
from gridcore.config.report import Problem, Report
from gridcore.config.rules import check_rules
from gridcore.config.schema import Config
from gridcore.errors import ConfigError

CONFIG_BYTES_MAX = 1 << 20
"""A thousand models take 300 KB; larger is another kind of file."""


def load_config(path: Path) -> Config:
    """Read and check a config file.

    Raises:
        ConfigError: with every problem, each a line ``config.yaml:12: key.path: what, hint``.
    """
    report = Report(str(path))
    return _parse(_read_text(path, report), directory=path.absolute().parent, report=report)


def parse_config(text: str, *, file: str = "config.yaml", directory: Path = Path()) -> Config:
    """Check the text of a config; relative paths start at ``directory``."""
    return _parse(text, directory=directory.absolute(), report=Report(file))


def raise_located(path: Path | None, problems: Iterable[Problem]) -> None:
    """Raise problems found later (a missing file, a model too big) with the lines of their keys."""
    problems = list(problems)
    if not problems:
        return
    if path is None:
        raise ConfigError([str(problem) for problem in problems])
    report = Report(str(path))
    _parse(_read_text(path, report), directory=path.absolute().parent, report=report)
    report.raise_problems(problems)


def _parse(text: str, *, directory: Path, report: Report) -> Config:
    root = _compose(text, report)
    reader = Reader(directory=directory, report=report)
    raw = reader.read(root, Shape(type=mi.type_info(Config)))
    config = Config() if raw is INVALID else _convert(raw, report)
    check_rules(config, report)
    report.raise_problems()
    return config


def _convert(raw: object, report: Report) -> Config:
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        report.fail(str(error))


def _read_text(path: Path, report: Report) -> str:
    try:
        if path.is_dir():
            report.fail("is a directory; name the file in it")
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
    except FileNotFoundError:
        report.fail(
            "there is no such file; write one (config.example.yaml shows every key), name one "
            "with --config, or try gridcore serve --simulation"
        )
    except OSError as error:
        report.fail(f"cannot be read: {os.strerror(error.errno or 0)}")
    if len(data) > CONFIG_BYTES_MAX:
        report.fail(f"is larger than {CONFIG_BYTES_MAX >> 10} KB: not a config file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        report.fail(f"is not UTF-8 text (byte 0x{data[error.start]:02x})", line)


def _compose(text: str, report: Report) -> yaml.Node:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        report.fail(f"is not YAML: it holds the character {text[error.position]!a}", line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "a mistake"
        hint = "; indent with spaces, not tabs" if "'\\t'" in problem else ""
        report.fail(f"is not YAML: {problem}{hint}", mark.line + 1 if mark else 1)
    except RecursionError:
        report.fail("is nested too deeply: not a config file")
    if root is None:
        report.fail("is empty; config.example.yaml shows every key with its default")
    if not isinstance(root, yaml.MappingNode):
        report.fail("is not a config: it must begin with a key such as models:", 1)
    return root
