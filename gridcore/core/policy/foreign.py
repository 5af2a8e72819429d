"""Memory on a card that is not ours, believed only when it lasts.

A process of ours that exits between two readings looks foreign for one of them, so the meter is
frozen while any of them loads or exits, goes up after three samples and down after ten seconds.
"""

from gridcore.units import MB, NS_PER_S

SAMPLES_TO_RISE = 3
STEP_BYTES = 128 * MB
"""Smaller rises are noise: pools of compositors and browsers breathe by tens of MB. Falling
needs no step: what every reading of ten seconds is below of is not there."""
TIME_TO_FALL_NS = 10 * NS_PER_S


class ForeignMeter:
    def __init__(self) -> None:
        self.value_bytes: int | None = None
        """What shrinks the budget; None until it is known."""
        self._above: list[int] = []
        self._below_since_ns: int | None = None
        self._below_max_bytes = 0

    def observe(self, foreign_bytes: int, now_ns: int, *, frozen: bool) -> bool:
        """Take one reading; return whether the believed value changed."""
        if frozen:
            self._above.clear()
            self._below_since_ns = None
            return False
        believed = self.value_bytes or 0
        if foreign_bytes >= believed + STEP_BYTES or self.value_bytes is None:
            self._below_since_ns = None
            self._above.append(foreign_bytes)
            if len(self._above) < SAMPLES_TO_RISE:
                return False
            self.value_bytes = min(self._above)
            self._above.clear()
            return True
        self._above.clear()
        if foreign_bytes >= believed:
            self._below_since_ns = None
            return False
        if self._below_since_ns is None:
            self._below_since_ns = now_ns
            self._below_max_bytes = foreign_bytes
        self._below_max_bytes = max(self._below_max_bytes, foreign_bytes)
        if now_ns - self._below_since_ns < TIME_TO_FALL_NS:
            return False
        self.value_bytes = self._below_max_bytes
        self._below_since_ns = None
        return True
