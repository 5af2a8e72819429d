"""Faults: what goes wrong and when. Each class that a run has strikes now and then.

Faults of a single load, step or sample are injected where they happen; they ask here.
"""

from collections.abc import Callable
from typing import Protocol

from gridcore.core.events import (
    AdminAsked,
    AdminVerb,
    AnyEvent,
    FailureCause,
    GatewaySuspected,
    Pressure,
)
from gridcore.ids import CardId, PeerId
from gridcore.sim.card import SimCard
from gridcore.sim.chance import Chance
from gridcore.sim.draw import Draw, Fault
from gridcore.sim.gateways import SimGateway
from gridcore.sim.runtimes import SUPERVISOR, SimSupervisor
from gridcore.units import MB, NS_PER_MS, NS_PER_S

MONITOR = PeerId("gpu-monitor")


class Stage(Protocol):
    """What a fault needs of the world."""

    draw: Draw
    cards: dict[CardId, SimCard]
    supervisor: SimSupervisor
    gateways: dict[PeerId, SimGateway]
    pressure: Pressure
    brain_up: bool

    def after(self, delay_ns: int, action: Callable[[], None], /) -> None: ...

    def fault_seen(self, fault: Fault, /) -> None: ...

    def send(self, peer: PeerId, event: AnyEvent, /) -> None: ...

    def tell(self, event: AnyEvent, /) -> None: ...

    def cut(self, peer: PeerId, for_ns: int, /) -> None: ...

    def kill_gateway(self, name: PeerId, for_ns: int, /) -> None: ...

    def kill_brain(self, for_ns: int, /) -> None: ...


class Injector:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._chance = Chance(stage.draw.seed, "faults")
        self._on = True
        self._n_asked = 0
        strikes: dict[Fault, Callable[[], bool]] = {
            Fault.RUNTIME_DIES: self._kill_runtime,
            Fault.FOOTPRINT_GROWS: self._grow,
            Fault.FOREIGN_PROGRAM: self._foreign_moves,
            Fault.PRESSURE: self._press,
            Fault.MONITOR_GONE: self._cut_monitor,
            Fault.SUPERVISOR_GONE: self._cut_supervisor,
            Fault.GATEWAY_DIES: self._kill_gateway,
            Fault.GATEWAY_SILENT: self._silence_gateway,
            Fault.GATEWAY_CUT: self._cut_gateway,
            Fault.SCHEDULER_DIES: self._kill_brain,
            Fault.ADMIN_ACTS: self._admin,
        }
        for fault in Fault:
            if fault in stage.draw.faults and fault in strikes:
                self._again(fault, strikes[fault])
        if Fault.ESTIMATE_WRONG in stage.draw.faults:
            stage.fault_seen(Fault.ESTIMATE_WRONG)

    def injects(self, fault: Fault, probability: float) -> bool:
        """Does a fault of one moment happen now?"""
        if not self._on or fault not in self._stage.draw.faults:
            return False
        if not self._chance.happens(probability):
            return False
        self._stage.fault_seen(fault)
        return True

    def stop(self) -> None:
        """Repair what is broken; nothing fails any more."""
        self._on = False
        self._stage.supervisor.faulty = False
        self._stage.pressure = Pressure.NORMAL
        for card in self._stage.cards.values():
            card.foreign_bytes = 0

    def _again(self, fault: Fault, strike: Callable[[], bool]) -> None:
        def moment() -> None:
            if not self._on:
                return
            if strike():
                self._stage.fault_seen(fault)
            self._again(fault, strike)

        self._stage.after(self._chance.around(self._stage.draw.fault_mean_ns), moment)

    def _shortly(self) -> int:
        return 10 * NS_PER_MS + self._chance.around(3 * NS_PER_S)

    # --- strikes: whether there was something to strike --------------------------------

    def _kill_runtime(self) -> bool:
        runtime = self._stage.supervisor.some_ready()
        if runtime is not None:
            self._stage.supervisor.kill(runtime, FailureCause.CRASHED)
        return runtime is not None

    def _grow(self) -> bool:
        runtime = self._stage.supervisor.some_ready()
        if runtime is not None:
            self._stage.supervisor.grow(runtime)
        return runtime is not None

    def _foreign_moves(self) -> bool:
        for card in self._stage.cards.values():
            wanted = self._chance.pick([0, 0, 500, 2000, 6000, 12_000]) * MB
            card.foreign_bytes = min(wanted, card.foreign_bytes + max(card.free_bytes, 0))
        return True

    def _press(self) -> bool:
        self._stage.pressure = self._chance.pick(
            [Pressure.NORMAL, Pressure.NORMAL, Pressure.WARN, Pressure.CRITICAL]
        )
        return self._stage.pressure is not Pressure.NORMAL

    def _cut_monitor(self) -> bool:
        self._stage.cut(MONITOR, self._shortly())
        return True

    def _cut_supervisor(self) -> bool:
        self._stage.cut(SUPERVISOR, self._shortly())
        return True

    def _a_gateway(self) -> SimGateway | None:
        here = [gateway for gateway in self._stage.gateways.values() if gateway.alive]
        return self._chance.pick(here) if here else None

    def _kill_gateway(self) -> bool:
        gateway = self._a_gateway()
        if gateway is not None:
            self._stage.kill_gateway(gateway.name, self._shortly())
        return gateway is not None

    def _silence_gateway(self) -> bool:
        gateway = self._a_gateway()
        if gateway is None or not self._stage.brain_up:
            return False
        name = gateway.name
        self._stage.tell(GatewaySuspected(gateway=name, suspect=True))

        def back() -> None:
            if self._stage.brain_up:
                self._stage.tell(GatewaySuspected(gateway=name, suspect=False))

        self._stage.after(self._shortly(), back)
        return True

    def _cut_gateway(self) -> bool:
        gateway = self._a_gateway()
        if gateway is not None:
            self._stage.cut(gateway.name, self._shortly())
        return gateway is not None

    def _kill_brain(self) -> bool:
        if self._stage.brain_up:
            self._stage.kill_brain(self._shortly())
        return True

    def _admin(self) -> bool:
        gateway = self._a_gateway()
        if gateway is None:
            return False
        self._n_asked += 1
        model = self._chance.pick(self._stage.draw.settings.models)
        verbs = [AdminVerb.LOAD, AdminVerb.UNLOAD, AdminVerb.ENABLE, AdminVerb.LOAD]
        self._stage.send(
            gateway.name,
            AdminAsked(
                request_id=f"a{self._n_asked}",
                peer=gateway.name,
                verb=self._chance.pick(verbs),
                target=model.model_id,
            ),
        )
        return True
