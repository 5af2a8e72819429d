"""The supervisor process: the link, the runtimes, and nothing else."""

import argparse
import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from gridcore.devices import open_device
from gridcore.errors import GridcoreError
from gridcore.group.parent import watch_parent
from gridcore.ids import PeerId
from gridcore.instance import Instance, read_instance
from gridcore.ipc.alarm import run_together
from gridcore.ipc.peer import Peer
from gridcore.logs import setup_logging
from gridcore.runtime.supervisor import Supervisor


async def serve(instance: Instance, name: PeerId, parent_fd: int | None) -> None:
    """Obey until SIGTERM, SIGINT, or the launcher's end; then unload everything.

    When the link fails instead, the runtimes live on for the next supervisor to adopt.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopping.set)
    watch_parent(parent_fd)
    supervisor = Supervisor(instance, open_device(instance))
    peer = Peer(
        name=name,
        role="supervisor",
        endpoint=instance.runtime.control,
        on_message=supervisor.handle,
        on_link=lambda up: None,
        inventory=supervisor.inventory,
    )
    supervisor.send = peer.send
    # Before the first inventory, so that it is whole.
    await supervisor.recover()
    work = asyncio.ensure_future(run_together(peer.run(), supervisor.run()))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.is_set():
        supervisor.forget()
        await work  # raises what ended it
    await supervisor.stop()
    work.cancel()
    await asyncio.wait([work])
    await peer.close("shutdown")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="services.supervisor", description=__doc__)
    parser.add_argument("--instance", type=Path, required=True)
    parser.add_argument("--name", default="supervisor")
    parser.add_argument("--parent-fd", type=int)
    arguments = parser.parse_args(argv)
    log = setup_logging(arguments.name)
    try:
        instance = read_instance(arguments.instance)
        log = setup_logging(arguments.name, instance.config.logs.level)
        asyncio.run(serve(instance, PeerId(arguments.name), arguments.parent_fd))
    except GridcoreError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
