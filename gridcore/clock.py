"""The only reader of clocks. Decisions take the time as an argument instead."""

import time


def monotonic_ns() -> int:
    """Nanoseconds that never go back; comparable between processes of one boot."""
    return time.monotonic_ns()


def wall_time_s() -> float:
    """Seconds since 1970, for display and file stamps only."""
    return time.time()
