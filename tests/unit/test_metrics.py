"""Metrics: what a snapshot becomes, what notes add, what is never invented."""

from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from gridcore.core.notes import Note, Verb
from gridcore.core.snapshot import CardView, FootprintView, ModelView, ServiceView, Snapshot, Totals
from gridcore.ids import Epoch, ModelId
from gridcore.ipc.messages import EVENT_VERSION, EventEnvelope
from gridcore.metrics.exposition import Exposition

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

TOTALS = Totals(
    jobs_submitted={"interactive": 5},
    jobs_done={"interactive": 3, "background": 1},
    jobs_failed={},
    jobs_cancelled={"batch": 1},
    jobs_refused={"interactive": 2},
    steps={"interactive": 4},
    queue_wait_ns={"interactive": 1_500_000_000},
    step_ns={"interactive": 2_250_000_000},
    loads={"m": 2},
    load_failures={"m": 1},
    evictions={"m": 1},
    unloads={"m": 1},
    load_ns={"m": 3_000_000_000},
    thrash={},
    messages_dropped={"old_epoch": 7},
)

CARD = CardView(
    id="gpu0",
    name="Simulated GPU",
    total_bytes=1000,
    budget_bytes=900,
    used_bytes=None,
    reserved_bytes=400,
    foreign_bytes=0,
    utilization_percent=37,
    pressure="normal",
    mode="background",
)

MODEL = ModelView(
    id="m",
    card="gpu0",
    phase="draining",
    residency="hot",
    pid=1,
    slots=2,
    slots_used=1,
    reserved_bytes=400,
    footprint=FootprintView(estimated_bytes=380, measured_bytes=None),
    load_seconds=1.5,
    evict_cost=None,
    idle_seconds=0.0,
    breaker="half_open",
    reason=None,
    queued=3,
)

SNAPSHOT = Snapshot(
    epoch="e1",
    revision=1,
    cards=(CARD,),
    models=(MODEL,),
    jobs=(),
    services=(
        ServiceView(name="gateway-0", pid=10, restarts=2, last_beat_ms=5),
        ServiceView(name="supervisor", pid=None, restarts=0, last_beat_ms=None),
    ),
    counts={"queued": {"background": 3}, "running": {"interactive": 1}},
    totals=TOTALS,
)


def envelope(seq: int, snapshot: Snapshot | None = None, note: Note | None = None) -> EventEnvelope:
    return EventEnvelope(
        version=EVENT_VERSION,
        epoch=Epoch("e1"),
        seq=seq,
        time_s=1000.5,
        note=note,
        snapshot=snapshot,
    )


def samples(exposition: Exposition) -> Samples:
    """Read the page back with the client library's own parser."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition.render().decode())
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


def shown(snapshot: Snapshot = SNAPSHOT) -> Samples:
    exposition = Exposition("1.2.3")
    exposition.observe(envelope(1, snapshot=snapshot))
    return samples(exposition)


def test_a_page_before_any_snapshot_says_that_the_scheduler_is_away() -> None:
    found = samples(Exposition("1.2.3"))
    assert value(found, "gridcore_scheduler_up") == 0
    assert value(found, "gridcore_build_info", version="1.2.3") == 1
    assert not [name for name, _ in found if name.startswith("gridcore_jobs")]


def test_jobs_by_class_and_outcome() -> None:
    found = shown()
    count = {
        (workload, outcome): value(
            found, "gridcore_jobs_total", **{"class": workload, "outcome": outcome}
        )
        for workload in ("interactive", "background", "batch")
        for outcome in ("done", "failed", "cancelled", "refused")
    }
    assert count["interactive", "done"] == 3
    assert count["interactive", "refused"] == 2
    assert count["batch", "cancelled"] == 1
    assert count["background", "failed"] == 0, "a known class has its series from the start"
    assert sum(number or 0 for number in count.values()) == 7


def test_durations_are_seconds() -> None:
    found = shown()
    assert value(found, "gridcore_queue_wait_seconds_total", **{"class": "interactive"}) == 1.5
    assert value(found, "gridcore_step_seconds_total", **{"class": "interactive"}) == 2.25
    assert value(found, "gridcore_model_load_seconds_total", model="m") == 3.0


def test_open_jobs_have_every_class_and_phase() -> None:
    found = shown()
    assert value(found, "gridcore_open_jobs", **{"class": "background", "phase": "queued"}) == 3
    assert value(found, "gridcore_open_jobs", **{"class": "interactive", "phase": "running"}) == 1
    assert value(found, "gridcore_open_jobs", **{"class": "batch", "phase": "running"}) == 0


def test_an_unknown_value_has_no_sample() -> None:
    found = shown()
    memory = {
        kind: value(found, "gridcore_card_memory_bytes", card="gpu0", kind=kind)
        for kind in ("total", "budget", "used", "reserved", "foreign")
    }
    assert memory == {"total": 1000, "budget": 900, "used": None, "reserved": 400, "foreign": 0}
    assert value(found, "gridcore_model_evict_cost", model="m") is None
    assert value(found, "gridcore_model_footprint_bytes", model="m", kind="measured") is None
    assert value(found, "gridcore_model_footprint_bytes", model="m", kind="estimated") == 380


def test_exactly_one_state_of_a_set_is_1() -> None:
    found = shown()
    for name, state in (
        ("gridcore_card_mode", "background"),
        ("gridcore_card_pressure", "normal"),
        ("gridcore_model_phase", "draining"),
        ("gridcore_model_residency", "hot"),
    ):
        on = [
            dict(labels)
            for (found_name, labels), number in found.items()
            if found_name == name and number == 1
        ]
        assert len(on) == 1, name
        assert state in on[0].values()


def test_model_and_service_gauges() -> None:
    found = shown()
    assert value(found, "gridcore_model_resident", model="m", card="gpu0") == 1
    assert value(found, "gridcore_model_breaker_open", model="m") == 1
    assert value(found, "gridcore_model_queued_jobs", model="m") == 3
    assert value(found, "gridcore_card_utilization_ratio", card="gpu0") == 0.37
    assert value(found, "gridcore_service_up", service="gateway-0") == 1
    assert value(found, "gridcore_service_up", service="supervisor") == 0
    assert value(found, "gridcore_service_restarts_total", service="gateway-0") == 2
    assert value(found, "gridcore_messages_dropped_total", reason="old_epoch") == 7


def test_every_total_of_the_snapshot_reaches_the_page() -> None:
    """A counter that the brain gains later must not stay invisible."""
    marks = {name: 1000 + index for index, name in enumerate(Totals.__struct_fields__)}
    scale = {name: 10**9 if name.endswith("_ns") else 1 for name in marks}
    totals: dict[str, Any] = {name: {"x": mark * scale[name]} for name, mark in marks.items()}
    page = shown(msgspec.structs.replace(SNAPSHOT, totals=Totals(**totals)))
    assert set(marks.values()) <= {int(number) for number in page.values()}


def test_names_follow_the_conventions() -> None:
    exposition = Exposition("1.2.3")
    exposition.observe(envelope(1, snapshot=SNAPSHOT))
    families = list(text_string_to_metric_families(exposition.render().decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "two families of one name"
    for family in families:
        assert family.name.startswith("gridcore_")
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
            assert not sample.name.endswith(("_ns", "_ms", "_mb", "_percent"))


def test_lost_events_are_shown() -> None:
    exposition = Exposition("1")
    exposition.observe(envelope(5))
    exposition.observe(envelope(8), events_missed=2)
    found = samples(exposition)
    assert value(found, "gridcore_events_dropped_total") == 2
    assert value(found, "gridcore_events_received_total") == 2


def test_totals_come_from_the_snapshot_whatever_was_lost() -> None:
    exposition = Exposition("1")
    exposition.observe(envelope(1, snapshot=SNAPSHOT))
    before = value(samples(exposition), "gridcore_model_loads_total", model="m")
    exposition.observe(envelope(2, note=Note(verb=Verb.LOADED, text="", model_id=ModelId("m"))))
    assert value(samples(exposition), "gridcore_model_loads_total", model="m") == before


def test_notes_feed_the_distributions() -> None:
    exposition = Exposition("1")
    for seq, waited_ms in enumerate((3, 400, 4000)):
        note = Note(
            verb=Verb.DISPATCH, text="", workload="background", data={"waited_ms": waited_ms}
        )
        exposition.observe(envelope(seq, note=note))
    loaded = Note(verb=Verb.LOADED, text="", model_id=ModelId("m"), data={"took_ms": 4200})
    exposition.observe(envelope(3, note=loaded))
    found = samples(exposition)
    wait = "gridcore_step_queue_wait_seconds"
    assert value(found, f"{wait}_count", **{"class": "background"}) == 3
    assert value(found, f"{wait}_bucket", **{"class": "background", "le": "0.5"}) == 2
    assert value(found, "gridcore_load_duration_seconds_sum", model="m") == 4.2


def test_a_later_step_of_a_job_is_no_first_wait() -> None:
    exposition = Exposition("1")
    note = Note(verb=Verb.DISPATCH, text="", workload="batch", data={"waited_ms": 9, "step": 2})
    exposition.observe(envelope(1, note=note))
    wait = "gridcore_step_queue_wait_seconds_count"
    assert value(samples(exposition), wait, **{"class": "batch"}) is None
