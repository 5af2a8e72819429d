"""What a device is to the rest: a card that can be sampled.

A reading may only tighten what the ledger allows. None is unknown, never 0: every consumer must
be able to live with it.
"""

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from gridcore.core.events import Pressure
from gridcore.ids import CardId


class Sample(Struct, frozen=True, kw_only=True):
    """One reading of a card.

    Args:
        used_bytes: all that is not available any more, whoever holds it.
        used_by_pid: for the processes asked about, with their descendants' share.
    """

    total_bytes: int
    used_bytes: int | None = None
    used_by_pid: dict[int, int] | None = None
    utilization_percent: int | None = None
    pressure: Pressure = Pressure.UNKNOWN

    @property
    def free_bytes(self) -> int | None:
        return None if self.used_bytes is None else max(0, self.total_bytes - self.used_bytes)


class Device(Protocol):
    @property
    def card_id(self) -> CardId: ...

    @property
    def name(self) -> str: ...

    @property
    def unified(self) -> bool:
        """Is the card's memory the host's?"""

    def sample(self, pids: Collection[int] = ()) -> Sample:
        """Read the card now; ``pids`` are ours, to be told apart from the rest."""

    def footprint(self, pids: Collection[int]) -> int | None:
        """Return what these processes hold on the card together; None if it cannot tell."""


def is_news(previous: Sample | None, sample: Sample) -> bool:
    """Is the sample worth a message before the next regular one?

    One percent of the card, or any change of the pressure. Utilisation alone is not: nothing is
    decided by it.
    """
    if previous is None or previous.total_bytes != sample.total_bytes:
        return True
    if previous.pressure is not sample.pressure:
        return True
    if (previous.used_bytes is None) != (sample.used_bytes is None):
        return True
    margin = sample.total_bytes // 100
    before, now = previous.used_bytes or 0, sample.used_bytes or 0
    ours_before = sum((previous.used_by_pid or {}).values())
    ours_now = sum((sample.used_by_pid or {}).values())
    return abs(now - before) > margin or abs(ours_now - ours_before) > margin
