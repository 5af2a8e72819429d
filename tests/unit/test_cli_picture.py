"""The picture of ``gridcore status``, drawn from a snapshot alone."""

import io

import msgspec
import pytest
from rich.console import Console

from gridcore.cli.events import note_line
from gridcore.cli.picture import bar, clock_text, picture
from gridcore.core.notes import Note, Verb
from gridcore.core.snapshot import (
    CardView,
    FootprintView,
    JobView,
    ModelView,
    Snapshot,
    Totals,
)
from gridcore.ids import Epoch
from gridcore.ipc.messages import EventEnvelope
from gridcore.units import MB

TIME_S = 1_767_201_963.360


def totals() -> Totals:
    return Totals(**{name: {} for name in Totals.__struct_fields__})


def card(**changes: object) -> CardView:
    view = CardView(
        id="simulation",
        name="Simulated GPU",
        total_bytes=16384 * MB,
        budget_bytes=15872 * MB,
        used_bytes=12606 * MB,
        reserved_bytes=12606 * MB,
        foreign_bytes=0,
        utilization_percent=7,
        pressure="normal",
        mode="interactive",
    )
    return msgspec.structs.replace(view, **changes)


def model(name: str, mb: int, **changes: object) -> ModelView:
    view = ModelView(
        id=name,
        card="simulation",
        phase="ready",
        residency="cold",
        pid=1,
        slots=2,
        slots_used=0,
        reserved_bytes=mb * MB,
        footprint=FootprintView(estimated_bytes=mb * MB, measured_bytes=None),
        load_seconds=3.0,
        evict_cost=0.6,
        idle_seconds=1.0,
        breaker="closed",
        reason=None,
    )
    return msgspec.structs.replace(view, **changes)


def job(**changes: object) -> JobView:
    view = JobView(
        id="1",
        workload="background",
        class_from="header",
        model="nomic-embed",
        family=None,
        kind="embedding",
        phase="queued",
        steps_done=3,
        steps=32,
        position=1,
        waited_ms=1500,
        eta_ms=None,
        reason="a person is being served",
    )
    return msgspec.structs.replace(view, **changes)


def snapshot(**changes: object) -> Snapshot:
    view = Snapshot(
        epoch="e",
        revision=1,
        cards=(card(),),
        models=(
            model("gemma4-12b", 8488, residency="hot", slots_used=1, evict_cost=7.81),
            model("gemma4-e4b", 4118, phase="loading"),
            model("nomic-embed", 400, residency="pinned", slots=4),
            model("qwen3-14b", 0, phase="cold"),
        ),
        jobs=(
            job(
                id="0",
                workload="interactive",
                model="gemma4-12b",
                family="gemma4",
                kind="chat",
                phase="running",
                steps_done=0,
                steps=1,
                reason=None,
            ),
            job(),
        ),
        services=(),
        counts={"queued": {"background": 1}, "running": {"interactive": 1}},
        totals=totals(),
    )
    return msgspec.structs.replace(view, **changes)


def drawn(view: Snapshot, notes: list[str] | None = None) -> list[str]:
    return picture(view, time_s=TIME_S, notes=notes or []).plain.splitlines()


def test_the_picture() -> None:
    note = "17:46:01.000 evict     qwen3-14b        make room for gemma4-12b, cost 6"
    assert drawn(snapshot(), [note]) == [
        f"gridcore  {clock_text(TIME_S)}  INTERACTIVE",
        "Simulated GPU  [███████████████████████·······] 12.3 / 16.0 GB  util   7%",
        "",
        "RESIDENT",
        "  gemma4-12b       ready    hot    ▇▇▇▇▇▇▇▇▇▇▇░░░░░░░░░   8.3 GB  slots 1/2  cost 7.8",
        "  gemma4-e4b       loading  cold   ▇▇▇▇▇░░░░░░░░░░░░░░░   4.0 GB  slots 0/2  cost 0.6",
        "  nomic-embed      ready    pinned ▇░░░░░░░░░░░░░░░░░░░   0.4 GB  slots 0/4",
        "",
        "RUNNING 1",
        "  interactive chat       gemma4 -> gemma4-12b    ",
        "",
        "QUEUE 1",
        "  background  embedding  nomic-embed              waited 1.5s  step 3/32  "
        "a person is being served",
        "",
        "EVENTS",
        f"  {note}",
    ]


def test_unknown_is_never_shown_as_nothing() -> None:
    view = snapshot(cards=(card(total_bytes=None, used_bytes=None, utilization_percent=None),))
    assert drawn(view)[1] == "Simulated GPU  12.3 reserved; no sample yet"


def test_an_idle_daemon() -> None:
    view = snapshot(
        cards=(card(mode="idle", used_bytes=0, reserved_bytes=0),), models=(), jobs=(), counts={}
    )
    assert drawn(view)[2:] == [
        "",
        "RESIDENT",
        "  no model is loaded",
        "",
        "QUEUE",
        "  nothing waits",
    ]


def test_a_long_queue_is_counted() -> None:
    jobs = tuple(job(id=str(n)) for n in range(200))
    lines = drawn(snapshot(jobs=jobs, counts={"queued": {"background": 9000, "batch": 1000}}))
    assert "QUEUE 10000" in lines
    assert lines[-1] == "  and 9988 more"


def test_a_daemon_that_ends_says_so() -> None:
    assert drawn(snapshot(draining=True))[0].endswith("INTERACTIVE  SHUTTING DOWN")


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [(0, 8, "...."), (1, 800, "#..."), (4, 8, "##.."), (9, 8, "####"), (1, 0, "....")],
)
def test_bars(part: int, whole: int, expected: str) -> None:
    assert bar(part, whole, 4, full="#", empty=".") == expected


@pytest.mark.parametrize("terminal", [True, False])
def test_colours_only_where_they_are_wanted(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    Console(file=out, force_terminal=terminal).print(picture(snapshot(), time_s=TIME_S))
    assert ("\x1b[" in out.getvalue()) is terminal


def test_a_note_is_one_line() -> None:
    note = Note(verb=Verb.ENQUEUE, text="background embedding nomic-embed steps=32")
    envelope = EventEnvelope(version=1, epoch=Epoch("e"), seq=1, time_s=TIME_S, note=note)
    assert note_line(envelope) == (
        f"{clock_text(TIME_S)}.360 enqueue   background embedding nomic-embed steps=32"
    )
