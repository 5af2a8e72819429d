"""What must hold after every pass, stated apart from the code that keeps it.

Each sentence is a set definition of ``State`` or a promise; ``check`` raises the first one that
is broken. It runs after every event in tests and simulation, and at a low rate in production.
"""

from gridcore.config.schema import Workload
from gridcore.core.job import JobPhase
from gridcore.core.model import RESIDENT, Phase
from gridcore.core.state import State
from gridcore.errors import InvariantViolation


def check(state: State) -> None:
    _check_ledger(state)
    _check_slots(state)
    _check_jobs(state)
    _check_cards(state)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantViolation(sentence)


def _check_ledger(state: State) -> None:
    """Every load attempt that is not over has exactly one entry, on its model's card."""
    for card in state.cards.values():
        expected = {
            model.load_id
            for model in state.models_by_card[card.card_id]
            if model.phase is not Phase.COLD
        }
        entries = card.ledger.entries()
        _require(set(entries) == expected, f"{card.card_id}: ledger differs from the phases")
        _require(sum(entries.values()) == card.ledger.reserved_bytes, "ledger sum differs")
    for model in state.models.values():
        _require(
            (model.load_id is None) == (model.phase is Phase.COLD),
            f"{model.model_id}: load id in phase {model.phase}",
        )


def _check_slots(state: State) -> None:
    """Widths of running steps never exceed the slots; leases and slots agree."""
    for model in state.models.values():
        if model.phase not in RESIDENT:
            _require(not model.leases, f"{model.model_id}: leases in phase {model.phase}")
            continue
        held = {slot.lease_id for slot in model.slots if slot.lease_id is not None}
        _require(held == model.leases, f"{model.model_id}: slots and leases differ")
        running = sum(model.n_running_by_workload.values())
        _require(running == len(model.leases), f"{model.model_id}: running counts differ")
        _require(
            all(lease_id in state.leases for lease_id in model.leases),
            f"{model.model_id}: a slot is held by a lease that has ended",
        )


def _check_jobs(state: State) -> None:
    """A job is queued in exactly one place if items wait, and running if leases say so."""
    for job in state.jobs.values():
        in_queue = job.queue_key is not None and any(
            (queue := state.queues[workload].find(job.queue_key)) is not None
            and job.job_id in queue
            for workload in Workload
        )
        _require(in_queue == bool(job.pending), f"{job.job_id}: queue and pending items differ")
        _require(
            (job.phase is JobPhase.RUNNING) == bool(job.running),
            f"{job.job_id}: phase {job.phase} with {len(job.running)} steps",
        )
        for lease_id in job.running:
            _require(lease_id in state.leases, f"{job.job_id}: runs on an ended lease")
    for class_queue in state.queues.values():
        n_jobs = sum(len(queue) for queue in class_queue.queues())
        _require(n_jobs == class_queue.n_jobs, "queue count differs")


def _check_cards(state: State) -> None:
    """One load at a time per card; at most one lower-class step on its share."""
    for card in state.cards.values():
        loading = [
            model.model_id
            for model in state.models_by_card[card.card_id]
            if model.phase is Phase.LOADING
        ]
        _require(len(loading) <= 1, f"{card.card_id}: {loading} load at once")
        if loading:
            turn = card.turn
            _require(
                turn is not None and turn.loading and turn.model_id == loading[0],
                f"{card.card_id}: {loading[0]} loads without a turn",
            )
        _require(
            card.wake_ns is None or card.wake_ns > state.now_ns,
            f"{card.card_id}: asks to be woken at {card.wake_ns}, it is {state.now_ns}",
        )
        _require(
            card.grant is None or card.grant in state.leases, f"{card.card_id}: grant has ended"
        )
