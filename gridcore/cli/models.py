"""``gridcore models``: what the config makes of each model, and what it would take."""

from typing import TYPE_CHECKING, Annotated

import typer

from gridcore.cli.options import ConfigOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridcore.cli.survey import Survey, SurveyedModel


def models(
    config: ConfigOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show where each footprint comes from.")
    ] = False,
) -> None:
    """List the models with their footprints."""
    from gridcore.cli.survey import survey  # noqa: PLC0415
    from gridcore.paths import default_config_path  # noqa: PLC0415

    found = survey(config if config is not None else default_config_path())
    for line in explanation(found) if explain else listing(found):
        typer.echo(line)
    for problem in found.problems:
        typer.echo(f"✗ {problem}", err=True)
    if found.problems:
        raise typer.Exit(1)


def listing(found: "Survey") -> "Iterator[str]":
    from gridcore.cli.table import table  # noqa: PLC0415
    from gridcore.units import format_mb  # noqa: PLC0415

    if not found.models:
        yield "no models: name one under models: in the config"
        return
    rows = [
        [
            model.model_id,
            model.kind,
            ",".join(model.capabilities),
            f"{model.ctx} / {model.slots}",
            format_mb(model.footprint.total_bytes),
            "yes" if model.fits else "no",
            ", ".join(model.aliases),
        ]
        for model in found.models
    ]
    head = ["MODEL", "RUNTIME", "CAN", "CTX / SLOTS", "FOOTPRINT", "FITS", "ALIASES"]
    yield from table(head, rows)
    for name, variants in found.families.items():
        yield f"family {name}: {', '.join(variants)}"
    yield f"budget {format_mb(found.budget_bytes)} on {found.card.name}"


def explanation(found: "Survey") -> "Iterator[str]":
    from gridcore.units import format_mb  # noqa: PLC0415

    for model in found.models:
        source = model.footprint.source
        yield f"{model.model_id}: {format_mb(model.footprint.total_bytes)}, {source}"
        yield from (f"  {line}" for line in _parts(model))
        yield from (f"  note: {note}" for note in model.footprint.notes)
    yield f"budget {format_mb(found.budget_bytes)} on {found.card.name}"


def _parts(model: "SurveyedModel") -> list[str]:
    """What takes memory where, by which rule."""
    from gridcore.cli.table import table  # noqa: PLC0415
    from gridcore.units import format_mb  # noqa: PLC0415

    estimate = model.footprint.estimate
    if estimate is None:
        return []
    rows = [[part.what, part.where, format_mb(part.bytes), part.rule] for part in estimate.parts]
    return table(["PART", "WHERE", "SIZE", "RULE"], rows)
