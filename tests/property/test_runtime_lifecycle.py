"""lifecycle.py under any order of events, also senseless ones."""

from hypothesis import given
from hypothesis import strategies as st

from gridcore.runtime.lifecycle import (
    Event,
    Exited,
    HealthSeen,
    Lifecycle,
    Limits,
    LoadAsked,
    Phase,
    ProbeAnswered,
    ReportExited,
    ReportLoadFailed,
    ReportReady,
    Sign,
    SignalGroup,
    SignSeen,
    Spawned,
    SpawnFailed,
    StopAsked,
    Tick,
)
from gridcore.units import NS_PER_S

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Spawned),
    st.builds(SpawnFailed, st.just("x")),
    st.builds(HealthSeen, st.booleans()),
    st.builds(ProbeAnswered, st.booleans()),
    st.builds(SignSeen, st.sampled_from(Sign), st.just("line")),
    st.builds(Exited, st.sampled_from([None, 0, 1, -6, -9, -15])),
    st.builds(StopAsked, st.just("test")),
    st.builds(Tick),
)
STEPS = st.lists(st.tuples(EVENTS, st.integers(0, 90 * NS_PER_S)), max_size=30)


@given(STEPS)
def test_every_load_ends_in_one_report_and_every_runtime_in_one(
    steps: list[tuple[Event, int]],
) -> None:
    machine = Lifecycle(Limits(load_timeout_ns=60 * NS_PER_S, stop_timeout_ns=5 * NS_PER_S))
    now_ns = 0
    commands = machine.handle(LoadAsked(), now_ns)
    for event, pause_ns in steps:
        now_ns += pause_ns
        out = machine.handle(event, now_ns)
        if machine.phase is Phase.STOPPING:
            assert machine.next_deadline_ns() is not None, "a stop without a bound"
        commands += out
    ready = [each for each in commands if isinstance(each, ReportReady)]
    failed = [each for each in commands if isinstance(each, ReportLoadFailed)]
    exited = [each for each in commands if isinstance(each, ReportExited)]
    assert len(ready) + len(failed) <= 1
    assert len(exited) <= len(ready)
    assert (len(failed) + len(exited) == 1) == (machine.phase is Phase.GONE)
    if machine.phase is Phase.GONE:
        assert machine.next_deadline_ns() is None
        assert machine.handle(Tick(), now_ns) == []


@given(STEPS, st.integers(0, 3))
def test_a_machine_that_is_told_to_stop_kills_in_the_end(
    steps: list[tuple[Event, int]], more: int
) -> None:
    """Whatever came before, a living process is gone or is sent SIGKILL again and again."""
    machine = Lifecycle(Limits(load_timeout_ns=60 * NS_PER_S, stop_timeout_ns=5 * NS_PER_S))
    now_ns = 0
    machine.handle(LoadAsked(), now_ns)
    machine.handle(Spawned(), now_ns)
    for event, pause_ns in steps:
        now_ns += pause_ns
        machine.handle(event, now_ns)
    machine.handle(StopAsked("test"), now_ns)
    for _ in range(1 + more):
        deadline_ns = machine.next_deadline_ns()
        if machine.phase is Phase.GONE:
            assert deadline_ns is None
            return
        assert deadline_ns is not None
        now_ns = max(now_ns, deadline_ns)
        out = machine.handle(Tick(), now_ns)
        assert [each.signum for each in out if isinstance(each, SignalGroup)] == [9]
