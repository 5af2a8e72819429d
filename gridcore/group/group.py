"""The children of the launcher: started, watched, started again, and ended in order.

Each child has a session of its own and is made by a clean exec. The order of the end holds even
when the launcher is killed: every stage has a pipe whose writing ends are held by the launcher
and by the children of the stages before it, so the read end of a child closes when it is its turn.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum

from msgspec import Struct

from gridcore.clock import monotonic_ns
from gridcore.core.snapshot import ServiceView
from gridcore.errors import ServiceFailedError
from gridcore.group.restart import RestartBudget, RestartLimits
from gridcore.ids import PeerId
from gridcore.units import NS_PER_S, format_duration

_log = logging.getLogger("gridcore.launcher")


class Stage(IntEnum):
    """When a service ends: all of a stage, then the next."""

    GATEWAYS = 0
    """They finish their answers."""
    SUPERVISOR = 1
    """It unloads what nobody uses any more."""
    REST = 2


class ServiceSpec(Struct, frozen=True, kw_only=True):
    """
    Args:
        argv: the command; ``--parent-fd N`` is added to it.
        grace_ns: how long it may take to end after SIGTERM.
        pass_fds: what else it inherits.
    """

    name: PeerId
    argv: tuple[str, ...]
    stage: Stage
    grace_ns: int
    pass_fds: tuple[int, ...] = ()


class ServiceExit(Struct, frozen=True, kw_only=True):
    name: PeerId
    pid: int
    status: int
    """As of ``subprocess``: negative is a signal."""


def exit_words(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


class _Service:
    """One spec and its current process; ``task`` keeps it running."""

    def __init__(self, spec: ServiceSpec, limits: RestartLimits) -> None:
        self.spec = spec
        self.budget = RestartBudget(limits)
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        self.ended = asyncio.Event()

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self.process is not None:
                self.process.send_signal(number)


class Group:
    """All services of a daemon.

    Args:
        specs: in the order of their start.
        on_exit: a child has died: proof for whoever waits for what it held.
        on_change: pids or restart counts are other than before.
    """

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        *,
        on_exit: Callable[[ServiceExit], None],
        on_change: Callable[[], None],
        limits: RestartLimits | None = None,
    ) -> None:
        self._services = [_Service(spec, limits or RestartLimits()) for spec in specs]
        self._on_exit = on_exit
        self._on_change = on_change
        self._stopping = asyncio.Event()
        self._starting = asyncio.Lock()
        self._keepers: list[asyncio.Task[None]] = []
        self._pipes = {stage: os.pipe() for stage in Stage}

    def views(self) -> tuple[ServiceView, ...]:
        return tuple(
            ServiceView(
                name=service.spec.name,
                pid=service.process.pid if service.process is not None else None,
                restarts=service.restarts,
                last_beat_ms=None,
            )
            for service in self._services
        )

    async def run(self) -> None:
        """Start all and keep them running until ``start_no_more``.

        Raises:
            ServiceFailedError: one of them ended too often; the others still run.
        """
        self._keepers = [asyncio.create_task(self._keep(service)) for service in self._services]
        await asyncio.wait(self._keepers, return_when=asyncio.FIRST_EXCEPTION)
        for keeper in self._keepers:
            if keeper.done():
                keeper.result()

    async def start_no_more(self) -> None:
        """From now on a child that ends is not replaced."""
        async with self._starting:
            self._stopping.set()

    async def stop(self, stage: Stage, hurry: asyncio.Event) -> None:
        """End all services of a stage; ``hurry`` cuts it short. Begin with ``start_no_more``."""
        assert self._stopping.is_set()
        hurry.clear()
        members = [s for s in self._services if s.spec.stage is stage and s.process]
        await asyncio.gather(*(self._end(service, hurry) for service in members))

    async def close(self) -> None:
        """After the last stage: nothing is left but the pipes."""
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for pair in self._pipes.values():
            for fd in pair:
                os.close(fd)
        self._pipes.clear()

    async def _keep(self, service: _Service) -> None:
        name = service.spec.name
        while True:
            started_ns = monotonic_ns()
            process = await self._start(service)
            if process is None:
                return
            self._on_change()
            status = await process.wait()
            service.process = None
            service.ended.set()
            self._on_exit(ServiceExit(name=name, pid=process.pid, status=status))
            if self._stopping.is_set():
                self._on_change()
                return
            delay_ns = service.budget.delay_ns(monotonic_ns() - started_ns)
            if delay_ns is None:
                raise ServiceFailedError(
                    f"{name} ended {service.budget.unstable_starts} times in a row within seconds "
                    f"of its start, the last time with {exit_words(status)}: its log lines above "
                    "say why"
                )
            _log.warning(
                "%s (pid %d) ended: %s; it starts again in %s",
                name,
                process.pid,
                exit_words(status),
                format_duration(delay_ns),
            )
            service.restarts += 1
            self._on_change()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_ns / NS_PER_S)

    async def _start(self, service: _Service) -> asyncio.subprocess.Process | None:
        """Start a process, unless the group is ending."""
        spec = service.spec
        async with self._starting:
            if self._stopping.is_set():
                return None
            alive_fd = self._pipes[spec.stage][0]
            later_fds = [self._pipes[stage][1] for stage in Stage if stage > spec.stage]
            try:
                service.process = await asyncio.create_subprocess_exec(
                    *spec.argv,
                    "--parent-fd",
                    str(alive_fd),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(alive_fd, *later_fds, *spec.pass_fds),
                    start_new_session=True,
                )
            except OSError as error:
                raise ServiceFailedError(f"{spec.name} cannot be started: {error}") from error
            service.ended.clear()
            _log.debug("%s started (pid %d)", spec.name, service.process.pid)
            return service.process

    async def _end(self, service: _Service, hurry: asyncio.Event) -> None:
        """SIGTERM, then SIGKILL once the grace is over or somebody is in a hurry."""
        service.signal(signal.SIGTERM)
        waits = [
            asyncio.ensure_future(service.ended.wait()),
            asyncio.ensure_future(hurry.wait()),
        ]
        try:
            await asyncio.wait(
                waits,
                timeout=service.spec.grace_ns / NS_PER_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
        if not service.ended.is_set():
            _log.warning("%s did not end: it is killed", service.spec.name)
            service.signal(signal.SIGKILL)
        await service.ended.wait()
