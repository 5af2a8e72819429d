"""The checkers' own tests: a brain that breaks a promise is caught, by the checker of it.

The brain is told other settings than the checkers are: a share of 1 where 0.1 was promised, a
model that is not pinned where it was. Nothing is patched.
"""

from collections.abc import Callable

import msgspec
import pytest

from gridcore.core.machine import SchedulerCore
from gridcore.core.settings import ModelSettings, Settings
from gridcore.ids import Epoch
from gridcore.sim.checkers import Checkers, Violation
from gridcore.sim.draw import Draw, draw
from gridcore.sim.world import World
from gridcore.units import GB, NS_PER_S

SEEDS = range(40)
EVENTS = 1_000
replace = msgspec.structs.replace
Change = Callable[[Settings], Settings]


def policy(**changes: object) -> Change:
    return lambda settings: replace(settings, policy=replace(settings.policy, **changes))


def models(change: Callable[[ModelSettings], ModelSettings]) -> Change:
    return lambda settings: replace(settings, models=tuple(map(change, settings.models)))


def breaker(failures: int) -> Change:
    return lambda settings: replace(
        settings,
        policy=replace(
            settings.policy, breaker=replace(settings.policy.breaker, failures=failures)
        ),
    )


def hot_ttl(hot_ttl_ns: int) -> Change:
    def change(settings: Settings) -> Settings:
        classes = settings.policy.classes
        interactive = replace(classes.interactive, hot_ttl_ns=hot_ttl_ns)
        told = replace(settings.policy, classes=replace(classes, interactive=interactive))
        return replace(settings, policy=told)

    return change


def headroom(n_bytes: int) -> Change:
    return lambda settings: replace(
        settings,
        cards=tuple(replace(card, headroom_bytes=n_bytes) for card in settings.cards),
    )


def none(settings: Settings) -> Settings:
    return settings


class MisledWorld(World):
    """A world whose brain is told something else than its judges."""

    def __init__(self, drawn: Draw, brain: Change, judges: Change) -> None:
        self._told_brain, self._told_judges = brain, judges
        super().__init__(drawn)

    def _new_brain(self) -> None:
        super()._new_brain()
        settings = self.draw.settings
        self.core = SchedulerCore(self._told_brain(settings), Epoch(self.core.state.epoch))
        self.checkers = Checkers(self._told_judges(settings))


MUTANTS: dict[str, tuple[str, Change, Change]] = {
    "the share is ignored": (
        "share",
        policy(background_share=1.0),
        policy(background_share=0.1),
    ),
    "the quiet period is 0": (
        "interactive_first",
        policy(interactive_idle_before_background_ns=0),
        policy(interactive_idle_before_background_ns=5 * NS_PER_S),
    ),
    "grants come although they are off": (
        "share",
        policy(background_max_starvation_ns=NS_PER_S),
        policy(background_max_starvation_ns=0),
    ),
    "starvation has no bound": (
        "starvation",
        policy(background_max_starvation_ns=0),
        policy(background_max_starvation_ns=NS_PER_S),
    ),
    "batch does not wait for background": (
        "batch_last",
        policy(batch_max_starvation_ns=1, min_residency_ns=0),
        policy(batch_max_starvation_ns=0, min_residency_ns=0),
    ),
    "min_residency is ignored": (
        "min_residency",
        policy(min_residency_ns=0),
        policy(min_residency_ns=60 * NS_PER_S),
    ),
    "a hot model is cold": ("hot", hot_ttl(0), hot_ttl(300 * NS_PER_S)),
    "the last slot is not kept": ("last_slot", hot_ttl(0), hot_ttl(300 * NS_PER_S)),
    "a pinned model is evicted": (
        "pinned",
        models(lambda model: replace(model, pinned=False)),
        models(lambda model: replace(model, pinned=True)),
    ),
    "the headroom is used": ("budget", headroom(0), headroom(3 * GB)),
    "the breaker never opens": ("breaker", breaker(1000), breaker(1)),
    "steps are taken back although that is off": (
        "cut",
        policy(restart=True),
        policy(restart=False),
    ),
    "there is no interactive turn": (
        "interactive_turn",
        policy(interactive_turn_ns=0),
        policy(interactive_turn_ns=60 * NS_PER_S),
    ),
    "more slots than there are": (
        "slots",
        none,
        models(lambda model: replace(model, slots=max(model.slots - 1, 1))),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_promise_is_seen_by_its_checker(name: str) -> None:
    checker, brain, judges = MUTANTS[name]
    others = []
    for seed in SEEDS:
        world = MisledWorld(draw(seed), brain, judges)
        try:
            world.run(EVENTS)
        except Violation as violation:
            if violation.checker == checker:
                return
            others.append(str(violation))
    pytest.fail(f"{len(SEEDS)} seeds and nobody noticed ({others[:3]})")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_brain_that_is_told_the_same_is_not_accused(seed: int) -> None:
    world = MisledWorld(draw(seed), none, none)
    world.run(EVENTS)
    world.come_to_rest()
