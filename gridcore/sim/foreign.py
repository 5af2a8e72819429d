"""Memory of other programs, as an observer must believe it at the very least.

Not the brain's meter: no steps, no smoothing. If every reading of more than ten quiet seconds
shows other programs holding so much, the budget must have shrunk by that, give or take noise.
"""

from gridcore.core.events import AnyEvent, CardSampled
from gridcore.ids import CardId
from gridcore.sim.books import Books, Stage
from gridcore.units import MB, NS_PER_S

QUIET_NS = 11 * NS_PER_S
READINGS_MIN = 4
NOISE_BYTES = 128 * MB


class ForeignBook:
    def __init__(self, books: Books, card_id: CardId) -> None:
        self._books = books
        self._card_id = card_id
        self._readings: list[tuple[int, int]] = []
        """(time, bytes) of the readings since our own processes last came or went."""
        self._loads: tuple[tuple[str, Stage], ...] = ()

    def see(self, event: AnyEvent) -> None:
        card_id, now_ns = self._card_id, self._books.now_ns
        ours = [load for load in self._books.loads.values() if load.model.card_id == card_id]
        loads = tuple((load.load_id, load.stage) for load in ours)
        if loads != self._loads:
            self._loads = loads
            self._readings.clear()
        if not isinstance(event, CardSampled) or event.card_id != card_id:
            return
        if event.used_bytes is None:
            return
        held = 0
        for load in ours:
            if load.stage is not Stage.GONE:
                by_pid = (event.used_by_pid or {}).get(load.pid)
                held += load.reserved_bytes if by_pid is None else by_pid
        self._readings.append((now_ns, max(event.used_bytes - held, 0)))

    def at_least_bytes(self) -> int:
        """The least that other programs have held for a while; 0 when that is not certain."""
        quiet = [(at_ns, held) for at_ns, held in self._readings]
        if len(quiet) < READINGS_MIN or quiet[-1][0] - quiet[0][0] < QUIET_NS:
            return 0
        begin_ns = quiet[0][0] + QUIET_NS
        # The first seconds may still show memory of a process of ours that has ended.
        settled = [held for at_ns, held in quiet if at_ns >= begin_ns]
        if len(settled) < READINGS_MIN:
            return 0
        since_ns = self._books.now_ns - QUIET_NS
        recent = [held for at_ns, held in quiet if at_ns >= since_ns]
        return max(min(recent, default=0) - NOISE_BYTES, 0)
