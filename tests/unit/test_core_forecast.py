"""The estimate a waiting job carries: exact where all was measured, absent otherwise."""

from gridcore.config.schema import Workload
from tests.support.builders import Brain, DispatchStep, model, seconds, settings, the


def eta_ms(brain: Brain, index: int = -1) -> int | None:
    return brain.core.snapshot().jobs[index].eta_ms


def served(brain: Brain, *, step_s: float = 4.0) -> Brain:
    """A model whose load and step were measured."""
    brain.submit("chat")
    brain.finish(the(brain.loaded("chat", took_s=3), DispatchStep), took_s=step_s)
    return brain


def test_nothing_is_promised_of_what_was_never_measured() -> None:
    brain = Brain(settings(model("chat")))
    brain.submit("chat")
    assert eta_ms(brain) is None
    brain.loaded("chat", took_s=3)
    brain.submit("chat")
    assert eta_ms(brain) is None


def test_a_job_behind_a_running_step_starts_when_that_ends() -> None:
    brain = served(Brain(settings(model("chat"))))
    brain.submit("chat")
    brain.submit("chat")
    brain.submit("chat")
    assert [eta_ms(brain, 1), eta_ms(brain, 2)] == [4000, 8000]
    brain.wait(1)
    assert eta_ms(brain, 1) == 3000


def test_a_job_whose_model_loads_starts_when_the_load_ends() -> None:
    brain = served(Brain(settings(model("chat", 9000), model("other", 9000))))
    brain.submit("other")
    brain.exited(brain.state.models["chat"].load_id)
    brain.finish(the(brain.loaded("other", took_s=2), DispatchStep), took_s=1)
    brain.submit("chat")
    assert eta_ms(brain) == 3200, "unload and load"
    brain.exited(brain.state.models["other"].load_id)
    brain.wait(1)
    assert eta_ms(brain) == 2000


def test_background_is_told_of_its_share_or_of_the_quiet_period() -> None:
    brain = served(Brain(settings(model("chat", slots=2))))
    running = the(brain.submit("chat"), DispatchStep)
    brain.submit("chat", Workload.BACKGROUND)
    assert eta_ms(brain) == 3000
    brain.wait(1)
    brain.finish(running)
    assert eta_ms(brain) == 2000
    assert the(brain.wait(2.1), DispatchStep).waited_ns == seconds(3)
