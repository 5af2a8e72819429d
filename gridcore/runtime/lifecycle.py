"""One runtime from spawn to exit, as a pure machine.

``handle(event, now_ns) -> commands`` and ``next_deadline_ns()``. It decides when to look, when
to give up, which signal to send and what an exit means; it must not know processes, sockets or
clocks. A failed load is reported when the process is gone, because only then is its memory back.
"""

import signal
from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from gridcore.core.events import FailureCause
from gridcore.units import NS_PER_MS, NS_PER_S, format_duration


class Phase(StrEnum):
    SPAWNING = "spawning"
    LOADING = "loading"
    """The process exists; /health does not say ok yet."""
    PROBING = "probing"
    """/health is ok; the first token has not come."""
    READY = "ready"
    STOPPING = "stopping"
    """SIGTERM was sent; the exit has not been seen."""
    GONE = "gone"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.SPAWNING: frozenset({Phase.LOADING, Phase.READY, Phase.GONE}),
    Phase.LOADING: frozenset({Phase.PROBING, Phase.STOPPING, Phase.GONE}),
    Phase.PROBING: frozenset({Phase.READY, Phase.STOPPING, Phase.GONE}),
    Phase.READY: frozenset({Phase.STOPPING, Phase.GONE}),
    Phase.STOPPING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}

POLL_FIRST_NS = 20 * NS_PER_MS
POLL_LAST_NS = 250 * NS_PER_MS
"""A small model is ready within half a second; a big one is not worth fifty looks a second."""
KILL_AGAIN_NS = 1 * NS_PER_S
"""SIGKILL cannot be refused, but a process in a driver call dies late: it is repeated."""


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGKILL)


class Sign(StrEnum):
    """What a log line proves, whatever the exit status says."""

    OUT_OF_MEMORY = "out_of_memory"
    BAD_CONFIG = "bad_config"
    BACKEND_BROKEN = "backend_broken"
    """The process lives, /health is ok and every request fails until it is restarted."""


# --- events ------------------------------------------------------------------------------


class LoadAsked(Struct, frozen=True):
    pass


class Adopted(Struct, frozen=True):
    """A process of an earlier supervisor of this daemon was found alive."""

    ready: bool
    age_ns: int = 0


class Spawned(Struct, frozen=True):
    pass


class SpawnFailed(Struct, frozen=True):
    detail: str


class HealthSeen(Struct, frozen=True):
    ok: bool


class ProbeAnswered(Struct, frozen=True):
    ok: bool
    detail: str = ""


class SignSeen(Struct, frozen=True):
    sign: Sign
    line: str


class Exited(Struct, frozen=True):
    """``status`` as Popen gives it (negative: a signal); None for a process that is not a child."""

    status: int | None
    last_lines: tuple[str, ...] = ()


class StopAsked(Struct, frozen=True):
    reason: str


class Tick(Struct, frozen=True):
    """The deadline has come."""


Event = (
    LoadAsked
    | Adopted
    | Spawned
    | SpawnFailed
    | HealthSeen
    | ProbeAnswered
    | SignSeen
    | Exited
    | StopAsked
    | Tick
)


# --- commands ----------------------------------------------------------------------------


class Spawn(Struct, frozen=True):
    pass


class PollHealth(Struct, frozen=True):
    pass


class Probe(Struct, frozen=True):
    """Ask for one token: /health knows nothing of the model."""


class SignalGroup(Struct, frozen=True):
    signum: int


class ReportReady(Struct, frozen=True):
    took_ns: int


class ReportLoadFailed(Struct, frozen=True):
    cause: FailureCause
    detail: str


class ReportExited(Struct, frozen=True):
    cause: FailureCause | None
    detail: str


Command = Spawn | PollHealth | Probe | SignalGroup | ReportReady | ReportLoadFailed | ReportExited


class Limits(Struct, frozen=True, kw_only=True):
    load_timeout_ns: int
    stop_timeout_ns: int


class Lifecycle:
    """Exactly one report ends a load, and after a ready one exactly one ends the runtime."""

    def __init__(self, limits: Limits) -> None:
        self.phase = Phase.SPAWNING
        self._limits = limits
        self._began_ns = 0
        self._loaded = False
        self._asked = False
        self._failure: tuple[FailureCause, str] | None = None
        """Why we stop it, when nobody asked for that."""
        self._sign: SignSeen | None = None
        self._polls = 0
        self._looking = False
        self._next_poll_ns: int | None = None
        self._deadline_ns: int | None = None

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY

    @property
    def stop_asked(self) -> bool:
        return self._asked

    @property
    def is_stopping(self) -> bool:
        return self.phase in (Phase.STOPPING, Phase.GONE)

    def next_deadline_ns(self) -> int | None:
        deadlines = [at for at in (self._next_poll_ns, self._deadline_ns) if at is not None]
        return min(deadlines, default=None)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        match event:
            case LoadAsked():
                self._began_ns = now_ns
                return [Spawn()]
            case Adopted():
                return self._adopt(event, now_ns)
            case Spawned():
                if self.phase is not Phase.SPAWNING:
                    return []
                return self._begin_loading(now_ns)
            case SpawnFailed(detail=detail):
                return self._on_spawn_failed(detail)
            case HealthSeen(ok=ok):
                return self._on_health(ok=ok, now_ns=now_ns)
            case ProbeAnswered():
                return self._on_probe(event, now_ns)
            case SignSeen():
                return self._on_sign(event, now_ns)
            case Exited():
                return self._on_exit(event, now_ns)
            case StopAsked():
                return self._on_stop_asked(now_ns)
            case Tick():
                return self._on_tick(now_ns)
            case _:
                assert_never(event)

    # --- starting ------------------------------------------------------------------------

    def _adopt(self, event: Adopted, now_ns: int) -> list[Command]:
        self._began_ns = now_ns - event.age_ns
        # An earlier supervisor may have left it stopped.
        resume: list[Command] = [SignalGroup(signal.SIGCONT)]
        if event.ready:
            self._loaded = True
            self._enter(Phase.READY)
            return resume
        return resume + self._begin_loading(now_ns)

    def _on_spawn_failed(self, detail: str) -> list[Command]:
        if self.phase is not Phase.SPAWNING:
            return []
        self._enter(Phase.GONE)
        if self._asked:
            return [ReportLoadFailed(FailureCause.CANCELLED, "the load was taken back")]
        return [ReportLoadFailed(FailureCause.BAD_CONFIG, detail)]

    def _begin_loading(self, now_ns: int) -> list[Command]:
        self._enter(Phase.LOADING)
        if self._asked:
            return self._stop(now_ns)
        self._deadline_ns = now_ns + self._limits.load_timeout_ns
        self._looking = True
        return [PollHealth()]

    def _on_health(self, *, ok: bool, now_ns: int) -> list[Command]:
        self._looking = False
        if self.phase is not Phase.LOADING:
            return []
        if ok:
            self._next_poll_ns = None
            self._enter(Phase.PROBING)
            return [Probe()]
        self._polls += 1
        pause_ns = min(POLL_LAST_NS, POLL_FIRST_NS + self._polls * 5 * NS_PER_MS)
        self._next_poll_ns = now_ns + pause_ns
        return []

    def _on_probe(self, event: ProbeAnswered, now_ns: int) -> list[Command]:
        if self.phase is not Phase.PROBING:
            return []
        if not event.ok:
            detail = f"healthy, but its first request failed: {event.detail}"
            return self._give_up(FailureCause.CRASHED, detail, now_ns)
        self._loaded = True
        self._deadline_ns = None
        self._enter(Phase.READY)
        return [ReportReady(now_ns - self._began_ns)]

    # --- running -------------------------------------------------------------------------

    def _on_sign(self, event: SignSeen, now_ns: int) -> list[Command]:
        # The first line is the most specific; the generic ones follow on every backend.
        known = self._sign.sign if self._sign is not None else None
        if known is None or (event.sign is Sign.OUT_OF_MEMORY and known is not event.sign):
            self._sign = event
        running = self.phase in (Phase.LOADING, Phase.PROBING, Phase.READY)
        if event.sign is Sign.BACKEND_BROKEN and running:
            detail = f"the backend needs a restart: {event.line}"
            return self._give_up(FailureCause.OUT_OF_MEMORY, detail, now_ns)
        return []

    def _on_tick(self, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        if self._next_poll_ns is not None and now_ns >= self._next_poll_ns:
            self._next_poll_ns = None
            if not self._looking:
                self._looking = True
                commands.append(PollHealth())
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return commands
        if self.phase is Phase.STOPPING:
            self._deadline_ns = now_ns + KILL_AGAIN_NS
            return [SignalGroup(signal.SIGKILL)]
        waited = format_duration(self._limits.load_timeout_ns)
        what = "no first token" if self.phase is Phase.PROBING else "not healthy"
        detail = f"{what} after {waited} (load_timeout)"
        return self._give_up(FailureCause.TIMED_OUT, detail, now_ns)

    # --- ending --------------------------------------------------------------------------

    def _on_stop_asked(self, now_ns: int) -> list[Command]:
        self._asked = True
        if self.phase is Phase.SPAWNING or self.is_stopping:
            return []
        return self._stop(now_ns)

    def _give_up(self, cause: FailureCause, detail: str, now_ns: int) -> list[Command]:
        self._failure = (cause, detail)
        return self._stop(now_ns)

    def _stop(self, now_ns: int) -> list[Command]:
        self._enter(Phase.STOPPING)
        self._next_poll_ns = None
        self._deadline_ns = now_ns + self._limits.stop_timeout_ns
        # A stopped group would keep SIGTERM pending for ever.
        return [SignalGroup(signal.SIGCONT), SignalGroup(signal.SIGTERM)]

    def _on_exit(self, event: Exited, now_ns: int) -> list[Command]:
        if self.phase is Phase.GONE:
            return []
        before = self.phase
        self._enter(Phase.GONE)
        self._next_poll_ns = self._deadline_ns = None
        cause, detail = self._meaning_of(event, now_ns)
        if self._loaded:
            by_request = self._asked and before is Phase.STOPPING
            return [ReportExited(None if by_request else cause, detail)]
        if self._asked:
            return [ReportLoadFailed(FailureCause.CANCELLED, "the load was taken back")]
        return [ReportLoadFailed(cause, detail)]

    def _meaning_of(self, event: Exited, now_ns: int) -> tuple[FailureCause, str]:
        ended = describe_status(event.status)
        sign = self._sign
        if sign is not None and sign.sign is Sign.OUT_OF_MEMORY:
            return FailureCause.OUT_OF_MEMORY, f"out of memory, {ended}: {sign.line}"
        if self._failure is not None:
            failed, what = self._failure
            by_itself = event.status is not None and -event.status not in _STOP_SIGNALS
            return failed, f"{what}; {ended}" if by_itself and event.status != 0 else what
        if self._asked:
            return FailureCause.CANCELLED, ended
        if sign is not None and sign.sign is Sign.BAD_CONFIG and not self._loaded:
            return FailureCause.BAD_CONFIG, sign.line
        age = format_duration(now_ns - self._began_ns)
        where = "" if self._loaded else f" {age} into the load"
        said = f"; its last lines: {' | '.join(event.last_lines)}" if event.last_lines else ""
        if event.status == -signal.SIGILL:
            said = "; the binary was built for another processor" + said
        return FailureCause.CRASHED, f"{ended}{where}{said}"

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase


def describe_status(status: int | None) -> str:
    """Say how a process ended; a signal by its name."""
    if status is None:
        return "the process ended"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
