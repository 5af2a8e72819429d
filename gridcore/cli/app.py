"""The ``gridcore`` command: its verbs, and how any of them ends.

Exit codes: 0 done, 1 a problem of config or usage, 3 another daemon runs, 4 the address cannot be
bound, 5 a service failed. A problem that a person can act on is one line on stderr each.
"""

import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gridcore import __version__
from gridcore.cli import bench, check, events, fit, models, profiles, run, serve, status
from gridcore.errors import ConfigError, GridcoreError

_USAGE_EXIT = 2  # of the option parser; not one of ours

app = typer.Typer(
    name="gridcore",
    help="A workload scheduler for local AI computers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve")(serve.serve)
app.command("run")(run.run)
app.command("check")(check.check)
app.command("models")(models.models)
app.command("fit")(fit.fit)
app.command("profiles")(profiles.profiles)
app.command("bench")(bench.bench)
app.command("status")(status.status)
app.command("events")(events.events)


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(f"gridcore {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _gridcore(
    wants_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A workload scheduler for local AI computers."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; every expected problem ends here as a line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a bar must not fail in an ASCII terminal
    try:
        app(args=argv, prog_name="gridcore")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        return 1 if code == _USAGE_EXIT else code
    except GridcoreError as error:
        lines = error.problems if isinstance(error, ConfigError) else [str(error)]
        for line in lines:
            typer.echo(f"gridcore: {line}", err=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
