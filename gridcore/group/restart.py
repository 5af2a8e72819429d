"""When a service that ended is started again, and when that is pointless. Pure.

What counts is starts that never became stable: a service that runs for hours and dies is brought
back at once, one that cannot start is given up soon, whatever its history.
"""

from msgspec import Struct

from gridcore.units import NS_PER_MS, NS_PER_S


class RestartLimits(Struct, frozen=True, kw_only=True):
    """
    Args:
        delays_ns: before the next start, by the number of unstable starts so far; a start that
            fails after the last of them was the last one.
        stable_ns: a start is stable once it has run this long: the slowest service is up in two
            seconds, and one that fails by itself mostly does so before.
    """

    delays_ns: tuple[int, ...] = (
        100 * NS_PER_MS,
        500 * NS_PER_MS,
        1 * NS_PER_S,
        2 * NS_PER_S,
        5 * NS_PER_S,
    )
    stable_ns: int = 5 * NS_PER_S


class RestartBudget:
    """The restarts of one service."""

    def __init__(self, limits: RestartLimits) -> None:
        self._limits = limits
        self.unstable_starts = 0
        """In a row, up to now."""

    def delay_ns(self, ran_ns: int) -> int | None:
        """How long to wait after a start that ran this long; None is to give up."""
        if ran_ns >= self._limits.stable_ns:
            self.unstable_starts = 0
        else:
            self.unstable_starts += 1
        delays_ns = self._limits.delays_ns
        return delays_ns[self.unstable_starts] if self.unstable_starts < len(delays_ns) else None
