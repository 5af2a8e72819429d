"""Who runs now: steps on resident models.

Interactive first; background and batch while nobody waits, or one step at a time on their
share of the time (a grant). Reads the state, dispatches, and leaves a reason on every queue
that has to wait.
"""

from gridcore.config.schema import Workload
from gridcore.core import families
from gridcore.core.card import Card, Mode
from gridcore.core.commands import DispatchStep
from gridcore.core.events import JobKind
from gridcore.core.job import Job, Lease, Place
from gridcore.core.model import Model, Phase
from gridcore.core.notes import Verb
from gridcore.core.queues import WaitQueue
from gridcore.core.reasons import Fact, Reason, Why
from gridcore.core.state import LOWER, State
from gridcore.units import NS_PER_MS, NS_PER_S

STEP_NS_GUESS = NS_PER_S
"""Expected length of a step on a model that has not finished one yet."""
CHUNKED = frozenset({JobKind.EMBEDDING, JobKind.RERANK})


def dispatch_card(state: State, card: Card) -> None:
    """Start every step that may start on this card."""
    if card.mode is Mode.INTERACTIVE:
        _try_grant(state, card)
    for model in state.waiting_models(card, Workload.INTERACTIVE):
        if model.phase is Phase.READY:
            _dispatch_model(state, card, model, Workload.INTERACTIVE, keep_slots=0)
    if card.mode is not Mode.INTERACTIVE:
        _dispatch_lower(state, card)


def _dispatch_lower(state: State, card: Card) -> None:
    if state.batch_is_starved(card):
        _dispatch_one_batch_step(state, card)
    for workload in LOWER:
        blocked = workload is Workload.BATCH and background_is_runnable(state, card)
        for model in state.waiting_models(card, workload):
            if model.phase is not Phase.READY:
                continue
            if blocked:
                _wait_behind_background(state, card, model)
                continue
            keep = 1 if state.is_hot(model) else 0
            _dispatch_model(state, card, model, workload, keep_slots=keep)
            if keep and not _is_behind_background(state, card, model, workload):
                _try_last_slot(state, card, model, workload)


def _is_behind_background(state: State, card: Card, model: Model, workload: Workload) -> bool:
    """Does the slot kept on a model go to background before this class?"""
    if workload is not Workload.BATCH or not state.has_queued(model, Workload.BACKGROUND):
        return False
    wake_for_batch(state, card)
    return not state.batch_is_starved(card)


def _wait_behind_background(state: State, card: Card, model: Model) -> None:
    for queue in state.sources(model, Workload.BATCH):
        state.set_wait(Workload.BATCH, queue, Why(Reason.BEHIND_BACKGROUND))
        wake_for_batch(state, card)


def wake_for_batch(state: State, card: Card) -> None:
    """Plan again when waiting batch work has starved, if it has not yet."""
    if state.policy.batch_max_starvation_ns and not state.batch_is_starved(card):
        card.wake_at(card.batch_progress_ns + state.policy.batch_max_starvation_ns)


def _dispatch_one_batch_step(state: State, card: Card) -> None:
    queues = [
        (queue.starved_since_ns, index, model, queue)
        for index, model in enumerate(state.waiting_models(card, Workload.BATCH))
        if model.phase is Phase.READY and model.suspect_until_ns is None
        for queue in state.sources(model, Workload.BATCH)
        if (job := queue.head()) is not None
        and job.width <= model.n_free_slots - (1 if state.is_hot(model) else 0)
    ]
    if queues:
        _, _, model, queue = min(queues, key=lambda entry: entry[:2])
        _start(state, card, model, queue, model.n_free_slots, granted=False)


def background_is_runnable(state: State, card: Card) -> bool:
    """Does background have something that will run without an event beyond its control?"""
    for model in state.waiting_models(card, Workload.BACKGROUND):
        for queue in state.sources(model, Workload.BACKGROUND):
            why = state.waits.get((Workload.BACKGROUND, queue.key))
            if why is None or (
                why.reason is not Reason.LAST_SLOT_KEPT
                and (Workload.BACKGROUND, queue.key) not in state.unbounded
            ):
                return True
    return False


def _dispatch_model(
    state: State, card: Card, model: Model, workload: Workload, *, keep_slots: int
) -> None:
    """Fill the free slots of a model with the steps whose turn it is."""
    if model.suspect_until_ns is not None:
        for queue in state.sources(model, workload):
            state.set_wait(workload, queue, Why(Reason.RUNTIME_SUSPECT, {"model": model.model_id}))
        card.wake_at(model.suspect_until_ns)
        return
    while True:
        found = _next_queue(state, model, workload)
        if found is None:
            return
        free = model.n_free_slots - keep_slots
        job = found.head()
        assert job is not None
        if free < max(job.width, 1):
            _wait_for_slot(state, card, model, workload, kept=keep_slots)
            return
        _start(state, card, model, found, free, granted=False)


def _next_queue(state: State, model: Model, workload: Workload) -> WaitQueue | None:
    """The queue whose head is next for this model: fair between clients, then by arrival."""
    best: WaitQueue | None = None
    best_rank: tuple[int, Place] | None = None
    for queue in state.sources(model, workload):
        job = queue.head()
        if job is None:
            continue
        rank = queue.rank(job)
        if best_rank is None or rank < best_rank:
            best, best_rank = queue, rank
    return best


def _wait_for_slot(
    state: State, card: Card, model: Model, workload: Workload, *, kept: int
) -> None:
    found = _next_queue(state, model, workload)
    job = None if found is None else found.head()
    width = 1 if job is None else job.width
    facts: dict[str, Fact] = {"model": model.model_id, "slots": len(model.slots)}
    if kept and model.n_free_slots >= width:
        why = Why(Reason.LAST_SLOT_KEPT, facts)
        card.wake_at(model.cools_ns(state.now_ns, state.hot_ttl_ns))
    elif model.n_cooling and len(model.slots) == model.n_cooling:
        why = Why(Reason.SLOT_COOLING, facts)
    else:
        why = Why(Reason.SLOTS_BUSY, facts)
    for queue in state.sources(model, workload):
        state.set_wait(workload, queue, why)


# --- grants: the share of background and batch alongside interactive work -----------------


def grant_due_ns(state: State, card: Card) -> int | None:
    """When the next lower-class step may run alongside interactive work; None is never."""
    if not state.policy.background_max_starvation_ns:
        return None
    if card.granting:
        return card.next_grant_ns
    # What the grant before it owes is owed by whoever comes next.
    return max(
        card.lower_progress_ns + state.policy.background_max_starvation_ns, card.next_grant_ns
    )


def _try_grant(state: State, card: Card) -> None:
    """In mode interactive: one lower-class step, once it is due."""
    due_ns = grant_due_ns(state, card)
    if due_ns is None or card.grant is not None or state.now_ns < due_ns:
        _wait_for_share(state, card, due_ns)
        return
    order = list(LOWER)
    if state.batch_is_starved(card):
        order.reverse()
    for workload in order:
        behind = workload is Workload.BATCH and order[0] is Workload.BACKGROUND
        if behind and background_is_runnable(state, card):
            break
        chosen = _longest_starved(state, card, workload)
        if chosen is not None:
            model, queue = chosen
            _start(state, card, model, queue, model.n_free_slots, granted=True)
            break
    _wait_for_share(state, card, grant_due_ns(state, card))


def _longest_starved(
    state: State, card: Card, workload: Workload
) -> tuple[Model, WaitQueue] | None:
    """The queue without progress for longest among those whose model has a free slot."""
    best: tuple[tuple[int, Place], Model, WaitQueue] | None = None
    for model in state.waiting_models(card, workload):
        if model.phase is not Phase.READY or model.suspect_until_ns is not None:
            continue
        for queue in state.sources(model, workload):
            job = queue.head()
            if job is None or model.n_free_slots < job.width:
                continue
            rank = (queue.starved_since_ns, job.place)
            if best is None or rank < best[0]:
                best = (rank, model, queue)
    return None if best is None else best[1:]


def _wait_for_share(state: State, card: Card, due_ns: int | None) -> None:
    """Say why lower-class queues on resident models wait in mode interactive."""
    waiting = False
    reason = Reason.SHARE_USED if card.granting else Reason.INTERACTIVE_ACTIVE
    for workload in LOWER:
        for model in state.waiting_models(card, workload):
            if model.phase is not Phase.READY:
                continue  # one that leaves waits for the turn, not for its share
            when = "when it is idle" if due_ns is None else state.next_in(due_ns)
            if card.grant is not None:
                when = "after the one that runs"
            for queue in state.sources(model, workload):
                waiting = True
                state.set_wait(workload, queue, Why(reason, {"next_in": when}))
    if waiting and card.grant is None and due_ns is not None and due_ns > state.now_ns:
        card.wake_at(due_ns)


def _try_last_slot(state: State, card: Card, model: Model, workload: Workload) -> None:
    """Outside mode interactive: the slot kept on a hot model, on the same terms as a grant."""
    starvation_ns = state.policy.background_max_starvation_ns
    if not starvation_ns or model.suspect_until_ns is not None:
        return
    for queue in state.sources(model, workload):
        why = state.waits.get((workload, queue.key))
        if why is None or why.reason is not Reason.LAST_SLOT_KEPT or card.grant is not None:
            continue
        job = queue.head()
        if job is None or job.width > model.n_free_slots:
            continue
        due_ns = card.next_grant_ns
        if not queue.granting:
            due_ns = max(due_ns, queue.starved_since_ns + starvation_ns)
        if state.now_ns < due_ns:
            card.wake_at(due_ns)
            continue
        _start(state, card, model, queue, model.n_free_slots, granted=True)
        _wait_for_slot(state, card, model, workload, kept=1)
        return


# --- one step ------------------------------------------------------------------------------


def step_size(state: State, job: Job, model: Model, free: int) -> tuple[int, int]:
    """Return (items, slots) of the next step of a job on a model with ``free`` slots to give.

    A chunk of embeddings makes one task per input in the runtime, which spreads them over all
    its slots; so it takes all of them, or no more inputs than the slots it is given.
    """
    if job.submitted.kind not in CHUNKED:
        return 1, job.width
    n_slots = len(model.slots)
    _, available = job.pending[0]
    if free < n_slots:
        count = min(free, available)
        return count, count
    chunk = state.policy.embedding_chunk_size
    if model.item_ns:
        chunk = min(chunk, state.policy.embedding_chunk_time_ns // model.item_ns)
    count = min(max(chunk, n_slots), available)
    return count, min(count, n_slots)


def _start(
    state: State, card: Card, model: Model, queue: WaitQueue, free: int, *, granted: bool
) -> None:
    """Dispatch the next step of a queue's head."""
    job = queue.head()
    assert job is not None
    assert model.load_id is not None
    now_ns = state.now_ns
    workload = job.workload
    items, width = step_size(state, job, model, free)
    first, count = job.take(items)
    slots = model.choose_slots(width, job.submitted.affinity, workload)
    expected_ns = (model.step_ns or STEP_NS_GUESS) * width
    lease = Lease(
        lease_id=state.next_lease_id(),
        job_id=job.job_id,
        gateway=job.gateway,
        load_id=model.load_id,
        model_id=model.model_id,
        slots=slots,
        first=first,
        count=count,
        started_ns=now_ns,
        workload=workload,
        client=job.client,
        granted=granted,
        charged_ns=expected_ns,
    )
    state.leases[lease.lease_id] = lease
    model.occupy(lease.lease_id, slots, workload, job.submitted.affinity)
    model.note_use(workload, now_ns)
    family_queue = queue.key.target in state.families
    if family_queue:
        families.announce(state, job, model)
    first_step = not job.running and not job.steps_done
    job.running[lease.lease_id] = (first, count)
    job.deadline_ns = None
    if not job.pending:
        state.dequeue(job)
    job.model_id = model.model_id
    state.move_job(job)
    state.queues[workload].begin(job.client, expected_ns)
    _note_progress(state, card, queue, workload, granted=granted, lease=lease)
    state.last_deferred.pop((workload, queue.key), None)
    state.waits.pop((workload, queue.key), None)
    state.unbounded.discard((workload, queue.key))

    waited_ns = now_ns - job.arrived_ns
    if first_step:
        state.count("queue_wait_ns", workload, waited_ns)
    chunk = max(items, 1)
    step = job.steps_done + len(job.running)
    steps = max(job.steps_done + job.steps_left(chunk), step)
    state.out.append(
        DispatchStep(
            lease_id=lease.lease_id,
            job_id=job.job_id,
            gateway=job.gateway,
            load_id=model.load_id,
            model_id=model.model_id,
            address=model.address,
            slots=slots,
            first=first,
            count=count,
            waited_ns=waited_ns,
            workload=workload,
            reason=(Reason.GRANT if granted else Reason.FREE_SLOT).value,
        )
    )
    state.note(
        Verb.DISPATCH,
        f"{workload} step {step}/{steps} -> {model.model_id}" + (" (share)" if granted else ""),
        job=job,
        model=model,
        lease_id=lease.lease_id,
        step=step,
        steps=steps,
        items=count,
        slots=len(slots),
        waited_ms=waited_ns // NS_PER_MS,
        granted=granted,
    )
    if family_queue:
        families.resolve(state, workload, queue)


def _note_progress(
    state: State,
    card: Card,
    queue: WaitQueue,
    workload: Workload,
    *,
    granted: bool,
    lease: Lease,
) -> None:
    queue.starved_since_ns = state.now_ns
    queue.granting = granted and len(queue) > 0
    if workload is Workload.INTERACTIVE:
        return
    card.lower_progress_ns = state.now_ns
    card.granting = granted
    if granted:
        card.grant = lease.lease_id
    if workload is Workload.BATCH:
        card.batch_progress_ns = state.now_ns
