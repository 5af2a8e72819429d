"""Stories: what a day looks like to the brain, as commands and the full expected log.

A ``.story`` file has four parts, in this order; ``#`` begins a line of prose anywhere:

    card 16GB headroom=512MB            the machine (also: model, family, policy)
    model gemma4-12b 8488MB slots=2 load=3s
    @ submit chat interactive gemma4-12b work=1s
    @ wait 10s                          what happens; time passes only in waits
    must   dispatch .* chat             claims written by hand, regular expressions over the log
    must   complete .* a >> dispatch .* b      ... one line before another
    never  evict
    log                                 everything below is the log, written by the flag

Runtimes load and stop, steps take their ``work``, as ordered; failures are told beforehand
(``@ fail MODEL CAUSE``). The log is the notes of the brain, each with its time.
"""

import heapq
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gridcore.config.schema import Capability, Tier, Workload
from gridcore.core import invariants
from gridcore.core.commands import (
    CancelStep,
    DispatchStep,
    LoadModel,
    PublishNote,
    ReadSlots,
    UnloadModel,
)
from gridcore.core.events import (
    AdminAsked,
    AdminVerb,
    AnswerBegun,
    AnyEvent,
    CancelCause,
    CardSampled,
    FailureCause,
    FootprintMeasured,
    GatewayRestated,
    JobCancelled,
    JobKind,
    JobSubmitted,
    LoadFailed,
    Pressure,
    RuntimeExited,
    RuntimeLoaded,
    SlotsSeen,
    StepFinished,
    StepOutcome,
    SupervisorRestated,
)
from gridcore.core.machine import SchedulerCore
from gridcore.core.settings import FamilySettings, Settings
from gridcore.ids import CardId, Epoch, JobId, LeaseId, LoadId, ModelId, PeerId
from gridcore.units import GB, MB, NS_PER_S, parse_duration_ns
from tests.support.builders import model as build_model
from tests.support.builders import settings as build_settings

CARD, GATEWAY = CardId("card"), PeerId("gateway-0")
STOP_NS = 170_000_000
START_NS = 1000 * NS_PER_S
PASSES_MAX = 100_000


class StoryError(AssertionError):
    """A story that cannot be read, or whose claims do not hold."""


class Story:
    """One file, split into its parts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8")
        self.head, _, log = text.partition("\nlog\n")
        self.log = [line for line in log.splitlines() if line.strip()]
        lines = [line for line in self.head.splitlines() if line and not line.startswith("#")]
        self.setup = [line for line in lines if not line.startswith(("@", "must", "never"))]
        self.actions = [line[1:].strip() for line in lines if line.startswith("@")]
        self.must = [line[4:].strip() for line in lines if line.startswith("must")]
        self.never = [line[5:].strip() for line in lines if line.startswith("never")]

    def run(self) -> list[str]:
        teller = Teller(read_settings(self.setup), card_bytes(self.setup))
        for action in self.actions:
            teller.act(action)
        return teller.log

    def rewrite(self, log: list[str]) -> None:
        """Replace the log; nothing above it can be touched."""
        self.path.write_text(f"{self.head}\nlog\n" + "\n".join(log) + "\n", encoding="utf-8")

    def check_claims(self, log: list[str]) -> None:
        for claim in self.must:
            self._check_must(claim, log)
        for pattern in self.never:
            found = [line for line in log if re.search(pattern, line)]
            if found:
                raise StoryError(f"{self.path.name}: never {pattern!r}, but: {found[0]}")

    def _check_must(self, claim: str, log: list[str]) -> None:
        position = 0
        for pattern in map(str.strip, claim.split(">>")):
            for index in range(position, len(log)):
                if re.search(pattern, log[index]):
                    position = index + 1
                    break
            else:
                raise StoryError(f"{self.path.name}: must {claim!r}: no line for {pattern!r}")


# --- the machine ---------------------------------------------------------------------------


def words(line: str) -> tuple[list[str], dict[str, str]]:
    """Split a line into its words and its key=value pairs."""
    plain, named = [], {}
    for word in line.split():
        key, equals, value = word.partition("=")
        if equals:
            named[key] = value
        else:
            plain.append(word)
    return plain, named


def n_bytes(text: str) -> int:
    unit = {"MB": MB, "GB": GB}[text[-2:]]
    return round(float(text[:-2]) * unit)


def card_bytes(setup: list[str]) -> int:
    return next(n_bytes(words(line)[0][1]) for line in setup if line.startswith("card "))


def read_settings(setup: list[str]) -> Settings:
    models, families = [], []
    policy: dict[str, Any] = {}
    headroom_mb = 0
    for line in setup:
        (kind, *rest), named = words(line)
        match kind:
            case "card":
                headroom_mb = n_bytes(named.get("headroom", "0MB")) // MB
            case "model":
                models.append(_model(rest, named))
            case "family":
                variants = tuple((tier, ModelId(named[tier])) for tier in Tier if tier in named)
                families.append(FamilySettings(name=rest[0], variants=variants))
            case "policy":
                _add_policy(policy, named)
            case _:
                raise StoryError(f"not part of a machine: {line!r}")
    return build_settings(*models, families=families, headroom_mb=headroom_mb, **policy)


def _model(rest: list[str], named: dict[str, str]) -> Any:
    ttl = named.get("ttl")
    return build_model(
        rest[0],
        n_bytes(rest[1]) // MB,
        slots=int(named.get("slots", "1")),
        load_s=parse_duration_ns(named.get("load", "1s")) / NS_PER_S,
        pinned="pinned" in rest,
        ttl_ns=None if ttl is None else parse_duration_ns(ttl),
        capabilities=[Capability(c) for c in named.get("capabilities", "chat").split(",")],
    )


def _add_policy(policy: dict[str, Any], named: dict[str, str]) -> None:
    for key, text in named.items():
        value: Any = text
        if re.fullmatch(r"[\d.]+(ms|s|m|h)", text):
            value = parse_duration_ns(text)
        elif re.fullmatch(r"[\d.]+", text):
            value = float(text) if "." in text else int(text)
        elif text in ("on", "off") and key == "restart":
            value = text == "on"
        *path, last = key.split(".")
        section = policy
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value


# --- what happens ----------------------------------------------------------------------------


class Teller:
    """Acts a story out: one brain, obedient runtimes, a clock that moves in waits."""

    def __init__(self, settings: Settings, total_bytes: int) -> None:
        self.core = SchedulerCore(settings, Epoch("e"))
        self.now_ns = START_NS
        self.log: list[str] = []
        self._models = {model.model_id: model for model in settings.models}
        self._total_bytes = total_bytes
        self._used: dict[LoadId, int] = {}
        self._work: dict[JobId, dict[str, str]] = {}
        self._steps: dict[LeaseId, DispatchStep] = {}
        self._fails: dict[ModelId, list[FailureCause]] = {}
        self._moments: list[tuple[int, int, Callable[[], list[AnyEvent]]]] = []
        self._n_moments = 0
        self._n_pids = 0
        self._foreign_bytes = 0
        self._pressure = Pressure.NORMAL
        self._feed(
            [
                SupervisorRestated(runtimes=(), profiles=()),
                GatewayRestated(gateway=GATEWAY, jobs=(), leases=()),
                self._sample(),
            ]
        )

    def act(self, action: str) -> None:
        (verb, *rest), named = words(action)
        self.log.append(f"{self._at()} @ {action}")
        match verb:
            case "wait":
                self._wait(parse_duration_ns(rest[0]))
            case "submit":
                self._submit(rest, named)
            case "cancel":
                job_id = JobId(rest[0])
                events: list[AnyEvent] = [
                    JobCancelled(job_id=job_id, cause=CancelCause.CLIENT_GONE)
                ]
                events += [
                    StepFinished(
                        lease_id=step.lease_id,
                        outcome=StepOutcome.CANCELLED,
                        took_ns=0,
                        last=True,
                        slot_idle=False,
                    )
                    for step in self._take_steps(lambda step: step.job_id == job_id)
                ]
                self._feed(events)
            case "fail":
                causes = self._fails.setdefault(ModelId(rest[0]), [])
                causes += [FailureCause(rest[1])] * int(named.get("times", "1"))
            case "die":
                self._die(ModelId(rest[0]))
            case "grow":
                load_id = self._load_of(ModelId(rest[0]))
                grown = FootprintMeasured(load_id=load_id, footprint_bytes=n_bytes(rest[1]))
                self._feed([grown])
            case "foreign":
                self._foreign_bytes = n_bytes(rest[0])
            case "pressure":
                self._pressure = Pressure(rest[0])
                self._feed([self._sample()])
            case "sample":
                for _ in range(int(named.get("times", "1"))):
                    self._wait(NS_PER_S // 2)
                    self._feed([self._sample()])
            case "admin":
                asked = AdminAsked(
                    request_id="r", peer=GATEWAY, verb=AdminVerb(rest[0]), target=rest[1]
                )
                self._feed([asked])
            case _:
                raise StoryError(f"nothing that happens: {action!r}")

    def _submit(self, rest: list[str], named: dict[str, str]) -> None:
        name, workload, target = rest
        for count in range(int(named.get("times", "1"))):
            job_id = JobId(name if "times" not in named else f"{name}{count + 1}")
            self._work[job_id] = named
            max_wait = named.get("max_wait")
            quality = named.get("quality")
            needs = named.get("needs")
            submitted = JobSubmitted(
                job_id=job_id,
                gateway=GATEWAY,
                target=target,
                workload=Workload(workload),
                kind=JobKind.EMBEDDING if "items" in named else JobKind.CHAT,
                client=named.get("client", ""),
                items=int(named.get("items", "1")),
                width=int(named.get("n", "1")),
                needs=frozenset() if needs is None else frozenset({Capability(needs)}),
                quality=None if quality is None else Tier(quality),
                max_wait_ns=None if max_wait is None else parse_duration_ns(max_wait),
            )
            self._feed([submitted])

    def _die(self, model_id: ModelId) -> None:
        load_id = self._load_of(model_id)
        lost = self._take_steps(lambda step: step.load_id == load_id)
        self._used.pop(load_id, None)
        self._feed(
            [
                RuntimeExited(load_id=load_id, cause=FailureCause.CRASHED, detail="signal 11"),
                *(
                    StepFinished(
                        lease_id=step.lease_id, outcome=StepOutcome.LOST, took_ns=0, slot_idle=False
                    )
                    for step in lost
                ),
            ]
        )

    def _load_of(self, model_id: ModelId) -> LoadId:
        load_id = self.core.state.models[model_id].load_id
        if load_id is None:
            raise StoryError(f"{model_id} is not loaded")
        return load_id

    def _sample(self) -> CardSampled:
        return CardSampled(
            card_id=CARD,
            total_bytes=self._total_bytes,
            used_bytes=self._foreign_bytes + sum(self._used.values()),
            pressure=self._pressure,
        )

    # --- time --------------------------------------------------------------------------

    def _wait(self, for_ns: int) -> None:
        end_ns = self.now_ns + for_ns
        for _ in range(PASSES_MAX):
            due_ns = self.core.next_deadline_ns()
            moment_ns = self._moments[0][0] if self._moments else None
            instants = [at for at in (due_ns, moment_ns) if at is not None and at <= end_ns]
            if not instants:
                break
            self.now_ns = max(min(instants), self.now_ns)
            events = []
            if moment_ns is not None and moment_ns <= self.now_ns:
                events = heapq.heappop(self._moments)[2]()
            self._feed(events)
        else:
            raise StoryError("the brain never comes to rest")
        self.now_ns = end_ns

    def _later(self, delay_ns: int, events: Callable[[], list[AnyEvent]]) -> None:
        self._n_moments += 1
        heapq.heappush(self._moments, (self.now_ns + delay_ns, self._n_moments, events))

    def _at(self) -> str:
        return f"{(self.now_ns - START_NS) / NS_PER_S:8.3f}"

    # --- the brain ---------------------------------------------------------------------

    def _feed(self, events: list[AnyEvent]) -> None:
        commands = self.core.handle(events, self.now_ns)
        invariants.check(self.core.state)
        for command in commands:
            match command:
                case PublishNote():
                    note = command.note
                    subject = note.job_id or note.model_id or note.card_id or ""
                    self.log.append(f"{self._at()} {note.verb:9s} {subject:14s} {note.text}")
                case LoadModel():
                    self._begin_load(command)
                case UnloadModel():
                    self._begin_stop(command)
                case DispatchStep():
                    self._begin_step(command)
                case CancelStep():
                    self._cancel_step(command)
                case ReadSlots():
                    slots = tuple(range(self._models[self._model_of(command.load_id)].slots))
                    seen = SlotsSeen(load_id=command.load_id, idle_slots=slots)
                    self._later(1_000_000, lambda seen=seen: [seen])  # type: ignore[misc]
                case _:
                    pass

    def _model_of(self, load_id: LoadId) -> ModelId:
        return self.core.state.model_by_load[load_id].model_id

    def _begin_load(self, command: LoadModel) -> None:
        model = self._models[command.model_id]
        load_id = command.load_id
        failures = self._fails.get(command.model_id)
        cause = failures.pop(0) if failures else None

        def loaded() -> list[AnyEvent]:
            if self.core.state.model_by_load.get(load_id) is None:
                return []
            if cause is not None:
                free = self._total_bytes - self._foreign_bytes - sum(self._used.values())
                return [
                    LoadFailed(
                        load_id=load_id,
                        cause=cause,
                        detail="its last words",
                        card_free_bytes=free,
                    )
                ]
            self._used[load_id] = command.reserved_bytes
            return [
                RuntimeLoaded(
                    load_id=load_id,
                    pid=self._next_pid(),
                    address=f"unix:/{load_id}",
                    slots=model.slots,
                    took_ns=model.load_ns_estimate,
                    footprint_bytes=None,
                )
            ]

        self._later(model.load_ns_estimate, loaded)

    def _next_pid(self) -> int:
        self._n_pids += 1
        return 1000 + self._n_pids

    def _begin_stop(self, command: UnloadModel) -> None:
        def stopped() -> list[AnyEvent]:
            self._used.pop(command.load_id, None)
            return [RuntimeExited(load_id=command.load_id, cause=None)]

        self._later(STOP_NS, stopped)

    def _begin_step(self, command: DispatchStep) -> None:
        self._steps[command.lease_id] = command
        named = self._work[command.job_id]
        work_ns = parse_duration_ns(named.get("work", "1s"))
        if "items" in named:
            work_ns = parse_duration_ns(named.get("item", "12ms")) * command.count
            work_ns //= len(command.slots)

        def begun() -> list[AnyEvent]:
            return [AnswerBegun(lease_id=command.lease_id)]

        def finished() -> list[AnyEvent]:
            if self._steps.pop(command.lease_id, None) is None:
                return []
            return [
                StepFinished(lease_id=command.lease_id, outcome=StepOutcome.DONE, took_ns=work_ns)
            ]

        if named.get("streams") == "yes":
            self._later(work_ns // 4, begun)
        self._later(work_ns, finished)

    def _cancel_step(self, command: CancelStep) -> None:
        for step in self._take_steps(lambda step: step.lease_id == command.lease_id):
            ended = StepFinished(
                lease_id=step.lease_id, outcome=StepOutcome.CANCELLED, took_ns=0, slot_idle=False
            )
            self._later(20_000_000, lambda ended=ended: [ended])  # type: ignore[misc]

    def _take_steps(self, which: Callable[[DispatchStep], bool]) -> list[DispatchStep]:
        taken = [step for step in self._steps.values() if which(step)]
        for step in taken:
            del self._steps[step.lease_id]
        return taken


def stories(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.story"))
