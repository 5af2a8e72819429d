"""What a run, or a set of runs, has ever seen: the "sometimes" of the simulation.

A set of seeds that never reached a phase transition, a reason or a fault is too tame; the
tests say which is missing.
"""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

from gridcore.core.commands import AnyCommand, DispatchStep, LoadModel, PublishNote, UnloadModel
from gridcore.core.model import PHASE_TRANSITIONS, Phase
from gridcore.core.reasons import Reason
from gridcore.core.state import State
from gridcore.ids import ModelId
from gridcore.sim.draw import Fault

_REASONS = frozenset(map(str, Reason))


class Marks:
    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.transitions: Counter[tuple[Phase, Phase]] = Counter()
        self.faults: Counter[Fault] = Counter()
        self._phases: dict[ModelId, tuple[str, Phase]] = {}

    def see(self, state: State, commands: Sequence[AnyCommand]) -> None:
        for command in commands:
            match command:
                case PublishNote():
                    reason = command.note.data.get("reason")
                    if reason in _REASONS:
                        self.reasons[str(reason)] += 1
                case DispatchStep() | LoadModel() | UnloadModel():
                    self.reasons[command.reason] += 1
                case _:
                    if hasattr(command, "reason"):
                        self.reasons[command.reason] += 1
        for why in state.variant_reasons.values():
            self.reasons[why.reason.value] += 1
        for model in state.models.values():
            epoch, before = self._phases.get(model.model_id, (state.epoch, Phase.COLD))
            if epoch != state.epoch:
                before = Phase.COLD
            self._phases[model.model_id] = state.epoch, model.phase
            if model.phase is not before:
                self._went(before, model.phase)

    def add(self, other: "Marks") -> None:
        self.reasons.update(other.reasons)
        self.transitions.update(other.transitions)
        self.faults.update(other.faults)

    def _went(self, before: Phase, after: Phase) -> None:
        """One pass may make several moves: count those of the shortest legal way."""
        ways: deque[tuple[Phase, ...]] = deque([(before,)])
        while ways:
            way = ways.popleft()
            if way[-1] is after and len(way) > 1:
                self.transitions.update(pairwise(way))
                return
            ways.extend((*way, b) for a, b in sorted(PHASE_TRANSITIONS) if a is way[-1])
