"""The memory of one card, as promised to models: reserve, settle, release.

The ledger decides admission; a device reading may only tighten it. An entry is opened before a
load starts and closed exactly once, when the runtime's memory is back.
"""

from gridcore.errors import InvariantViolation
from gridcore.ids import LoadId


class Ledger:
    """The sum of the entries is what the card has promised."""

    def __init__(self) -> None:
        self._bytes_by_load: dict[LoadId, int] = {}
        self._reserved_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        return self._reserved_bytes

    def entry(self, load_id: LoadId) -> int:
        return self._bytes_by_load[load_id]

    def entries(self) -> dict[LoadId, int]:
        return dict(self._bytes_by_load)

    def reserve(self, load_id: LoadId, n_bytes: int) -> None:
        """Open an entry before the load starts."""
        if load_id in self._bytes_by_load:
            raise InvariantViolation(f"reserved twice: {load_id}")
        if n_bytes < 0:
            raise InvariantViolation(f"negative reservation: {load_id} {n_bytes}")
        self._bytes_by_load[load_id] = n_bytes
        self._reserved_bytes += n_bytes

    def settle(self, load_id: LoadId, n_bytes: int) -> None:
        """Replace the estimate of an entry by the measured footprint."""
        if load_id not in self._bytes_by_load:
            raise InvariantViolation(f"settled without reservation: {load_id}")
        self._reserved_bytes += n_bytes - self._bytes_by_load[load_id]
        self._bytes_by_load[load_id] = n_bytes

    def release(self, load_id: LoadId) -> int:
        """Close an entry; its bytes are free again."""
        n_bytes = self._bytes_by_load.pop(load_id, None)
        if n_bytes is None:
            raise InvariantViolation(f"released without reservation: {load_id}")
        self._reserved_bytes -= n_bytes
        return n_bytes
