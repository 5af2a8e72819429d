"""What a job waits for, as a key that orders the same everywhere."""

from typing import NamedTuple

from gridcore.config.schema import Capability, Tier


class QueueKey(NamedTuple):
    """What a job waits for: a model, or a family with what the request needs of a variant."""

    target: str
    needs: frozenset[Capability] = frozenset()
    quality: Tier | None = None
    width: int = 1
    """Slots one step needs at once: a smaller variant of a family cannot serve it."""

    def order(self) -> tuple[str, tuple[str, ...], str, int]:
        """A total order that does not depend on hashing."""
        return self.target, tuple(sorted(self.needs)), self.quality or "", self.width
