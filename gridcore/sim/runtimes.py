"""The simulated supervisor and its runtimes: loads, footprints, deaths, slots.

It obeys and reports like ``runtime/supervisor.py``. Runtimes outlive it: while it is away they
go on, and its inventory tells what became of them.
"""

from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum

from gridcore.core.commands import DispatchStep, LoadModel, UnloadModel
from gridcore.core.events import (
    AnyEvent,
    FailureCause,
    FootprintMeasured,
    JobKind,
    JobSubmitted,
    KnownProfile,
    KnownRuntime,
    LoadFailed,
    RuntimeExited,
    RuntimeLoaded,
    StepOutcome,
    SupervisorRestated,
)
from gridcore.core.settings import ModelSettings
from gridcore.ids import CardId, LoadId, ModelId, PeerId
from gridcore.sim.card import SimCard
from gridcore.sim.chance import Chance
from gridcore.sim.compute import Compute, Work
from gridcore.sim.draw import Draw, Fault
from gridcore.sim.gateways import Clock, SimStep
from gridcore.units import MB, NS_PER_MS, NS_PER_S

SUPERVISOR = PeerId("supervisor")
STOP_NS = (30 * NS_PER_MS, 150 * NS_PER_MS, 150 * NS_PER_MS, 2 * NS_PER_S)
"""From SIGTERM to exit: without work at once, a large one in its driver's time."""
ABORT_NS = 20 * NS_PER_MS
"""An aborted stream frees its slot so soon, unless it is stuck."""
STUCK_NS = 3 * NS_PER_S
FINISHED_KEPT_MAX = 64
PROMPT_TOKENS_PER_TOKEN = 40
"""A prompt token is so much cheaper than a generated one."""
GROWTH_BYTES = 300 * MB
GROWTHS_MAX = 4
"""A full batch, an image, a longer prompt: then a process has seen it all."""


class Stage(StrEnum):
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


class SimRuntime:
    """One runtime process, or a load in progress."""

    def __init__(self, load_id: LoadId, model: ModelSettings, reserved_bytes: int) -> None:
        self.load_id = load_id
        self.model = model
        self.reserved_bytes = reserved_bytes
        self.stage = Stage.LOADING
        self.pid = 0
        self.steps: dict[SimStep, None] = {}
        self.busy_until_ns: dict[int, int] = {}
        """Slots that still end work whose client has left."""
        self.started_ns = 0
        self.idle_since_ns = 0
        self.footprint_bytes: int | None = None
        self.n_grown = 0


class SimSupervisor:
    """``runtimes`` are all and only the processes that exist."""

    def __init__(
        self,
        draw: Draw,
        clock: Clock,
        cards: dict[CardId, SimCard],
        send: Callable[[PeerId, AnyEvent], None],
        fault_seen: Callable[[Fault], None],
    ) -> None:
        self.runtimes: dict[LoadId, SimRuntime] = {}
        self.n_loads: dict[ModelId, int] = {}
        self._draw = draw
        self._clock = clock
        self._cards = cards
        self._compute = {card_id: Compute(clock.after, lambda: clock.now_ns) for card_id in cards}
        self._send = send
        self._fault_seen = fault_seen
        self._chance = Chance(draw.seed, "runtimes")
        self._models = {model.model_id: model for model in draw.settings.models}
        self._finished: OrderedDict[LoadId, AnyEvent] = OrderedDict()
        self._profiles: dict[ModelId, KnownProfile] = {}
        self._bytes = {model_id: truth.bytes_held for model_id, truth in draw.truths.items()}
        self._n_pids = 1000
        self.faulty = True
        """Faults are still injected."""

    # --- commands --------------------------------------------------------------------

    def on_load(self, command: LoadModel) -> None:
        if command.load_id in self.runtimes:
            return
        finished = self._finished.get(command.load_id)
        if finished is not None:
            self._send(SUPERVISOR, finished)
            return
        model = self._models[command.model_id]
        runtime = SimRuntime(command.load_id, model, command.reserved_bytes)
        runtime.started_ns = self._clock.now_ns
        self._n_pids += 1
        runtime.pid = self._n_pids
        self.runtimes[command.load_id] = runtime
        self.n_loads[command.model_id] = self.n_loads.get(command.model_id, 0) + 1
        load_ns = round(
            self._draw.truths[command.model_id].load_ns * self._chance.fraction(0.8, 1.3)
        )
        self._clock.after(load_ns * 3 // 5, lambda: self._take_memory(runtime))
        self._clock.after(load_ns, lambda: self._become_ready(runtime))

    def on_unload(self, command: UnloadModel) -> None:
        runtime = self.runtimes.get(command.load_id)
        if runtime is None:
            unknown = RuntimeExited(load_id=command.load_id, cause=None, detail="no such runtime")
            self._send(SUPERVISOR, self._finished.get(command.load_id, unknown))
            return
        if runtime.stage is Stage.STOPPING:
            return
        was_loading = runtime.stage is Stage.LOADING
        runtime.stage = Stage.STOPPING
        self._drop_steps(runtime, "stopped")

        def stopped() -> None:
            if runtime.load_id not in self.runtimes:
                return
            words: AnyEvent = RuntimeExited(load_id=runtime.load_id, cause=None)
            if was_loading:
                words = LoadFailed(
                    load_id=runtime.load_id,
                    cause=FailureCause.CANCELLED,
                    detail="the load was taken back",
                )
            self._finish(runtime, words)

        self._clock.after(self._chance.pick(STOP_NS), stopped)

    def restated(self) -> SupervisorRestated:
        now_ns = self._clock.now_ns
        return SupervisorRestated(
            runtimes=tuple(
                KnownRuntime(
                    load_id=runtime.load_id,
                    model_id=runtime.model.model_id,
                    pid=runtime.pid,
                    address=f"unix:/{runtime.load_id}",
                    slots=runtime.model.slots,
                    ready=runtime.stage is Stage.READY,
                    stopping=runtime.stage is Stage.STOPPING,
                    idle_ns=0 if runtime.steps else now_ns - runtime.idle_since_ns,
                    footprint_bytes=runtime.footprint_bytes,
                    reserved_bytes=runtime.reserved_bytes,
                )
                for runtime in self.runtimes.values()
            ),
            profiles=tuple(self._profiles.values()),
        )

    # --- loads -----------------------------------------------------------------------

    def _take_memory(self, runtime: SimRuntime) -> None:
        if self.runtimes.get(runtime.load_id) is not runtime or runtime.stage is not Stage.LOADING:
            return
        card = self._cards[runtime.model.card_id]
        free_before = card.free_bytes
        spurious = self._injects(Fault.LOAD_RUNS_OUT, 0.06)
        if spurious or not card.take(runtime.load_id, self._bytes[runtime.model.model_id]):
            model_id = runtime.model.model_id
            tells = self._chance.happens(0.8)
            if spurious:  # another program held the rest, for a moment
                share = self._chance.fraction(0.3, 1)
                free_before = round(self._bytes[model_id] * share)
            self._profiles[model_id] = KnownProfile(
                model_id=model_id, out_of_memory_at_bytes=free_before
            )
            self._finish(
                runtime,
                LoadFailed(
                    load_id=runtime.load_id,
                    cause=FailureCause.OUT_OF_MEMORY,
                    detail="failed to allocate buffer",
                    card_free_bytes=free_before if tells else None,
                ),
            )
            if not spurious:
                self.on_real_out_of_memory(runtime, free_before)
        elif self._injects(Fault.LOAD_FAILS, 0.1):
            cause = self._chance.pick(
                [FailureCause.CRASHED, FailureCause.TIMED_OUT, FailureCause.BAD_CONFIG]
            )
            self._finish(runtime, LoadFailed(load_id=runtime.load_id, cause=cause, detail="broken"))

    def on_real_out_of_memory(self, runtime: SimRuntime, free_bytes: int) -> None:
        """Hook of the world: a load ran out of memory that the card really did not have."""

    def _become_ready(self, runtime: SimRuntime) -> None:
        if self.runtimes.get(runtime.load_id) is not runtime or runtime.stage is not Stage.LOADING:
            return
        now_ns = self._clock.now_ns
        runtime.stage = Stage.READY
        runtime.idle_since_ns = now_ns
        if self._draw.tells_footprint:
            card = self._cards[runtime.model.card_id]
            runtime.footprint_bytes = card.held[runtime.load_id]
        took_ns = now_ns - runtime.started_ns
        model_id = runtime.model.model_id
        self._profiles[model_id] = KnownProfile(
            model_id=model_id, footprint_bytes=runtime.footprint_bytes, load_ns=took_ns
        )
        self._send(
            SUPERVISOR,
            RuntimeLoaded(
                load_id=runtime.load_id,
                pid=runtime.pid,
                address=f"unix:/{runtime.load_id}",
                slots=runtime.model.slots,
                took_ns=took_ns,
                footprint_bytes=runtime.footprint_bytes,
            ),
        )

    # --- faults ----------------------------------------------------------------------

    def _injects(self, fault: Fault, probability: float) -> bool:
        if not self.faulty or fault not in self._draw.faults:
            return False
        if not self._chance.happens(probability):
            return False
        self._fault_seen(fault)
        return True

    def some_ready(self) -> SimRuntime | None:
        ready = [r for r in self.runtimes.values() if r.stage is Stage.READY]
        return self._chance.pick(ready) if ready else None

    def kill(self, runtime: SimRuntime, cause: FailureCause) -> None:
        """The process dies by itself."""
        self._drop_steps(runtime, "connection reset")
        if runtime.load_id in self.runtimes:
            self._finish(
                runtime, RuntimeExited(load_id=runtime.load_id, cause=cause, detail="signal 11")
            )

    def grow(self, runtime: SimRuntime) -> None:
        """A first full batch or an image makes the process larger for good."""
        if runtime.n_grown == GROWTHS_MAX:
            return
        runtime.n_grown += 1
        model_id = runtime.model.model_id
        card = self._cards[runtime.model.card_id]
        larger = card.held.get(runtime.load_id, 0) + GROWTH_BYTES
        if not card.take(runtime.load_id, larger):
            self.kill(runtime, FailureCause.OUT_OF_MEMORY)
            return
        self._bytes[model_id] = max(self._bytes[model_id], larger)
        if self._draw.tells_footprint:
            runtime.footprint_bytes = larger
            self._send(
                SUPERVISOR, FootprintMeasured(load_id=runtime.load_id, footprint_bytes=larger)
            )

    def _finish(self, runtime: SimRuntime, words: AnyEvent) -> None:
        del self.runtimes[runtime.load_id]
        delay_ns = self._draw.release_ns
        if self._injects(Fault.MEMORY_LINGERS, 0.2):
            delay_ns = self._chance.pick([6, 15]) * NS_PER_S
        card = self._cards[runtime.model.card_id]
        self._clock.after(delay_ns, lambda: card.give_back(runtime.load_id))
        self._finished[runtime.load_id] = words
        while len(self._finished) > FINISHED_KEPT_MAX:
            self._finished.popitem(last=False)
        self._send(SUPERVISOR, words)

    def _drop_steps(self, runtime: SimRuntime, detail: str) -> None:
        compute = self._compute[runtime.model.card_id]
        for step in list(runtime.steps):
            if step.work is not None:
                compute.stop(step.work)
            step.end(StepOutcome.LOST, slot_idle=False, detail=detail)
        runtime.steps.clear()

    # --- steps -----------------------------------------------------------------------

    def begin(self, command: DispatchStep, job: JobSubmitted, step: SimStep) -> Work | None:
        runtime = self.runtimes.get(command.load_id)
        if runtime is None or runtime.stage is not Stage.READY:
            return None
        truth = self._draw.truths[runtime.model.model_id]
        if job.kind in (JobKind.EMBEDDING, JobKind.RERANK):
            rounds = -(-command.count // len(command.slots))
            work_ns = truth.item_ns * rounds
        else:
            tokens = self._chance.between(4, 64)
            prompt_ns = truth.token_ns * self._chance.between(50, 2000) // PROMPT_TOKENS_PER_TOKEN
            work_ns = prompt_ns + truth.token_ns * tokens
            self._clock.after(prompt_ns, lambda: self._answer(runtime, step))
        compute = self._compute[runtime.model.card_id]

        def done() -> None:
            compute.stop(work)
            runtime.steps.pop(step, None)
            runtime.idle_since_ns = self._clock.now_ns
            step.end(StepOutcome.DONE)

        work = Work(command.load_id, len(command.slots), work_ns, done)
        runtime.steps[step] = None
        compute.start(work)
        return work

    def _answer(self, runtime: SimRuntime, step: SimStep) -> None:
        if step in runtime.steps and step.job.streams:
            step.begin_answer()

    def leave(self, step: SimStep) -> bool:
        runtime = self.runtimes.get(step.command.load_id)
        if runtime is None or step not in runtime.steps:
            return False
        del runtime.steps[step]
        assert step.work is not None
        self._compute[runtime.model.card_id].stop(step.work)
        runtime.idle_since_ns = self._clock.now_ns
        busy_ns = STUCK_NS if self._injects(Fault.SLOT_STUCK, 0.3) else ABORT_NS
        for slot in step.command.slots:
            runtime.busy_until_ns[slot] = self._clock.now_ns + busy_ns
        return False

    def idle_slots(self, load_id: LoadId) -> tuple[int, ...] | None:
        runtime = self.runtimes.get(load_id)
        if runtime is None or runtime.stage is not Stage.READY:
            return None
        busy = {slot for step in runtime.steps for slot in step.command.slots}
        return tuple(
            slot
            for slot in range(runtime.model.slots)
            if slot not in busy and runtime.busy_until_ns.get(slot, 0) <= self._clock.now_ns
        )
