"""What the exporter knows: the latest snapshot, and distributions made from notes.

Counters and gauges come from the snapshot. Only distributions need single events, so a lost
note costs a histogram one observation and nothing else. Knows no sockets and no clock.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics import Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gridcore.core.notes import Note, Verb
from gridcore.ipc.messages import EventEnvelope
from gridcore.metrics.families import snapshot_families

CONTENT_TYPE = CONTENT_TYPE_LATEST
WAIT_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)
"""Seconds: from a free slot (a few ms) over a load (seconds) to batch behind background."""
LOAD_BUCKETS = (0.25, 0.5, 1, 2, 3, 5, 8, 12, 20, 30, 60, 120, 180)
"""Seconds: a small model from the page cache up to the default load timeout."""


class Exposition(Collector):
    """All and only what ``/metrics`` shows; ``observe`` is its one way in."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._latest: EventEnvelope | None = None
        self._received = 0
        self._missed = 0
        self.is_connected = False
        """The scheduler was heard when it was last listened for."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._queue_wait = Histogram(
            "gridcore_step_queue_wait_seconds",
            "How long the first step of a job had waited when it was dispatched, by class.",
            labelnames=("class",),
            buckets=WAIT_BUCKETS,
            registry=self._registry,
        )
        self._load = Histogram(
            "gridcore_load_duration_seconds",
            "How long loads took until the model could serve.",
            labelnames=("model",),
            buckets=LOAD_BUCKETS,
            registry=self._registry,
        )

    def observe(self, envelope: EventEnvelope, events_missed: int = 0) -> None:
        """Take in one event; ``events_missed`` were lost before it, in all."""
        self._received += 1
        self._missed = events_missed
        self.is_connected = True
        if envelope.snapshot is not None:
            self._latest = envelope
        if envelope.note is not None:
            self._observe_note(envelope.note)

    def render(self) -> bytes:
        """The page in Prometheus text format."""
        page: bytes = generate_latest(self._registry)
        return page

    def collect(self) -> Iterable[Metric]:
        info = InfoMetricFamily("gridcore_build", "Version of GridCore.")
        info.add_metric([], {"version": self._version})
        yield info
        yield GaugeMetricFamily(
            "gridcore_scheduler_up",
            "1 while the scheduler answers; 0 means the numbers below are its last ones.",
            value=int(self.is_connected),
        )
        yield CounterMetricFamily(
            "gridcore_events_received", "Events the exporter received.", value=self._received
        )
        yield CounterMetricFamily(
            "gridcore_events_dropped",
            "Events lost on the way to the exporter (gaps in the sequence).",
            value=self._missed,
        )
        if self._latest is None or self._latest.snapshot is None:
            return
        yield GaugeMetricFamily(
            "gridcore_snapshot_timestamp_seconds",
            "When the snapshot below was published, in seconds since 1970.",
            value=self._latest.time_s,
        )
        yield from snapshot_families(self._latest.snapshot)

    def _observe_note(self, note: Note) -> None:
        match note.verb:
            case Verb.DISPATCH if note.workload is not None:
                waited_ms = note.data.get("waited_ms")
                if note.data.get("step", 1) == 1 and isinstance(waited_ms, int | float):
                    self._queue_wait.labels(note.workload).observe(waited_ms / 1000)
            case Verb.LOADED if note.model_id is not None:
                took_ms = note.data.get("took_ms")
                if isinstance(took_ms, int | float):
                    self._load.labels(note.model_id).observe(took_ms / 1000)
            case _:
                pass
