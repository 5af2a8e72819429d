"""Units as people write them and as code keeps them.

Code keeps integers: bytes and nanoseconds. MB and GB are 2**20 and 2**30 bytes wherever a
person reads or writes them.
"""

import re

KIB = 1 << 10
MB = 1 << 20
GB = 1 << 30

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_NS_BY_UNIT = {
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
    "d": 86400 * NS_PER_S,
}


def parse_duration_ns(text: str) -> int:
    """Return the nanoseconds of a duration such as ``500ms``, ``3s`` or ``1m30s``.

    Raises:
        ValueError: no number with a unit, or something left over; the text says which.
    """
    total_ns, end = 0, 0
    for match in _DURATION.finditer(text):
        if match.start() != end:
            break
        total_ns += round(float(match[1]) * _NS_BY_UNIT[match[2]])
        end = match.end()
    if not text or end != len(text):
        raise ValueError(f"{text!r} is not a duration: write a number and a unit (500ms, 3s, 2m)")
    return total_ns


def format_duration(ns: int) -> str:
    """Render a duration for people: ``12ms``, ``4.2s``, ``3m05s``, ``2h10m``."""
    if ns < NS_PER_S:
        return f"{ns / NS_PER_MS:.0f}ms"
    seconds = ns / NS_PER_S
    if seconds < 60:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def format_mb(n_bytes: int) -> str:
    """Render bytes as whole MB, rounded up: what a person must find room for."""
    return f"{-(-n_bytes // MB)} MB"


def format_gb(n_bytes: int) -> str:
    """Render bytes as GB with one decimal."""
    return f"{n_bytes / GB:.1f} GB"
