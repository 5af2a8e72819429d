"""The brain under any events in any order, nonsense included: no exception, no broken invariant.

Unknown ids, duplicates, stale leases, answers to questions nobody asked. An event about an
attempt that is unknown or over is counted and dropped.
"""

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gridcore.config.schema import Capability, Tier, Workload
from gridcore.core import invariants
from gridcore.core.commands import DispatchStep, LoadModel, RefuseJob
from gridcore.core.events import (
    AdminAsked,
    AdminVerb,
    AnswerBegun,
    AnyEvent,
    CancelCause,
    CardSampled,
    DrainBegun,
    FailureCause,
    FootprintMeasured,
    GatewayGone,
    GatewayRestated,
    GatewaySuspected,
    JobCancelled,
    JobKind,
    JobSubmitted,
    KnownProfile,
    KnownRuntime,
    LoadFailed,
    MonitorGone,
    Pressure,
    RunningLease,
    RuntimeExited,
    RuntimeLoaded,
    SlotsSeen,
    StepFinished,
    StepOutcome,
    SupervisorGone,
    SupervisorRestated,
)
from gridcore.core.machine import SchedulerCore
from gridcore.core.settings import FamilySettings
from gridcore.ids import CardId, Epoch, JobId, LeaseId, LoadId, ModelId, PeerId
from gridcore.units import GB, MB, NS_PER_MS, NS_PER_S
from tests.support.builders import model, settings

MODELS = ("big", "small", "embed", "tiny")
TARGETS = (*MODELS, "family", "nothing")
SETTINGS = settings(
    model("big", 9000, slots=2, capabilities=[Capability.CHAT, Capability.VISION]),
    model("small", 4000, slots=1, capabilities=[Capability.CHAT]),
    model("embed", 400, slots=4, pinned=True, capabilities=[Capability.EMBEDDING]),
    model("tiny", 8000, slots=3, ttl_ns=5 * NS_PER_S),
    families=[
        FamilySettings(
            name="family",
            variants=((Tier.PREFERRED, ModelId("big")), (Tier.BALANCED, ModelId("small"))),
        )
    ],
    frees_on_exit=False,
)
CARD = CardId("card")
gateways = st.sampled_from([PeerId("gateway-0"), PeerId("gateway-1")])
workloads = st.sampled_from(Workload)
n_bytes = st.integers(0, 20 * 1024).map(lambda mb: mb * MB)
durations = st.integers(0, 400 * NS_PER_S)


class AnyEvents(RuleBasedStateMachine):
    """Ids are drawn from those that exist or existed, and from those that never did."""

    def __init__(self) -> None:
        super().__init__()
        self.core = SchedulerCore(SETTINGS, Epoch("e"))
        self.now_ns = 1000 * NS_PER_S
        self.jobs: list[JobId] = [JobId("unknown")]
        self.leases: list[DispatchStep] = []
        self.loads: list[LoadId] = [LoadId("unknown")]
        self.ended: set[JobId] = set()

    def feed(self, *events: AnyEvent) -> None:
        for command in self.core.handle(events, self.now_ns):
            match command:
                case DispatchStep():
                    self.leases.append(command)
                    assert command.job_id not in self.ended
                case LoadModel():
                    self.loads.append(command.load_id)
                case RefuseJob():
                    assert command.job_id not in self.ended, "refused twice"
                    self.ended.add(command.job_id)
                case _:
                    pass

    @initialize(sampled=st.booleans(), supervised=st.booleans())
    def begin(self, sampled: bool, supervised: bool) -> None:
        if sampled:
            self.feed(CardSampled(card_id=CARD, total_bytes=16 * GB, used_bytes=0))
        if supervised:
            self.feed(SupervisorRestated(runtimes=(), profiles=()))

    # --- time --------------------------------------------------------------------------

    @rule(for_ns=st.sampled_from([0, 1, NS_PER_MS, NS_PER_S, 10 * NS_PER_S, 400 * NS_PER_S]))
    def wait(self, for_ns: int) -> None:
        self.now_ns += for_ns
        self.feed()

    @rule()
    def wake_up(self) -> None:
        due_ns = self.core.next_deadline_ns()
        if due_ns is not None:
            self.now_ns = max(self.now_ns, due_ns)
            self.feed()

    # --- clients and gateways ----------------------------------------------------------

    @rule(
        data=st.data(),
        gateway=gateways,
        model_or_family=st.sampled_from(TARGETS),
        workload=workloads,
        width=st.integers(1, 5),
        items=st.sampled_from([1, 1, 3, 100]),
        max_wait_ns=st.none() | durations,
        waited_ns=st.just(0) | durations,
    )
    def submit(self, data: Any, gateway: PeerId, model_or_family: str, **request: Any) -> None:
        again = data.draw(st.integers(0, 9)) == 0
        job_id = data.draw(st.sampled_from(self.jobs)) if again else JobId(f"j{len(self.jobs)}")
        self.jobs.append(job_id)
        self.ended.discard(job_id)
        kind = JobKind.EMBEDDING if request["items"] > 1 else JobKind.CHAT
        self.feed(
            JobSubmitted(
                job_id=job_id, gateway=gateway, target=model_or_family, kind=kind, **request
            )
        )

    @rule(data=st.data(), cause=st.sampled_from(CancelCause))
    def cancel(self, data: Any, cause: CancelCause) -> None:
        self.feed(JobCancelled(job_id=data.draw(st.sampled_from(self.jobs)), cause=cause))

    def _lease_id(self, data: Any) -> LeaseId:
        known = [command.lease_id for command in self.leases[-8:]]
        return LeaseId(data.draw(st.sampled_from([*known, LeaseId("unknown")])))

    @rule(
        data=st.data(),
        outcome=st.sampled_from(StepOutcome),
        took_ns=durations,
        last=st.booleans(),
        slot_idle=st.booleans(),
    )
    def finish(self, data: Any, **ended: Any) -> None:
        lease_id = self._lease_id(data)
        self.feed(AnswerBegun(lease_id=lease_id), StepFinished(lease_id=lease_id, **ended))

    @rule(data=st.data())
    def begin_answer(self, data: Any) -> None:
        self.feed(AnswerBegun(lease_id=self._lease_id(data)))

    @rule(gateway=gateways, suspect=st.booleans())
    def suspect(self, gateway: PeerId, suspect: bool) -> None:
        self.feed(GatewaySuspected(gateway=gateway, suspect=suspect))

    @rule(gateway=gateways)
    def bury(self, gateway: PeerId) -> None:
        self.feed(GatewayGone(gateway=gateway))

    @rule(data=st.data(), gateway=gateways, waited_ns=durations)
    def restate_gateway(self, data: Any, gateway: PeerId, waited_ns: int) -> None:
        """Some of its leases, some made up; some of its jobs, some never heard of."""
        told = [
            RunningLease(
                lease_id=command.lease_id,
                job_id=command.job_id,
                load_id=command.load_id,
                model_id=command.model_id,
                slots=command.slots,
                first=command.first,
                count=command.count,
                ran_ns=NS_PER_S,
                answer_begun=data.draw(st.booleans()),
            )
            for command in self.leases[-6:]
            if command.gateway == gateway and data.draw(st.booleans())
        ]
        names = {lease.job_id: None for lease in told}
        names |= dict.fromkeys(data.draw(st.lists(st.sampled_from(self.jobs), max_size=3)))
        jobs = tuple(
            JobSubmitted(
                job_id=job_id,
                gateway=gateway,
                target=data.draw(st.sampled_from(TARGETS)),
                workload=data.draw(workloads),
                kind=JobKind.EMBEDDING,
                items=100,
                items_done=data.draw(st.sampled_from([0, 0, 32, 100])),
                waited_ns=waited_ns,
            )
            for job_id in names
        )
        for job in jobs:
            self.ended.discard(job.job_id)
        self.feed(GatewayRestated(gateway=gateway, jobs=jobs, leases=tuple(told)))

    # --- runtimes ----------------------------------------------------------------------

    def _load_id(self, data: Any) -> LoadId:
        return LoadId(data.draw(st.sampled_from(self.loads[-6:])))

    @rule(data=st.data(), slots=st.integers(1, 5), footprint_bytes=st.none() | n_bytes)
    def load(self, data: Any, slots: int, footprint_bytes: int | None) -> None:
        self.feed(
            RuntimeLoaded(
                load_id=self._load_id(data),
                pid=data.draw(st.integers(1, 9)),
                address="unix:/x",
                slots=slots,
                took_ns=NS_PER_S,
                footprint_bytes=footprint_bytes,
            )
        )

    @rule(data=st.data(), cause=st.sampled_from(FailureCause), free=st.none() | n_bytes)
    def fail(self, data: Any, cause: FailureCause, free: int | None) -> None:
        load_id = self._load_id(data)
        self.feed(LoadFailed(load_id=load_id, cause=cause, detail="", card_free_bytes=free))

    @rule(data=st.data(), cause=st.none() | st.sampled_from(FailureCause))
    def exit(self, data: Any, cause: FailureCause | None) -> None:
        self.feed(RuntimeExited(load_id=self._load_id(data), cause=cause))

    @rule(data=st.data(), footprint_bytes=n_bytes)
    def measure(self, data: Any, footprint_bytes: int) -> None:
        load_id = self._load_id(data)
        self.feed(FootprintMeasured(load_id=load_id, footprint_bytes=footprint_bytes))

    @rule(data=st.data(), idle=st.lists(st.integers(-1, 6), max_size=5))
    def see_slots(self, data: Any, idle: list[int]) -> None:
        self.feed(SlotsSeen(load_id=self._load_id(data), idle_slots=tuple(idle)))

    @rule()
    def lose_supervisor(self) -> None:
        self.feed(SupervisorGone())

    @rule(data=st.data(), names=st.lists(st.sampled_from([*MODELS, "gone"]), max_size=3))
    def restate_supervisor(self, data: Any, names: list[str]) -> None:
        runtimes = []
        for name in names:
            known = data.draw(st.booleans())
            load_id = self._load_id(data) if known else LoadId(f"old-{name}-{len(self.loads)}")
            self.loads.append(load_id)
            runtimes.append(
                KnownRuntime(
                    load_id=load_id,
                    model_id=ModelId(name),
                    pid=7,
                    address="unix:/y",
                    slots=data.draw(st.integers(1, 4)),
                    ready=data.draw(st.booleans()),
                    stopping=data.draw(st.booleans()),
                    idle_ns=0,
                    footprint_bytes=data.draw(st.none() | n_bytes),
                    reserved_bytes=data.draw(n_bytes),
                )
            )
        profiles = tuple(
            KnownProfile(model_id=ModelId(name), out_of_memory_at_bytes=data.draw(n_bytes))
            for name in names[:1]
        )
        self.feed(SupervisorRestated(runtimes=tuple(runtimes), profiles=profiles))

    # --- cards and people --------------------------------------------------------------

    @rule(used_bytes=st.none() | n_bytes, pressure=st.sampled_from(Pressure), known=st.booleans())
    def sample(self, used_bytes: int | None, pressure: Pressure, known: bool) -> None:
        self.feed(
            CardSampled(
                card_id=CARD if known else CardId("other"),
                total_bytes=16 * GB,
                used_bytes=used_bytes,
                pressure=pressure,
            )
        )

    @rule()
    def lose_monitor(self) -> None:
        self.feed(MonitorGone())

    @rule(verb=st.sampled_from(AdminVerb), name=st.sampled_from(TARGETS), gateway=gateways)
    def ask(self, verb: AdminVerb, name: str, gateway: PeerId) -> None:
        self.feed(AdminAsked(request_id="r", peer=gateway, verb=verb, target=name))

    @rule(really=st.integers(0, 20))
    def drain(self, really: int) -> None:
        if really == 0:
            self.feed(DrainBegun())

    # --- what always holds -------------------------------------------------------------

    @invariant()
    def the_invariants_hold(self) -> None:
        invariants.check(self.core.state)

    @invariant()
    def it_can_be_looked_at(self) -> None:
        snapshot = self.core.snapshot()
        assert len(snapshot.models) == len(MODELS)


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = hypothesis_settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
