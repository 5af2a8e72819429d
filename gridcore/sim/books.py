"""What an outside observer knows from the events and commands of a brain: the checkers' books.

Kept from settings, events and commands alone. This file may not look into the brain's state
nor import its policy: it would repeat the mistakes it is there to find.
"""

from collections.abc import Iterator
from enum import StrEnum

from gridcore.config.schema import Workload
from gridcore.core.commands import (
    CancelStep,
    DispatchStep,
    LoadModel,
    RefuseJob,
    UnloadModel,
)
from gridcore.core.events import (
    AdminAsked,
    AdminVerb,
    AnswerBegun,
    AnyEvent,
    CardSampled,
    FailureCause,
    FootprintMeasured,
    GatewayGone,
    GatewayRestated,
    GatewaySuspected,
    JobCancelled,
    JobSubmitted,
    KnownRuntime,
    LoadFailed,
    RunningLease,
    RuntimeExited,
    RuntimeLoaded,
    SlotsSeen,
    StepFinished,
    StepOutcome,
    SupervisorGone,
    SupervisorRestated,
)
from gridcore.core.settings import CardSettings, ModelSettings, Settings
from gridcore.ids import CardId, JobId, LeaseId, LoadId, ModelId, PeerId
from gridcore.units import NS_PER_S

LOWER = (Workload.BACKGROUND, Workload.BATCH)
GRANT_TRAVEL_NS = 2 * NS_PER_S
"""A grant this young that an inventory does not name may still be on its way."""


class Stage(StrEnum):
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"


class Load:
    """One load attempt, from its command to the end of its process."""

    def __init__(
        self, load_id: LoadId, model: ModelSettings, reserved_bytes: int, now_ns: int
    ) -> None:
        self.load_id = load_id
        self.ordered_ns = now_ns
        self.model = model
        self.reserved_bytes = reserved_bytes
        self.stage = Stage.LOADING
        self.slots = 0
        self.pid = 0
        self.loaded_for: Workload | None = None
        self.ready_ns = 0
        self.lost_ns: int | None = None
        """When a step was last lost on it."""
        self.n_done = 0
        self.leases: dict[LeaseId, Lease] = {}
        self.cooling: set[int] = set()
        self.stop_was_ordered = False
        """An order to stop it was given, and lost with the supervisor's link."""
        self.draining = False
        """A drain was announced; nothing has been dispatched since."""

    @property
    def busy_slots(self) -> set[int]:
        busy = {slot for lease in self.leases.values() for slot in lease.slots}
        return busy | self.cooling

    @property
    def n_free(self) -> int:
        return self.slots - len(self.busy_slots)


class Lease:
    def __init__(  # noqa: PLR0917 - a record
        self,
        lease_id: LeaseId,
        job: "Job",
        load_id: LoadId,
        model_id: ModelId,
        slots: tuple[int, ...],
        items: range,
        started_ns: int,
    ) -> None:
        self.lease_id = lease_id
        self.job = job
        self.load_id = load_id
        self.model_id = model_id
        self.slots = slots
        self.items = items
        self.started_ns = started_ns
        self.granted = False
        self.cancelled = False
        self.answer_begun = False
        self.confirmed = False
        """Its gateway has named it."""


class Job:
    """An open request; ``running`` are its leases, ``done`` the items that are answered."""

    def __init__(self, submitted: JobSubmitted, now_ns: int) -> None:
        self.submitted = submitted
        self.job_id = submitted.job_id
        self.workload = submitted.workload
        self.gateway = submitted.gateway
        self.arrived_ns = now_ns - submitted.waited_ns
        self.known_since_ns = now_ns
        self.done = set(range(submitted.items_done))
        self.running: dict[LeaseId, Lease] = {}
        self.started = bool(submitted.items_done)
        self.cancelled = False
        self.restarts = 0

    @property
    def is_waiting(self) -> bool:
        """Some of its items neither run nor are done."""
        n_running = sum(len(lease.items) for lease in self.running.values())
        return not self.cancelled and len(self.done) + n_running < self.submitted.items

    @property
    def deadline_ns(self) -> int | None:
        max_wait_ns = self.submitted.max_wait_ns
        return None if max_wait_ns is None or self.started else self.arrived_ns + max_wait_ns


class CardBook:
    def __init__(self, settings: CardSettings) -> None:
        self.settings = settings
        self.total_bytes: int | None = None
        self.used_bytes: int | None = None
        self.interactive = False
        """Interactive work was open after the last pass, for certain on this card."""
        self.interactive_ns: int | None = None
        """When it was last so."""
        self.lower_waits_since_ns: int | None = None
        self.batch_waits_since_ns: int | None = None
        self.lower_progress_ns: int | None = None
        self.batch_progress_ns: int | None = None
        self.grant: Lease | None = None
        self.grant_ran_ns = 0
        self.grant_ended_ns: int | None = None


class Books:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now_ns = 0
        self.models = {model.model_id: model for model in settings.models}
        self.cards = {card.card_id: CardBook(card) for card in settings.cards}
        self.jobs: dict[JobId, Job] = {}
        self.leases: dict[LeaseId, Lease] = {}
        self.loads: dict[LoadId, Load] = {}
        """Attempts whose process is not known to have ended, and those that just did."""
        self.unsure_now: set[JobId] = set()
        """Jobs whose end may be told twice: left or re-stated in the pass that refuses them."""
        self.suspects: set[PeerId] = set()
        self.supervisor_here = False
        self.interactive_used_ns: dict[ModelId, int] = {}
        self.failures: dict[ModelId, int] = {}
        self.open_until_ns: dict[ModelId, int] = {}
        self.bumps: dict[ModelId, int] = {}
        self.wishes: set[ModelId] = set()
        """Models an admin asked to load and that were not ready since; maybe given up."""

    # --- queries ---------------------------------------------------------------------

    def variants(self, job: Job) -> list[ModelSettings]:
        """The models that may serve a job, by its target alone."""
        target = job.submitted.target
        for family in self.settings.families:
            if family.name == target:
                return [self.models[model_id] for _, model_id in family.variants]
        model = self.models.get(ModelId(target))
        return [] if model is None else [model]

    def model_of(self, job: Job) -> ModelSettings | None:
        """The only model that may serve a job."""
        variants = self.variants(job)
        return variants[0] if len(variants) == 1 else None

    def only_card(self, job: Job) -> CardId | None:
        """The card a job is on for certain."""
        if job.running:
            return self.models[next(iter(job.running.values())).model_id].card_id
        cards = {model.card_id for model in self.variants(job)}
        return next(iter(cards)) if len(cards) == 1 else None

    def may_use(self, job: Job, card_id: CardId) -> bool:
        return any(model.card_id == card_id for model in self.variants(job))

    def waiting(self, *workloads: Workload) -> Iterator[Job]:
        for job in self.jobs.values():
            if job.workload in workloads and job.is_waiting:
                yield job

    def ready_load(self, model_id: ModelId) -> Load | None:
        for load in self.loads.values():
            if load.model.model_id == model_id and load.stage is Stage.READY:
                return load
        return None

    def living(self, card_id: CardId) -> list[Load]:
        return [
            load
            for load in self.loads.values()
            if load.model.card_id == card_id and load.stage is not Stage.GONE
        ]

    def is_hot(self, model_id: ModelId) -> bool:
        for lease in self.leases.values():
            load = self.loads.get(lease.load_id)
            runs = load is not None and load.stage is not Stage.GONE
            if runs and lease.model_id == model_id and lease.job.workload is Workload.INTERACTIVE:
                return True
        used_ns = self.interactive_used_ns.get(model_id)
        ttl_ns = self.settings.policy.classes.interactive.hot_ttl_ns
        return used_ns is not None and self.now_ns - used_ns < ttl_ns

    def is_active(self, job: Job) -> bool:
        """Does a person wait for this job, for certain? One whose runtime has just died is
        neither running nor waiting until its gateway has said so."""
        if job.workload is not Workload.INTERACTIVE:
            return False
        loads = [self.loads.get(lease.load_id) for lease in job.running.values()]
        runs = any(load is not None and load.stage is not Stage.GONE for load in loads)
        return runs or job.is_waiting

    def is_interactive(self, card_id: CardId) -> bool:
        """Is the card in mode interactive for certain, the quiet period included?"""
        card = self.cards[card_id]
        if card.interactive:
            return True
        quiet_ns = self.settings.policy.interactive_idle_before_background_ns
        since_ns = card.interactive_ns
        return since_ns is not None and self.now_ns < since_ns + quiet_ns

    # --- events ----------------------------------------------------------------------

    def see_event(self, event: AnyEvent) -> None:  # noqa: C901, PLR0912 - one flat table of cases
        match event:
            case JobSubmitted():
                if event.job_id not in self.jobs:
                    self.jobs[event.job_id] = Job(event, self.now_ns)
            case JobCancelled():
                self._job_cancelled(event)
            case AnswerBegun():
                if event.lease_id in self.leases:
                    lease = self.leases[event.lease_id]
                    lease.answer_begun = lease.confirmed = True
            case StepFinished():
                self._step_finished(event)
            case SlotsSeen():
                load = self.loads.get(event.load_id)
                if load is not None:
                    load.cooling -= set(event.idle_slots)
            case GatewayRestated():
                self._gateway_restated(event)
            case GatewayGone():
                self._gateway_gone(event.gateway)
            case GatewaySuspected():
                (self.suspects.add if event.suspect else self.suspects.discard)(event.gateway)
            case RuntimeLoaded():
                self._loaded(event)
            case LoadFailed():
                self._load_failed(event)
            case RuntimeExited():
                self._exited(event)
            case FootprintMeasured():
                load = self.loads.get(event.load_id)
                if load is not None:
                    load.reserved_bytes = max(load.reserved_bytes, event.footprint_bytes)
            case SupervisorRestated():
                self._supervisor_restated(event)
            case SupervisorGone():
                self.supervisor_here = False
            case CardSampled():
                card = self.cards[event.card_id]
                card.total_bytes, card.used_bytes = event.total_bytes, event.used_bytes
            case AdminAsked():
                self._admin_asked(event)
            case _:
                pass

    def _job_cancelled(self, event: JobCancelled) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None:
            job.cancelled = True
            if not job.running:
                del self.jobs[event.job_id]
                self.unsure_now.add(event.job_id)

    def _step_finished(self, event: StepFinished) -> None:
        lease = self.leases.get(event.lease_id)
        if lease is None:
            return
        self.end_lease(lease, idle=event.slot_idle)
        job = lease.job
        model_id = lease.model_id
        load = self.loads.get(lease.load_id)
        living = load is not None and load.stage is not Stage.GONE
        if job.workload is Workload.INTERACTIVE and living:
            self.interactive_used_ns[model_id] = self.now_ns
        match event.outcome:
            case StepOutcome.DONE:
                job.done.update(lease.items)
                if load is not None and living:
                    load.n_done += 1
                    load.lost_ns = None
                    self.failures.pop(model_id, None)
                    self.open_until_ns.pop(model_id, None)
                    self.bumps.pop(model_id, None)
                if event.last or (not job.running and not job.is_waiting):
                    self.jobs.pop(job.job_id, None)
                return
            case StepOutcome.CANCELLED if event.last or not lease.cancelled:
                job.cancelled = True
            case StepOutcome.CANCELLED:
                job.restarts += 1
            case StepOutcome.LOST:
                if load is not None:
                    load.lost_ns = self.now_ns
                job.cancelled |= event.last
            case StepOutcome.BROKEN:
                self.jobs.pop(job.job_id, None)
        if job.cancelled and not job.running:
            self.jobs.pop(job.job_id, None)

    def end_lease(self, lease: Lease, *, idle: bool) -> None:
        del self.leases[lease.lease_id]
        lease.job.running.pop(lease.lease_id, None)
        load = self.loads.get(lease.load_id)
        if load is not None:
            load.leases.pop(lease.lease_id, None)
            if not idle and load.stage is not Stage.GONE:
                load.cooling.update(lease.slots)
        if lease.job.workload not in LOWER:
            return
        card = self.cards[self.models[lease.model_id].card_id]
        card.lower_progress_ns = self.now_ns
        if lease.job.workload is Workload.BATCH:
            card.batch_progress_ns = self.now_ns
        if card.grant is lease:
            card.grant = None
            card.grant_ended_ns = self.now_ns
            card.grant_ran_ns = self.now_ns - lease.started_ns

    def _gateway_restated(self, event: GatewayRestated) -> None:
        self.suspects.discard(event.gateway)
        stated = {lease.lease_id for lease in event.leases}
        for lease in list(self.leases.values()):
            lease.confirmed |= lease.lease_id in stated
            young = self.now_ns - lease.started_ns < GRANT_TRAVEL_NS and not lease.confirmed
            if lease.job.gateway == event.gateway and lease.lease_id not in stated and not young:
                self.end_lease(lease, idle=False)
        stated_jobs = {job.job_id: job for job in event.jobs}
        for job in list(self.jobs.values()):
            if job.gateway == event.gateway and job.job_id not in stated_jobs:
                del self.jobs[job.job_id]
        self.unsure_now.update(stated_jobs)
        for submitted in event.jobs:
            known = self.jobs.setdefault(submitted.job_id, Job(submitted, self.now_ns))
            known.done.update(range(submitted.items_done))
        for stated_lease in event.leases:
            if stated_lease.lease_id not in self.leases and stated_lease.job_id in self.jobs:
                self._adopt_lease(stated_lease)

    def _adopt_lease(self, stated: RunningLease) -> None:
        job = self.jobs[stated.job_id]
        lease = Lease(
            stated.lease_id,
            job,
            stated.load_id,
            stated.model_id,
            stated.slots,
            range(stated.first, stated.first + stated.count),
            self.now_ns - stated.ran_ns,
        )
        lease.answer_begun = stated.answer_begun
        lease.confirmed = True
        job.started = True
        job.running[lease.lease_id] = self.leases[lease.lease_id] = lease
        load = self.loads.get(stated.load_id)
        if load is not None:
            load.leases[lease.lease_id] = lease
            load.cooling.difference_update(lease.slots)

    def _gateway_gone(self, gateway: PeerId) -> None:
        self.suspects.discard(gateway)
        for lease in list(self.leases.values()):
            if lease.job.gateway == gateway:
                self.end_lease(lease, idle=False)
        for job in list(self.jobs.values()):
            if job.gateway == gateway:
                del self.jobs[job.job_id]

    def _loaded(self, event: RuntimeLoaded) -> None:
        load = self.loads.get(event.load_id)
        if load is None or load.stage is not Stage.LOADING:
            return
        self._become_ready(load, event.pid, event.slots)
        if event.footprint_bytes is not None:
            load.reserved_bytes = event.footprint_bytes

    def _become_ready(self, load: Load, pid: int | None, slots: int) -> None:
        load.stage = Stage.READY
        load.slots = min(slots, load.model.slots)
        load.pid = pid or 0
        load.ready_ns = self.now_ns
        self.wishes.discard(load.model.model_id)

    def _load_failed(self, event: LoadFailed) -> None:
        load = self.loads.get(event.load_id)
        if load is None or load.stage not in (Stage.LOADING, Stage.STOPPING):
            return
        if load.stage is Stage.LOADING and event.cause is not FailureCause.CANCELLED:
            self._failed(load.model.model_id)
        self._gone(load)

    def _exited(self, event: RuntimeExited) -> None:
        load = self.loads.get(event.load_id)
        if load is None or load.stage is Stage.GONE:
            return
        if load.stage is not Stage.STOPPING and event.cause is not None:
            self._failed(load.model.model_id)
        self._gone(load)

    def _failed(self, model_id: ModelId) -> None:
        n_failures = self.failures[model_id] = self.failures.get(model_id, 0) + 1
        breaker = self.settings.policy.breaker
        over = n_failures - breaker.failures
        if over >= 0:
            backoff_ns = min(breaker.backoff_ns * 2**over, breaker.backoff_max_ns)
            self.open_until_ns[model_id] = self.now_ns + backoff_ns

    def _gone(self, load: Load) -> None:
        load.stage = Stage.GONE
        load.leases.clear()
        load.cooling.clear()
        load.draining = False

    def _supervisor_restated(self, event: SupervisorRestated) -> None:
        self.supervisor_here = True
        stated = {runtime.load_id: runtime for runtime in event.runtimes}
        for load in self.loads.values():
            if load.load_id not in stated and load.stage is not Stage.GONE:
                self._gone(load)
        for runtime in event.runtimes:
            known = self.loads.get(runtime.load_id)
            load = self._adopted(runtime) if known is None else known
            load.reserved_bytes = max(load.reserved_bytes, runtime.footprint_bytes or 0)
            if runtime.stopping:
                load.stage = Stage.STOPPING
            elif runtime.ready and load.stage is Stage.LOADING:
                self._become_ready(load, runtime.pid, runtime.slots)
                load.reserved_bytes = runtime.footprint_bytes or load.reserved_bytes
            elif load.stage is Stage.STOPPING:
                # The command to stop it was lost; it may be given again.
                load.stage = Stage.READY if runtime.ready else Stage.LOADING
                load.slots = min(runtime.slots, load.model.slots)
                load.draining = load.stop_was_ordered = True

    def _adopted(self, runtime: KnownRuntime) -> Load:
        """A runtime of an earlier epoch. Who uses it is not known yet: its slots are free when
        it says so."""
        model = self.models[runtime.model_id]
        reserved = runtime.footprint_bytes or runtime.reserved_bytes
        load = self.loads[runtime.load_id] = Load(runtime.load_id, model, reserved, self.now_ns)
        if runtime.ready:
            load.cooling = set(range(min(runtime.slots, model.slots)))
        for lease in self.leases.values():
            if lease.load_id == load.load_id:
                load.leases[lease.lease_id] = lease
                load.cooling.difference_update(lease.slots)
        return load

    def _admin_asked(self, event: AdminAsked) -> None:
        model_id = ModelId(event.target)
        match event.verb:
            case AdminVerb.LOAD:
                self.wishes.add(model_id)
            case AdminVerb.UNLOAD:
                self.wishes.discard(model_id)
            case AdminVerb.ENABLE:
                self.failures.pop(model_id, None)
                self.open_until_ns.pop(model_id, None)

    # --- commands, after they were checked ---------------------------------------------

    def dispatched(self, command: DispatchStep) -> Lease:
        job, load = self.jobs[command.job_id], self.loads[command.load_id]
        lease = Lease(
            command.lease_id,
            job,
            command.load_id,
            command.model_id,
            command.slots,
            range(command.first, command.first + command.count),
            self.now_ns,
        )
        lease.granted = command.reason == "grant"
        job.started = True
        job.running[lease.lease_id] = self.leases[lease.lease_id] = lease
        load.leases[lease.lease_id] = lease
        load.draining = False
        if job.workload is Workload.INTERACTIVE:
            self.interactive_used_ns[command.model_id] = self.now_ns
            return lease
        card = self.cards[load.model.card_id]
        card.lower_progress_ns = self.now_ns
        if job.workload is Workload.BATCH:
            card.batch_progress_ns = self.now_ns
        if lease.granted:
            card.grant = lease
        return lease

    def refused(self, command: RefuseJob) -> None:
        self.jobs.pop(command.job_id, None)

    def cancelled(self, command: CancelStep) -> None:
        self.leases[command.lease_id].cancelled = True

    def ordered_load(self, command: LoadModel) -> Load:
        model_id = command.model_id
        for load_id, load in list(self.loads.items()):
            if load.model.model_id == model_id and load.stage is Stage.GONE:
                del self.loads[load_id]
        load = Load(command.load_id, self.models[model_id], command.reserved_bytes, self.now_ns)
        self.loads[command.load_id] = load
        return load

    def ordered_unload(self, command: UnloadModel) -> None:
        load = self.loads.get(command.load_id)
        if load is not None:
            load.stage = Stage.STOPPING

    def pass_begins(self, refused: set[JobId]) -> None:
        """After the events of a pass: what is open now decides the mode it plans in.

        Args:
            refused: jobs that the pass refuses, maybe before it planned anything.
        """
        for card_id, card in self.cards.items():
            active = any(
                self.only_card(job) == card_id
                for job in self.jobs.values()
                if self.is_active(job) and job.job_id not in refused
            )
            if active or card.interactive:
                card.interactive_ns = self.now_ns
            card.interactive = active
            self._see_waiting(card_id, card)

    def pass_ends(self) -> None:
        for card_id, card in self.cards.items():
            card.interactive = any(
                self.only_card(job) == card_id for job in self.jobs.values() if self.is_active(job)
            )
            if card.interactive:
                card.interactive_ns = self.now_ns
            self._see_waiting(card_id, card)

    def _see_waiting(self, card_id: CardId, card: CardBook) -> None:
        lower = any(self.may_use(job, card_id) for job in self.waiting(*LOWER))
        batch = any(self.may_use(job, card_id) for job in self.waiting(Workload.BATCH))
        if not lower:
            card.lower_waits_since_ns = None
        elif card.lower_waits_since_ns is None:
            card.lower_waits_since_ns = self.now_ns
        if not batch:
            card.batch_waits_since_ns = None
        elif card.batch_waits_since_ns is None:
            card.batch_waits_since_ns = self.now_ns
