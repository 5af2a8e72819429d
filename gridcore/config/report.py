"""Problems of one config file, each with its line; all of them, not only the first."""

from collections.abc import Iterable
from typing import NoReturn

from msgspec import Struct

from gridcore.config.keys import KeyPath, dotted
from gridcore.errors import ConfigError

PROBLEMS_MAX = 100
"""More than this is not a config file with mistakes but another kind of file."""


class Problem(Struct, frozen=True):
    """Something wrong at one key; the line is added where the file is known."""

    path: KeyPath
    text: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.text}" if self.path else self.text


class Report:
    """Collects the problems of a file and remembers the line of every key in it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._lines: dict[KeyPath, int] = {}
        self._found: list[tuple[int, Problem]] = []
        self._unsound: set[KeyPath] = set()

    def mark(self, path: KeyPath, line: int) -> None:
        self._lines[path] = line

    def add(self, path: KeyPath, text: str, line: int | None = None) -> None:
        problem = Problem(path, text)
        self._found.append((self.line_of(path) if line is None else line, problem))
        for depth in range(len(path) + 1):
            self._unsound.add(path[:depth])

    def is_sound(self, path: KeyPath) -> bool:
        """Nothing at or below the path is wrong so far: its values may be judged together."""
        return path not in self._unsound

    def line_of(self, path: KeyPath) -> int:
        """The line of a key, or of the nearest one above it that the file has."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def render(self) -> list[str]:
        """One line a problem, in the order of the file."""
        ordered = sorted(self._found, key=lambda item: item[0])
        lines = [f"{self.file}:{line}: {problem}" for line, problem in ordered[:PROBLEMS_MAX]]
        if len(ordered) > PROBLEMS_MAX:
            lines.append(f"{self.file}: {len(ordered) - PROBLEMS_MAX} more problems are not shown")
        return lines

    def raise_problems(self, problems: Iterable[Problem] = ()) -> None:
        """Raise what was found, with more problems added to it; return when all is well."""
        for problem in problems:
            self.add(problem.path, problem.text)
        if self._found:
            raise ConfigError(self.render())

    def fail(self, text: str, line: int | None = None) -> NoReturn:
        """The file as a whole cannot be read."""
        where = f"{self.file}:{line}" if line is not None else self.file
        raise ConfigError([f"{where}: {text}"])
