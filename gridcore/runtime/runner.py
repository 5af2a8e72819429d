"""Drives one lifecycle: the loop, the process and the log around the pure machine.

It performs commands and feeds events back; what a report means to the scheduler is the
supervisor's business.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine

from gridcore.clock import monotonic_ns
from gridcore.config.schema import Capability
from gridcore.errors import GridcoreError
from gridcore.ids import LoadId, ModelId
from gridcore.runtime import health, identity
from gridcore.runtime.launch import Launch
from gridcore.runtime.lifecycle import (
    Adopted,
    Command,
    Event,
    Exited,
    HealthSeen,
    Lifecycle,
    Limits,
    LoadAsked,
    PollHealth,
    Probe,
    ProbeAnswered,
    ReportExited,
    ReportLoadFailed,
    ReportReady,
    Sign,
    SignalGroup,
    SignSeen,
    Spawn,
    Spawned,
    SpawnFailed,
    StopAsked,
    Tick,
)
from gridcore.runtime.logtail import LogTail
from gridcore.runtime.memory_log import MemoryLog
from gridcore.runtime.process import RuntimeProcess
from gridcore.units import NS_PER_S

log = logging.getLogger(__name__)

LAST_READS_MAX = 16
"""Of a log at exit; with eight MB each it is more than any runtime writes in a load."""

Report = ReportReady | ReportLoadFailed | ReportExited


class Runner:
    """One attempt, from the wish to load to the end of its process."""

    def __init__(
        self,
        *,
        load_id: LoadId,
        model_id: ModelId,
        capabilities: tuple[Capability, ...],
        limits: Limits,
        tail: LogTail,
        probe_tokens: int,
        spawn: Callable[["Runner"], Awaitable[RuntimeProcess]],
        report: Callable[["Runner", Report], None],
    ) -> None:
        self.load_id = load_id
        self.model_id = model_id
        self.address = ""
        self.launch: Launch | None = None
        self.process: RuntimeProcess | None = None
        self.free_bytes_before: int | None = None
        self.footprint_bytes: int | None = None
        self.reserved_bytes = 0
        self.shrunk = ""
        """What it made smaller by itself; then its footprint is not that of the model."""
        self.gone = asyncio.Event()
        self._capabilities = capabilities
        self._probe_tokens = probe_tokens
        self._lifecycle = Lifecycle(limits)
        self._spawn = spawn
        self._report = report
        self._tail = tail
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ns: int | None = None
        self._kernel_kills = identity.out_of_memory_kills()

    @property
    def is_ready(self) -> bool:
        return self._lifecycle.is_ready

    @property
    def is_stopping(self) -> bool:
        return self._lifecycle.is_stopping

    @property
    def stop_asked(self) -> bool:
        return self._lifecycle.stop_asked

    @property
    def memory(self) -> MemoryLog:
        """What the runtime's log has told of its memory so far."""
        return self._tail.memory

    def load(self) -> None:
        self._feed(LoadAsked())

    def adopt(self, process: RuntimeProcess, *, ready: bool) -> None:
        """Take over a process that an earlier supervisor started."""
        self._take(process)
        self._feed(Adopted(ready, identity.age_ns(process.pid)))

    def stop(self, reason: str) -> None:
        self._feed(StopAsked(reason))

    def look_at_log(self) -> None:
        """Read what was logged since the last look; a broken backend says so only there."""
        for sign, line in self._tail.read_new():
            self._feed(SignSeen(sign, line))

    def forget(self) -> None:
        """Let go of the process, which lives on."""
        self._cancel_all()
        if self.process is not None:
            self.process.forget()

    # --- the loop around the machine -----------------------------------------------------

    def _feed(self, event: Event) -> None:
        for command in self._lifecycle.handle(event, monotonic_ns()):
            self._perform(command)
        self._rearm()

    def _perform(self, command: Command) -> None:
        match command:
            case Spawn():
                self._start(self._do_spawn())
            case PollHealth():
                self._start(self._do_poll())
            case Probe():
                self._start(self._do_probe())
            case SignalGroup(signum):
                if self.process is not None:
                    self.process.signal_group(signum)
            case ReportReady():
                self._report(self, command)
            case ReportLoadFailed() | ReportExited():
                self._cancel_all()
                self.gone.set()
                self._report(self, command)

    def _rearm(self) -> None:
        deadline_ns = None if self.gone.is_set() else self._lifecycle.next_deadline_ns()
        if deadline_ns == self._alarm_ns:
            return
        self._alarm_ns = deadline_ns
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if deadline_ns is not None:
            wait_s = max(0, deadline_ns - monotonic_ns()) / NS_PER_S
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._alarm = self._alarm_ns = None
        self._feed(Tick())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel_all(self) -> None:
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = self._alarm_ns = None

    # --- commands ------------------------------------------------------------------------

    async def _do_spawn(self) -> None:
        try:
            process = await self._spawn(self)
        except GridcoreError as error:
            self._feed(SpawnFailed(str(error)))
            return
        except Exception as error:  # a load that hangs for ever would be worse than this
            log.exception("%s cannot be started", self.model_id)
            self._feed(SpawnFailed(f"{type(error).__name__}: {error}"))
            return
        self._take(process)
        self._feed(Spawned())

    async def _do_poll(self) -> None:
        self._feed(HealthSeen(await health.is_healthy(self.address)))

    async def _do_probe(self) -> None:
        verdict = await health.probe(self.address, self._capabilities, self._probe_tokens)
        self.look_at_log()  # what it says of its memory is part of the report
        self._feed(ProbeAnswered(verdict.ok, verdict.detail))

    def _take(self, process: RuntimeProcess) -> None:
        self.process = process
        process.watch(self._on_exit)

    def _on_exit(self, status: int | None) -> None:
        for _ in range(LAST_READS_MAX):
            position = self._tail.position
            self.look_at_log()
            if self._tail.position == position:
                break
        if status == -signal.SIGKILL and identity.out_of_memory_kills() > self._kernel_kills:
            line = "the kernel killed it because the machine had no memory left"
            self._feed(SignSeen(Sign.OUT_OF_MEMORY, line))
        self._feed(Exited(status, self._tail.last_lines()))
