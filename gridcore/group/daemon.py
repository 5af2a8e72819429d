"""The life of a group: started, announced when it answers, drained at a signal.

The launcher is a peer of the scheduler like the others: what it knows is who died. It says so at
once (``ServiceExited``) and does not repeat it: by the time a new scheduler asks, the dead one may
have a living successor of the same name, and who re-states nothing holds nothing.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from gridcore.clock import monotonic_ns
from gridcore.group.group import Group, ServiceExit, ServiceSpec, Stage
from gridcore.group.ready import wait_until_healthy
from gridcore.group.restart import RestartLimits
from gridcore.group.roster import write_roster
from gridcore.group.sdnotify import notify
from gridcore.ids import PeerId
from gridcore.ipc.messages import BeginDrain, FromScheduler, ServiceExited, ServicesStatus
from gridcore.ipc.peer import Peer
from gridcore.units import format_duration

SLOW_START_S = 15.0
"""A start that takes longer is said to; it may still succeed."""

_log = logging.getLogger("gridcore.launcher")


class Daemon:
    """
    Args:
        listener: the listening socket that the gateways inherit; closed when the drain begins.
        listen: its address.
        roster: where the pids of the children are kept for the next launcher.
        on_ready: called once, when a gateway answers.
    """

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        *,
        control: Path,
        listener: socket.socket,
        listen: str,
        roster: Path,
        on_ready: Callable[[], Awaitable[None]],
        limits: RestartLimits | None = None,
    ) -> None:
        self._listener = listener
        self._listen = listen
        self._roster = roster
        self._on_ready = on_ready
        self._began_ns = monotonic_ns()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._group = Group(specs, on_exit=self._report, on_change=self._restate, limits=limits)
        self._peer = Peer(
            name=PeerId("launcher"),
            role="launcher",
            endpoint=control,
            on_message=_ignore,
            on_link=_ignore,
            inventory=lambda: [ServicesStatus(services=self._group.views())],
        )

    async def run(self) -> None:
        """Serve until a signal.

        Raises:
            ServiceFailedError: a service could not be kept running; the others have been ended.
        """
        self._catch_signals()
        group = asyncio.create_task(self._group.run())
        peer = asyncio.create_task(self._peer.run())
        announcing = asyncio.create_task(self._announce())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((group, peer, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            failed = [task for task in (group, peer) if task.done()]
            announcing.cancel()
            stopping.cancel()
            await self._end(peer)
            await asyncio.gather(group, announcing, stopping, return_exceptions=True)
        for task in (*failed, announcing):
            if not task.cancelled():
                task.result()

    async def _end(self, peer: "asyncio.Task[None]") -> None:
        self._stop.set()  # from now on a signal means hurry
        _log.info("draining: running answers may finish; a second signal cuts them")
        notify(STOPPING=1, STATUS="draining")
        self._peer.send(BeginDrain())
        await self._group.start_no_more()
        self._listener.close()  # the gateways close theirs: new clients are refused, not kept
        await self._group.stop(Stage.GATEWAYS, self._hurry)
        await self._group.stop(Stage.SUPERVISOR, self._hurry)
        peer.cancel()
        await asyncio.wait([peer])
        await self._peer.close("shutdown")
        await self._group.stop(Stage.REST, self._hurry)
        await self._group.close()
        self._roster.unlink(missing_ok=True)
        _log.info("stopped")

    async def _announce(self) -> None:
        loop = asyncio.get_running_loop()
        slow = loop.call_later(SLOW_START_S, _log.warning, "no gateway answers yet: see above")
        try:
            await wait_until_healthy(self._listen)
        finally:
            slow.cancel()
        took = format_duration(monotonic_ns() - self._began_ns)
        _log.info("ready at http://%s after %s", self._listen, took)
        notify(READY=1, STATUS=f"serving http://{self._listen}")
        await self._on_ready()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    def _report(self, end: ServiceExit) -> None:
        self._peer.send(ServiceExited(peer=end.name, exit_status=end.status, pid=end.pid))

    def _restate(self) -> None:
        services = self._group.views()
        write_roster(self._roster, services)
        self._peer.send(ServicesStatus(services=services))


def _ignore(_: FromScheduler | bool) -> None:
    """The scheduler asks nothing of the launcher."""
