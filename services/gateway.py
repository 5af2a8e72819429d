"""The gateway process: HTTP in, HTTP to runtimes, and a link to the scheduler."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import uvicorn
import uvloop

from gridcore.group.listen import open_listener
from gridcore.group.parent import watch_parent
from gridcore.group.service import run_service, service_parser
from gridcore.http.app import create_app
from gridcore.http.gateway import Gateway
from gridcore.ids import PeerId
from gridcore.instance import Instance
from gridcore.ipc.peer import Peer
from gridcore.units import NS_PER_S

KEEP_ALIVE_S = 75
"""Longer than the pools of the usual clients keep a connection, so that they close first."""
BACKLOG = 2048
LAST_ANSWERS_S = 2.0
"""After the drain timeout, for the error events of what was cut."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: SIGTERM drains the jobs first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening_socket(instance: Instance, listen_fd: int | None) -> socket.socket:
    """Take over the launcher's socket, or bind one when this service runs alone."""
    if listen_fd is not None:
        return socket.socket(fileno=listen_fd)
    return open_listener(instance.listen)


async def serve(
    instance: Instance, name: PeerId, listener: socket.socket, parent_fd: int | None
) -> None:
    """Serve until SIGTERM, SIGINT or the launcher's end; then drain."""
    config = instance.config.server
    gateway = Gateway(
        name=name, server=config, settings=instance.settings, metrics=instance.runtime.metrics
    )
    peer = Peer(
        name=name,
        role="gateway",
        endpoint=instance.runtime.control,
        on_message=gateway.on_message,
        on_link=gateway.jobs.on_link,
        inventory=gateway.jobs.inventory,
        beat=gateway.jobs.beat,
    )
    gateway.scheduler = peer
    drain_timeout_s = config.drain_timeout_ns / NS_PER_S
    server = _Server(
        uvicorn.Config(
            create_app(gateway),
            http="httptools",
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(drain_timeout_s + LAST_ANSWERS_S) + 1,
        )
    )
    loop = asyncio.get_running_loop()

    def drain() -> None:
        if not server.should_exit:
            gateway.jobs.begin_drain()
            server.should_exit = True
            loop.call_later(drain_timeout_s, gateway.jobs.end_drain)

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, drain)
    watch_parent(parent_fd)
    # What is there now stays: no collection walks it again while tokens flow.
    gc.collect()
    gc.freeze()
    link = loop.create_task(peer.run())
    # A link that is refused for good ends the process; answers cannot come any more.
    link.add_done_callback(lambda _: drain())
    try:
        await server.serve(sockets=[listener])
    finally:
        link.cancel()
        await asyncio.wait([link])
        await gateway.close()
        await peer.close("shutdown")
    if not link.cancelled():
        await link  # raises what ended it


def main(argv: Sequence[str] | None = None) -> int:
    parser = service_parser("gateway-0", __doc__)
    parser.add_argument("--listen-fd", type=int)
    arguments = parser.parse_args(argv)
    name = PeerId(arguments.name)

    def serve_instance(instance: Instance) -> Coroutine[Any, Any, None]:
        listener = listening_socket(instance, arguments.listen_fd)
        return serve(instance, name, listener, arguments.parent_fd)

    return run_service(arguments, serve_instance, runner=uvloop.run)


if __name__ == "__main__":
    raise SystemExit(main())
