"""Which models leave: the cheapest set that frees enough.

Not greedy one by one: branch and bound over the candidates, exact up to ``EXACT_MAX`` of them.
Ties go to fewer victims, then to the least freed beyond the need, then to the longest unused,
then to the name.
"""

from collections.abc import Sequence

from msgspec import Struct

from gridcore.ids import ModelId

EXACT_MAX = 20
"""2**20 leaves would be too many without bounds; with them a plan stays well under a
millisecond. Beyond this the candidates that cost most per byte are left out first."""


class Candidate(Struct, frozen=True):
    """A model that may leave, and what losing it costs."""

    model_id: ModelId
    freed_bytes: int
    cost: float
    last_used_ns: int


def choose_victims(candidates: Sequence[Candidate], short_bytes: int) -> tuple[Candidate, ...]:
    """Return the cheapest set that frees ``short_bytes``; empty if all together do not."""
    if short_bytes <= 0:
        return ()
    ranked = sorted(candidates, key=lambda c: (c.cost / max(c.freed_bytes, 1), c.model_id))
    kept = ranked[:EXACT_MAX]
    if sum(c.freed_bytes for c in kept) < short_bytes:
        kept = ranked
        if sum(c.freed_bytes for c in kept) < short_bytes:
            return ()
        kept = _cover(ranked, short_bytes)
    best = _Search(kept, short_bytes).run()
    return tuple(sorted(best, key=lambda c: (c.cost, c.last_used_ns, c.model_id)))


def _cover(ranked: list[Candidate], short_bytes: int) -> list[Candidate]:
    """With too many candidates to search: the cheapest per byte that cover the need."""
    total, kept = 0, []
    for candidate in ranked:
        kept.append(candidate)
        total += candidate.freed_bytes
        if total >= short_bytes:
            break
    return kept


class _Search:
    """Branch and bound: take or leave each candidate, dearest branches cut."""

    def __init__(self, kept: Sequence[Candidate], short_bytes: int) -> None:
        self._kept = kept
        self._short_bytes = short_bytes
        self._rest = [0] * (len(kept) + 1)
        """Bytes that the candidates from an index on can free together."""
        for index in range(len(kept) - 1, -1, -1):
            self._rest[index] = self._rest[index + 1] + kept[index].freed_bytes
        self._key: tuple[float, int, int, tuple[int, ...], tuple[ModelId, ...]] | None = None
        self._best: tuple[Candidate, ...] = ()

    def run(self) -> tuple[Candidate, ...]:
        self._descend(0, (), 0.0, 0)
        return self._best

    def _descend(self, index: int, chosen: tuple[Candidate, ...], cost: float, freed: int) -> None:
        if self._key is not None and cost > self._key[0]:
            return
        if freed >= self._short_bytes:
            self._consider(chosen, cost, freed)
            return
        if index == len(self._kept) or freed + self._rest[index] < self._short_bytes:
            return
        taken = self._kept[index]
        self._descend(index + 1, (*chosen, taken), cost + taken.cost, freed + taken.freed_bytes)
        self._descend(index + 1, chosen, cost, freed)

    def _consider(self, chosen: tuple[Candidate, ...], cost: float, freed: int) -> None:
        key = (
            cost,
            len(chosen),
            freed - self._short_bytes,
            tuple(sorted(c.last_used_ns for c in chosen)),
            tuple(sorted(c.model_id for c in chosen)),
        )
        if self._key is None or key < self._key:
            self._key, self._best = key, chosen


def lru_victims(candidates: Sequence[Candidate], short_bytes: int) -> tuple[Candidate, ...]:
    """The alternative policy: the longest unused first, until enough is freed."""
    chosen: list[Candidate] = []
    freed = 0
    for candidate in sorted(candidates, key=lambda c: (c.last_used_ns, c.model_id)):
        if freed >= short_bytes:
            break
        chosen.append(candidate)
        freed += candidate.freed_bytes
    return tuple(chosen) if freed >= short_bytes else ()
