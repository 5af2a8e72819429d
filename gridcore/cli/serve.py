"""``gridcore serve``: the whole daemon in the foreground."""

from typing import Annotated

import typer

from gridcore.cli.options import ConfigOption, StateDirOption
from gridcore.config.schema import LogLevel


def serve(
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address of the API; else the config's."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", help="Else the config's.")
    ] = None,
    simulation: Annotated[
        bool,
        typer.Option("--simulation", help="A simulated 16 GB card with simulated models."),
    ] = False,
) -> None:
    """Run the daemon: gateway, scheduler, supervisor, monitor and metrics."""
    from gridcore.cli.examples import example  # noqa: PLC0415
    from gridcore.config.address import parse_listen  # noqa: PLC0415
    from gridcore.paths import default_config_path  # noqa: PLC0415

    if simulation and config is not None:
        raise typer.BadParameter("--simulation is a config of its own; leave --config out")
    if listen is not None:
        try:
            parse_listen(listen)
        except ValueError as error:
            raise typer.BadParameter(f"--listen: {error}") from error
    if simulation:
        path = example("simulation.yaml")
    else:
        path = config if config is not None else default_config_path()
    from services import launcher  # noqa: PLC0415 - a usage error needs no launcher

    code = launcher.run(
        config_path=path,
        state_dir=state_dir,
        listen=listen,
        log_level=log_level.value if log_level is not None else None,
    )
    raise typer.Exit(code)
