"""The scheduler process: binds the control and event sockets and lets the brain decide."""

import asyncio
import gc
from collections.abc import Sequence

import uvloop

from gridcore.clock import monotonic_ns
from gridcore.group.service import end_work, run_service, service_parser, watch_for_stop, work_until
from gridcore.ids import new_epoch
from gridcore.instance import Instance
from gridcore.ipc.alarm import Alarm, run_together
from gridcore.ipc.brain import Brain
from gridcore.ipc.events import EventPublisher
from gridcore.ipc.hub import Hub


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
    stopping = watch_for_stop(parent_fd)
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
    await work_until(stopping, work)
    await end_work(work)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = service_parser("scheduler", __doc__).parse_args(argv)
    return run_service(
        arguments, lambda instance: serve(instance, arguments.parent_fd), runner=uvloop.run
    )


if __name__ == "__main__":
    raise SystemExit(main())
