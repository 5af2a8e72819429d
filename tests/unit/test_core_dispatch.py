"""Who may start a step: the classes, the share, the last slot, fairness between clients."""

import pytest

from gridcore.config.schema import Capability, Workload
from gridcore.core.events import (
    AnswerBegun,
    CancelCause,
    FailureCause,
    JobCancelled,
    JobKind,
    SlotsSeen,
    StepOutcome,
)
from gridcore.ids import JobId, LeaseId
from tests.support.builders import (
    Brain,
    CancelStep,
    DispatchStep,
    RefuseJob,
    kinds,
    model,
    seconds,
    settings,
    the,
)

BACKGROUND, BATCH = Workload.BACKGROUND, Workload.BATCH


def chat_and_index(**policy: object) -> Brain:
    """A chat model in use and an embedder, both resident and idle."""
    embedder = model("embed", 500, slots=4, capabilities=[Capability.EMBEDDING])
    brain = Brain(settings(model("chat", 8000, slots=2), embedder, **policy))
    brain.resident("chat", "embed")
    brain.wait(400)  # long enough for both to cool
    return brain


def test_interactive_is_dispatched_at_once() -> None:
    brain = chat_and_index()
    step = the(brain.submit("chat"), DispatchStep)
    assert (step.model_id, step.reason, step.waited_ns) == ("chat", "free_slot", 0)


def test_interactive_waits_for_a_slot_and_takes_the_next_one() -> None:
    brain = chat_and_index()
    first = the(brain.submit("chat"), DispatchStep)
    the(brain.submit("chat"), DispatchStep)
    assert brain.submit("chat") == []
    step = the(brain.finish(first, took_s=1), DispatchStep)
    assert step.job_id == f"j{5}"
    assert step.waited_ns == seconds(1)


def test_background_waits_for_the_quiet_period() -> None:
    brain = chat_and_index()
    chat = the(brain.submit("chat"), DispatchStep)
    assert brain.submit("embed", BACKGROUND, kind=JobKind.EMBEDDING, items=8) == []
    brain.finish(chat, took_s=0.5)
    assert brain.wait(1.9) == []
    step = the(brain.wait(0.2), DispatchStep)
    assert step.workload == BACKGROUND


def test_under_constant_chat_background_gets_its_share_one_step_at_a_time() -> None:
    """The first step after background_max_starvation, the next when the share is paid for."""
    brain = chat_and_index(background_share=0.25)
    the(brain.submit("chat"), DispatchStep)
    assert brain.submit("embed", BACKGROUND, kind=JobKind.EMBEDDING, items=500) == []
    assert brain.wait(2.9) == []
    step = the(brain.wait(0.2), DispatchStep)
    assert step.reason == "grant"
    assert brain.wait(5) == [], "only one at a time"
    assert brain.finish(step) == []
    assert brain.wait(14.5) == [], "a step of 5 s at share 0.25 is paid for after 15 s"
    assert the(brain.wait(1.0), DispatchStep).reason == "grant"


def test_a_share_of_one_never_pays() -> None:
    brain = chat_and_index(background_share=1.0)
    the(brain.submit("chat"), DispatchStep)
    brain.submit("embed", BACKGROUND, kind=JobKind.EMBEDDING, items=500)
    step = the(brain.wait(3.1), DispatchStep)
    out = brain.finish(step, took_s=1)
    out += brain.wait(0.01)
    assert the(out, DispatchStep).reason == "grant"


def test_zero_starvation_is_strict_exclusivity() -> None:
    brain = chat_and_index(background_max_starvation=0)
    the(brain.submit("chat"), DispatchStep)
    brain.submit("embed", BACKGROUND, kind=JobKind.EMBEDDING, items=8)
    assert brain.wait(3600) == []


def test_a_grant_takes_the_next_free_slot_of_a_busy_one_slot_model() -> None:
    """Interactive then waits for that one step, and gets the slot back."""
    brain = Brain(settings(model("chat", slots=1)))
    brain.resident("chat")
    running = the(brain.submit("chat"), DispatchStep)
    brain.submit("chat", BACKGROUND)
    brain.submit("chat")
    assert brain.wait(3.5) == [], "the slot is taken"
    granted = the(brain.finish(running), DispatchStep)
    assert (granted.workload, granted.reason) == (BACKGROUND, "grant")
    back = the(brain.finish(granted, took_s=1), DispatchStep)
    assert back.workload == Workload.INTERACTIVE


def test_without_a_grant_the_last_free_slot_of_a_hot_model_is_kept() -> None:
    brain = Brain(settings(model("chat", slots=2)))
    brain.resident("chat")
    brain.wait(10)
    the(brain.submit("chat", BACKGROUND), DispatchStep)
    assert brain.submit("chat", BACKGROUND) == [], "one of two slots stays free"
    assert "last free slot" in str(brain.core.snapshot().jobs[-1].reason)
    assert the(brain.submit("chat"), DispatchStep).workload == Workload.INTERACTIVE


def test_the_last_slot_is_lent_after_the_starvation_bound() -> None:
    brain = Brain(settings(model("chat", slots=1)))
    brain.resident("chat")
    brain.wait(10)
    assert brain.submit("chat", BACKGROUND) == []
    assert brain.wait(2.9) == []
    assert the(brain.wait(0.2), DispatchStep).reason == "grant"


def test_batch_runs_only_while_background_has_nothing_runnable() -> None:
    brain = Brain(settings(model("a", slots=1), model("b", slots=1)))
    brain.resident("a", "b")
    brain.wait(400)
    running = the(brain.submit("a", BACKGROUND), DispatchStep)
    brain.submit("a", BACKGROUND)
    assert brain.submit("b", BATCH) == []
    assert "background work goes first" in str(brain.core.snapshot().jobs[-1].reason)
    steps = [c for c in brain.finish(running, took_s=1) if isinstance(c, DispatchStep)]
    assert [step.workload for step in steps] == [BACKGROUND, BATCH]


def test_batch_gets_one_step_after_its_bound() -> None:
    brain = Brain(
        settings(model("a", slots=1), model("b", slots=1), batch_max_starvation=seconds(60))
    )
    brain.resident("a", "b")
    brain.wait(400)
    step = the(brain.submit("a", BACKGROUND), DispatchStep)
    for _ in range(70):
        brain.submit("a", BACKGROUND)
    brain.submit("b", BATCH)
    granted_at = None
    for second in range(70):
        out = brain.finish(step, took_s=1)
        step = next(c for c in out if isinstance(c, DispatchStep) and c.model_id == "a")
        if any(isinstance(c, DispatchStep) and c.model_id == "b" for c in out):
            granted_at = second
            break
    assert granted_at is not None
    assert 58 <= granted_at <= 61


def test_embeddings_are_cut_into_chunks_and_answered_as_one() -> None:
    brain = chat_and_index()
    out = brain.submit("embed", BACKGROUND, kind=JobKind.EMBEDDING, items=70)
    ranges = []
    while out:
        step = the(out, DispatchStep)
        ranges.append((step.first, step.count, len(step.slots)))
        out = brain.finish(step, took_s=0.1)
    assert ranges == [(0, 32, 4), (32, 32, 4), (64, 6, 4)]
    assert brain.notes("complete") == [
        *["complete interactive chat", "complete interactive embed"],
        "complete background embed",
    ]


def test_a_chunk_is_cut_to_the_time_it_takes() -> None:
    """After a chunk of 32 took 3.2 s, the next holds no more than about 250 ms of work, but as
    many inputs as there are slots."""
    brain = chat_and_index()
    out = brain.submit("embed", BACKGROUND, kind=JobKind.EMBEDDING, items=100)
    out = brain.finish(the(out, DispatchStep), took_s=3.2)
    assert the(out, DispatchStep).count == 4


def test_clients_of_a_class_share_a_model() -> None:
    """Fifty queued requests of one client do not make another wait behind them all."""
    brain = Brain(settings(model("chat", slots=1)))
    brain.resident("chat")
    running = the(brain.submit("chat", client="greedy"), DispatchStep)
    for _ in range(50):
        brain.submit("chat", client="greedy")
    brain.submit("chat", client="modest", job_id="modest")
    assert the(brain.finish(running, took_s=2), DispatchStep).job_id == "modest"


def test_fifo_is_strictly_by_arrival() -> None:
    brain = Brain(settings(model("chat", slots=1), fairness="fifo"))
    brain.resident("chat")
    running = the(brain.submit("chat", client="greedy"), DispatchStep)
    brain.submit("chat", client="greedy", job_id="second")
    brain.submit("chat", client="modest")
    assert the(brain.finish(running, took_s=2), DispatchStep).job_id == "second"


def test_a_wide_request_takes_as_many_slots_and_too_wide_is_refused() -> None:
    brain = Brain(settings(model("chat", slots=4)))
    brain.resident("chat")
    assert len(the(brain.submit("chat", width=3), DispatchStep).slots) == 3
    refused = the(brain.submit("chat", width=5), RefuseJob)
    assert (refused.status, refused.code) == (400, "too_many_choices")


def test_max_wait_bounds_the_time_until_the_first_step() -> None:
    brain = Brain(settings(model("chat", slots=1)))
    brain.resident("chat")
    running = the(brain.submit("chat"), DispatchStep)
    brain.submit("chat", max_wait_ns=seconds(3))
    assert brain.wait(2.99) == []
    refused = the(brain.wait(0.02), RefuseJob)
    assert (refused.status, refused.code) == (503, "queue_timeout")
    assert refused.retry_after_ns
    assert "all 1 slots of chat are busy" in refused.message
    assert brain.finish(running) == []


def test_a_full_queue_refuses_the_surplus_only() -> None:
    brain = Brain(settings(model("chat"), classes={"background": {"queue_limit": 2}}))
    out = [command for _ in range(4) for command in brain.submit("chat", BACKGROUND)]
    refused = [command for command in out if isinstance(command, RefuseJob)]
    assert [command.code for command in refused] == ["queue_full"] * 2


def test_cancelling_a_queued_job_touches_no_running_one() -> None:
    brain = Brain(settings(model("chat", slots=1)))
    brain.resident("chat")
    running = the(brain.submit("chat"), DispatchStep)
    brain.submit("chat", job_id="queued")
    assert brain.feed(JobCancelled(job_id=JobId("queued"), cause=CancelCause.CLIENT_GONE)) == []
    assert JobId("queued") not in brain.state.jobs
    assert brain.finish(running) == []


def test_a_slot_of_an_aborted_step_cools_until_the_runtime_says_idle() -> None:
    brain = Brain(settings(model("chat", slots=1)))
    brain.resident("chat")
    step = the(brain.submit("chat"), DispatchStep)
    brain.submit("chat", job_id="next")
    out = brain.finish(step, outcome=StepOutcome.CANCELLED, last=True, slot_idle=False)
    assert out == []
    assert kinds(brain.wait(0.2)) == ["ReadSlots"]
    assert kinds(brain.wait(1.5)) == [], "read at most once in two seconds"
    step = the(brain.feed(SlotsSeen(load_id=step.load_id, idle_slots=(0,))), DispatchStep)
    assert step.job_id == "next"


def test_a_lost_step_keeps_its_place_and_is_given_up_after_two() -> None:
    brain = Brain(settings(model("chat", slots=1)))
    brain.resident("chat")
    step = the(brain.submit("chat", job_id="unlucky"), DispatchStep)
    brain.submit("chat", job_id="later")
    brain.finish(step, outcome=StepOutcome.LOST, detail="connection refused")
    load_id = brain.state.models["chat"].load_id
    brain.exited(load_id, cause=FailureCause.CRASHED, detail="SIGSEGV")
    step = the(brain.loaded("chat"), DispatchStep)
    assert step.job_id == "unlucky"
    out = brain.finish(step, outcome=StepOutcome.LOST, detail="connection refused")
    refused = the(out, RefuseJob)
    assert (refused.job_id, refused.status, refused.code) == ("unlucky", 502, "runtime_lost")


def test_slots_prefer_the_same_conversation_then_empty_ones() -> None:
    brain = Brain(settings(model("chat", slots=3)))
    brain.resident("chat")  # used slot 0
    first = the(brain.submit("chat", affinity="alice"), DispatchStep)
    assert first.slots == (1,)
    brain.finish(first)
    second = the(brain.submit("chat", affinity="bob"), DispatchStep)
    assert second.slots == (2,)
    brain.finish(second)
    assert the(brain.submit("chat", affinity="alice"), DispatchStep).slots == (1,)


def test_a_step_in_the_way_is_taken_back_while_nobody_saw_a_byte() -> None:
    """A background step on a model that must leave for a person is cancelled and redone."""
    brain = Brain(settings(model("a", 9000), model("b", 9000)))
    brain.submit("a", BACKGROUND)
    step = the(brain.loaded("a"), DispatchStep)
    out = brain.submit("b")
    assert the(out, CancelStep).lease_id == step.lease_id
    out = brain.finish(step, outcome=StepOutcome.CANCELLED)
    assert kinds(out) == ["UnloadModel"]
    assert brain.state.jobs["j1"].restarts == 1


def test_a_step_whose_answer_has_begun_is_never_cut() -> None:
    brain = Brain(settings(model("a", 9000), model("b", 9000)))
    brain.submit("a", BACKGROUND)
    step = the(brain.loaded("a"), DispatchStep)
    brain.feed(AnswerBegun(lease_id=step.lease_id))
    assert brain.submit("b") == []
    assert kinds(brain.finish(step, took_s=3)) == ["UnloadModel"]


def test_nonsense_about_unknown_attempts_is_counted_and_dropped() -> None:
    brain = Brain(settings(model("chat")))
    before = brain.core.snapshot().totals.messages_dropped
    assert not before
    brain.feed(AnswerBegun(lease_id=LeaseId("nobody")))
    brain.finish(LeaseId("nobody"))
    brain.feed(JobCancelled(job_id=JobId("nobody"), cause=CancelCause.ADMIN))
    dropped = brain.core.snapshot().totals.messages_dropped
    assert dropped == {"AnswerBegun": 1, "StepFinished": 1, "JobCancelled": 1}


@pytest.mark.parametrize("workload", list(Workload))
def test_an_unknown_model_is_refused(workload: Workload) -> None:
    refused = the(Brain(settings(model("chat"))).submit("nobody", workload), RefuseJob)
    assert (refused.status, refused.code, refused.param) == (404, "model_not_found", "model")
