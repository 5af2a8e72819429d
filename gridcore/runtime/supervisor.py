"""All runtimes of a daemon: obeys load and unload, reports what happens, adopts and reaps.

It decides nothing about memory or order. Commands are idempotent by load id: one that comes
again is answered again. ``send`` may drop a message, because ``inventory`` states everything
anew after each Welcome.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from gridcore.core.events import FailureCause, KnownProfile, KnownRuntime
from gridcore.devices.device import Device
from gridcore.ids import LoadId, ModelId
from gridcore.instance import Instance
from gridcore.ipc.messages import (
    FootprintMeasured,
    FromScheduler,
    LoadFailed,
    LoadModel,
    RuntimeExited,
    RuntimeReady,
    SupervisorInventory,
    ToScheduler,
    UnloadModel,
)
from gridcore.runtime import health, identity
from gridcore.runtime.launch import LaunchError, Launches
from gridcore.runtime.lifecycle import ReportExited, ReportLoadFailed, ReportReady
from gridcore.runtime.logtail import LogTail, rotate
from gridcore.runtime.process import RuntimeProcess, stop_group
from gridcore.runtime.registry import Registry, RuntimeRecord, argv_digest, process_of
from gridcore.runtime.runner import Report, Runner
from gridcore.store.profiles import ProfileStore
from gridcore.units import MB, NS_PER_S, format_duration, format_mb

log = logging.getLogger(__name__)

FINISHED_KEPT_MAX = 256
"""Last words of attempts that are over, for a command that comes again."""
HOUSEKEEPING_S = 5.0
GROWTH_MARGIN_BYTES = 16 * MB
"""Smaller growth is an allocator at work, not a model."""


class Supervisor:
    """Every runtime of this daemon is in ``_runners``, from its load command to its exit."""

    def __init__(self, instance: Instance, device: Device) -> None:
        self.send: Callable[[ToScheduler], object] = _nobody
        """Takes a message for the scheduler; what it drops is in the next inventory."""
        self._instance = instance
        self._device = device
        self._launches = Launches(instance)
        self._registry = Registry(instance.state.registry)
        self._profiles = ProfileStore(instance.state.profiles)
        self._runners: dict[LoadId, Runner] = {}
        self._finished: OrderedDict[LoadId, ToScheduler] = OrderedDict()
        self._closing = False

    # --- what the service calls ----------------------------------------------------------

    async def recover(self) -> None:
        """Take over what this daemon started earlier and end what another one left."""
        async with asyncio.TaskGroup() as tasks:
            for record in self._registry.records():
                if record.instance_id == self._instance.instance_id:
                    tasks.create_task(self._adopt(record))
                else:
                    tasks.create_task(self._reap(record))

    def handle(self, message: FromScheduler) -> None:
        match message:
            case LoadModel():
                self._load(message)
            case UnloadModel():
                self._unload(message)
            case _:
                log.debug("a supervisor has no use for %s", type(message).__name__)

    def inventory(self) -> Iterable[ToScheduler]:
        runtimes = tuple(self._known(runner) for runner in self._runners.values())
        profiles = tuple(
            self._known_profile(ModelId(name)) for name in self._instance.config.models
        )
        return [SupervisorInventory(runtimes=runtimes, profiles=profiles)]

    async def run(self) -> None:
        """Keep logs small and footprints true until cancelled."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self.keep_house()

    def keep_house(self) -> None:
        logs = self._instance.config.logs
        for runner in list(self._runners.values()):
            runner.look_at_log()
            if runner.is_ready:
                self._measure_again(runner)
            path = self._launches.log_path(runner.model_id)
            try:
                rotate(path, limit_bytes=logs.rotate_mb * MB, keep=logs.keep)
            except OSError as error:
                log.warning("%s cannot be rotated: %s", path, error)

    async def stop(self) -> None:
        """Unload everything; bounded by the stop timeouts and a second."""
        self._closing = True
        runners = list(self._runners.values())
        if not runners:
            return
        log.info("unloading %d runtimes", len(runners))
        for runner in runners:
            runner.stop("shutdown")
        longest_ns = max(self._launches.limits(each.model_id).stop_timeout_ns for each in runners)
        try:
            async with asyncio.timeout(longest_ns / NS_PER_S + 2):
                await asyncio.gather(*(runner.gone.wait() for runner in runners))
        except TimeoutError:
            alive = [f"{r.model_id} (pid {r.process.pid})" for r in runners if r.process]
            log.error("these runtimes cannot be killed: %s", ", ".join(alive))

    def forget(self) -> None:
        """Let go of all runtimes; they live on and the next supervisor adopts them."""
        for runner in self._runners.values():
            runner.forget()

    # --- commands ------------------------------------------------------------------------

    def _load(self, message: LoadModel) -> None:
        runner = self._runners.get(message.load_id)
        if runner is not None:
            if runner.is_ready:
                self.send(self._ready_message(runner, took_ns=0))
            return
        if message.load_id in self._finished:
            self.send(self._finished[message.load_id])
            return
        if self._closing:
            self._refuse(message.load_id, FailureCause.CANCELLED, "the supervisor is shutting down")
            return
        try:
            runner = self._new_runner(message.load_id, message.model_id)
        except LaunchError as error:
            self._refuse(message.load_id, FailureCause.BAD_CONFIG, str(error))
            return
        runner.reserved_bytes = message.reserved_bytes
        runner.free_bytes_before = self._device.sample().free_bytes
        self._runners[message.load_id] = runner
        log.info("loading %s (%s)", message.model_id, format_mb(message.reserved_bytes))
        runner.load()

    def _refuse(self, load_id: LoadId, cause: FailureCause, detail: str) -> None:
        self._finish(load_id, LoadFailed(load_id=load_id, cause=cause, detail=detail))

    def _unload(self, message: UnloadModel) -> None:
        runner = self._runners.get(message.load_id)
        if runner is not None:
            if not runner.is_stopping:
                log.info("unloading %s: %s", runner.model_id, message.reason)
            runner.stop(message.reason)
            return
        unknown = RuntimeExited(load_id=message.load_id, cause=None, detail="no such runtime")
        self.send(self._finished.get(message.load_id, unknown))

    def _new_runner(self, load_id: LoadId, model_id: ModelId) -> Runner:
        model = self._launches.model(model_id)
        return Runner(
            load_id=load_id,
            model_id=model_id,
            capabilities=model.capabilities,
            limits=self._launches.limits(model_id),
            tail=LogTail(self._launches.log_path(model_id)),
            probe_tokens=self._probe_tokens(model_id),
            spawn=self._spawn,
            report=self._on_report,
        )

    async def _spawn(self, runner: Runner) -> RuntimeProcess:
        launch = await self._launches.prepare(runner.load_id, runner.model_id)
        runner.launch, runner.address = launch, launch.address
        if runner.stop_asked:
            raise LaunchError("the load was taken back")
        record = RuntimeRecord(
            load_id=runner.load_id,
            model_id=runner.model_id,
            instance_id=self._instance.instance_id,
            kernel_boot=identity.kernel_boot_id(),
            argv_digest=argv_digest(launch.argv),
            address=launch.address,
            slots=self._launches.model(runner.model_id).parallel,
            reserved_bytes=runner.reserved_bytes,
        )
        # Before the spawn too: if we die in between, the next supervisor knows whom to look for.
        self._registry.write(record)
        process = RuntimeProcess.spawn(
            launch.argv, launch.env, self._launches.log_path(runner.model_id)
        )
        self._registry.write(
            msgspec.structs.replace(record, pid=process.pid, start_ticks=process.start_ticks)
        )
        return process

    # --- reports -------------------------------------------------------------------------

    def _on_report(self, runner: Runner, report: Report) -> None:
        match report:
            case ReportReady(took_ns):
                self._on_ready(runner, took_ns)
            case ReportLoadFailed(cause, detail):
                self._on_load_failed(runner, cause, detail)
            case ReportExited(cause, detail):
                if cause is None:
                    log.info("unloaded %s", runner.model_id)
                else:
                    log.warning("%s ended: %s", runner.model_id, detail)
                    self._learn_from_exit(runner, cause)
                exited = RuntimeExited(load_id=runner.load_id, cause=cause, detail=detail)
                self._finish(runner.load_id, exited)

    def _on_ready(self, runner: Runner, took_ns: int) -> None:
        conditions = self._launches.conditions(runner.model_id)
        runner.shrunk = self._shrunk(runner)
        if runner.shrunk:
            # Its size is not that of the model as configured: the estimate goes on holding.
            log.warning("%s", _complaint(runner))
            self._profiles.loaded_smaller(conditions, runner.model_id, runner.shrunk)
        else:
            runner.footprint_bytes = self._measure(runner)
            self._profiles.loaded(
                conditions,
                runner.model_id,
                load_ns=took_ns,
                footprint_bytes=runner.footprint_bytes,
                free_bytes=runner.free_bytes_before,
                reported=runner.memory.reported,
            )
        self._note_ready(runner)
        measured = (
            "" if runner.footprint_bytes is None else f", {format_mb(runner.footprint_bytes)}"
        )
        log.info("loaded %s in %s%s", runner.model_id, format_duration(took_ns), measured)
        self.send(self._ready_message(runner, took_ns=took_ns))

    def _on_load_failed(self, runner: Runner, cause: FailureCause, detail: str) -> None:
        if cause is FailureCause.OUT_OF_MEMORY:
            conditions = self._launches.conditions(runner.model_id)
            self._profiles.ran_out_of_memory(conditions, runner.model_id, runner.free_bytes_before)
        level = logging.INFO if cause is FailureCause.CANCELLED else logging.WARNING
        log.log(level, "%s was not loaded (%s): %s", runner.model_id, cause, detail)
        failed = LoadFailed(
            load_id=runner.load_id,
            cause=cause,
            detail=detail,
            card_free_bytes=runner.free_bytes_before,
        )
        self._finish(runner.load_id, failed)

    def _finish(self, load_id: LoadId, last_words: ToScheduler) -> None:
        runner = self._runners.pop(load_id, None)
        self._registry.remove(load_id)
        self._launches.clean_up(load_id, runner.address if runner is not None else "")
        self._finished[load_id] = last_words
        while len(self._finished) > FINISHED_KEPT_MAX:
            self._finished.popitem(last=False)
        self.send(last_words)

    def _learn_from_exit(self, runner: Runner, cause: FailureCause) -> None:
        """What ran out of memory at work needs more than it held, whatever was measured."""
        if cause is FailureCause.OUT_OF_MEMORY and runner.footprint_bytes is not None:
            conditions = self._launches.conditions(runner.model_id)
            self._profiles.ran_out_of_memory(conditions, runner.model_id, runner.footprint_bytes)

    # --- measuring -----------------------------------------------------------------------

    def _probe_tokens(self, model_id: ModelId) -> int:
        speeds = self._profiles.get(self._launches.conditions(model_id)).speeds
        return self._launches.probe_tokens(model_id, speeds.prompt if speeds else None)

    def _shrunk(self, runner: Runner) -> str:
        """Compare what runs with what was asked for, by its own log."""
        return runner.memory.shrunk(
            ctx=self._launches.model(runner.model_id).ctx,
            gpu_layers=self._launches.gpu_layers(runner.model_id),
        )

    def _measure(self, runner: Runner) -> int | None:
        assert runner.process is not None
        return self._device.footprint(runner.process.family())

    def _measure_again(self, runner: Runner) -> None:
        """Keep the largest footprint seen: a model grows with its first full batch."""
        if runner.shrunk:
            return
        measured, known = self._measure(runner), runner.footprint_bytes
        if measured is None or (known is not None and measured < known + GROWTH_MARGIN_BYTES):
            return
        runner.footprint_bytes = measured
        conditions = self._launches.conditions(runner.model_id)
        self._profiles.grew(conditions, runner.model_id, measured)
        self._note_ready(runner)
        self.send(FootprintMeasured(load_id=runner.load_id, footprint_bytes=measured))

    def _note_ready(self, runner: Runner) -> None:
        for record in self._registry.records():
            if record.load_id == runner.load_id:
                self._registry.write(
                    msgspec.structs.replace(
                        record, ready=True, footprint_bytes=runner.footprint_bytes
                    )
                )

    # --- stating -------------------------------------------------------------------------

    def _ready_message(self, runner: Runner, *, took_ns: int) -> RuntimeReady:
        assert runner.process is not None
        return RuntimeReady(
            load_id=runner.load_id,
            pid=runner.process.pid,
            address=runner.address,
            slots=self._launches.model(runner.model_id).parallel,
            took_ns=took_ns,
            footprint_bytes=runner.footprint_bytes,
        )

    def _known(self, runner: Runner) -> KnownRuntime:
        return KnownRuntime(
            load_id=runner.load_id,
            model_id=runner.model_id,
            pid=runner.process.pid if runner.process is not None else None,
            address=runner.address,
            slots=self._launches.model(runner.model_id).parallel,
            ready=runner.is_ready,
            stopping=runner.is_stopping,
            idle_ns=0,  # only gateways know of requests
            footprint_bytes=runner.footprint_bytes,
            reserved_bytes=runner.reserved_bytes,
        )

    def _known_profile(self, model_id: ModelId) -> KnownProfile:
        profile = self._profiles.get(self._launches.conditions(model_id))
        return KnownProfile(
            model_id=model_id,
            footprint_bytes=profile.footprint_bytes,
            load_ns=profile.load_ns,
            out_of_memory_at_bytes=profile.out_of_memory_at_bytes,
        )

    # --- what earlier supervisors left ---------------------------------------------------

    async def _adopt(self, record: RuntimeRecord) -> None:
        """Take a runtime of this daemon over as it is; the scheduler decides about its future."""
        found = process_of(record)
        if found is None or record.model_id not in self._instance.config.models:
            await self._reap(record)
            return
        pid, _ = found
        runner = self._new_runner(record.load_id, record.model_id)
        runner.address = record.address
        runner.reserved_bytes = record.reserved_bytes
        runner.footprint_bytes = record.footprint_bytes
        runner.shrunk = self._profiles.get(self._launches.conditions(record.model_id)).shrunk
        try:
            launch = await self._launches.prepare(record.load_id, record.model_id)
        except LaunchError as error:
            log.warning("%s runs, but could not be started now: %s", record.model_id, error)
        else:
            if argv_digest(launch.argv) != record.argv_digest:
                log.warning("%s runs with arguments of an earlier version", record.model_id)
        process = RuntimeProcess.adopt(pid)
        self._registry.write(
            msgspec.structs.replace(record, pid=pid, start_ticks=process.start_ticks)
        )
        # What was ready and does not answer now is treated as loading: it gets the time of a
        # load to answer, and then it is stopped and reported.
        answers = record.ready and await health.is_healthy(record.address)
        self._runners[record.load_id] = runner
        runner.adopt(process, ready=answers)
        log.info("adopted %s (pid %d, %s)", record.model_id, pid, "ready" if answers else "loading")

    async def _reap(self, record: RuntimeRecord) -> None:
        """End an orphan, if it is proven to be one."""
        found = process_of(record)
        if found is not None:
            pid, ticks = found
            log.warning("ending %s (pid %d), left by an earlier daemon", record.model_id, pid)
            timeout_ns = self._instance.config.runtimes.llamacpp.stop_timeout_ns
            await stop_group(pid, ticks, timeout_ns / NS_PER_S)
        self._registry.remove(record.load_id)
        self._launches.clean_up(record.load_id, record.address)


def _complaint(runner: Runner) -> str:
    return (
        f"{runner.model_id} runs with {runner.shrunk}: the runtime made it smaller by itself "
        "(--fit on among its arguments?); its footprint is not kept"
    )


def _nobody(message: ToScheduler) -> None:
    """There is no link yet."""
