"""Independent judges of the brain: what it must never do, and what it must do in time.

They see settings, events, commands and the reasons given for waits, keep their own books, and
share no code with the policy. Each broken sentence is a ``Violation`` that names its checker.
Where the books cannot be certain (which variant of a family, memory on its way back) they
judge in the brain's favour.
"""

from collections.abc import Callable, Sequence

from gridcore.config.schema import Workload
from gridcore.core.commands import (
    AnyCommand,
    CancelStep,
    DispatchStep,
    LoadModel,
    PublishNote,
    ReadSlots,
    RefuseJob,
    UnloadModel,
)
from gridcore.core.events import AnyEvent, JobSubmitted
from gridcore.core.notes import Note, Verb
from gridcore.core.reasons import UNBLOCKED_BY, Reason, Why
from gridcore.core.settings import Settings
from gridcore.ids import CardId, JobId, LoadId, ModelId
from gridcore.sim.books import LOWER, Books, Job, Load, Stage
from gridcore.sim.foreign import ForeignBook
from gridcore.units import MB, NS_PER_S, format_duration

ROUNDING_NS = 1_000
"""Shares are fractions; deadlines are whole nanoseconds."""
RESTARTS_MAX = 2
LOAD_BUMPS_MAX = 2
LOAD_NS_MAX = 15 * NS_PER_S
"""No simulated load takes longer."""
SUSPECT_NS = 6 * NS_PER_S
"""A runtime that lost a step may get no new ones for this long."""
EVICTIONS = frozenset(
    {Reason.MAKE_ROOM, Reason.FOREIGN_GREW, Reason.OVER_BUDGET, Reason.PRESSURE_CRITICAL}
)
ON_THE_WAY = frozenset(
    {
        Reason.LOAD_SLOT_TAKEN,
        Reason.MAKING_ROOM,
        Reason.RELEASING,
        Reason.UNLOADING,
        Reason.DRAINING,
        Reason.INTERACTIVE_TURN,
    }
)
"""An interactive job that waits for one of these is about to need the load slot or the room."""


class Violation(AssertionError):  # noqa: N818 - the word of this field
    """The brain broke a promise."""

    def __init__(self, checker: str, sentence: str) -> None:
        super().__init__(f"{checker}: {sentence}")
        self.checker = checker


def require(holds: bool, checker: str, sentence: str) -> None:
    if not holds:
        raise Violation(checker, sentence)


class Checkers:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.policy = settings.policy
        self.books = Books(settings)
        self._foreign = {card_id: ForeignBook(self.books, card_id) for card_id in self.books.cards}
        self._evicted_for: dict[ModelId, ModelId] = {}
        """From the notes of this pass: for whom a model was evicted."""
        self._lower_loads: list[Load] = []
        self._n_checks = 0

    def see(
        self,
        now_ns: int,
        events: Sequence[AnyEvent],
        commands: Sequence[AnyCommand],
        why: Callable[[JobId], Why | None],
    ) -> None:
        """Judge one pass of the brain."""
        books = self.books
        books.now_ns = now_ns
        books.unsure_now.clear()
        for event in events:
            books.see_event(event)
            for foreign in self._foreign.values():
                foreign.see(event)
        refused = {command.job_id for command in commands if isinstance(command, RefuseJob)}
        books.pass_begins(refused)
        self._lower_loads.clear()
        for command in commands:
            self._judge(command)
        self._after_the_pass(why)
        books.pass_ends()

    def see_deadline(self, due_ns: int | None) -> None:
        """The brain asks to be woken: never after the first max_wait that ends."""
        deadlines = [
            job.deadline_ns
            for job in self.books.jobs.values()
            if job.deadline_ns is not None and job.is_waiting
        ]
        if deadlines:
            first_ns = min(deadlines)
            require(
                due_ns is not None and due_ns <= max(first_ns, self.books.now_ns + NS_PER_S // 500),
                "max_wait",
                f"the next deadline is {due_ns}, a job's max_wait ends at {first_ns}",
            )

    def client_timed_out(self, submitted: JobSubmitted) -> None:
        job_id, has = submitted.job_id, submitted.max_wait_ns is not None
        require(has, "max_wait", f"{job_id} timed out and has no max_wait")

    def at_rest(self) -> None:
        """Everything has ended: nothing may be left."""
        books = self.books
        require(not books.leases, "liveness", f"leases are left: {sorted(books.leases)}")
        require(not books.jobs, "liveness", f"jobs are left: {sorted(books.jobs)}")
        for load in books.loads.values():
            # A preload or an admin's wish may be tried again at any time.
            young = books.now_ns - load.ordered_ns < LOAD_NS_MAX
            require(
                young or load.stage in (Stage.READY, Stage.GONE),
                "liveness",
                f"{load.model.model_id} stays {load.stage}",
            )
            require(not load.cooling, "liveness", f"slots of {load.model.model_id} stay cooling")

    # --- one command -------------------------------------------------------------------

    def _judge(self, command: AnyCommand) -> None:
        self._n_checks += 1
        match command:
            case DispatchStep():
                self._judge_dispatch(command)
                self.books.dispatched(command)
            case RefuseJob():
                self._judge_refusal(command)
                self.books.refused(command)
            case CancelStep():
                self._judge_cancel(command)
                self.books.cancelled(command)
            case LoadModel():
                self._judge_load(command)
                self.books.ordered_load(command)
            case UnloadModel():
                self._judge_unload(command)
                self.books.ordered_unload(command)
            case ReadSlots():
                load = self.books.loads.get(command.load_id)
                require(load is not None, "targets", f"slots of unknown load {command.load_id}")
            case PublishNote():
                self._hear(command.note)
            case _:
                pass

    def _hear(self, note: Note) -> None:
        model_id = note.model_id
        if model_id is None:
            return
        if note.verb is Verb.EVICT and note.data.get("reason") == Reason.MAKE_ROOM:
            self._evicted_for[model_id] = ModelId(str(note.data["model"]))
        if note.verb is Verb.DRAIN:
            load = self.books.ready_load(model_id)
            if load is not None:
                load.draining = True
        if note.verb is Verb.LOAD:
            load = self.books.loads[LoadId(str(note.data["load_id"]))]
            load.loaded_for = Workload(note.workload) if note.workload else None
            if load.loaded_for is not Workload.INTERACTIVE:
                self._lower_loads.append(load)

    def _judge_dispatch(self, command: DispatchStep) -> None:
        books = self.books
        job, load = books.jobs.get(command.job_id), books.loads.get(command.load_id)
        require(job is not None, "one_outcome", f"{command.job_id} is over and gets a step")
        require(load is not None, "targets", f"step on unknown load {command.load_id}")
        assert job is not None
        assert load is not None
        name = f"{command.lease_id} on {command.model_id}"
        require(load.stage is Stage.READY, "ready", f"{name}: it is {load.stage}")
        require(
            command.gateway == job.gateway and command.gateway not in books.suspects,
            "targets",
            f"{name}: {command.gateway} is suspect or not the job's",
        )
        slots = set(command.slots)
        require(len(slots) == len(command.slots), "slots", f"{name}: a slot twice")
        require(max(slots) < load.slots, "slots", f"{name}: {command.slots} of {load.slots}")
        require(not slots & load.busy_slots, "slots", f"{name}: {command.slots} are not all free")
        items = set(range(command.first, command.first + command.count))
        running = {item for lease in job.running.values() for item in lease.items}
        require(
            max(items) < job.submitted.items and not items & (job.done | running),
            "items",
            f"{name}: items {command.first}+{command.count} run or are done already",
        )
        require(
            any(model.model_id == command.model_id for model in books.variants(job)),
            "targets",
            f"{name}: {job.submitted.target} is another model",
        )
        self._judge_order(job)
        if job.workload in LOWER:
            self._judge_lower(job, load, command)

    def _judge_order(self, job: Job) -> None:
        """Within a client first come, first served."""
        if job.started:
            return
        mine = job.submitted
        for other in self.books.waiting(job.workload):
            theirs = other.submitted
            if (
                other.arrived_ns < job.arrived_ns
                and not other.started
                and other.gateway not in self.books.suspects
                and (theirs.client, theirs.target, theirs.needs, theirs.quality)
                == (mine.client, mine.target, mine.needs, mine.quality)
            ):
                raise Violation("order", f"{job.job_id} passes {other.job_id} of the same client")

    def _judge_lower(self, job: Job, load: Load, command: DispatchStep) -> None:
        books = self.books
        card_id = load.model.card_id
        granted = command.reason == Reason.GRANT
        name = f"{command.lease_id} ({job.workload}) on {command.model_id}"
        if books.is_interactive(card_id):
            require(granted, "interactive_first", f"{name}: interactive work is active")
        if granted:
            self._judge_grant(card_id, name)
        elif books.is_hot(command.model_id):
            require(
                load.n_free > len(command.slots),
                "last_slot",
                f"{name}: takes the last free slot of a hot model",
            )
        if job.workload is Workload.BATCH and not self._batch_is_starved(card_id):
            # The slot kept on a hot model is nobody's until its own bound has passed.
            anyhow = granted and books.is_interactive(card_id)
            for other in books.waiting(Workload.BACKGROUND):
                require(
                    not self._could_run(other, card_id, granted=anyhow),
                    "batch_last",
                    f"{name}: background {other.job_id} could run and batch has not starved",
                )

    def _judge_grant(self, card_id: CardId, name: str) -> None:
        card, policy, now_ns = self.books.cards[card_id], self.policy, self.books.now_ns
        require(policy.background_max_starvation_ns > 0, "share", f"{name}: grants are off")
        require(card.grant is None, "share", f"{name}: a second grant at once")
        due_ns = self._debt_paid_ns(card_id)
        require(
            due_ns is None or now_ns + ROUNDING_NS >= due_ns,
            "share",
            f"{name}: {format_duration((due_ns or 0) - now_ns)} before its share allows it",
        )

    def _debt_paid_ns(self, card_id: CardId) -> int | None:
        card, share = self.books.cards[card_id], self.policy.background_share
        if card.grant_ended_ns is None:
            return None
        return card.grant_ended_ns + round(card.grant_ran_ns * (1 / share - 1))

    def _batch_is_starved(self, card_id: CardId) -> bool:
        card, bound_ns = self.books.cards[card_id], self.policy.batch_max_starvation_ns
        since_ns = card.batch_waits_since_ns
        if not bound_ns or since_ns is None:
            return False
        since_ns = max(since_ns, card.batch_progress_ns or 0)
        return self.books.now_ns >= since_ns + bound_ns

    def _could_run(self, job: Job, card_id: CardId, *, granted: bool) -> bool:
        """Could a lower-class job get a step on its resident model at this moment?"""
        model = self.books.model_of(job)
        if model is None or model.card_id != card_id or job.gateway in self.books.suspects:
            return False
        load = self.books.ready_load(model.model_id)
        if load is None or load.draining:
            return False
        if load.lost_ns is not None and self.books.now_ns < load.lost_ns + SUSPECT_NS:
            return False
        kept = 0 if granted or not self.books.is_hot(model.model_id) else 1
        # A wider job of the class may stand before it and wait for more slots.
        widest = max(
            other.submitted.width
            for other in self.books.waiting(job.workload)
            if any(each is model for each in self.books.variants(other))
        )
        return load.n_free - kept >= widest

    def _judge_refusal(self, command: RefuseJob) -> None:
        job = self.books.jobs.get(command.job_id)
        if job is None and command.job_id in self.books.unsure_now:
            return  # refused as it came; that its client had left as well was heard after
        require(job is not None, "one_outcome", f"{command.job_id} is over and is refused")
        assert job is not None
        require(command.gateway == job.gateway, "targets", f"{command.job_id}: wrong gateway")
        require(bool(command.message), "reasons", f"{command.job_id}: refused without a word")
        retryable = command.status == 503
        require(
            (command.retry_after_ns is not None) == retryable,
            "reasons",
            f"{command.job_id}: {command.status} with retry_after {command.retry_after_ns}",
        )
        if command.code == "queue_timeout":
            deadline_ns = job.deadline_ns
            require(
                deadline_ns is not None and self.books.now_ns >= deadline_ns,
                "max_wait",
                f"{command.job_id} is refused before its max_wait has passed",
            )

    def _judge_cancel(self, command: CancelStep) -> None:
        lease = self.books.leases.get(command.lease_id)
        require(lease is not None, "targets", f"{command.lease_id} is not running")
        assert lease is not None
        job = lease.job
        require(job.workload in LOWER, "cut", f"{command.lease_id}: an interactive step is cut")
        require(not lease.answer_begun, "cut", f"{command.lease_id}: its answer has begun")
        require(not lease.cancelled, "cut", f"{command.lease_id}: cancelled twice")
        require(job.restarts < RESTARTS_MAX, "cut", f"{job.job_id} is taken back a third time")
        require(self.policy.restart, "cut", "policy.restart is off")

    # --- loads and unloads ---------------------------------------------------------------

    def _judge_load(self, command: LoadModel) -> None:
        books = self.books
        model = books.models.get(command.model_id)
        require(model is not None, "targets", f"{command.model_id} is not configured")
        assert model is not None
        card_id = model.card_id
        require(books.supervisor_here, "supervisor", f"{model.model_id}: nobody to load it")
        for load in books.living(card_id):
            require(load.model is not model, "one_load", f"{model.model_id} is there already")
            require(
                load.stage is not Stage.LOADING,
                "one_load",
                f"{model.model_id} loads while {load.model.model_id} does",
            )
        until_ns = books.open_until_ns.get(model.model_id, 0)
        require(books.now_ns >= until_ns, "breaker", f"{model.model_id}: its breaker is open")
        self._judge_budget(command, card_id)

    def _judge_budget(self, command: LoadModel, card_id: CardId) -> None:
        card = self.books.cards[card_id]
        require(card.total_bytes is not None, "budget", f"{card_id} has not been sampled")
        total = card.total_bytes or 0
        ceiling = min(total, card.settings.limit_bytes or total)
        ceiling = min(ceiling, total - self._foreign[card_id].at_least_bytes())
        ceiling -= card.settings.headroom_bytes
        reserved = sum(load.reserved_bytes for load in self.books.living(card_id))
        require(
            reserved + command.reserved_bytes <= ceiling,
            "budget",
            f"{command.model_id} needs {command.reserved_bytes // MB} MB, {reserved // MB} of "
            f"{ceiling // MB} MB are reserved",
        )

    def _judge_unload(self, command: UnloadModel) -> None:
        books = self.books
        load = books.loads.get(command.load_id)
        require(load is not None, "targets", f"unload of unknown {command.load_id}")
        assert load is not None
        reason, model_id = Reason(command.reason), command.model_id
        require(books.supervisor_here, "supervisor", f"{model_id}: nobody to unload it")
        require(
            load.stage in (Stage.LOADING, Stage.READY),
            "targets",
            f"{model_id} is unloaded while {load.stage}",
        )
        if reason is Reason.NOT_CONFIGURED or load.stop_was_ordered:
            return
        if load.stage is Stage.LOADING:
            self._judge_taken_back(load, reason)
            return
        require(not load.leases, "running", f"{model_id} is unloaded ({reason}) with steps running")
        if reason in (Reason.ADMIN, Reason.SHUTDOWN):
            return
        require(not load.cooling, "running", f"{model_id} is unloaded ({reason}) while cooling")
        require(not load.model.pinned, "pinned", f"{model_id} is pinned and unloaded ({reason})")
        if reason is Reason.MAKE_ROOM:
            self._judge_eviction(load, self._evicted_for[model_id])
        elif reason is Reason.IDLE:
            wanted = [job for job in books.waiting(*Workload) if books.model_of(job) is load.model]
            require(not wanted, "idle", f"{model_id} is idle though {len(wanted)} jobs wait for it")
        else:
            require(reason in EVICTIONS, "reasons", f"{model_id} is unloaded for {reason}")
            require(not books.is_hot(model_id), "hot", f"{model_id} is hot and evicted ({reason})")

    def _judge_taken_back(self, load: Load, reason: Reason) -> None:
        model_id = load.model.model_id
        if reason in (Reason.ADMIN, Reason.SHUTDOWN):
            return
        require(reason is Reason.LOAD_PREEMPTED, "reasons", f"load of {model_id} ended: {reason}")
        books = self.books

        def is_for(job: Job) -> bool:
            return books.model_of(job) is load.model

        theirs = [job for job in books.waiting(Workload.INTERACTIVE) if is_for(job)]
        require(not theirs, "preempt", f"{model_id} loads for interactive and is taken back")
        books.bumps[model_id] = books.bumps.get(model_id, 0) + 1
        require(
            books.bumps[model_id] <= LOAD_BUMPS_MAX,
            "preempt",
            f"the load of {model_id} is taken back a third time",
        )
        card_id = load.model.card_id
        require(
            any(books.may_use(job, card_id) for job in books.waiting(Workload.INTERACTIVE))
            or any(books.models[wish].card_id == card_id for wish in books.wishes),
            "preempt",
            f"{model_id} is taken back and no interactive job waits",
        )

    def _judge_eviction(self, victim: Load, for_model: ModelId) -> None:
        """Who needs the room decides who may leave."""
        books, now_ns = self.books, self.books.now_ns
        model_id = victim.model.model_id
        askers = [
            job
            for job in books.waiting(*Workload)
            if any(model.model_id == for_model for model in books.variants(job))
        ]
        interactive = [job for job in askers if job.workload is Workload.INTERACTIVE]
        require(
            bool(askers) or for_model in books.wishes,
            "make_room",
            f"{model_id} is evicted for {for_model} and nobody waits for that",
        )
        waiting = [job for job in books.waiting(*Workload) if books.model_of(job) is victim.model]
        theirs = [job for job in waiting if job.workload is Workload.INTERACTIVE]
        if interactive or for_model in books.wishes:
            require(
                not theirs or victim.n_done > 0 or victim.loaded_for is not Workload.INTERACTIVE,
                "served_once",
                f"{model_id} is evicted before it has completed a step, and a person waits for it",
            )
            if theirs and interactive and for_model not in books.wishes:
                oldest_ns = min(job.arrived_ns for job in interactive)
                require(
                    now_ns >= oldest_ns + self.policy.interactive_turn_ns,
                    "interactive_turn",
                    f"{model_id} still had its turn before {for_model}",
                )
            return
        require(not books.is_hot(model_id), "hot", f"{model_id} is hot, evicted for {for_model}")
        require(not theirs, "hot", f"{model_id} is evicted for {for_model}, a person waits for it")
        strongest = min((list(Workload).index(job.workload) for job in askers), default=0)
        if victim.loaded_for is list(Workload)[strongest] and not victim.draining:
            require(
                now_ns >= victim.ready_ns + self.policy.min_residency_ns,
                "min_residency",
                f"{model_id} is evicted for {for_model} before min_residency has passed",
            )

    # --- after the pass --------------------------------------------------------------------

    def _after_the_pass(self, why: Callable[[JobId], Why | None]) -> None:
        books = self.books
        for job in books.jobs.values():
            if job.is_waiting:
                self._judge_wait(job, why(job.job_id))
        for load in self._lower_loads:
            self._judge_lower_load(load, why)
        for card_id in books.cards:
            self._judge_starvation(card_id)
        self._evicted_for.clear()

    def _judge_wait(self, job: Job, reason: Why | None) -> None:
        deadline_ns = job.deadline_ns
        require(
            deadline_ns is None or self.books.now_ns < deadline_ns,
            "max_wait",
            f"{job.job_id} still waits after its max_wait",
        )
        if not job.running:
            require(reason is not None, "reasons", f"{job.job_id} waits and nobody can say why")
            assert reason is not None
            require(
                reason.reason in UNBLOCKED_BY,
                "reasons",
                f"{job.job_id} waits for {reason.reason}, which nothing ends",
            )
            str(reason)  # every sentence finds its facts

    def _judge_lower_load(self, load: Load, why: Callable[[JobId], Why | None]) -> None:
        card_id = load.model.card_id
        for job in self.books.waiting(Workload.INTERACTIVE):
            reason = why(job.job_id)
            # Whoever loads takes the load slot from all others: that alone is no evidence.
            mine = reason is not None and reason.facts.get("other") == load.model.model_id
            require(
                self.books.only_card(job) != card_id
                or reason is None
                or reason.reason not in ON_THE_WAY
                or (mine and reason.reason is Reason.LOAD_SLOT_TAKEN)
                or any(model is load.model for model in self.books.variants(job)),
                "interactive_loads_first",
                f"{load.model.model_id} loads for {load.loaded_for} while {job.job_id} "
                f"(interactive) waits: {reason}",
            )

    def _judge_starvation(self, card_id: CardId) -> None:
        """Under constant interactive work a step that is due has been granted."""
        books, card = self.books, self.books.cards[card_id]
        bound_ns = self.policy.background_max_starvation_ns
        if not bound_ns or card.grant is not None or card.lower_waits_since_ns is None:
            return
        since_ns = max(card.lower_waits_since_ns, card.lower_progress_ns or 0)
        due_ns = max(since_ns + bound_ns, self._debt_paid_ns(card_id) or 0)
        if books.now_ns < due_ns + ROUNDING_NS or not books.is_interactive(card_id):
            return
        background = any(books.may_use(job, card_id) for job in books.waiting(Workload.BACKGROUND))
        for job in books.waiting(*LOWER):
            if job.workload is Workload.BATCH and background:
                continue
            if job.known_since_ns + bound_ns > books.now_ns:
                continue
            require(
                not self._could_run(job, card_id, granted=True),
                "starvation",
                f"{job.job_id} ({job.workload}) has a free slot, its grant was due "
                f"{format_duration(books.now_ns - due_ns)} ago",
            )
