"""Which numbers GridCore shows to Prometheus, and how they follow from a snapshot.

A snapshot carries totals since its epoch began, so counters are copied, never counted up here:
a lost event changes nothing, and a restarted scheduler looks like any restarted process (the
counters begin at zero again). Units are base units: bytes, seconds, ratios. An unknown value
has no sample; it is never 0.
"""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gridcore.config.schema import Workload
from gridcore.core.events import Pressure
from gridcore.core.model import RESIDENT, Phase, Residency
from gridcore.core.snapshot import CardView, ModelView, ServiceView, Snapshot, Totals
from gridcore.units import NS_PER_S

CLASSES = tuple(str(workload) for workload in Workload)
PHASES = ("queued", "running")
"""The keys of ``Snapshot.counts``."""


def snapshot_families(snapshot: Snapshot) -> Iterable[Metric]:
    """Everything one snapshot says, as metric families in a fixed order."""
    yield _gauge("gridcore_draining", "1 while the daemon shuts down.", int(snapshot.draining))
    yield from _job_families(snapshot)
    yield from _model_counters(snapshot.totals)
    yield from _card_families(snapshot.cards)
    yield from _model_gauges(snapshot.models)
    yield from _service_families(snapshot.services)
    yield _counters(
        "gridcore_messages_dropped",
        "Messages the scheduler dropped (unreadable, of another epoch, about a finished attempt).",
        "reason",
        snapshot.totals.messages_dropped,
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counters(
    name: str, text: str, label: str, values: Mapping[str, int], *, known: Iterable[str] = ()
) -> Metric:
    """A counter by one label; the ``known`` values exist from the start, at 0."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key in sorted({*known, *values}):
        family.add_metric([key], values.get(key, 0))
    return family


def _seconds(name: str, text: str, label: str, values_ns: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key in sorted({*(CLASSES if label == "class" else ()), *values_ns}):
        family.add_metric([key], values_ns.get(key, 0) / NS_PER_S)
    return family


def _job_families(snapshot: Snapshot) -> Iterable[Metric]:
    totals = snapshot.totals
    yield _counters(
        "gridcore_jobs_submitted",
        "Jobs that arrived, by class.",
        "class",
        totals.jobs_submitted,
        known=CLASSES,
    )
    finished = CounterMetricFamily(
        "gridcore_jobs", "Jobs that ended, by class and outcome.", labels=["class", "outcome"]
    )
    outcomes = {
        "done": totals.jobs_done,
        "failed": totals.jobs_failed,
        "cancelled": totals.jobs_cancelled,
        "refused": totals.jobs_refused,
    }
    for outcome, by_class in outcomes.items():
        for workload in sorted({*CLASSES, *by_class}):
            finished.add_metric([workload, outcome], by_class.get(workload, 0))
    yield finished
    # Not gridcore_jobs: OpenMetrics knows the counter above by that name.
    waiting = GaugeMetricFamily(
        "gridcore_open_jobs", "Jobs that are open now.", labels=["class", "phase"]
    )
    for phase in sorted({*PHASES, *snapshot.counts}):
        by_class = snapshot.counts.get(phase, {})
        for workload in sorted({*CLASSES, *by_class}):
            waiting.add_metric([workload, phase], by_class.get(workload, 0))
    yield waiting
    yield _counters(
        "gridcore_steps", "Steps dispatched, by class.", "class", totals.steps, known=CLASSES
    )
    yield _seconds(
        "gridcore_queue_wait_seconds",
        "Time jobs waited for the card, by class.",
        "class",
        totals.queue_wait_ns,
    )
    yield _seconds("gridcore_step_seconds", "Time steps ran, by class.", "class", totals.step_ns)


def _model_counters(totals: Totals) -> Iterable[Metric]:
    yield _counters("gridcore_model_loads", "Loads that were started.", "model", totals.loads)
    yield _counters(
        "gridcore_model_load_failures", "Loads that failed.", "model", totals.load_failures
    )
    yield _seconds("gridcore_model_load_seconds", "Time spent in loads.", "model", totals.load_ns)
    yield _counters("gridcore_model_evictions", "Unloads to make room.", "model", totals.evictions)
    yield _counters("gridcore_model_unloads", "Unloads of any kind.", "model", totals.unloads)
    yield _counters(
        "gridcore_model_thrash",
        "Times a model kept coming back (see the thrash hint in the log).",
        "model",
        totals.thrash,
    )


def _card_families(cards: Iterable[CardView]) -> Iterable[Metric]:
    memory = GaugeMetricFamily(
        "gridcore_card_memory_bytes",
        "Memory of a card: total, budget, used (as sampled), reserved (by models), "
        "foreign (other programs).",
        labels=["card", "kind"],
    )
    utilization = GaugeMetricFamily(
        "gridcore_card_utilization_ratio", "How busy the card is, 0 to 1.", labels=["card"]
    )
    mode = GaugeMetricFamily(
        "gridcore_card_mode", "1 for the card's current mode.", labels=["card", "mode"]
    )
    pressure = GaugeMetricFamily(
        "gridcore_card_pressure",
        "1 for the memory pressure the system reports.",
        labels=["card", "pressure"],
    )
    for card in cards:
        kinds = {
            "total": card.total_bytes,
            "budget": card.budget_bytes,
            "used": card.used_bytes,
            "reserved": card.reserved_bytes,
            "foreign": card.foreign_bytes,
        }
        for kind, value in kinds.items():
            _add_known(memory, [card.id, kind], value)
        if card.utilization_percent is not None:
            utilization.add_metric([card.id], card.utilization_percent / 100)
        for name in ("idle", *CLASSES):
            mode.add_metric([card.id, name], int(card.mode == name))
        for level in Pressure:
            pressure.add_metric([card.id, level], int(card.pressure == level))
    yield from (memory, utilization, mode, pressure)


def _model_gauges(models: Iterable[ModelView]) -> Iterable[Metric]:
    resident = GaugeMetricFamily(
        "gridcore_model_resident",
        "1 while the model is loaded (ready or draining).",
        labels=["model", "card"],
    )
    phase = GaugeMetricFamily(
        "gridcore_model_phase", "1 for the model's current phase.", labels=["model", "phase"]
    )
    residency = GaugeMetricFamily(
        "gridcore_model_residency",
        "1 for the model's current residency.",
        labels=["model", "residency"],
    )
    slots = GaugeMetricFamily("gridcore_model_slots", "Slots of the model.", labels=["model"])
    used = GaugeMetricFamily(
        "gridcore_model_slots_used", "Slots that steps occupy.", labels=["model"]
    )
    queued = GaugeMetricFamily(
        "gridcore_model_queued_jobs", "Jobs that wait for the model.", labels=["model"]
    )
    reserved = GaugeMetricFamily(
        "gridcore_model_reserved_bytes", "Memory reserved for the model.", labels=["model"]
    )
    footprint = GaugeMetricFamily(
        "gridcore_model_footprint_bytes",
        "Memory the model takes: estimated from its file, measured on the card.",
        labels=["model", "kind"],
    )
    cost = GaugeMetricFamily(
        "gridcore_model_evict_cost", "What evicting the model would cost now.", labels=["model"]
    )
    breaker = GaugeMetricFamily(
        "gridcore_model_breaker_open",
        "1 while too many failed loads in a row hold the model back (half open included).",
        labels=["model"],
    )
    for model in models:
        resident.add_metric([model.id, model.card], int(model.phase in RESIDENT))
        for name in Phase:
            phase.add_metric([model.id, name], int(model.phase == name))
        for kind in Residency:
            residency.add_metric([model.id, kind], int(model.residency == kind))
        slots.add_metric([model.id], model.slots)
        used.add_metric([model.id], model.slots_used)
        queued.add_metric([model.id], model.queued)
        reserved.add_metric([model.id], model.reserved_bytes)
        _add_known(footprint, [model.id, "estimated"], model.footprint.estimated_bytes)
        _add_known(footprint, [model.id, "measured"], model.footprint.measured_bytes)
        _add_known(cost, [model.id], model.evict_cost)
        breaker.add_metric([model.id], int(model.breaker != "closed"))
    yield from (resident, phase, residency, slots, used, queued)
    yield from (reserved, footprint, cost, breaker)


def _service_families(services: Iterable[ServiceView]) -> Iterable[Metric]:
    up = GaugeMetricFamily(
        "gridcore_service_up", "1 while the service has a process.", labels=["service"]
    )
    restarts = CounterMetricFamily(
        "gridcore_service_restarts", "Restarts of a service of the group.", labels=["service"]
    )
    for service in services:
        up.add_metric([service.name], int(service.pid is not None))
        restarts.add_metric([service.name], service.restarts)
    yield from (up, restarts)


def _add_known(family: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
