"""The gpu-monitor process: samples the card and says so when something changed."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from gridcore.clock import monotonic_ns
from gridcore.devices import open_device
from gridcore.devices.device import Device, Sample, is_news
from gridcore.group.service import end_work, run_service, service_parser, watch_for_stop, work_until
from gridcore.ids import PeerId
from gridcore.instance import Instance
from gridcore.ipc.alarm import run_together
from gridcore.ipc.messages import CardSample, FromScheduler, SampleRequest, ToScheduler
from gridcore.ipc.peer import Peer
from gridcore.runtime.registry import Registry
from gridcore.units import NS_PER_S

REPEAT_NS = 2 * NS_PER_S
"""An unchanged sample is repeated this often: the brain counts samples to trust a change."""


class Monitor:
    """Samples a device; sends what is news at once and the rest every ``REPEAT_NS``."""

    def __init__(self, instance: Instance, device: Device) -> None:
        self.send: Callable[[ToScheduler], bool] = lambda message: False
        self._device = device
        self._registry = Registry(instance.state.registry)
        self._poll_s = instance.config.gpu.poll_interval_ns / NS_PER_S
        self._sent: Sample | None = None
        self._sent_ns = 0

    def inventory(self) -> Iterable[ToScheduler]:
        return [self._message(self._read())]

    def handle(self, message: FromScheduler) -> None:
        if isinstance(message, SampleRequest) and message.card_id == self._device.card_id:
            self._send(self._read())

    async def run(self) -> None:
        while True:
            sample = self._read()
            due = monotonic_ns() - self._sent_ns >= REPEAT_NS
            if due or is_news(self._sent, sample):
                self._send(sample)
            await asyncio.sleep(self._poll_s)

    def _send(self, sample: Sample) -> None:
        if self.send(self._message(sample)):
            self._sent, self._sent_ns = sample, monotonic_ns()

    def _read(self) -> Sample:
        return self._device.sample(self._registry.pids())

    def _message(self, sample: Sample) -> CardSample:
        return CardSample(
            card_id=self._device.card_id,
            total_bytes=sample.total_bytes,
            used_bytes=sample.used_bytes,
            used_by_pid=sample.used_by_pid,
            utilization_percent=sample.utilization_percent,
            pressure=sample.pressure,
        )


async def serve(instance: Instance, name: PeerId, parent_fd: int | None) -> None:
    """Sample until SIGTERM, SIGINT, or the launcher's end."""
    stopping = watch_for_stop(parent_fd)
    monitor = Monitor(instance, open_device(instance))
    peer = Peer(
        name=name,
        role="gpu-monitor",
        endpoint=instance.runtime.control,
        on_message=monitor.handle,
        on_link=lambda up: None,
        inventory=monitor.inventory,
    )
    monitor.send = peer.send
    work = asyncio.ensure_future(run_together(peer.run(), monitor.run()))
    await work_until(stopping, work)
    await end_work(work)
    await peer.close("shutdown")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = service_parser("gpu-monitor", __doc__).parse_args(argv)
    name = PeerId(arguments.name)
    return run_service(arguments, lambda instance: serve(instance, name, arguments.parent_fd))


if __name__ == "__main__":
    raise SystemExit(main())
