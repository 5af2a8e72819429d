"""The scheduler process: binds the control and event sockets and lets the brain decide."""

import argparse
import asyncio
import gc
import signal
from collections.abc import Sequence
from pathlib import Path

import uvloop

from gridcore.clock import monotonic_ns
from gridcore.errors import GridcoreError
from gridcore.group.parent import watch_parent
from gridcore.ids import new_epoch
from gridcore.instance import Instance, read_instance
from gridcore.ipc.alarm import Alarm, run_together
from gridcore.ipc.brain import Brain
from gridcore.ipc.events import EventPublisher
from gridcore.ipc.hub import Hub
from gridcore.logs import setup_logging


async def _keep_time(brain: Brain, alarm: Alarm) -> None:
    """Wake the brain when it asked for it, and publish what changed meanwhile."""
    while True:
        alarm.set(brain.next_deadline_ns(), monotonic_ns())
        await alarm.wait()
        due_ns = brain.core.next_deadline_ns()
        if due_ns is not None and monotonic_ns() >= due_ns:
            brain.plan()
        brain.publish_if_changed()


async def serve(instance: Instance, parent_fd: int | None) -> None:
    """Decide until SIGTERM, SIGINT, or the launcher's end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopping.set)
    watch_parent(parent_fd)
    epoch = new_epoch()
    alarm = Alarm()
    publisher = EventPublisher(instance.runtime.events, epoch)
    brain = Brain(
        instance.settings,
        epoch,
        send=lambda peer, message: hub.send(peer, message),  # noqa: PLW0108 - hub comes later
        silent_ms=lambda peer: hub.silent_ms(peer),  # noqa: PLW0108
        publish_note=publisher.note,
        publish_snapshot=publisher.snapshot,
    )

    def plan_batch() -> None:
        brain.plan()
        alarm.set(brain.next_deadline_ns(), monotonic_ns())

    hub = Hub(
        endpoint=instance.runtime.control,
        epoch=epoch,
        on_message=brain.on_message,
        on_peer=brain.on_peer,
        on_batch=plan_batch,
    )
    publisher.on_subscribe = brain.publish
    gc.freeze()  # what is loaded now stays: collections need not look at it
    work = asyncio.ensure_future(run_together(publisher.run(), hub.run(), _keep_time(brain, alarm)))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.is_set():
        await work  # raises what ended it
    work.cancel()
    await asyncio.wait([work])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="services.scheduler", description=__doc__)
    parser.add_argument("--instance", type=Path, required=True)
    parser.add_argument("--name", default="scheduler")
    parser.add_argument("--parent-fd", type=int)
    arguments = parser.parse_args(argv)
    log = setup_logging(arguments.name)
    try:
        instance = read_instance(arguments.instance)
        log = setup_logging(arguments.name, instance.config.logs.level)
        uvloop.run(serve(instance, arguments.parent_fd))
    except GridcoreError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
