"""All that the brain knows, and the few verbs every part of it shares.

Facts are written by ``facts.py``, choices by ``dispatch.py`` and ``turns.py``. Everything is
keyed by id and iterated in config or arrival order, so that equal events give equal commands.
"""

import heapq
from collections import Counter
from collections.abc import Mapping

from gridcore.config.schema import Workload
from gridcore.core.card import Card
from gridcore.core.commands import AnyCommand, PublishNote, RefuseJob
from gridcore.core.events import AnyEvent
from gridcore.core.job import Job, JobPhase, Lease, Place
from gridcore.core.keys import QueueKey
from gridcore.core.model import Model, Phase
from gridcore.core.notes import Note, Verb
from gridcore.core.policy.breaker import Breaker
from gridcore.core.queues import ClassQueue, WaitQueue
from gridcore.core.reasons import Fact, Reason, Why
from gridcore.core.settings import FamilySettings, Settings
from gridcore.ids import CardId, Epoch, JobId, LeaseId, LoadId, ModelId, PeerId
from gridcore.units import NS_PER_MS, NS_PER_S, format_duration

LOWER = (Workload.BACKGROUND, Workload.BATCH)
RETRY_AFTER_NS = 2 * NS_PER_S
"""What a refused client is told to wait when nothing better is known."""

_ROUTINE = frozenset({Reason.SLOTS_BUSY, Reason.SLOT_COOLING, Reason.LOADING})
"""Waits that follow every dispatch or load: seen in the state, not told as notes."""

_REFUSALS: dict[Reason, tuple[int, str, str]] = {
    Reason.QUEUE_TIMEOUT: (503, "unavailable_error", "queue_timeout"),
    Reason.QUEUE_FULL: (503, "unavailable_error", "queue_full"),
    Reason.NEVER_FITS: (400, "invalid_request_error", "model_does_not_fit"),
    Reason.LOAD_FAILED: (502, "server_error", "model_load_failed"),
    Reason.BREAKER_OPEN: (503, "unavailable_error", "model_unavailable"),
    Reason.RUNTIME_LOST: (502, "server_error", "runtime_lost"),
    Reason.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found"),
    Reason.TOO_WIDE: (400, "invalid_request_error", "too_many_choices"),
    Reason.NO_VARIANT: (400, "invalid_request_error", "no_variant"),
    Reason.SHUTTING_DOWN: (503, "unavailable_error", "shutting_down"),
}
"""Status, type and code of each refusal; the 503s carry Retry-After."""


class State:
    def __init__(self, settings: Settings, epoch: Epoch) -> None:
        self.settings = settings
        self.policy = settings.policy
        self.epoch = epoch
        self.now_ns = 0
        self.revision = 0
        self.cards: dict[CardId, Card] = {card.card_id: Card(card) for card in settings.cards}
        self.models: dict[ModelId, Model] = {
            model.model_id: Model(model, Breaker(self.policy.breaker)) for model in settings.models
        }
        self.models_by_card: dict[CardId, list[Model]] = {card_id: [] for card_id in self.cards}
        for model in self.models.values():
            self.models_by_card[model.card_id].append(model)
        self.pinned_by_card: dict[CardId, list[Model]] = {
            card_id: [model for model in models if model.settings.pinned]
            for card_id, models in self.models_by_card.items()
        }
        self.families: dict[str, FamilySettings] = {f.name: f for f in settings.families}
        self.model_by_load: dict[LoadId, Model] = {}
        """All and only the load attempts that hold a reservation."""
        self.jobs: dict[JobId, Job] = {}
        """All and only the jobs that have not ended."""
        self.leases: dict[LeaseId, Lease] = {}
        self.gateways: set[PeerId] = set()
        self.suspects: set[PeerId] = set()
        self.queues: dict[Workload, ClassQueue] = {
            workload: ClassQueue(self.policy.fairness, self.suspects) for workload in Workload
        }
        self.variants: dict[tuple[Workload, QueueKey], ModelId] = {}
        """The variant each waiting family queue would take, as of this plan."""
        self.variant_reasons: dict[tuple[Workload, QueueKey], Why] = {}
        self.waits: dict[tuple[Workload, QueueKey], Why] = {}
        """Why each queue that is not empty waits, as of the last plan of its card."""
        self.unbounded: set[tuple[Workload, QueueKey]] = set()
        """The waits among them that only memory held by hot or pinned models can end."""
        self.wishes: dict[ModelId, int] = {}
        """Loads an admin asked for, with the time of asking."""
        self.supervisor_here = False
        self.monitor_here = False
        self.draining = False
        self.dirty: dict[CardId, None] = {}
        self.deadlines: list[tuple[int, Place, JobId]] = []
        self.out: list[AnyCommand] = []
        self.totals: dict[str, Counter[str]] = {}
        self.last_deferred: dict[tuple[Workload, QueueKey], Reason] = {}
        self._sources: dict[tuple[ModelId, Workload], list[WaitQueue]] = {}
        self._waiting: dict[tuple[CardId, Workload], list[Model]] = {}
        self._n_jobs = 0
        self._n_leases = 0
        self._n_loads = 0

    # --- ids -------------------------------------------------------------------------

    def next_seq(self) -> int:
        self._n_jobs += 1
        return self._n_jobs

    def next_lease_id(self) -> LeaseId:
        self._n_leases += 1
        return LeaseId(f"{self.epoch}-{self._n_leases}")

    def next_load_id(self) -> LoadId:
        self._n_loads += 1
        return LoadId(f"{self.epoch}-{self._n_loads}")

    # --- speaking --------------------------------------------------------------------

    def note(
        self,
        verb: Verb,
        text: str,
        *,
        job: Job | None = None,
        model: Model | None = None,
        card: Card | None = None,
        workload: Workload | None = None,
        facts: Mapping[str, Fact] | None = None,
        **data: Fact | bool | None,
    ) -> None:
        """Publish one line of the explain log; ``facts`` and ``data`` are its values."""
        note = Note(
            verb=verb,
            text=text,
            job_id=job.job_id if job else None,
            model_id=model.model_id if model else (job.model_id if job else None),
            card_id=card.card_id if card else (model.card_id if model else None),
            workload=job.workload if job else workload,
            data={**facts, **data} if facts else data,
        )
        self.out.append(PublishNote(note=note))

    def count(self, family: str, label: str, n: int = 1) -> None:
        counter = self.totals.get(family)
        if counter is None:
            counter = self.totals[family] = Counter()
        counter[label] += n

    def mark(self, card_id: CardId) -> None:
        """A fact changed something on this card: plan it."""
        self.dirty[card_id] = None

    def mark_all(self) -> None:
        for card_id in self.cards:
            self.mark(card_id)

    def drop(self, event: AnyEvent) -> None:
        """Count an event about an attempt that is unknown or over."""
        self.count("messages_dropped", type(event).__name__)

    # --- queries ---------------------------------------------------------------------

    @property
    def hot_ttl_ns(self) -> int:
        return self.policy.classes.interactive.hot_ttl_ns

    def is_hot(self, model: Model) -> bool:
        return model.is_hot(self.now_ns, self.hot_ttl_ns)

    def card_of(self, model: Model) -> Card:
        return self.cards[model.card_id]

    def key_of(self, job: Job) -> QueueKey:
        submitted = job.submitted
        if submitted.target in self.families and job.model_id is None:
            return QueueKey(submitted.target, submitted.needs, submitted.quality, job.width)
        return QueueKey(job.model_id or submitted.target)

    def variants_of(self, key: QueueKey) -> list[Model]:
        """The models that may serve a queue, best first."""
        family = self.families.get(key.target)
        if family is None:
            return [self.models[ModelId(key.target)]]
        allowed: list[Model] = []
        for tier, model_id in family.variants:
            model = self.models[model_id]
            if key.needs <= model.settings.capabilities and key.width <= model.settings.slots:
                allowed.append(model)
            if tier == key.quality:
                break
        return allowed

    def model_for(self, workload: Workload, key: QueueKey) -> Model | None:
        """The model a queue waits for now."""
        if key.target not in self.families:
            return self.models[ModelId(key.target)]
        model_id = self.variants.get((workload, key))
        return None if model_id is None else self.models[model_id]

    def sources(self, model: Model, workload: Workload) -> list[WaitQueue]:
        """The queues of a class that wait for this model now."""
        found = self._sources.get((model.model_id, workload))
        return [] if found is None else [queue for queue in found if len(queue)]

    def index_sources(self) -> None:
        """Sort the waiting queues by the model they wait for; once a plan and after a queue
        has changed its variant."""
        self._sources.clear()
        self._waiting.clear()
        for workload, class_queue in self.queues.items():
            for queue in class_queue.queues():
                model = self.model_for(workload, queue.key)
                if model is None:
                    continue
                place = (model.model_id, workload)
                if place in self._sources:
                    self._sources[place].append(queue)
                else:
                    self._sources[place] = [queue]
                    self._waiting.setdefault((model.card_id, workload), []).append(model)

    def waiting_models(self, card: Card, workload: Workload) -> list[Model]:
        """The card's models that a queue of this class waits for, by first use."""
        found = self._waiting.get((card.card_id, workload))
        return [model for model in found if self.has_queued(model, workload)] if found else []

    def has_queued(self, model: Model, workload: Workload) -> bool:
        found = self._sources.get((model.model_id, workload))
        return found is not None and any(map(len, found))

    def is_wanted(self, model: Model) -> bool:
        return any(self.has_queued(model, workload) for workload in self.queues)

    def batch_is_starved(self, card: Card) -> bool:
        bound_ns = self.policy.batch_max_starvation_ns
        return (
            bound_ns > 0 and card.batch_waits and self.now_ns >= card.batch_progress_ns + bound_ns
        )

    def set_wait(
        self, workload: Workload, queue: WaitQueue, why: Why, *, unbounded: bool = False
    ) -> None:
        """Record why a queue waits; a new reason is told once."""
        place = (workload, queue.key)
        self.waits[place] = why
        if unbounded:
            self.unbounded.add(place)
        else:
            self.unbounded.discard(place)
        if self.last_deferred.get(place) == why.reason or why.reason in _ROUTINE:
            return
        self.last_deferred[place] = why.reason
        job = queue.oldest()
        if job is not None:
            self.note(
                Verb.DEFER,
                f"{workload} {queue.key.target}: {why}",
                job=job,
                reason=why.reason.value,
                facts=why.facts,
            )

    # --- gateways --------------------------------------------------------------------

    def trust(self, gateway: PeerId) -> None:
        """A gateway is not suspect: its jobs may get grants."""
        if gateway in self.suspects:
            self.suspects.discard(gateway)
            for class_queue in self.queues.values():
                class_queue.release(gateway)

    # --- jobs ------------------------------------------------------------------------

    def enqueue(self, job: Job) -> None:
        """Put a job into its queue, at its old place if it was there before."""
        job.queue_key = self.key_of(job)
        if job.pending:
            self.queues[job.workload].add(job.queue_key, job, self.now_ns)
        self.mark_job(job)

    def dequeue(self, job: Job) -> None:
        if job.queue_key is not None:
            self.queues[job.workload].remove(job.queue_key, job.job_id)
            job.queue_key = None

    def mark_job(self, job: Job) -> None:
        """Plan the cards a waiting job may run on."""
        if job.queue_key is not None:
            for model in self.variants_of(job.queue_key):
                self.mark(model.card_id)

    def set_deadline(self, job: Job) -> None:
        if job.deadline_ns is not None:
            heapq.heappush(self.deadlines, (job.deadline_ns, job.place, job.job_id))

    def move_job(self, job: Job) -> None:
        """Let the phase follow from what runs."""
        job.phase = JobPhase.RUNNING if job.running else JobPhase.QUEUED

    def end_job(self, job: Job, outcome: str) -> None:
        """Forget a job; its outcome is counted exactly once."""
        self.mark_job(job)
        self.dequeue(job)
        job.phase = JobPhase.ENDED
        del self.jobs[job.job_id]
        self.count(f"jobs_{outcome}", job.workload)

    def refuse(self, job: Job, why: Why, *, retry_after_ns: int | None = None) -> None:
        """End a job with an error answer."""
        status, error_type, code = _REFUSALS[why.reason]
        if status == 503 and retry_after_ns is None:
            retry_after_ns = RETRY_AFTER_NS
        self.out.append(
            RefuseJob(
                job_id=job.job_id,
                gateway=job.gateway,
                status=status,
                error_type=error_type,
                code=code,
                message=str(why),
                param="model" if status in (400, 404) else None,
                retry_after_ns=retry_after_ns,
            )
        )
        verb = Verb.TIMEOUT if why.reason is Reason.QUEUE_TIMEOUT else Verb.REFUSE
        waited_ms = (self.now_ns - job.arrived_ns) // NS_PER_MS
        self.note(
            verb,
            f"{job.workload} {job.submitted.kind} {job.submitted.target}: {why}",
            job=job,
            reason=why.reason.value,
            status=status,
            code=code,
            waited_ms=waited_ms,
        )
        self.end_job(job, "refused")

    def why_waiting(self, job: Job) -> Why | None:
        if job.gateway in self.suspects:
            return Why(Reason.GATEWAY_SUSPECT)
        return self.waits.get((job.workload, job.queue_key)) if job.queue_key else None

    def describe_wait(self, job: Job) -> str:
        why = self.why_waiting(job)
        return "its turn had not come" if why is None else str(why)

    def settle_footprint(self, model: Model, measured_bytes: int) -> None:
        """Let the measured footprint replace the reservation; it only ever grows while loaded."""
        if model.load_id is None or model.phase in (Phase.COLD, Phase.RELEASING):
            return
        card = self.card_of(model)
        card.ledger.settle(model.load_id, measured_bytes)
        model.measured_bytes = measured_bytes
        self.mark(card.card_id)

    def next_in(self, at_ns: int) -> str:
        return format_duration(max(at_ns - self.now_ns, 0))
