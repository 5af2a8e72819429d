"""Seeded chance: the only place of the library that rolls dice.

Every actor has a stream of its own, named by the seed and its role, so that one more roll of
one actor does not change what the others do.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Chance:
    def __init__(self, *name: object) -> None:
        self._random = Random("/".join(map(str, name)))  # noqa: S311 - reproducible on purpose

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def between(self, low: int, high: int) -> int:
        """Return an integer, both ends included."""
        return self._random.randint(low, high)

    def fraction(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def around(self, mean_ns: int) -> int:
        """Return a memoryless duration of this mean, cut at ten times it."""
        return min(round(self._random.expovariate(1) * mean_ns), 10 * mean_ns)

    def pick(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        return self._random.sample(choices, min(count, len(choices)))
