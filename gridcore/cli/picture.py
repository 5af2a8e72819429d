"""The picture of ``gridcore status``: a snapshot and the last notes as styled lines.

Pure: what it is given decides what it draws; the console decides about colours.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from rich.text import Text

from gridcore.core.snapshot import CardView, JobView, ModelView, Snapshot
from gridcore.units import GB, NS_PER_MS, format_duration

CARD_BAR_WIDTH = 30
MODEL_BAR_WIDTH = 20
JOBS_SHOWN_MAX = 12
"""Running and queued each; what is left over is counted."""

_MODE_STYLES = {"interactive": "bold green", "background": "yellow", "batch": "magenta"}
_CLASS_STYLES = {"interactive": "green", "background": "yellow", "batch": "magenta"}
_RESIDENCY_STYLES = {"hot": "red", "pinned": "cyan", "cold": "blue"}
_VERB_STYLES = {
    "evict": "red",
    "fail": "red",
    "refuse": "red",
    "timeout": "red",
    "thrash": "red",
    "breaker": "red",
    "load": "cyan",
    "loaded": "cyan",
    "dispatch": "green",
    "mode": "bold",
}


def picture(snapshot: Snapshot, *, time_s: float, notes: Sequence[str] = ()) -> Text:
    """All of it; ``notes`` are rendered lines, the newest last."""
    lines = [_header(snapshot, time_s)]
    for card in snapshot.cards:
        lines += [_card_line(card)]
        residents = [m for m in snapshot.models if m.card == card.id and m.phase != "cold"]
        lines += [Text(), Text("RESIDENT", style="bold"), *_residents(residents, card)]
    running = [job for job in snapshot.jobs if job.phase == "running"]
    queued = [job for job in snapshot.jobs if job.phase == "queued"]
    lines += _jobs("RUNNING", running, _count(snapshot, "running"), _running_line)
    lines += _jobs("QUEUE", queued, _count(snapshot, "queued"), _queued_line)
    if notes:
        lines += [Text(), Text("EVENTS", style="bold"), *(_event_line(note) for note in notes)]
    return Text("\n").join(lines)


def clock_text(time_s: float) -> str:
    """Local time of day; the date is the reader's own."""
    return datetime.fromtimestamp(time_s).strftime("%H:%M:%S")


def bar(part: float, whole: float, width: int, *, full: str, empty: str) -> str:
    """A bar of ``width`` cells; anything above nothing shows at least one."""
    share = min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
    cells = round(share * width)
    if share > 0:
        cells = max(1, cells)
    return full * cells + empty * (width - cells)


def _header(snapshot: Snapshot, time_s: float) -> Text:
    text = Text("gridcore", style="bold")
    text.append(f"  {clock_text(time_s)}  ", style="not bold")
    for mode in [card.mode for card in snapshot.cards] or ["no card"]:
        text.append(mode.upper() + "  ", style=_MODE_STYLES.get(mode, "not bold"))
    if snapshot.draining:
        text.append("SHUTTING DOWN", style="bold red")
    text.rstrip()
    return text


def _card_line(card: CardView) -> Text:
    used = card.used_bytes if card.used_bytes is not None else card.reserved_bytes
    text = Text(f"{card.name}  ")
    if card.total_bytes is None:
        text.append(f"{_gb(used)} reserved; no sample yet", style="dim")
        return text
    fullness = used / card.total_bytes if card.total_bytes else 0.0
    style = "red" if fullness > 0.95 else "green"
    text.append("[")
    text.append(bar(used, card.total_bytes, CARD_BAR_WIDTH, full="█", empty="·"), style=style)
    text.append(f"] {_gb(used)} / {_gb(card.total_bytes)} GB")
    if card.utilization_percent is not None:
        text.append(f"  util {card.utilization_percent:3d}%")
    if card.foreign_bytes:
        text.append(f"  others {_gb(card.foreign_bytes)} GB", style="dim")
    if card.pressure in ("warn", "critical"):
        text.append(f"  pressure {card.pressure}", style="bold red")
    return text


def _residents(models: Sequence[ModelView], card: CardView) -> Iterator[Text]:
    if not models:
        yield Text("  no model is loaded", style="dim")
    width = max((len(model.id) for model in models), default=0)
    for model in models:
        n_bytes = model.footprint.measured_bytes or model.reserved_bytes
        text = Text(f"  {model.id:<{max(width, 16)}} ")
        text.append(f"{model.phase:<9}", style="" if model.phase == "ready" else "bold yellow")
        text.append(f"{model.residency:<7}", style=_RESIDENCY_STYLES.get(model.residency, ""))
        whole = card.budget_bytes or card.total_bytes or n_bytes
        text.append(bar(n_bytes, whole, MODEL_BAR_WIDTH, full="▇", empty="░"))
        text.append(f" {_gb(n_bytes):>5} GB  slots {model.slots_used}/{model.slots}")
        if model.evict_cost is not None and model.residency != "pinned":
            text.append(f"  cost {model.evict_cost:.1f}")
        if model.reason:
            text.append(f"  {model.reason}", style="dim")
        yield text


def _jobs(
    title: str, jobs: Sequence[JobView], total: int, line: Callable[[JobView], Text]
) -> Iterator[Text]:
    if not jobs and title != "QUEUE":
        return
    yield Text()
    heading = Text(title, style="bold")
    if total:
        heading.append(f" {total}", style="not bold")
    yield heading
    if not jobs:
        yield Text("  nothing waits", style="dim")
    for job in jobs[:JOBS_SHOWN_MAX]:
        yield line(job)
    rest = max(total, len(jobs)) - JOBS_SHOWN_MAX
    if rest > 0:
        yield Text(f"  and {rest} more", style="dim")


def _job_head(job: JobView) -> Text:
    name = job.model or job.family or "?"
    if job.family and job.model:
        name = f"{job.family} -> {job.model}"
    text = Text("  ")
    text.append(f"{job.workload:<12}", style=_CLASS_STYLES.get(job.workload, ""))
    text.append(f"{job.kind:<11}{name:<24}")
    return text


def _running_line(job: JobView) -> Text:
    text = _job_head(job)
    if job.steps > 1:
        text.append(" " + bar(job.steps_done, job.steps, 10, full="▇", empty="░"))
        text.append(f" step {job.steps_done}/{job.steps}")
    return text


def _queued_line(job: JobView) -> Text:
    text = _job_head(job)
    text.append(f" waited {format_duration(job.waited_ms * NS_PER_MS)}")
    if job.steps > 1:
        text.append(f"  step {job.steps_done}/{job.steps}")
    if job.eta_ms is not None:
        text.append(f"  about {format_duration(job.eta_ms * NS_PER_MS)} more")
    if job.reason:
        text.append(f"  {job.reason}", style="dim")
    return text


def _event_line(note: str) -> Text:
    when, _, rest = note.partition(" ")
    verb, _, what = rest.partition(" ")
    text = Text("  ")
    text.append(f"{when} ", style="dim")
    text.append(verb, style=_VERB_STYLES.get(verb, ""))
    text.append(f" {what}")
    return text


def _count(snapshot: Snapshot, phase: str) -> int:
    return sum(snapshot.counts.get(phase, {}).values())


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / GB:.1f}"
