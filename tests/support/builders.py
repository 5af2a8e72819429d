"""Settings, events and a small driver with sane defaults, for tests of the brain."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gridcore.config.schema import Capability, PolicyConfig, Workload
from gridcore.core import invariants
from gridcore.core.commands import (
    AnyCommand,
    CancelStep,
    DispatchStep,
    LoadModel,
    PublishNote,
    RefuseJob,
    UnloadModel,
)
from gridcore.core.events import (
    AnyEvent,
    CardSampled,
    GatewayRestated,
    JobKind,
    JobSubmitted,
    RuntimeExited,
    RuntimeLoaded,
    StepFinished,
    StepOutcome,
    SupervisorRestated,
)
from gridcore.core.machine import SchedulerCore
from gridcore.core.settings import CardSettings, FamilySettings, ModelSettings, Settings
from gridcore.ids import CardId, Epoch, JobId, LeaseId, LoadId, ModelId, PeerId
from gridcore.units import GB, MB, NS_PER_S

CARD = CardId("card")
GATEWAY = PeerId("gateway-0")
DEADLINES_MAX = 10_000
"""A brain that asks to be woken more often than this in one wait never comes to rest."""


def seconds(n: float) -> int:
    return round(n * NS_PER_S)


def model(
    model_id: str, mb: int = 4000, *, slots: int = 1, load_s: float = 2.0, **more: Any
) -> ModelSettings:
    return ModelSettings(
        model_id=ModelId(model_id),
        card_id=more.pop("card_id", CARD),
        slots=slots,
        estimated_bytes=mb * MB,
        load_ns_estimate=seconds(load_s),
        capabilities=frozenset(more.pop("capabilities", [Capability.CHAT])),
        **more,
    )


def settings(
    *models: ModelSettings,
    families: Sequence[FamilySettings] = (),
    headroom_mb: int = 0,
    frees_on_exit: bool = True,
    **policy: Any,
) -> Settings:
    card = CardSettings(
        card_id=CARD,
        name="Test card",
        headroom_bytes=headroom_mb * MB,
        frees_on_exit=frees_on_exit,
    )
    return Settings(
        cards=(card,),
        models=models,
        families=tuple(families),
        policy=msgspec.convert(policy, PolicyConfig),
    )


class Brain:
    """The brain with a hand on its clock; every pass is checked against the invariants."""

    def __init__(self, settings: Settings, *, card_gb: float = 16) -> None:
        self.core = SchedulerCore(settings, Epoch("e"))
        self.now_ns = seconds(1000)
        self.log: list[AnyCommand] = []
        self._n_jobs = 0
        self.feed(
            SupervisorRestated(runtimes=(), profiles=()),
            GatewayRestated(gateway=GATEWAY, jobs=(), leases=()),
            *(
                CardSampled(card_id=card.card_id, total_bytes=round(card_gb * GB))
                for card in settings.cards
            ),
        )

    @property
    def state(self) -> Any:
        return self.core.state

    def feed(self, *events: AnyEvent) -> list[AnyCommand]:
        """Give events at this instant; return the commands but the notes."""
        out = self.core.handle(events, self.now_ns)
        invariants.check(self.core.state)
        self.log.extend(out)
        return [command for command in out if not isinstance(command, PublishNote)]

    def wait(self, for_s: float) -> list[AnyCommand]:
        """Let time pass, stopping at every deadline the brain names."""
        end_ns = self.now_ns + seconds(for_s)
        out: list[AnyCommand] = []
        for _ in range(DEADLINES_MAX):
            due_ns = self.core.next_deadline_ns()
            if due_ns is None or due_ns > end_ns:
                break
            self.now_ns = max(due_ns, self.now_ns)
            out += self.feed()
        else:
            raise AssertionError(f"no rest: the next deadline stays {due_ns}")
        self.now_ns = end_ns
        return out + self.feed()

    def submit(
        self, target: str, workload: Workload = Workload.INTERACTIVE, **more: Any
    ) -> list[AnyCommand]:
        self._n_jobs += 1
        job_id = JobId(more.pop("job_id", f"j{self._n_jobs}"))
        kind = more.pop("kind", JobKind.CHAT)
        return self.feed(
            JobSubmitted(
                job_id=job_id,
                gateway=GATEWAY,
                target=target,
                workload=workload,
                kind=kind,
                **more,
            )
        )

    def loaded(
        self, model_id: str, *, took_s: float = 0, mb: int | None = None
    ) -> list[AnyCommand]:
        """The load in progress of a model succeeds."""
        m = self.state.models[ModelId(model_id)]
        self.now_ns += seconds(took_s)
        return self.feed(
            RuntimeLoaded(
                load_id=m.load_id,
                pid=100,
                address=f"unix:/{m.load_id}",
                slots=m.settings.slots,
                took_ns=seconds(took_s) or 1,
                footprint_bytes=None if mb is None else mb * MB,
            )
        )

    def exited(self, load_id: str, **more: Any) -> list[AnyCommand]:
        return self.feed(
            RuntimeExited(load_id=LoadId(load_id), cause=more.pop("cause", None), **more)
        )

    def finish(
        self, lease: DispatchStep | LeaseId, *, took_s: float = 0.0, **more: Any
    ) -> list[AnyCommand]:
        lease_id = lease.lease_id if isinstance(lease, DispatchStep) else lease
        self.now_ns += seconds(took_s)
        return self.feed(
            StepFinished(
                lease_id=lease_id,
                outcome=more.pop("outcome", StepOutcome.DONE),
                took_ns=seconds(took_s),
                **more,
            )
        )

    def resident(self, *model_ids: str) -> "Brain":
        """Have these models loaded, one after the other, for interactive requests."""
        for model_id in model_ids:
            self.submit(model_id)
            out = self.loaded(model_id)
            self.finish(the(out, DispatchStep))
        return self

    def notes(self, verb: str | None = None) -> list[str]:
        return [
            f"{c.note.verb} {c.note.text}"
            for c in self.log
            if isinstance(c, PublishNote) and verb in (None, c.note.verb)
        ]


def the(out: Sequence[AnyCommand], kind: type) -> Any:
    """The only command of its kind."""
    found = [command for command in out if isinstance(command, kind)]
    assert len(found) == 1, f"{len(found)} of {kind.__name__} in {list(out)}"
    return found[0]


def kinds(out: Sequence[AnyCommand]) -> list[str]:
    return [type(command).__name__ for command in out]


__all__ = [
    "CARD",
    "GATEWAY",
    "Brain",
    "CancelStep",
    "DispatchStep",
    "LoadModel",
    "RefuseJob",
    "UnloadModel",
    "kinds",
    "model",
    "seconds",
    "settings",
    "the",
]
