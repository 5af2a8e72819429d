"""The supervisor process: the link, the runtimes, and nothing else."""

import asyncio
from collections.abc import Sequence

from gridcore.devices import open_device
from gridcore.group.service import end_work, run_service, service_parser, watch_for_stop, work_until
from gridcore.ids import PeerId
from gridcore.instance import Instance
from gridcore.ipc.alarm import run_together
from gridcore.ipc.peer import Peer
from gridcore.runtime.supervisor import Supervisor


async def serve(instance: Instance, name: PeerId, parent_fd: int | None) -> None:
    """Obey until SIGTERM, SIGINT, or the launcher's end; then unload everything.

    When the link fails instead, the runtimes live on for the next supervisor to adopt.
    """
    stopping = watch_for_stop(parent_fd)
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
    try:
        await work_until(stopping, work)
    except BaseException:
        supervisor.forget()
        raise
    await supervisor.stop()
    await end_work(work)
    await peer.close("shutdown")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = service_parser("supervisor", __doc__).parse_args(argv)
    name = PeerId(arguments.name)
    return run_service(arguments, lambda instance: serve(instance, name, arguments.parent_fd))


if __name__ == "__main__":
    raise SystemExit(main())
