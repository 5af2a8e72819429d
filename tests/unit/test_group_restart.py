"""Which ends of a service are followed by a start, and when."""

from gridcore.group.group import exit_words
from gridcore.group.restart import RestartBudget, RestartLimits
from gridcore.units import NS_PER_MS, NS_PER_S

LIMITS = RestartLimits()
STABLE = LIMITS.stable_ns


def test_five_unstable_starts_in_a_row_are_the_end() -> None:
    budget = RestartBudget(LIMITS)
    delays_ns = [budget.delay_ns(ran_ns=NS_PER_MS) for _ in range(5)]
    assert delays_ns == [NS_PER_S // 2, NS_PER_S, 2 * NS_PER_S, 5 * NS_PER_S, None]


def test_a_stable_run_is_followed_by_a_start_at_once_for_ever() -> None:
    budget = RestartBudget(LIMITS)
    assert {budget.delay_ns(ran_ns=STABLE) for _ in range(100)} == {NS_PER_S // 10}


def test_one_stable_run_forgives_all_before() -> None:
    budget = RestartBudget(LIMITS)
    for _ in range(10):
        for _ in range(4):
            assert budget.delay_ns(ran_ns=STABLE - 1) is not None
        assert budget.delay_ns(ran_ns=STABLE) == LIMITS.delays_ns[0]


def test_an_exit_names_its_signal() -> None:
    assert exit_words(-9) == "killed by SIGKILL"
    assert exit_words(3) == "exit status 3"
    assert exit_words(-250) == "killed by signal 250"
