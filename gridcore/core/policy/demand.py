"""How often a model was asked for lately: a weighted count that halves every five minutes."""

import math

from gridcore.units import NS_PER_S

HALF_LIFE_NS = 300 * NS_PER_S
WEIGHT_ONE = 100
"""A class of this priority counts a request as one."""


class Demand:
    def __init__(self) -> None:
        self._value = 0.0
        self._at_ns = 0

    def add(self, priority: int, now_ns: int) -> None:
        self._value = self.value(now_ns) + priority / WEIGHT_ONE
        self._at_ns = now_ns

    def value(self, now_ns: int) -> float:
        if not self._value:
            return 0.0
        return self._value * math.exp2((self._at_ns - now_ns) / HALF_LIFE_NS)
