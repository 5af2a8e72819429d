"""Run seeds of the simulated world and say what broke: ``python -m gridcore.sim.run --help``.

A failing seed prints the line that replays it; ``--trace`` shows every event and command on
the way there.
"""

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from gridcore.clock import monotonic_ns
from gridcore.core.commands import AnyCommand, PublishNote
from gridcore.core.events import AnyEvent, CardSampled
from gridcore.sim.checkers import Violation
from gridcore.sim.draw import Draw, draw
from gridcore.sim.marks import Marks
from gridcore.sim.world import START_NS, Watcher, World
from gridcore.units import NS_PER_S

EVENTS = 2_000
Print = Callable[[str], None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: str
    n_events: int
    failure: str | None
    digest: str
    marks: Marks
    ends: Counter[tuple[str, str]]


def run_seed(seed: int | str, n_events: int = EVENTS, *, watcher: Watcher | None = None) -> Outcome:
    """Live one world through faults and to rest."""
    world = World(draw(seed), watcher=watcher)
    failure = None
    try:
        world.run(n_events)
        world.come_to_rest()
    except Violation as error:
        failure = str(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"crash: {error!r} in {where.name} ({where.filename}:{where.lineno})"
    return Outcome(
        seed=str(seed),
        n_events=world.n_events,
        failure=failure,
        digest=world.digest,
        marks=world.marks,
        ends=Counter({(str(w), str(end)): n for (w, end), n in world.ends.items()}),
    )


def tracer(show: Print, *, samples: bool = False) -> Watcher:
    """Render each pass of the brain as lines of text."""

    def watch(now_ns: int, events: Sequence[AnyEvent], commands: Sequence[AnyCommand]) -> None:
        at = f"{(now_ns - START_NS) / NS_PER_S:10.6f}"
        for event in events:
            if samples or not isinstance(event, CardSampled):
                show(f"{at}  > {_render(event)}")
        for command in commands:
            if isinstance(command, PublishNote):
                note = command.note
                subject = note.job_id or note.model_id or note.card_id or ""
                show(f"{at}    {note.verb:8s} {subject:14s} {note.text}")
            else:
                show(f"{at}  < {_render(command)}")

    return watch


def _render(message: msgspec.Struct) -> str:
    fields = [
        f"{field.name}={getattr(message, field.name)}"
        for field in msgspec.structs.fields(message)
        if getattr(message, field.name) != field.default
    ]
    return f"{type(message).__name__} {' '.join(fields)}"


def describe(drawn: Draw) -> Iterator[str]:
    yield f"faults     {' '.join(sorted(drawn.faults)) or 'none'}"
    yield f"workloads  {' '.join(sorted(drawn.workloads))}"
    for model in drawn.settings.models:
        yield f"model      {_render(model)}"
    for card in drawn.settings.cards:
        yield f"card       {_render(card)} total_bytes={drawn.total_bytes[card.card_id]}"
    yield f"policy     {_render(drawn.settings.policy)}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gridcore.sim.run", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", help="one seed; any text")
    which.add_argument("--seeds", type=_seeds, metavar="A:B", help="all numbers from A up to B")
    parser.add_argument("--events", type=int, default=EVENTS, help="length of the safety phase")
    parser.add_argument("--trace", action="store_true", help="show every event and command")
    parser.add_argument("--samples", action="store_true", help="...and the card's samples")
    parser.add_argument("--brief", action="store_true", help="only failures and the sum")
    options = parser.parse_args(argv)
    watcher = tracer(_say, samples=options.samples) if options.trace else None
    if options.trace:
        for line in describe(draw(options.seed or options.seeds[0])):
            _say(line)
    marks, n_events, failed, began_ns = Marks(), 0, 0, monotonic_ns()
    ends: Counter[tuple[str, str]] = Counter()
    seeds = [options.seed] if options.seed is not None else options.seeds
    for seed in seeds:
        outcome = run_seed(seed, options.events, watcher=watcher)
        marks.add(outcome.marks)
        ends.update(outcome.ends)
        n_events += outcome.n_events
        if outcome.failure is not None:
            failed += 1
            _say(f"seed {seed} FAILED after {outcome.n_events} events: {outcome.failure}")
            _say(
                f"  replay: python -m gridcore.sim.run --seed {seed} "
                f"--events {options.events} --trace"
            )
        elif not options.brief:
            _say(f"seed {seed} ok, {outcome.n_events} events, digest {outcome.digest}")
    spent_s = (monotonic_ns() - began_ns) / NS_PER_S
    _say(
        f"{len(seeds)} seeds, {n_events} events in {spent_s:.1f} s "
        f"({n_events / max(spent_s, 0.001):.0f}/s), {failed} failed, "
        f"{sum(marks.faults.values())} faults"
    )
    _say("ends: " + ", ".join(f"{w} {e} {n}" for (w, e), n in sorted(ends.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
