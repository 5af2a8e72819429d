"""``gridcore run SERVICE``: one process of the group, for systemd and for debugging.

Processes that are started one by one must agree on one instance. The first to come resolves the
config and writes it; the others find it, unless the config file has been changed since.
"""

import fcntl
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gridcore.cli.options import ConfigOption, StateDirOption


class Service(StrEnum):
    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    SUPERVISOR = "supervisor"
    GPU_MONITOR = "gpu-monitor"
    METRICS_EXPORTER = "metrics-exporter"

    @property
    def module(self) -> str:
        return f"services.{self.value.replace('-', '_')}"

    @property
    def peer_name(self) -> str:
        return "gateway-0" if self is Service.GATEWAY else self.value


def run(
    service: Annotated[Service, typer.Argument(help="The service to run.", show_default=False)],
    instance: Annotated[
        Path | None,
        typer.Option(
            "--instance", metavar="FILE", help="A running daemon's instance.json to take part in."
        ),
    ] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Run one service of the daemon in this process."""
    from gridcore.instance import read_instance  # noqa: PLC0415

    if instance is not None and (config is not None or state_dir is not None):
        raise typer.BadParameter("--instance stands for --config and --state-dir")
    if instance is None:
        instance = ensure_instance(config, state_dir)
    else:
        read_instance(instance)  # its own error is a line; the service's would be a traceback
    sys.stdout.flush()
    argv = service_argv(service, instance)
    os.execve(argv[0], argv, os.environ)  # noqa: S606 - our own interpreter, no shell


def service_argv(service: Service, instance: Path) -> list[str]:
    """-P: a folder named services in the current directory is never picked up."""
    argv = [sys.executable, "-P", "-m", service.module, "--instance", str(instance.absolute())]
    return [*argv, "--name", service.peer_name]


def ensure_instance(config: Path | None, state_dir: Path | None) -> Path:
    """The instance of this config and state directory, written if it is missing or stale."""
    from gridcore.config.load import load_config  # noqa: PLC0415
    from gridcore.config.resolve import resolve  # noqa: PLC0415
    from gridcore.errors import AlreadyRunningError  # noqa: PLC0415
    from gridcore.group.lock import FileLock  # noqa: PLC0415
    from gridcore.instance import write_instance  # noqa: PLC0415
    from gridcore.paths import (  # noqa: PLC0415
        RuntimePaths,
        default_config_path,
        make_private_dir,
        runtime_dir_for,
    )
    from gridcore.runtime import dry_run  # noqa: PLC0415

    config_path = config if config is not None else default_config_path()
    directory = make_private_dir(runtime_dir_for(state_dir))
    paths = RuntimePaths(directory)
    gate = os.open(directory / "instance.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)  # services that start together write one instance
        with FileLock(directory / "lock", owned="runtime directory"):
            if not _is_current(paths.instance, config_path):
                written = resolve(
                    load_config(config_path),
                    config_path=config_path,
                    state_dir=state_dir,
                    runtime_dir=directory,
                    dry_run=dry_run.ask,
                )
                for needed in (written.state.directory, paths.runtimes, paths.simulation):
                    needed.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_instance(written)
    except AlreadyRunningError:
        pass  # gridcore serve runs: its instance holds, whatever the file says by now
    finally:
        os.close(gate)
    return paths.instance


def _is_current(path: Path, config_path: Path) -> bool:
    from gridcore.errors import GridcoreError  # noqa: PLC0415
    from gridcore.instance import read_instance  # noqa: PLC0415

    try:
        written = read_instance(path)
        is_newer = path.stat().st_mtime_ns >= config_path.stat().st_mtime_ns
    except (GridcoreError, OSError):
        return False
    return is_newer and written.config_path == str(config_path.absolute())
