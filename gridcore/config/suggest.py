"""The likely name for a misspelt one: what a person meant by ``headrom_mb``."""

import difflib
from collections.abc import Iterable

SUGGESTIONS_MAX = 3
NAME_LENGTH_MAX = 64
"""Longer than any key; keeps the comparison of a huge name cheap."""


def closest(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates nearest to a name, best first; none when nothing is near.

    One edit (a letter too much, too few, wrong, or two swapped) is always near; beyond that a
    third of the letters may differ, or the names must look alike to difflib.
    """
    name = name[:NAME_LENGTH_MAX].lower()
    known = list(candidates)
    distances = {candidate: edits(name, candidate.lower()) for candidate in known}
    if not distances:
        return []
    best = min(distances.values())
    if best <= max(1, len(name) // 3):
        return [candidate for candidate in known if distances[candidate] == best][:SUGGESTIONS_MAX]
    return difflib.get_close_matches(name, known, n=1, cutoff=0.7)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """``; did you mean ctx or ttl?``, or nothing."""
    names = closest(name, candidates)
    return f"; did you mean {' or '.join(names)}?" if names else ""


def edits(left: str, right: str) -> int:
    """Letters to insert, delete, replace or swap to get from one name to the other."""
    before: list[int] = []
    above = list(range(len(right) + 1))
    for i, letter in enumerate(left, 1):
        row = [i]
        for j, other in enumerate(right, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == right[j - 2] and left[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, above = above, row
    return above[-1]
