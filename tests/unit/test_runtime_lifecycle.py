"""lifecycle.py: one runtime from spawn to exit, without a process or a clock."""

import signal

import pytest

from gridcore.core.events import FailureCause
from gridcore.runtime.lifecycle import (
    Adopted,
    Command,
    Event,
    Exited,
    HealthSeen,
    Lifecycle,
    Limits,
    LoadAsked,
    Phase,
    PollHealth,
    Probe,
    ProbeAnswered,
    ReportExited,
    ReportLoadFailed,
    ReportReady,
    Sign,
    SignalGroup,
    SignSeen,
    Spawn,
    Spawned,
    SpawnFailed,
    StopAsked,
    Tick,
)
from gridcore.units import NS_PER_S

LIMITS = Limits(load_timeout_ns=60 * NS_PER_S, stop_timeout_ns=5 * NS_PER_S)
STOP: list[Command] = [SignalGroup(signal.SIGCONT), SignalGroup(signal.SIGTERM)]


class Story:
    """A lifecycle with a hand on its clock."""

    def __init__(self) -> None:
        self.machine = Lifecycle(LIMITS)
        self.now_ns = 100 * NS_PER_S

    def tell(self, *events: Event) -> list[Command]:
        out: list[Command] = []
        for event in events:
            out += self.machine.handle(event, self.now_ns)
        return out

    def wait(self, seconds: float) -> list[Command]:
        """Let time pass; answer every look at /health with "loading"."""
        end_ns = self.now_ns + round(seconds * NS_PER_S)
        out: list[Command] = []
        while (due_ns := self.machine.next_deadline_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(due_ns, self.now_ns)
            commands = self.tell(Tick())
            if commands == [PollHealth()]:
                commands = self.tell(HealthSeen(ok=False))
            out += commands
        self.now_ns = end_ns
        return out

    def loading(self) -> "Story":
        assert self.tell(LoadAsked()) == [Spawn()]
        assert self.tell(Spawned()) == [PollHealth()]
        return self

    def ready(self) -> "Story":
        self.loading()
        assert self.tell(HealthSeen(ok=True)) == [Probe()]
        assert self.tell(ProbeAnswered(ok=True)) == [ReportReady(0)]
        return self


def test_a_load_is_ready_only_after_its_first_token() -> None:
    story = Story().loading()
    assert story.tell(HealthSeen(ok=False)) == []
    assert story.wait(3.0) == []
    assert story.tell(HealthSeen(ok=True)) == [Probe()]
    assert story.machine.phase is Phase.PROBING
    story.now_ns += NS_PER_S
    assert story.tell(ProbeAnswered(ok=True)) == [ReportReady(4 * NS_PER_S)]
    assert story.machine.next_deadline_ns() is None


def test_looks_are_frequent_at_first_and_bounded_later() -> None:
    story = Story().loading()
    story.tell(HealthSeen(ok=False))
    first = story.machine.next_deadline_ns()
    assert first is not None
    assert first - story.now_ns <= 50_000_000
    story.wait(30.0)
    later = story.machine.next_deadline_ns()
    assert later is not None
    assert later - story.now_ns <= 250_000_000


def test_an_unload_is_an_exit_without_a_cause() -> None:
    story = Story().ready()
    assert story.tell(StopAsked("make room")) == STOP
    assert story.tell(StopAsked("again")) == []
    assert story.tell(Exited(0)) == [ReportExited(None, "exit status 0")]
    assert story.machine.phase is Phase.GONE
    assert story.tell(Exited(0), Tick(), StopAsked("late")) == []


def test_sigkill_follows_sigterm_and_is_repeated() -> None:
    story = Story().ready()
    story.tell(StopAsked("make room"))
    assert story.wait(4.9) == []
    assert story.wait(0.2) == [SignalGroup(signal.SIGKILL)]
    assert story.wait(1.0) == [SignalGroup(signal.SIGKILL)]
    assert story.tell(Exited(-9)) == [ReportExited(None, "killed by SIGKILL")]


def test_a_crash_names_the_signal_and_the_last_lines() -> None:
    (report,) = Story().ready().tell(Exited(-6, ("E cuda", "E error")))
    assert report == ReportExited(
        FailureCause.CRASHED, "killed by SIGABRT; its last lines: E cuda | E error"
    )


def test_a_build_for_another_processor_is_told_apart() -> None:
    (report,) = Story().loading().tell(Exited(-signal.SIGILL))
    assert isinstance(report, ReportLoadFailed)
    assert report.cause is FailureCause.CRASHED
    assert "SIGILL" in report.detail
    assert "another processor" in report.detail


@pytest.mark.parametrize("before_health", [True, False])
def test_out_of_memory_at_load(before_health: bool) -> None:
    story = Story().loading()
    if not before_health:
        story.tell(HealthSeen(ok=True))
    line = "cudaMalloc failed: out of memory"
    assert story.tell(SignSeen(Sign.OUT_OF_MEMORY, line)) == []
    (report,) = story.tell(Exited(1, ("exiting",)))
    assert report == ReportLoadFailed(
        FailureCause.OUT_OF_MEMORY, f"out of memory, exit status 1: {line}"
    )


def test_out_of_memory_outweighs_an_earlier_complaint() -> None:
    story = Story().loading()
    story.tell(SignSeen(Sign.BAD_CONFIG, "x"), SignSeen(Sign.OUT_OF_MEMORY, "y"))
    (report,) = story.tell(Exited(1))
    assert isinstance(report, ReportLoadFailed)
    assert report.cause is FailureCause.OUT_OF_MEMORY


def test_out_of_memory_at_work_is_the_cause_of_the_crash() -> None:
    story = Story().ready()
    story.tell(SignSeen(Sign.OUT_OF_MEMORY, "CUDA error: out of memory"))
    (report,) = story.tell(Exited(-6))
    assert isinstance(report, ReportExited)
    assert report.cause is FailureCause.OUT_OF_MEMORY
    assert "SIGABRT" in report.detail


def test_a_bad_argument_is_not_worth_another_try() -> None:
    story = Story().loading()
    story.tell(SignSeen(Sign.BAD_CONFIG, "error: invalid argument: --nonsense"))
    assert story.tell(Exited(1)) == [
        ReportLoadFailed(FailureCause.BAD_CONFIG, "error: invalid argument: --nonsense")
    ]


def test_a_program_that_cannot_start() -> None:
    story = Story()
    story.tell(LoadAsked())
    assert story.tell(SpawnFailed("no such file")) == [
        ReportLoadFailed(FailureCause.BAD_CONFIG, "no such file")
    ]


def test_a_load_that_takes_too_long_is_stopped_then_reported() -> None:
    """The report waits for the exit: only then is the memory back."""
    story = Story().loading()
    story.tell(HealthSeen(ok=False))
    assert story.wait(60.1) == STOP
    (report,) = story.tell(Exited(-15))
    assert report == ReportLoadFailed(
        FailureCause.TIMED_OUT, "not healthy after 1m00s (load_timeout)"
    )


def test_a_probe_that_never_answers_is_bounded_too() -> None:
    story = Story().loading()
    story.tell(HealthSeen(ok=True))
    assert story.wait(61) == STOP
    (report,) = story.tell(Exited(-9))
    assert isinstance(report, ReportLoadFailed)
    assert report.detail.startswith("no first token after")


def test_a_runtime_that_is_healthy_but_cannot_compute() -> None:
    story = Story().loading()
    story.tell(HealthSeen(ok=True))
    assert story.tell(ProbeAnswered(ok=False, detail="answered 500: Compute error.")) == STOP
    (report,) = story.tell(Exited(0))
    assert isinstance(report, ReportLoadFailed)
    assert "Compute error." in report.detail


def test_a_runtime_that_dies_of_its_first_request_names_the_signal() -> None:
    """The broken connection is often seen before the exit; both belong to the story."""
    story = Story().loading()
    story.tell(HealthSeen(ok=True), ProbeAnswered(ok=False, detail="closed"))
    (report,) = story.tell(Exited(-6))
    assert isinstance(report, ReportLoadFailed)
    assert report.detail == "healthy, but its first request failed: closed; killed by SIGABRT"


def test_a_load_taken_back_while_it_loads() -> None:
    story = Story().loading()
    assert story.tell(StopAsked("chat first")) == STOP
    (report,) = story.tell(Exited(-15))
    assert isinstance(report, ReportLoadFailed)
    assert report.cause is FailureCause.CANCELLED


def test_a_load_taken_back_before_its_process_exists() -> None:
    story = Story()
    story.tell(LoadAsked())
    assert story.tell(StopAsked("chat first")) == []
    assert story.tell(Spawned()) == STOP
    (report,) = story.tell(Exited(-15))
    assert isinstance(report, ReportLoadFailed)
    assert report.cause is FailureCause.CANCELLED


def test_a_broken_backend_is_restarted_although_health_is_ok() -> None:
    """Metal out of memory: every request fails until the process is restarted."""
    story = Story().ready()
    assert story.tell(SignSeen(Sign.BACKEND_BROKEN, "backend is in error state")) == STOP
    (report,) = story.tell(Exited(0))
    assert isinstance(report, ReportExited)
    assert report.cause is FailureCause.OUT_OF_MEMORY


def test_an_adopted_runtime_is_resumed_and_keeps_its_state() -> None:
    story = Story()
    assert story.tell(Adopted(ready=True)) == [SignalGroup(signal.SIGCONT)]
    assert story.machine.phase is Phase.READY
    assert story.tell(Exited(None)) == [ReportExited(FailureCause.CRASHED, "the process ended")]


def test_an_adopted_load_goes_on() -> None:
    story = Story()
    assert story.tell(Adopted(ready=False)) == [SignalGroup(signal.SIGCONT), PollHealth()]
    assert story.tell(HealthSeen(ok=True)) == [Probe()]
    (report,) = story.tell(ProbeAnswered(ok=True))
    assert isinstance(report, ReportReady)


def test_answers_of_another_phase_change_nothing() -> None:
    story = Story().ready()
    assert story.tell(HealthSeen(ok=True), ProbeAnswered(ok=False), Spawned(), Tick()) == []
    assert story.machine.phase is Phase.READY
