"""The world: virtual time, the bus, and everyone on it around one brain.

One heap of moments; the brain sees messages only, and may be replaced by a new incarnation at
any of them. Nothing here decides about models or jobs, and nothing here reads a real clock.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import msgspec

from gridcore.core import invariants
from gridcore.core.commands import (
    AnswerAdmin,
    AnyCommand,
    CancelStep,
    DispatchStep,
    LoadModel,
    PublishNote,
    ReadSlots,
    RefuseJob,
    SampleCard,
    UnloadModel,
)
from gridcore.core.events import (
    AnyEvent,
    CardSampled,
    DrainBegun,
    GatewayGone,
    GatewaySuspected,
    JobSubmitted,
    MonitorGone,
    Pressure,
    SupervisorGone,
)
from gridcore.core.machine import SchedulerCore
from gridcore.core.reasons import Why
from gridcore.errors import InvariantViolation
from gridcore.ids import CardId, Epoch, JobId, PeerId
from gridcore.sim.card import SimCard
from gridcore.sim.chance import Chance
from gridcore.sim.checkers import Checkers, Violation
from gridcore.sim.clients import people
from gridcore.sim.draw import Draw, Fault
from gridcore.sim.faults import Injector
from gridcore.sim.gateways import End, SimGateway
from gridcore.sim.marks import Marks
from gridcore.sim.runtimes import SUPERVISOR, SimRuntime, SimSupervisor
from gridcore.units import MB, NS_PER_MS, NS_PER_S

MONITOR = PeerId("gpu-monitor")
START_NS = 1000 * NS_PER_S
NOTICE_NS = 500 * NS_PER_MS
"""How long a broken link goes unnoticed by the scheduler."""
REST_EVENTS_MAX = 400_000
REST_NS_MAX = 3600 * NS_PER_S
"""When faults and arrivals stop, every job ends within these."""
BEAT_NS = NS_PER_S
MISMATCHES_MAX = 2
SPIN_MAX = 2_000
"""Passes at one instant; more is a brain that wakes itself."""

Watcher = Callable[[int, Sequence[AnyEvent], Sequence[AnyCommand]], None]


class World:
    def __init__(
        self, draw: Draw, *, start_ns: int = START_NS, watcher: Watcher | None = None
    ) -> None:
        self.draw = draw
        self.now_ns = self.start_ns = start_ns
        self.arrivals = True
        self.n_events = 0
        self.marks = Marks()
        self.ends: Counter[tuple[str, End]] = Counter()
        self.cards = {
            card_id: SimCard(card_id, total) for card_id, total in draw.total_bytes.items()
        }
        self.pressure = Pressure.NORMAL
        self.supervisor = SimSupervisor(draw, self, self.cards, self.send, self.fault_seen)
        self.supervisor.on_real_out_of_memory = self._ran_out  # type: ignore[method-assign]
        self.gateways = {
            name: SimGateway(name, self, self.supervisor, self.send)
            for name in (PeerId(f"gateway-{index}") for index in range(draw.n_gateways))
        }
        self.core: SchedulerCore
        self.brain_up = True
        self._watcher = watcher
        self._chance = Chance(draw.seed, "world")
        self._moments: list[tuple[int, int, Callable[[], None]]] = []
        self._n_moments = 0
        self._n_jobs = 0
        self._n_epochs = 0
        self._links = dict.fromkeys([*self.gateways, SUPERVISOR, MONITOR], 0)
        """Generation of each link; frames of an earlier one are lost."""
        self._down: set[PeerId] = set()
        self._inbox: list[AnyEvent] = []
        self._flushing = False
        self._armed_ns: int | None = None
        self._n_passes_here = 0
        self._digest = blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder().encode
        self._mismatches: Counter[PeerId] = Counter()
        self._injector = Injector(self)
        self._new_brain()
        self._restate_all()
        for card_id in self.cards:
            self._poll(card_id)
        self._compare_beats()
        for client in people(self):
            client.begin()

    # --- time ------------------------------------------------------------------------

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._n_moments += 1
        heapq.heappush(self._moments, (self.now_ns + delay_ns, self._n_moments, action))

    def step(self) -> bool:
        """Live through the next moment."""
        if not self._moments:
            return False
        at_ns, _, action = heapq.heappop(self._moments)
        if at_ns > self.now_ns:
            self._n_passes_here = 0
        self.now_ns = at_ns
        action()
        return True

    def run(self, n_events: int) -> None:
        """The safety phase: faults, arrivals, until the brain has seen so many events."""
        while self.n_events < n_events and self.step():
            pass

    def run_for(self, duration_ns: int) -> None:
        end_ns = self.now_ns + duration_ns
        while self._moments and self._moments[0][0] <= end_ns:
            self.step()
        self.now_ns = end_ns

    def come_to_rest(self) -> None:
        """The liveness phase: no more faults and arrivals; every job must reach its end."""
        self.arrivals = False
        self._injector.stop()
        if self.draw.drains and self.brain_up:
            self.tell(DrainBegun())
        until_ns, until_events = self.now_ns + REST_NS_MAX, self.n_events + REST_EVENTS_MAX
        while self._open_jobs():
            if not self.step() or self.now_ns > until_ns or self.n_events > until_events:
                waits = [
                    f"{job.submitted.job_id} {job.submitted.workload} {job.submitted.target} "
                    f"({self._why(job.submitted.job_id)})"
                    for gateway in self.gateways.values()
                    for job in gateway.jobs.values()
                ]
                raise Violation("liveness", f"never end: {'; '.join(waits[:5])} ({len(waits)})")
        self.run_for(20 * NS_PER_S)
        self.checkers.at_rest()
        if self.core.state.jobs or self.core.state.leases:
            raise Violation("liveness", "jobs or leases are left that no gateway holds")

    def _open_jobs(self) -> bool:
        return any(gateway.jobs for gateway in self.gateways.values())

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # --- the bus ---------------------------------------------------------------------

    def send(self, peer: PeerId, event: AnyEvent) -> None:
        """Send a message to the scheduler; lost if the link breaks before it is there."""
        if peer in self._down or not self.brain_up:
            return
        link, epoch = self._links[peer], self.core.state.epoch

        def arrive() -> None:
            if link == self._links[peer] and self.brain_up and epoch == self.core.state.epoch:
                self.tell(event)

        self.after(self.draw.latency_ns, arrive)

    def tell(self, event: AnyEvent) -> None:
        """Put an event into the brain's inbox."""
        self._inbox.append(event)
        if not self.draw.batch_ns:
            self._handle()
        elif not self._flushing:
            self._flushing = True
            self.after(self.draw.batch_ns, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._inbox and self.brain_up:
            self._handle()

    def _handle(self) -> None:
        events, self._inbox = self._inbox, []
        self.n_events += max(len(events), 1)
        self._n_passes_here += 1
        if self._n_passes_here > SPIN_MAX:
            raise Violation("spin", f"{SPIN_MAX} passes without a nanosecond between them")
        commands: list[AnyCommand] = []
        try:
            commands = self.core.handle(events, self.now_ns)
            invariants.check(self.core.state)
        except InvariantViolation as error:
            raise Violation("invariants", str(error)) from error
        finally:
            if self._watcher is not None:
                self._watcher(self.now_ns, events, commands)
        self._digest.update(self._encode(commands))
        self.marks.see(self.core.state, commands)
        self.checkers.see(self.now_ns, events, commands, self._why)
        for command in commands:
            self._carry_out(command)
        self._rearm()

    def _why(self, job_id: JobId) -> Why | None:
        """What the brain says a job waits for."""
        job = self.core.state.jobs.get(job_id)
        why = None if job is None else self.core.state.why_waiting(job)
        if why is not None:
            self.marks.reasons[why.reason.value] += 1
        return why

    def _rearm(self) -> None:
        due_ns = self.core.next_deadline_ns()
        self.checkers.see_deadline(due_ns)
        if due_ns == self._armed_ns:
            return
        self._armed_ns = due_ns
        if due_ns is None:
            return

        def ring() -> None:
            if self._armed_ns == due_ns and self.brain_up:
                self._armed_ns = None
                self._handle()

        self.after(max(due_ns - self.now_ns, 0), ring)

    def _carry_out(self, command: AnyCommand) -> None:
        match command:
            case PublishNote():
                return
            case DispatchStep() | RefuseJob() | CancelStep() | ReadSlots():
                peer = command.gateway
            case LoadModel() | UnloadModel():
                peer = SUPERVISOR
            case SampleCard():
                peer = MONITOR
            case AnswerAdmin():
                return
        link = self._links.get(peer)

        def arrive() -> None:
            if link == self._links[peer] and peer not in self._down:
                self._obey(command)

        if peer not in self._down:
            self.after(self.draw.latency_ns, arrive)

    def _obey(self, command: AnyCommand) -> None:
        match command:
            case DispatchStep():
                self.gateways[command.gateway].on_dispatch(command)
            case RefuseJob():
                self.gateways[command.gateway].on_refusal(command)
            case CancelStep():
                self.gateways[command.gateway].on_cancel_step(command)
            case ReadSlots():
                self.gateways[command.gateway].on_read_slots(command)
            case LoadModel():
                self.supervisor.on_load(command)
            case UnloadModel():
                self.supervisor.on_unload(command)
            case SampleCard():
                self._sample(command.card_id)

    # --- links and processes ---------------------------------------------------------

    def cut(self, peer: PeerId, for_ns: int) -> None:
        """Break a peer's link, or kill the peer when it is one that only reports."""
        if peer in self._down:
            return
        self._down.add(peer)
        self._links[peer] += 1
        self.after(min(NOTICE_NS, for_ns // 2), lambda: self._notice(peer))
        broken = self._links[peer]
        self.after(for_ns, lambda: self._mend(peer, broken))

    def _notice(self, peer: PeerId) -> None:
        if peer not in self._down or not self.brain_up:
            return
        if peer in self.gateways:
            self.tell(GatewaySuspected(gateway=peer, suspect=True))
        else:
            self.tell(SupervisorGone() if peer == SUPERVISOR else MonitorGone())

    def _mend(self, peer: PeerId, broken: int) -> None:
        """The link that broke then is up again, unless it was broken once more meanwhile."""
        if self._links[peer] == broken:
            self._down.discard(peer)
            self._restate(peer)

    def kill_gateway(self, name: PeerId, for_ns: int) -> None:
        """SIGKILL; the launcher says so, and starts another."""
        self._down.add(name)
        self._links[name] += 1
        broken = self._links[name]
        self.gateways[name].die()

        def gone() -> None:
            if self.brain_up:
                self.tell(GatewayGone(gateway=name))

        def reborn() -> None:
            if self.brain_up:
                self.tell(GatewayGone(gateway=name))  # a new boot id is proof as well
            self.gateways[name] = SimGateway(name, self, self.supervisor, self.send)
            self._mend(name, broken)

        self.after(min(NOTICE_NS // 10, for_ns // 2), gone)
        self.after(for_ns, reborn)

    def kill_brain(self, for_ns: int) -> None:
        self.brain_up = False
        self._inbox.clear()

        def reborn() -> None:
            self._new_brain()
            self.brain_up = True
            self._restate_all()

        self.after(for_ns, reborn)

    def _new_brain(self) -> None:
        self._n_epochs += 1
        self.core = SchedulerCore(self.draw.settings, Epoch(f"e{self._n_epochs}"))
        self.checkers = Checkers(self.draw.settings)
        self._armed_ns = None

    def _restate_all(self) -> None:
        for peer in self._links:
            if peer not in self._down:
                delay_ns = self._chance.around(20 * NS_PER_MS)
                self.after(delay_ns, partial(self._restate, peer))

    def _restate(self, peer: PeerId) -> None:
        """A link is up: its peer says what it holds."""
        if peer == MONITOR:
            for card_id in self.cards:
                self._sample(card_id)
        elif peer == SUPERVISOR:
            self.send(peer, self.supervisor.restated())
        else:
            self.send(peer, self.gateways[peer].restated())

    def _compare_beats(self) -> None:
        """Once a second: does each gateway hold what the brain believes it does?"""
        for name, gateway in self.gateways.items():
            if name in self._down or not self.brain_up:
                continue
            state = self.core.state
            theirs: set[str] = {*gateway.jobs, *gateway.steps}
            ours: set[str] = {job.job_id for job in state.jobs.values() if job.gateway == name}
            ours |= {lease.lease_id for lease in state.leases.values() if lease.gateway == name}
            if theirs == ours:
                self._mismatches.pop(name, None)
                continue
            self._mismatches[name] += 1
            if self._mismatches[name] >= MISMATCHES_MAX:
                del self._mismatches[name]
                self._restate(name)
        self.after(BEAT_NS, self._compare_beats)

    # --- samples ---------------------------------------------------------------------

    def _poll(self, card_id: CardId) -> None:
        self._sample(card_id)
        self.after(self.draw.poll_ns, lambda: self._poll(card_id))

    def _sample(self, card_id: CardId) -> None:
        card = self.cards[card_id]
        used: int | None = card.used_bytes
        by_pid: dict[int, int] | None = None
        if self.draw.tells_pids:
            by_pid = {
                runtime.pid: card.held[runtime.load_id]
                for runtime in self.supervisor.runtimes.values()
                if runtime.load_id in card.held
            }
        if self._injector.injects(Fault.SAMPLE_MISSING, 0.1):
            used, by_pid = None, None
        elif self._injector.injects(Fault.SAMPLE_NOISY, 0.2):
            assert used is not None
            used = max(used + self._chance.between(-200, 200) * MB, 0)
        self.send(
            MONITOR,
            CardSampled(
                card_id=card_id,
                total_bytes=card.total_bytes,
                used_bytes=used,
                used_by_pid=by_pid,
                pressure=self.pressure,
            ),
        )

    # --- what clients and faults need ------------------------------------------------

    def gateway(self, chance: Chance) -> SimGateway | None:
        here = [gateway for gateway in self.gateways.values() if gateway.alive]
        return chance.pick(here) if here else None

    def next_job_id(self) -> JobId:
        self._n_jobs += 1
        return JobId(f"j{self._n_jobs}")

    def ended(self, submitted: JobSubmitted, end: End, code: str) -> None:
        self.ends[submitted.workload, end] += 1
        if end is End.REFUSED and code == "queue_timeout":
            self.checkers.client_timed_out(submitted)

    def fault_seen(self, fault: Fault) -> None:
        self.marks.faults[fault] += 1

    def _ran_out(self, runtime: SimRuntime, free_bytes: int) -> None:
        """A load ran out of memory for real: only what the brain was not told excuses it."""
        excuses = {
            Fault.ESTIMATE_WRONG,
            Fault.FOOTPRINT_GROWS,
            Fault.FOREIGN_PROGRAM,
            Fault.SAMPLE_MISSING,
            Fault.SAMPLE_NOISY,
            Fault.MEMORY_LINGERS,
            Fault.MONITOR_GONE,
            Fault.SUPERVISOR_GONE,
            Fault.SCHEDULER_DIES,
        }
        if not excuses & self.draw.faults and self.draw.release_ns == 0:
            raise Violation(
                "memory",
                f"{runtime.model.model_id} was loaded with {free_bytes // MB} MB free on the card",
            )
