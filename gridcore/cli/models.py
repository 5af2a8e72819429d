"""``gridcore models``: what the config makes of each model, and what it would take."""

from typing import TYPE_CHECKING, Annotated

import typer

from gridcore.cli.options import ConfigOption, StateDirOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridcore.cli.survey import Survey


def models(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="With --explain: only this one.")
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show where each footprint comes from.")
    ] = False,
) -> None:
    """List the models with their footprints."""
    from gridcore.cli.survey import survey  # noqa: PLC0415
    from gridcore.paths import default_config_path  # noqa: PLC0415

    if model is not None and not explain:
        raise typer.BadParameter("a model is named with --explain")
    found = survey(config if config is not None else default_config_path(), state_dir)
    if model is not None and model not in found.configured:
        known = ", ".join(sorted(found.configured)) or "none"
        raise typer.BadParameter(f"there is no model {model}; the config has {known}")
    for line in _explanation(found, model) if explain else listing(found):
        typer.echo(line)
    for problem in found.problems:
        typer.echo(f"✗ {problem}", err=True)
    if found.problems:
        raise typer.Exit(1)


def _explanation(found: "Survey", only: str | None) -> "Iterator[str]":
    from gridcore.cli.explain import explanation  # noqa: PLC0415 - reads more than a listing

    return explanation(found, only)


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
