"""The failure gate of a model: closed, open, half-open.

After ``failures`` failures in a row nothing is tried for ``backoff``, which doubles with every
further failure. Then one load is let through: its success closes the gate.
"""

from enum import StrEnum

from gridcore.config.schema import BreakerConfig


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self.n_failures = 0
        self.detail = ""
        self._open_until_ns: int | None = None

    def state(self, now_ns: int) -> BreakerState:
        if self._open_until_ns is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_ns < self._open_until_ns else BreakerState.HALF_OPEN

    @property
    def open_until_ns(self) -> int | None:
        return self._open_until_ns

    def failed(self, detail: str, now_ns: int) -> bool:
        """Count a failure; return whether the gate opened."""
        self.n_failures += 1
        self.detail = detail
        over = self.n_failures - self._config.failures
        if over < 0:
            return False
        backoff_ns = min(self._config.backoff_ns << min(over, 32), self._config.backoff_max_ns)
        self._open_until_ns = now_ns + backoff_ns
        return True

    def close(self) -> None:
        """A success, or an admin's word."""
        self.n_failures = 0
        self.detail = ""
        self._open_until_ns = None
