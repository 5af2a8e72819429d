"""``gridcore status``: what runs, what waits and why, what is resident; once or live."""

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridcore.cli.options import JsonOption, StateDirOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.text import Text

    from gridcore.ipc.events import BlockingEventSubscriber
    from gridcore.ipc.messages import EventEnvelope

SNAPSHOT_WAIT_S = 5.0
"""A snapshot follows each subscription; the scheduler sends one a second at most."""
REFRESH_S = 1.0
DRAW_EVERY_S = 0.1
NOTES_SHOWN = 10


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep it up to date.")] = False,
    as_json: JsonOption = False,
    state_dir: StateDirOption = None,
) -> None:
    """Show the card, resident models, running and queued requests."""
    from gridcore.cli.daemon import running_daemon  # noqa: PLC0415
    from gridcore.ipc.events import BlockingEventSubscriber  # noqa: PLC0415

    paths = running_daemon(state_dir)
    with BlockingEventSubscriber(paths.events) as events:
        if as_json:
            _print_json(events, watch=watch)
        elif watch:
            _watch(events, paths.events)
        else:
            _print_once(events)


def next_snapshot(events: "BlockingEventSubscriber") -> "EventEnvelope":
    """The first snapshot that comes.

    Raises:
        GridcoreError: the daemon is there and says nothing.
    """
    from gridcore.clock import monotonic_ns  # noqa: PLC0415
    from gridcore.errors import GridcoreError  # noqa: PLC0415
    from gridcore.units import NS_PER_S  # noqa: PLC0415

    deadline_ns = monotonic_ns() + int(SNAPSHOT_WAIT_S * NS_PER_S)
    while (left_ns := deadline_ns - monotonic_ns()) > 0:
        envelope = events.receive(left_ns / NS_PER_S)
        if envelope is not None and envelope.snapshot is not None:
            return envelope
    raise GridcoreError(
        f"the daemon sent no state within {SNAPSHOT_WAIT_S:.0f} s: its scheduler may be "
        "restarting; try again, or look at its log"
    )


def _print_json(events: "BlockingEventSubscriber", *, watch: bool) -> None:
    import msgspec  # noqa: PLC0415

    encoded = msgspec.json.encode(next_snapshot(events).snapshot)
    if not watch:
        typer.echo(msgspec.json.format(encoded, indent=2))
        return
    while True:
        typer.echo(encoded)
        events.ask_for_snapshot()
        encoded = msgspec.json.encode(next_snapshot(events).snapshot)


def _print_once(events: "BlockingEventSubscriber") -> None:
    from gridcore.cli.picture import picture  # noqa: PLC0415

    envelope = next_snapshot(events)
    assert envelope.snapshot is not None
    _console().print(picture(envelope.snapshot, time_s=envelope.time_s), soft_wrap=True)


def _watch(events: "BlockingEventSubscriber", endpoint: Path) -> None:
    """Draw on every change, ask for news every second; survive a restart of the daemon."""
    from rich.live import Live  # noqa: PLC0415

    console = _console()
    pictures = _pictures(events, endpoint)
    if not console.is_terminal:
        for drawing in pictures:
            console.print(drawing, soft_wrap=True)
            console.print()
        return
    with Live(console=console, auto_refresh=False) as live:
        for drawing in pictures:
            live.update(drawing, refresh=True)


def _pictures(events: "BlockingEventSubscriber", endpoint: Path) -> "Iterator[Text]":
    """A picture whenever something has happened, ten a second at most and one at least."""
    from gridcore.cli.daemon import is_listening  # noqa: PLC0415
    from gridcore.cli.events import note_line  # noqa: PLC0415
    from gridcore.cli.picture import picture  # noqa: PLC0415
    from gridcore.clock import monotonic_ns, wall_time_s  # noqa: PLC0415
    from gridcore.units import NS_PER_S  # noqa: PLC0415

    newest = next_snapshot(events)
    notes: deque[str] = deque(maxlen=NOTES_SHOWN)
    has_news = True
    asked_ns = drawn_ns = monotonic_ns() - NS_PER_S
    while True:
        now_ns = monotonic_ns()
        since_draw_s = (now_ns - drawn_ns) / NS_PER_S
        if since_draw_s >= (DRAW_EVERY_S if has_news else REFRESH_S):
            has_news, drawn_ns = False, now_ns
            assert newest.snapshot is not None
            drawing = picture(newest.snapshot, time_s=wall_time_s(), notes=notes)
            silent_s = wall_time_s() - newest.time_s
            if silent_s > 3 * REFRESH_S and not is_listening(endpoint):
                drawing.append(f"\n\nno daemon since {silent_s:.0f} s", style="bold red")
            yield drawing
        if now_ns - asked_ns >= REFRESH_S * NS_PER_S:
            asked_ns = now_ns
            events.ask_for_snapshot()
        envelope = events.receive(DRAW_EVERY_S)
        if envelope is not None:
            has_news = True
            if envelope.snapshot is not None:
                newest = envelope
            elif envelope.note is not None:
                notes.append(note_line(envelope))


def _console() -> "Console":
    from rich.console import Console  # noqa: PLC0415

    return Console(highlight=False)
