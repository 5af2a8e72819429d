"""``gridcore events``: the explain log, one line a note, as it happens."""

from typing import TYPE_CHECKING, Annotated

import typer

from gridcore.cli.options import StateDirOption

if TYPE_CHECKING:
    from gridcore.ipc.messages import EventEnvelope

SILENCE_S = 2.0
"""After this long without an event the daemon's socket is probed."""
PROBES_MAX = 5
"""A scheduler that restarts is back within a second or two; the launcher gives up after ten."""


def events(
    state_dir: StateDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the daemon's decisions as they are made."""
    import msgspec  # noqa: PLC0415

    from gridcore.cli.daemon import is_listening, running_daemon  # noqa: PLC0415
    from gridcore.errors import GridcoreError  # noqa: PLC0415
    from gridcore.ipc.events import BlockingEventSubscriber  # noqa: PLC0415

    paths = running_daemon(state_dir)
    probes = missed = 0
    with BlockingEventSubscriber(paths.events) as subscriber:
        while probes < PROBES_MAX:
            envelope = subscriber.receive(SILENCE_S)
            if envelope is None:
                probes = 0 if is_listening(paths.events) else probes + 1
                continue
            probes = 0
            if subscriber.events_missed > missed:
                dropped = subscriber.events_missed - missed
                typer.echo(f"({dropped} events were dropped: too slow a reader)", err=True)
                missed = subscriber.events_missed
            if envelope.note is None:
                continue
            if as_json:
                typer.echo(msgspec.json.encode(envelope))
            else:
                typer.echo(note_line(envelope))
    raise GridcoreError("the daemon has ended")


def note_line(envelope: "EventEnvelope") -> str:
    """``17:45:26.360 enqueue   background embedding nomic-embed steps=32``."""
    from gridcore.cli.picture import clock_text  # noqa: PLC0415

    assert envelope.note is not None
    when = f"{clock_text(envelope.time_s)}.{int(envelope.time_s * 1000) % 1000:03d}"
    return f"{when} {envelope.note.verb.value:<9} {envelope.note.text}".rstrip()
