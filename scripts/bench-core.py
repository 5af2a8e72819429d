#!/usr/bin/env python3
"""How long the brain thinks: the median of one handle() by event, queue length and model count.

No process and no socket: one SchedulerCore, fed with events. Prints a table; the figures of a
busy machine are upper bounds.

    scripts/bench-core.py                 50 models on 8 cards, 0 to 10,000 queued jobs
    scripts/bench-core.py --models 8      another size
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gridcore.config.schema import Capability, PolicyConfig, Workload
from gridcore.core.commands import AnyCommand, DispatchStep, LoadModel
from gridcore.core.events import (
    AnyEvent,
    CancelCause,
    CardSampled,
    GatewayRestated,
    JobCancelled,
    JobKind,
    JobSubmitted,
    RuntimeLoaded,
    StepFinished,
    StepOutcome,
    SupervisorRestated,
)
from gridcore.core.machine import SchedulerCore
from gridcore.core.settings import CardSettings, ModelSettings, Settings
from gridcore.ids import CardId, Epoch, JobId, LeaseId, ModelId, PeerId
from gridcore.units import GB, MB, NS_PER_MS, NS_PER_S

GATEWAY = PeerId("gateway-0")
QUEUES = (0, 100, 1_000, 10_000)
CARDS = 8
RESIDENT_PER_CARD = 3
CLIENTS = 20
REPEATS = 400
STEP_NS = 200 * NS_PER_MS


class Bench:
    """A brain with resident models on every card and a queue that can only wait for slots."""

    def __init__(self, n_models: int) -> None:
        cards = tuple(
            CardSettings(card_id=CardId(f"card{i}"), name="card", headroom_bytes=0)
            for i in range(min(CARDS, n_models))
        )
        models = tuple(
            ModelSettings(
                model_id=ModelId(f"model{i}"),
                card_id=cards[i % len(cards)].card_id,
                slots=2,
                estimated_bytes=5 * GB,
                load_ns_estimate=2 * NS_PER_S,
                capabilities=frozenset({Capability.CHAT}),
            )
            for i in range(n_models)
        )
        self.settings = Settings(cards=cards, models=models, policy=PolicyConfig())
        self.core = SchedulerCore(self.settings, Epoch("e"))
        self.now_ns = 1000 * NS_PER_S
        self.running: dict[LeaseId, DispatchStep] = {}
        self.n_jobs = 0
        self.feed(SupervisorRestated(runtimes=(), profiles=()))
        self.feed(GatewayRestated(gateway=GATEWAY, jobs=(), leases=()))
        for card in cards:
            self.feed(self.sample(card.card_id))
        self.resident = [m.model_id for m in models[: RESIDENT_PER_CARD * len(cards)]]
        for model_id in self.resident:
            self.submit(model_id, Workload.INTERACTIVE)
        while self.running:
            self.finish_one()

    def sample(self, card_id: CardId) -> CardSampled:
        return CardSampled(card_id=card_id, total_bytes=16 * GB)

    def feed(self, *events: AnyEvent) -> list[AnyCommand]:
        self.now_ns += NS_PER_MS
        commands = self.core.handle(events, self.now_ns)
        for command in commands:
            if isinstance(command, DispatchStep):
                self.running[command.lease_id] = command
            if isinstance(command, LoadModel):
                loaded = RuntimeLoaded(
                    load_id=command.load_id,
                    pid=1,
                    address="unix:/x",
                    slots=2,
                    took_ns=NS_PER_S,
                    footprint_bytes=5 * GB - 1 * MB,
                )
                self.feed(loaded)
        return commands

    def job(self, model_id: ModelId, workload: Workload) -> JobSubmitted:
        self.n_jobs += 1
        return JobSubmitted(
            job_id=JobId(f"j{self.n_jobs}"),
            gateway=GATEWAY,
            target=model_id,
            workload=workload,
            kind=JobKind.CHAT,
            client=f"client{self.n_jobs % CLIENTS}",
        )

    def submit(self, model_id: ModelId, workload: Workload) -> JobId:
        job = self.job(model_id, workload)
        self.feed(job)
        return job.job_id

    def ended(self) -> StepFinished:
        lease_id = next(iter(self.running))
        del self.running[lease_id]
        return StepFinished(lease_id=lease_id, outcome=StepOutcome.DONE, took_ns=STEP_NS, last=True)

    def finish_one(self) -> None:
        self.feed(self.ended())

    def fill(self, n_queued: int) -> None:
        """Queue jobs of all classes for the resident models until so many wait."""
        workloads = list(Workload)
        while sum(queue.n_jobs for queue in self.core.state.queues.values()) < n_queued:
            index = self.n_jobs
            self.submit(self.resident[index % len(self.resident)], workloads[index % 3])


def cases(bench: Bench) -> Iterator[tuple[str, Callable[[], AnyEvent | None]]]:
    """What is measured: the event of one pass, made outside the clock."""
    at = iter(range(10**9))

    def model_id() -> ModelId:
        return bench.resident[next(at) % len(bench.resident)]

    waiting: list[JobId] = []

    def submitted() -> AnyEvent:
        job = bench.job(model_id(), Workload.BACKGROUND)
        waiting.append(job.job_id)
        return job

    yield "job submitted", submitted
    yield (
        "job cancelled in the queue",
        lambda: JobCancelled(job_id=waiting.pop(), cause=CancelCause.CLIENT_GONE),
    )
    yield "step finished, next dispatched", lambda: bench.ended() if bench.running else None
    yield (
        "card sampled, nothing new",
        lambda: bench.sample(bench.settings.cards[next(at) % len(bench.settings.cards)].card_id),
    )


def measure(bench: Bench, make: Callable[[], AnyEvent | None]) -> list[int]:
    took: list[int] = []
    for _ in range(REPEATS):
        event = make()
        if event is None:
            bench.submit(bench.resident[0], Workload.INTERACTIVE)
            continue
        bench.now_ns += NS_PER_MS
        began = time.perf_counter_ns()
        commands = bench.core.handle([event], bench.now_ns)
        took.append(time.perf_counter_ns() - began)
        for command in commands:
            if isinstance(command, DispatchStep):
                bench.running[command.lease_id] = command
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=50)
    options = parser.parse_args()
    rows: dict[str, list[str]] = {}
    for n_queued in QUEUES:
        bench = Bench(options.models)
        bench.fill(n_queued)
        gc.collect()
        gc.freeze()
        for name, make in cases(bench):
            took = sorted(measure(bench, make))
            median, p99 = statistics.median(took), took[len(took) * 99 // 100]
            rows.setdefault(name, []).append(f"{median / 1000:.0f} ({p99 / 1000:.0f})")
    print(f"median (p99) in microseconds of one handle(), {options.models} models\n")
    print("| event | " + " | ".join(f"{n:,} queued" for n in QUEUES) + " |")
    print("|---|" + "---|" * len(QUEUES))
    for name, figures in rows.items():
        print(f"| {name} | " + " | ".join(figures) + " |")


if __name__ == "__main__":
    main()
