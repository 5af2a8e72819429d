"""Devices behind one protocol; ``open_device`` chooses by what ``serve`` resolved."""

from gridcore.devices.device import Device
from gridcore.errors import GridcoreError
from gridcore.instance import Instance


def open_device(instance: Instance) -> Device:
    """Return the device of this daemon's card.

    Raises:
        GridcoreError: a kind that this version cannot drive.
    """
    card = instance.settings.cards[0]
    match instance.device:
        case "cpu":
            from gridcore.devices.cpu import CpuDevice  # noqa: PLC0415 - load only what is used

            return CpuDevice(card.card_id)
        case "simulation":
            from gridcore.devices.simulation import SimulatedDevice  # noqa: PLC0415

            return SimulatedDevice(
                card.card_id, instance.config.gpu.simulation, instance.runtime.simulation
            )
        case other:
            raise GridcoreError(f"gpu.device: {other} is not supported; use cpu or simulation")
