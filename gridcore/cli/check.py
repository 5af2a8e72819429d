"""``gridcore check``: everything that would stop the daemon or a model, before it starts."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gridcore.cli.options import ConfigOption

if TYPE_CHECKING:
    from gridcore.cli.survey import Survey


def check(config: ConfigOption = None) -> None:
    """Check config, model files, runtime binary, card and what fits on it."""
    from gridcore.cli.survey import survey  # noqa: PLC0415
    from gridcore.errors import ConfigError  # noqa: PLC0415
    from gridcore.paths import default_config_path  # noqa: PLC0415

    path = config if config is not None else default_config_path()
    try:
        found = survey(path)
    except ConfigError as error:
        _fail(error.problems)
    else:
        if found.problems:
            _fail(found.problems)
        for line in summary(path, found):
            typer.echo(line)
        typer.echo("✓ ok")


def _fail(problems: list[str]) -> None:
    for problem in problems:
        typer.echo(f"✗ {problem}")
    raise typer.Exit(1)


def summary(path: Path, found: "Survey") -> list[str]:
    """What is all right: the config, the card, one line a model."""
    from gridcore.cli.table import table  # noqa: PLC0415
    from gridcore.units import format_gb, format_mb  # noqa: PLC0415

    card = found.card
    lines = [
        f"config   {path}",
        f"card     {found.device}: {card.name}, {format_gb(found.total_bytes)}, "
        f"budget {format_mb(found.budget_bytes)} (headroom {format_mb(card.headroom_bytes)})",
    ]
    if found.llama_server is not None:
        lines.append(f"runtime  llama-server: {found.llama_server}")
    rows = [
        [
            model.model_id,
            model.kind,
            str(model.slots),
            format_mb(model.footprint.total_bytes),
            "yes" if model.fits else "no",
            "pinned" if model.pinned else "",
        ]
        for model in found.models
    ]
    if rows:
        lines += ["", *table(["MODEL", "RUNTIME", "SLOTS", "FOOTPRINT", "FITS", ""], rows), ""]
    lines += [f"· {note}" for note in found.notes]
    return lines
