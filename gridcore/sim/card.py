"""A simulated card: who really holds its memory, and what a reading of it shows.

Memory of an ended process comes back after a delay. The card knows nothing of reservations.
"""

from gridcore.ids import CardId, LoadId


class SimCard:
    def __init__(self, card_id: CardId, total_bytes: int) -> None:
        self.card_id = card_id
        self.total_bytes = total_bytes
        self.foreign_bytes = 0
        self.held: dict[LoadId, int] = {}
        """All and only the processes that hold memory, the ended ones that still do included."""

    @property
    def used_bytes(self) -> int:
        return self.foreign_bytes + sum(self.held.values())

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    def take(self, load_id: LoadId, n_bytes: int) -> bool:
        """Let a process have memory in all; False if the card has not that much."""
        more = n_bytes - self.held.get(load_id, 0)
        if more > self.free_bytes:
            return False
        self.held[load_id] = n_bytes
        return True

    def give_back(self, load_id: LoadId) -> None:
        self.held.pop(load_id, None)
