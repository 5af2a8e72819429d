"""A card that exists only as claims of simulated runtimes; see runtime/claims.py."""

from collections.abc import Collection
from pathlib import Path

from gridcore.config.schema import SimulatedCardConfig
from gridcore.core.events import Pressure
from gridcore.devices.device import Sample
from gridcore.ids import CardId
from gridcore.runtime import identity
from gridcore.runtime.claims import SimulatedCard
from gridcore.units import MB, NS_PER_S


class SimulatedDevice:
    def __init__(self, card_id: CardId, config: SimulatedCardConfig, claims: Path) -> None:
        self.card_id = card_id
        self.name = config.name
        self.unified = False
        self._card = SimulatedCard(
            claims,
            total_bytes=config.total_mb * MB,
            foreign_bytes=config.foreign_mb * MB,
            release_delay_s=config.release_delay_ns / NS_PER_S,
        )

    def sample(self, pids: Collection[int] = ()) -> Sample:
        held = self._card.held_by_pid()
        return Sample(
            total_bytes=self._card.total_bytes,
            used_bytes=self._card.used_bytes(),
            used_by_pid={pid: self._sum(held, pid) for pid in sorted(pids)},
            pressure=Pressure.NORMAL,
        )

    def footprint(self, pids: Collection[int]) -> int | None:
        held = self._card.held_by_pid()
        return sum(held.get(pid, 0) for pid in pids)

    def _sum(self, held: dict[int, int], pid: int) -> int:
        if pid in held:
            return held[pid]
        return sum(held.get(each, 0) for each in identity.family_of([pid]))
