"""Seeded clients: what a day on a personal machine looks like.

A chat user with think time, a coding agent back to back, an indexer with a thousand chunks, a
screenshot analyser every few seconds, OCR in batch, and bursts of several choices at once.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from gridcore.config.schema import Capability, Tier
from gridcore.config.schema import Workload as Class
from gridcore.core.events import JobKind, JobSubmitted
from gridcore.core.settings import Settings
from gridcore.ids import JobId
from gridcore.sim.chance import Chance
from gridcore.sim.draw import Draw, Fault, Workload
from gridcore.sim.gateways import End, SimGateway, SimJob
from gridcore.units import NS_PER_MS, NS_PER_S

RETRY_NS = 2 * NS_PER_S
"""A refused client that has nothing better to do comes back after this."""


class Place(Protocol):
    """What a client needs of the world."""

    now_ns: int
    arrivals: bool
    draw: Draw

    def after(self, delay_ns: int, action: Callable[[], None], /) -> None: ...

    def gateway(self, chance: Chance, /) -> SimGateway | None: ...

    def next_job_id(self) -> JobId: ...

    def fault_seen(self, fault: Fault, /) -> None: ...

    def ended(self, submitted: JobSubmitted, end: End, code: str, /) -> None: ...


class Client:
    """One program of the user's; asks, waits, asks again."""

    def __init__(self, place: Place, name: str, workload: Class) -> None:
        self.place = place
        self.name = name
        self.workload = workload
        self.chance = Chance(place.draw.seed, name)

    def ask(
        self,
        target: str,
        on_end: Callable[[], None],
        *,
        kind: JobKind = JobKind.CHAT,
        items: int = 1,
        width: int = 1,
        needs: frozenset[Capability] = frozenset(),
        quality: Tier | None = None,
    ) -> None:
        place, chance = self.place, self.chance
        if not place.arrivals:
            return
        gateway = place.gateway(chance)
        if gateway is None:
            place.after(RETRY_NS, on_end)
            return
        max_wait_ns = None
        if chance.happens(0.2):
            max_wait_ns = chance.pick([0, 500, 3000, 20_000]) * NS_PER_MS
        submitted = JobSubmitted(
            job_id=place.next_job_id(),
            gateway=gateway.name,
            target=target,
            workload=self.workload,
            kind=kind,
            client=self.name,
            items=items,
            width=width,
            needs=needs,
            quality=quality,
            max_wait_ns=max_wait_ns,
            affinity=self.name,
        )

        def over(end: End, code: str) -> None:
            place.ended(submitted, end, code)
            place.after(RETRY_NS if end in (End.REFUSED, End.CUT) else 0, on_end)

        streams = kind is JobKind.CHAT and chance.happens(0.5)
        job = gateway.submit(submitted, over, streams=streams)
        if Fault.CLIENT_LEAVES in place.draw.faults and chance.happens(0.15):
            self._leave_later(gateway, job)

    def _leave_later(self, gateway: SimGateway, job: SimJob) -> None:
        def leave() -> None:
            if gateway.alive and not job.is_over:
                self.place.fault_seen(Fault.CLIENT_LEAVES)
                gateway.leave(job)

        self.place.after(self.chance.around(3 * NS_PER_S), leave)


class Asker(Client):
    """Asks the same again and again, with a pause between."""

    def __init__(
        self,
        place: Place,
        name: str,
        workload: Class,
        *,
        targets: Sequence[str],
        pause_ns: int,
        regular: bool = False,
        **request: object,
    ) -> None:
        super().__init__(place, name, workload)
        self.targets = targets
        self.pause_ns = pause_ns
        self.regular = regular
        self.request = request

    def begin(self) -> None:
        self.place.after(self.chance.around(2 * NS_PER_S), self.turn)

    def turn(self) -> None:
        if self.place.arrivals:
            self.ask(self.chance.pick(self.targets), self.rest, **self.request)  # type: ignore[arg-type]

    def rest(self) -> None:
        pause_ns = self.pause_ns if self.regular else self.chance.around(self.pause_ns)
        self.place.after(pause_ns, self.turn)


class Heap(Client):
    """Puts a heap of requests into the queue at once, and the next when it is empty."""

    def __init__(
        self, place: Place, name: str, workload: Class, *, targets: list[str], count: int
    ) -> None:
        super().__init__(place, name, workload)
        self.targets = targets
        self.count = count
        self.n_open = 0

    def begin(self) -> None:
        self.place.after(self.chance.around(5 * NS_PER_S), self.pour)

    def pour(self) -> None:
        self.n_open = 0
        for _ in range(self.count):
            if self.place.arrivals:
                self.n_open += 1
                self.ask(self.chance.pick(self.targets), self._one_over)

    def _one_over(self) -> None:
        self.n_open -= 1
        if self.n_open == 0:
            self.place.after(self.chance.around(10 * NS_PER_S), self.pour)


def people(place: Place) -> list[Asker | Heap]:
    """All clients of a run."""
    draw = place.draw
    chance = Chance(draw.seed, "people")
    settings = draw.settings
    chats = [m.model_id for m in settings.models if Capability.CHAT in m.capabilities]
    sees = [m.model_id for m in settings.models if Capability.VISION in m.capabilities]
    embeds = [m.model_id for m in settings.models if Capability.EMBEDDING in m.capabilities]
    names = [family.name for family in settings.families]
    pause_ns = round(6 * NS_PER_S / draw.busy)
    found: list[Asker | Heap] = [_stranger(place, names)]
    talks: list[str] = [*names, *chats]
    if Workload.CHAT in draw.workloads and talks:
        found += [
            Asker(
                place,
                f"chat-{index}",
                Class.INTERACTIVE,
                targets=chance.some(talks, chance.pick([1, 1, 2])),
                pause_ns=pause_ns,
                quality=chance.pick([None, None, Tier.BALANCED]),
            )
            for index in range(chance.between(1, 4))
        ]
    if Workload.AGENT in draw.workloads and talks:
        workload = chance.pick([Class.INTERACTIVE, Class.BACKGROUND])
        found.append(
            Asker(place, "agent", workload, targets=[chance.pick(talks)], pause_ns=20 * NS_PER_MS)
        )
    if Workload.INDEXER in draw.workloads and embeds:
        found.append(
            Asker(
                place,
                "indexer",
                chance.pick([Class.BACKGROUND, Class.BACKGROUND, Class.BATCH]),
                targets=embeds,
                pause_ns=2 * pause_ns,
                kind=JobKind.EMBEDDING,
                items=1000,
            )
        )
    if Workload.SCREENSHOTS in draw.workloads and (sees or names):
        found.append(
            Asker(
                place,
                "screenshots",
                Class.BACKGROUND,
                targets=names or [chance.pick(sees)],
                pause_ns=5 * NS_PER_S,
                regular=True,
                needs=frozenset({Capability.VISION}),
            )
        )
    if Workload.OCR in draw.workloads and talks:
        target = chance.pick(sees or talks)
        found.append(Heap(place, "ocr", Class.BATCH, targets=[target], count=chance.pick([5, 40])))
    if Workload.BURST in draw.workloads and talks:
        target = chance.pick(talks)
        widest = widest_of(settings, target)
        found.append(
            Asker(
                place,
                "burst",
                chance.pick(list(Class)),
                targets=[target],
                pause_ns=2 * pause_ns,
                width=chance.between(1, widest + chance.pick([0, 0, 1])),
            )
        )
    return found


def _stranger(place: Place, families: list[str]) -> Asker:
    """Asks now and then for what nobody has: a removed model, a family that reads scores."""
    return Asker(
        place,
        "stranger",
        Class.INTERACTIVE,
        targets=["removed-model", *families],
        pause_ns=60 * NS_PER_S,
        needs=frozenset({Capability.RERANK}),
    )


def widest_of(settings: Settings, target: str) -> int:
    slots: dict[str, int] = {model.model_id: model.slots for model in settings.models}
    for family in settings.families:
        slots[family.name] = max(slots[model_id] for _, model_id in family.variants)
    return slots[target]
