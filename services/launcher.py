"""The launcher: locks, the listening socket, the five services, and their end in order.

It decides nothing about models. Its death ends the group; only it may start a service again.
"""

import asyncio
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from gridcore.config.load import load_config
from gridcore.config.resolve import resolve, resolve_device
from gridcore.config.schema import Config, LogLevel
from gridcore.errors import GridcoreError
from gridcore.group.daemon import Daemon
from gridcore.group.group import ServiceSpec, Stage
from gridcore.group.listen import address_of, open_listener
from gridcore.group.lock import FileLock
from gridcore.group.ready import read_card, ready_block
from gridcore.group.roster import end_remains
from gridcore.ids import PeerId
from gridcore.instance import Instance, write_instance
from gridcore.ipc.endpoints import remove_stale_sockets
from gridcore.logs import setup_logging
from gridcore.paths import StatePaths, default_state_dir, make_private_dir, runtime_dir_for
from gridcore.runtime import dry_run
from gridcore.units import NS_PER_S

ROSTER = "group.json"
"""Below the runtime directory."""
GATEWAY_GRACE_NS = 4 * NS_PER_S
"""Beyond server.drain_timeout, which the gateways keep themselves: they end what is left then."""
SUPERVISOR_GRACE_NS = 3 * NS_PER_S
"""Beyond the stop_timeout of the runtimes it unloads."""
REST_GRACE_NS = 2 * NS_PER_S


def run(
    *, config_path: Path, state_dir: Path | None, listen: str | None, log_level: str | None
) -> int:
    """Serve until a signal; the exit status of ``gridcore serve``."""
    try:
        if not __debug__:
            raise GridcoreError("GridCore needs its assertions: run Python without -O")
        return _run(config_path, state_dir, listen, log_level)
    except GridcoreError as error:
        sys.stderr.write(f"gridcore: {error}\n")
        return error.exit_code


def _run(
    config_path: Path, state_dir: Path | None, listen: str | None, log_level: str | None
) -> int:
    config = load_config(config_path)
    if log_level is not None:
        logs = msgspec.structs.replace(config.logs, level=LogLevel(log_level))
        config = msgspec.structs.replace(config, logs=logs)
    setup_logging("launcher", config.logs.level)
    with ExitStack() as held:
        runtime_dir = _take_locks(held, config, state_dir)
        end_remains(runtime_dir / ROSTER)
        listener = held.enter_context(open_listener(listen or config.server.listen))
        instance = resolve(
            config,
            config_path=config_path,
            state_dir=state_dir,
            runtime_dir=runtime_dir,
            listen=address_of(listener),
            dry_run=dry_run.ask,
        )
        remove_stale_sockets(instance.runtime)
        for directory in (instance.runtime.runtimes, instance.runtime.simulation):
            directory.mkdir(mode=0o700, exist_ok=True)
        write_instance(instance)
        asyncio.run(_serve(instance, listener))
    return 0


async def _serve(instance: Instance, listener: socket.socket) -> None:
    async def show_ready() -> None:
        sys.stdout.write(ready_block(instance, await read_card(instance.listen)))
        sys.stdout.flush()

    daemon = Daemon(
        service_specs(instance, listener.fileno()),
        control=instance.runtime.control,
        listener=listener,
        listen=instance.listen,
        roster=instance.runtime.directory / ROSTER,
        on_ready=show_ready,
    )
    await daemon.run()


def _take_locks(held: ExitStack, config: Config, state_dir: Path | None) -> Path:
    """Take every lock before anything is bound; return the runtime directory."""
    state = StatePaths((state_dir or default_state_dir()).expanduser().absolute())
    state.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    held.enter_context(FileLock(state.lock, owned="state directory"))
    runtime_dir = make_private_dir(runtime_dir_for(state_dir))
    held.enter_context(FileLock(runtime_dir / "lock", owned="runtime directory"))
    device = resolve_device(config)
    if device not in ("cpu", "simulation"):
        # Two daemons would plan the same memory of a card twice. Not so for cpu, where each has
        # a limit of its own, and a simulated card exists once per daemon.
        user_dir = make_private_dir(runtime_dir_for(None))
        name = f"card-{device.replace(':', '-')}.lock"
        held.enter_context(FileLock(user_dir / name, owned=f"card {device}"))
    return runtime_dir


def service_specs(instance: Instance, listen_fd: int) -> list[ServiceSpec]:
    """The group, in the order of its start."""
    config = instance.config
    stop_ns = max(
        config.runtimes.llamacpp.stop_timeout_ns, config.runtimes.embedded.stop_timeout_ns
    )

    def spec(
        module: str, name: str, stage: Stage, grace_ns: int, *more: str, fds: tuple[int, ...] = ()
    ) -> ServiceSpec:
        # -P: a folder named services where the user stands must not be picked up.
        python = (sys.executable, "-P", "-m", f"services.{module}")
        argv = (*python, "--instance", str(instance.runtime.instance), "--name", name, *more)
        return ServiceSpec(
            name=PeerId(name), argv=argv, stage=stage, grace_ns=grace_ns, pass_fds=fds
        )

    gateway_ns = config.server.drain_timeout_ns + GATEWAY_GRACE_NS
    listen = ("--listen-fd", str(listen_fd))
    return [
        spec("scheduler", "scheduler", Stage.REST, REST_GRACE_NS),
        spec("gateway", "gateway-0", Stage.GATEWAYS, gateway_ns, *listen, fds=(listen_fd,)),
        spec("supervisor", "supervisor", Stage.SUPERVISOR, stop_ns + SUPERVISOR_GRACE_NS),
        spec("gpu_monitor", "gpu-monitor", Stage.REST, REST_GRACE_NS),
        spec("metrics_exporter", "metrics-exporter", Stage.REST, REST_GRACE_NS),
    ]
