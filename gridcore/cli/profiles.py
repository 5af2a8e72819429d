"""``gridcore profiles``: what has been measured, whether it still holds, and forgetting it."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gridcore.cli.options import ConfigOption, StateDirOption

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gridcore.store.profiles import Profile, ProfileStore


class Action(StrEnum):
    LIST = "list"
    PRUNE = "prune"


def profiles(
    action: Annotated[
        Action, typer.Argument(help="prune forgets what does not apply any more.")
    ] = Action.LIST,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="With prune: forget all measurements.")
    ] = False,
) -> None:
    """List what was measured of each model, and whether it still applies."""
    from gridcore.errors import GridcoreError  # noqa: PLC0415
    from gridcore.paths import StatePaths, default_state_dir  # noqa: PLC0415
    from gridcore.store.profiles import ProfileStore  # noqa: PLC0415

    if everything and action is not Action.PRUNE:
        raise typer.BadParameter("--all belongs to prune")
    path = StatePaths((state_dir or default_state_dir()).expanduser().absolute()).profiles
    store = ProfileStore(path)
    reasons = {} if everything else reasons_by_key(store, config, state_dir)
    if action is Action.LIST:
        for line in listing(store, reasons):
            typer.echo(line)
        return
    doomed = [key for key in store.all() if everything or reasons[key]]
    for key in doomed:
        profile = store.all()[key]
        reason = f": {reasons[key]}" if reasons.get(key) else ""
        typer.echo(f"forgot {profile.model_id or key}{reason}")
    try:
        store.remove(doomed)
    except OSError as error:
        raise GridcoreError(f"{path} cannot be written: {error}") from error
    typer.echo(f"{len(doomed)} forgotten, {len(store.all())} kept")


def reasons_by_key(
    store: "ProfileStore", config: "Path | None", state_dir: "Path | None"
) -> dict[str, str]:
    """Why each stored measurement does not apply; empty where it does."""
    from gridcore.cli.survey import survey  # noqa: PLC0415
    from gridcore.ids import ModelId  # noqa: PLC0415
    from gridcore.paths import default_config_path  # noqa: PLC0415
    from gridcore.runtime.launch import Launches  # noqa: PLC0415
    from gridcore.store.applies import why_not  # noqa: PLC0415

    found = survey(config if config is not None else default_config_path(), state_dir)
    launches = Launches(found.instance)
    runnable = {model.model_id for model in found.models}
    now = {name: launches.conditions(ModelId(name)) for name in runnable}
    reasons = {}
    for key, profile in store.all().items():
        name = profile.model_id
        if name in found.configured and name not in runnable:
            reasons[key] = "the model cannot be run now; gridcore check says why"
        else:
            reasons[key] = why_not(profile, now.get(name))
    return reasons


def listing(store: "ProfileStore", reasons: dict[str, str]) -> "Iterator[str]":
    from gridcore.cli.table import table  # noqa: PLC0415

    if not store.all():
        yield "nothing has been measured yet: a first load does it, or gridcore bench"
        return
    head = ["MODEL", "FOOTPRINT", "LOAD", "PROMPT/S", "TOKENS/S", "TOGETHER", "AGE", "APPLIES"]
    by_name = sorted(store.all().items(), key=lambda item: (item[1].model_id, item[0]))
    yield from table(head, [row(profile, reasons[key]) for key, profile in by_name])


def row(profile: "Profile", reason: str) -> list[str]:
    from gridcore.units import format_duration, format_mb  # noqa: PLC0415

    speeds = profile.speeds
    together = ""
    if speeds is not None and speeds.together is not None:
        together = f"{speeds.together:.1f} x{speeds.streams}"
    applies = f"no: {reason}" if reason else "yes"
    if profile.shrunk:
        applies += f"; the last load had {profile.shrunk}"
    if profile.out_of_memory_at_bytes is not None:
        applies += f"; ran out of memory with {format_mb(profile.out_of_memory_at_bytes)} free"
    return [
        profile.model_id,
        "-" if profile.footprint_bytes is None else format_mb(profile.footprint_bytes),
        "-" if profile.load_ns is None else format_duration(profile.load_ns),
        speed(speeds.prompt if speeds else None),
        speed(speeds.generation if speeds else None),
        together,
        age(profile),
        applies,
    ]


def speed(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:.1f}"


def age(profile: "Profile") -> str:
    from gridcore.clock import wall_time_s  # noqa: PLC0415

    if not profile.measured_at_s:
        return ""
    minutes = max(0, int(wall_time_s() - profile.measured_at_s)) // 60
    for unit, length in (("d", 1440), ("h", 60)):
        if minutes >= 2 * length:
            return f"{minutes // length}{unit}"
    return f"{minutes}m"
