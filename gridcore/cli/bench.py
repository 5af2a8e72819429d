"""``gridcore bench``: loads models one by one and measures them on this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from gridcore.cli.options import ConfigOption, StateDirOption

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import TaskID

    from gridcore.cli.measure import Measurement
    from gridcore.instance import Instance


def bench(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Which models.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All models of the config.")] = False,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Measure memory, load time and speed, through the daemon or with one of its own."""
    import asyncio  # noqa: PLC0415

    from gridcore.cli.measure import measure  # noqa: PLC0415
    from gridcore.cli.table import table  # noqa: PLC0415
    from gridcore.errors import GridcoreError  # noqa: PLC0415

    if bool(models) == everything:
        raise typer.BadParameter("name models, or say --all")
    found: list[Measurement] = []
    failures: list[str] = []
    with _daemon(config, state_dir) as (instance, url):
        wanted = _wanted(instance, models or list(instance.config.models))
        with _progress(wanted) as progress_of:
            for model_id in wanted:
                progress = progress_of(model_id)
                try:
                    found.append(asyncio.run(measure(instance, url, model_id, progress)))
                except GridcoreError as error:
                    failures.append(str(error))
                    progress("failed")
                else:
                    progress("done")
    if found:
        head = ["MODEL", "FOOTPRINT", "ESTIMATE", "LOAD", "PROMPT/S", "TOKENS/S", "TOGETHER"]
        for line in table(head, [row(each) for each in found]):
            typer.echo(line)
    for failure in failures:
        typer.echo(f"✗ {failure}", err=True)
    if failures:
        raise typer.Exit(1)


def row(found: "Measurement") -> list[str]:
    from gridcore.cli.profiles import speed  # noqa: PLC0415
    from gridcore.units import format_mb  # noqa: PLC0415

    def mb(n_bytes: int | None) -> str:
        return "-" if n_bytes is None else format_mb(n_bytes)

    speeds = found.speeds
    return [
        found.model_id,
        mb(found.footprint_bytes),
        mb(found.estimated_bytes),
        "-" if found.load_s is None else f"{found.load_s:.1f} s",
        speed(speeds.prompt),
        speed(speeds.generation),
        "" if speeds.together is None else f"{speeds.together:.1f} x{speeds.streams}",
    ]


@contextmanager
def _daemon(config: "Path | None", state_dir: "Path | None") -> "Iterator[tuple[Instance, str]]":
    """The daemon of this state directory, or one for as long as we measure."""
    import tempfile  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from gridcore.cli.daemon import is_listening  # noqa: PLC0415
    from gridcore.group.listen import reachable_address  # noqa: PLC0415
    from gridcore.group.private import private_daemon  # noqa: PLC0415
    from gridcore.instance import read_instance  # noqa: PLC0415
    from gridcore.paths import RuntimePaths, default_config_path, runtime_dir_for  # noqa: PLC0415

    def url_of(instance: "Instance") -> str:
        host, port = reachable_address(instance.listen)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    paths = RuntimePaths(runtime_dir_for(state_dir))
    if is_listening(paths.events):
        instance = read_instance(paths.instance)
        typer.echo(f"through the daemon at {url_of(instance)}")
        yield instance, url_of(instance)
        return
    typer.echo("no daemon is running: one is started for this")
    with (
        tempfile.TemporaryDirectory(prefix="gridcore-bench-") as directory,
        private_daemon(
            config if config is not None else default_config_path(),
            state_dir,
            Path(directory) / "serve.log",
        ) as instance,
    ):
        yield instance, url_of(instance)


def _wanted(instance: "Instance", names: list[str]) -> list[str]:
    from gridcore.errors import GridcoreError  # noqa: PLC0415

    known = instance.config.models
    unknown = [name for name in names if name not in known]
    if unknown:
        raise GridcoreError(f"there is no model {unknown[0]}; the config has {', '.join(known)}")
    return list(dict.fromkeys(names))


@contextmanager
def _progress(wanted: list[str]) -> "Iterator[Callable[[str], Callable[[str], None]]]":
    """Bars in a terminal, a line a step elsewhere."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:

        def plain(model_id: str) -> Callable[[str], None]:
            return lambda text: typer.echo(f"{model_id}: {text}", err=True)

        yield plain
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {
            model_id: bars.add_task(f"{model_id}: waiting", start=False, total=None)
            for model_id in wanted
        }

        def bar(model_id: str) -> Callable[[str], None]:
            bars.start_task(tasks[model_id])

            def show(text: str) -> None:
                bars.update(tasks[model_id], description=f"{model_id}: {text}")
                if text in ("done", "failed"):
                    bars.update(tasks[model_id], total=1, completed=1)

            return show

        yield bar
