"""The supervisor over real processes: loads, failures, exits, adoption, orphans."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gridcore.core.events import FailureCause
from gridcore.devices import open_device
from gridcore.ids import LoadId, ModelId
from gridcore.instance import Instance
from gridcore.ipc.messages import (
    FootprintMeasured,
    LoadFailed,
    LoadModel,
    RuntimeExited,
    RuntimeReady,
    SupervisorInventory,
    UnloadModel,
)
from gridcore.runtime import health, identity
from gridcore.runtime.argv import CPU_BATCH
from gridcore.runtime.launch import SPECIAL, Launches
from gridcore.runtime.registry import Registry, RuntimeRecord, process_of
from gridcore.runtime.supervisor import Supervisor
from gridcore.store.profiles import Profile, ProfileStore, Reported
from gridcore.units import MB, NS_PER_S
from tests.support.fake_llama_server import write_wrapper
from tests.support.runtimes import Inbox, make_instance, short_directory, simulated, until


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path
        # Nothing may outlive its test, whatever went wrong in it.
        for record in Registry(path / "state" / "registry").records():
            found = process_of(record)
            if found is not None:
                with suppress(ProcessLookupError):
                    os.killpg(found[0], signal.SIGKILL)


class Bench:
    """A supervisor and what it has sent."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.inbox = Inbox()
        self.supervisor = Supervisor(instance, open_device(instance))
        self.supervisor.send = self.inbox.put

    def load(self, load_id: str, model_id: str, mb: int = 1000) -> None:
        message = LoadModel(
            load_id=LoadId(load_id), model_id=ModelId(model_id), reserved_bytes=mb * MB
        )
        self.supervisor.handle(message)

    def unload(self, load_id: str) -> None:
        self.supervisor.handle(UnloadModel(load_id=LoadId(load_id), reason="test"))

    def inventory(self) -> SupervisorInventory:
        (message,) = self.supervisor.inventory()
        assert isinstance(message, SupervisorInventory)
        return message

    def records(self) -> list[RuntimeRecord]:
        return Registry(self.instance.state.registry).records()

    def log(self, model_id: str) -> str:
        return (self.instance.state.logs / f"{model_id}.log").read_text()


@asynccontextmanager
async def supervising(instance: Instance) -> Any:
    bench = Bench(instance)
    await bench.supervisor.recover()
    try:
        yield bench
    finally:
        await bench.supervisor.stop()


def play(instance: Instance, story: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        async with supervising(instance) as bench:
            await story(bench)

    asyncio.run(run())


def fake(directory: Path, **settings: Any) -> Instance:
    """An instance with one model "m" on the misbehaving llama-server."""
    env = {f"FAKE_{name}": value for name, value in settings.pop("fake", {}).items()}
    model_file = directory / "m.gguf"
    model_file.write_bytes(b"GGUF")
    model = {
        "path": str(model_file),
        "runtime": "llamacpp",
        "env": env,
        **settings.pop("model", {}),
    }
    timeouts = {"load_timeout": 20 * NS_PER_S, "stop_timeout": 1 * NS_PER_S, **settings}
    return make_instance(
        directory,
        {"m": model},
        device="cpu",
        llama_server=str(write_wrapper(directory)),
        runtimes={"llamacpp": timeouts},
    )


# --- load and unload ---------------------------------------------------------------------


def test_a_load_is_reported_with_pid_address_and_footprint(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        assert ready.load_id == "l1"
        assert ready.slots == 2
        assert ready.footprint_bytes == 700 * MB
        assert ready.took_ns >= 0.1 * NS_PER_S
        assert identity.is_alive(ready.pid, None)
        assert await health.is_healthy(ready.address)
        (known,) = bench.inventory().runtimes
        assert (known.load_id, known.model_id, known.pid) == ("l1", "m", ready.pid)
        assert known.ready
        assert not known.stopping
        bench.unload("l1")
        exited = await bench.inbox.next(RuntimeExited)
        assert exited.cause is None
        assert bench.inventory().runtimes == ()
        assert bench.records() == []
        assert list(bench.instance.runtime.runtimes.iterdir()) == []

    play(make_instance(directory, {"m": simulated(700, load_s=0.1, parallel=2)}), story)


def test_commands_are_idempotent_by_load_id(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        bench.load("l1", "m")
        first = await bench.inbox.next(RuntimeReady)
        assert len(bench.records()) == 1
        bench.load("l1", "m")
        again = await bench.inbox.next(RuntimeReady, 2)
        assert again.pid == first.pid
        bench.unload("l1")
        bench.unload("l1")
        await bench.inbox.next(RuntimeExited)
        bench.load("l1", "m")  # a late copy of the old command starts nothing
        assert (await bench.inbox.next(RuntimeExited, 2)).load_id == "l1"
        assert bench.inventory().runtimes == ()
        bench.unload("never")
        assert (await bench.inbox.next(RuntimeExited, 3)).cause is None

    play(make_instance(directory, {"m": simulated()}), story)


def test_what_was_measured_is_in_the_inventory_of_the_next_run(directory: Path) -> None:
    async def measure(bench: Bench) -> None:
        (profile,) = bench.inventory().profiles
        assert profile.footprint_bytes is None
        bench.load("l1", "m")
        await bench.inbox.next(RuntimeReady)

    async def recall(bench: Bench) -> None:
        (profile,) = bench.inventory().profiles
        assert profile.footprint_bytes == 700 * MB
        assert profile.load_ns is not None
        assert profile.load_ns >= 0.1 * NS_PER_S

    play(make_instance(directory, {"m": simulated(700, load_s=0.1)}), measure)
    play(make_instance(directory, {"m": simulated(700, load_s=0.1)}), recall)


def test_a_load_that_is_taken_back_is_cancelled(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        await until(lambda: any(r.pid for r in bench.records()), "the spawn", bench.inbox)
        (record,) = bench.records()
        bench.unload("l1")
        failed = await bench.inbox.next(LoadFailed)
        assert failed.cause is FailureCause.CANCELLED
        assert record.pid is not None
        assert not identity.is_alive(record.pid, record.start_ticks)

    play(make_instance(directory, {"m": simulated(load_s=30.0)}), story)


def test_a_load_taken_back_before_its_spawn_starts_nothing(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        bench.unload("l1")
        assert (await bench.inbox.next(LoadFailed)).cause is FailureCause.CANCELLED
        assert bench.records() == []

    play(make_instance(directory, {"m": simulated(load_s=30.0)}), story)


def test_an_unknown_model_is_a_failed_load(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "nobody")
        failed = await bench.inbox.next(LoadFailed)
        assert failed.cause is FailureCause.BAD_CONFIG
        assert "nobody" in failed.detail

    play(make_instance(directory, {"m": simulated()}), story)


# --- memory ------------------------------------------------------------------------------


def test_out_of_memory_drops_the_measurement_and_remembers_the_room(directory: Path) -> None:
    models = {"a": simulated(700), "b": simulated(600)}

    async def story(bench: Bench) -> None:
        bench.load("l1", "b")
        await bench.inbox.next(RuntimeReady)
        bench.unload("l1")
        await bench.inbox.next(RuntimeExited)
        bench.load("l2", "a")
        await bench.inbox.next(RuntimeReady, 2)
        bench.load("l3", "b")
        failed = await bench.inbox.next(LoadFailed)
        assert failed.cause is FailureCause.OUT_OF_MEMORY
        assert "cudaMalloc failed: out of memory" in failed.detail
        assert failed.card_free_bytes == 300 * MB
        profile = {p.model_id: p for p in bench.inventory().profiles}[ModelId("b")]
        assert profile.footprint_bytes is None
        assert profile.out_of_memory_at_bytes == 300 * MB

    play(make_instance(directory, models, gpu={"simulation": {"total_mb": 1000}}), story)


# --- llama-server and its bad days -------------------------------------------------------


def test_the_child_gets_our_command_line_and_nobodys_settings(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    record = directory / "record.jsonl"

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        assert ready.footprint_bytes is not None
        assert ready.footprint_bytes > 4 * MB
        environment = identity.environment_of(ready.pid)
        assert "LLAMA_ARG_CTX_SIZE" not in environment
        assert environment["GRIDCORE_LOAD"] == "l1"
        assert not list(Path(environment["XDG_CONFIG_HOME"]).iterdir())
        command = Path(f"/proc/{ready.pid}/cmdline").read_text().split("\0")
        assert command[command.index("--alias") + 1] == "m"
        assert command[command.index("-lm") + 1] == "none"
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        assert [line["event"] for line in lines] == ["start", "end"]
        assert lines[0]["path"] == "/v1/completions"

    play(fake(directory, fake={"LOAD_S": "0.2", "RECORD": str(record)}), story)


@pytest.mark.parametrize(
    ("fake_settings", "cause", "words"),
    [
        ({"OOM": "1"}, FailureCause.OUT_OF_MEMORY, "cudaMalloc failed"),
        ({"BAD_FILE": "1"}, FailureCause.BAD_CONFIG, "failed to open GGUF file"),
        ({"CRASH": "load", "EXIT": "-4"}, FailureCause.CRASHED, "SIGILL"),
        ({"CRASH": "load", "EXIT": "3"}, FailureCause.CRASHED, "exit status 3"),
        ({"CRASH": "request:1"}, FailureCause.CRASHED, "SIGABRT"),
        ({"LOG_MB": "20", "OOM": "1"}, FailureCause.OUT_OF_MEMORY, "cudaMalloc failed"),
    ],
)
def test_a_failed_load_is_told_apart(
    directory: Path, fake_settings: dict[str, str], cause: FailureCause, words: str
) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        failed = await bench.inbox.next(LoadFailed)
        assert failed.cause is cause
        assert words in failed.detail
        assert failed.card_free_bytes is not None

    play(fake(directory, fake=fake_settings), story)


def test_a_runtime_that_never_gets_healthy_is_given_up(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        failed = await bench.inbox.next(LoadFailed)
        assert failed.cause is FailureCause.TIMED_OUT
        assert "load_timeout" in failed.detail

    play(fake(directory, fake={"HANG": "health"}, load_timeout=1 * NS_PER_S), story)


def test_one_that_ignores_sigterm_is_killed(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        await bench.inbox.next(RuntimeReady)
        bench.unload("l1")
        exited = await bench.inbox.next(RuntimeExited)
        assert exited.cause is None
        assert "SIGKILL" in exited.detail

    play(fake(directory, fake={"IGNORE_SIGTERM": "1"}, stop_timeout=NS_PER_S // 2), story)


def test_a_crash_at_work_names_its_signal(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        os.kill(ready.pid, signal.SIGSEGV)
        exited = await bench.inbox.next(RuntimeExited)
        assert exited.cause is FailureCause.CRASHED
        assert "SIGSEGV" in exited.detail

    play(fake(directory), story)


def test_a_helper_does_not_outlive_its_runtime(directory: Path) -> None:
    helper = directory / "helper"

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        pid = int(helper.read_text())
        assert identity.is_alive(pid, None)
        os.kill(ready.pid, signal.SIGKILL)
        await bench.inbox.next(RuntimeExited)
        await until(lambda: not identity.is_alive(pid, None), "the helper's end")

    play(fake(directory, fake={"GRANDCHILD": str(helper)}), story)


def test_a_missing_file_and_a_missing_binary_say_so(directory: Path) -> None:
    instance = fake(directory)
    (directory / "m.gguf").unlink()

    async def no_file(bench: Bench) -> None:
        bench.load("l1", "m")
        failed = await bench.inbox.next(LoadFailed)
        assert failed.cause is FailureCause.BAD_CONFIG
        assert "m.gguf" in failed.detail

    play(instance, no_file)
    broken = msgspec.structs.replace(fake(directory), llama_server=str(directory / "none"))

    async def no_binary(bench: Bench) -> None:
        bench.load("l1", "m")
        failed = await bench.inbox.next(LoadFailed)
        assert failed.cause is FailureCause.BAD_CONFIG
        assert "cannot be started" in failed.detail

    play(broken, no_binary)


def test_logs_are_files_that_stay_small(directory: Path) -> None:
    instance = make_instance(directory, {"m": simulated()}, logs={"rotate_mb": 1, "keep": 1})

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        await bench.inbox.next(RuntimeReady)
        path = bench.instance.state.logs / "m.log"
        assert "model loaded" in bench.log("m")
        with path.open("a") as file:
            file.write("noise\n" * (1 << 18))
        bench.supervisor.keep_house()
        assert path.stat().st_size == 0
        assert (path.parent / "m.log.1").stat().st_size > 1 * MB
        bench.unload("l1")
        await bench.inbox.next(RuntimeExited)
        assert "cleaning up" in bench.log("m")

    play(instance, story)


def test_an_older_build_gets_a_port_and_its_own_flags(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        assert ready.address.startswith("http://127.0.0.1:41")
        command = Path(f"/proc/{ready.pid}/cmdline").read_text().split("\0")
        assert "--no-mmap" in command
        assert not {"-lm", "--fit", "--no-ui"} & set(command)
        bench.load("l2", "m")
        second = await bench.inbox.next(RuntimeReady, 2)
        assert second.address != ready.address

    play(fake(directory, fake={"OLD": "1"}), story)


def test_models_die_before_the_daemon(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        assert Path(f"/proc/{ready.pid}/oom_score_adj").read_text() == "500\n"

    play(fake(directory), story)


def test_nothing_is_loaded_into_a_closing_daemon(directory: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.supervisor.stop()
        bench.load("l1", "m")
        assert (await bench.inbox.next(LoadFailed)).cause is FailureCause.CANCELLED

    play(fake(directory), story)


# --- supervisors come and go -------------------------------------------------------------


def test_a_restarted_supervisor_adopts_what_runs(directory: Path) -> None:
    """Killed -9 means: no goodbye. Its runtimes live on, also the one that is still loading."""
    models = {"a": simulated(300), "slow": simulated(300, load_s=3.0)}
    instance = make_instance(directory, models)

    async def first() -> RuntimeReady:
        bench = Bench(instance)
        bench.load("l1", "a", 333)
        ready = await bench.inbox.next(RuntimeReady)
        bench.load("l2", "slow")
        await until(lambda: len([r for r in bench.records() if r.pid]) == 2, "the spawn")
        bench.supervisor.forget()
        return ready

    ready = asyncio.run(first())

    async def second(bench: Bench) -> None:
        known = {each.load_id: each for each in bench.inventory().runtimes}
        adopted, loading = known[LoadId("l1")], known[LoadId("l2")]
        assert (adopted.pid, adopted.address) == (ready.pid, ready.address)
        assert adopted.ready
        assert adopted.footprint_bytes == 300 * MB
        assert adopted.reserved_bytes == 333 * MB
        assert not loading.ready
        late = await bench.inbox.next(RuntimeReady)
        assert late.load_id == "l2"
        assert late.took_ns >= 3 * NS_PER_S, "a load's time counts from its process's start"
        os.kill(ready.pid, signal.SIGKILL)
        exited = await bench.inbox.next(RuntimeExited)
        assert (exited.load_id, exited.cause) == ("l1", FailureCause.CRASHED)
        bench.unload("l2")
        assert (await bench.inbox.next(RuntimeExited, 2)).cause is None

    play(instance, second)


def test_a_runtime_that_died_meanwhile_is_not_in_the_inventory(directory: Path) -> None:
    instance = make_instance(directory, {"a": simulated()})

    async def first() -> int:
        bench = Bench(instance)
        bench.load("l1", "a")
        ready = await bench.inbox.next(RuntimeReady)
        bench.supervisor.forget()
        return ready.pid

    pid = asyncio.run(first())
    os.kill(pid, signal.SIGKILL)

    async def second(bench: Bench) -> None:
        assert bench.inventory().runtimes == ()
        assert bench.records() == []

    play(instance, second)


def test_a_stopped_runtime_is_resumed_by_its_adopter(directory: Path) -> None:
    instance = make_instance(directory, {"a": simulated()})

    async def first() -> int:
        bench = Bench(instance)
        bench.load("l1", "a")
        ready = await bench.inbox.next(RuntimeReady)
        bench.supervisor.forget()
        os.killpg(ready.pid, signal.SIGSTOP)
        return ready.pid

    asyncio.run(first())

    async def second(bench: Bench) -> None:
        (known,) = bench.inventory().runtimes
        if not known.ready:
            await bench.inbox.next(RuntimeReady)
        assert await health.is_healthy(known.address)

    play(instance, second)


def test_a_spawn_without_its_second_write_is_found_by_its_marks(directory: Path) -> None:
    """The supervisor was killed between the spawn and the pid's way to disk."""
    instance = make_instance(directory, {"a": simulated()})

    async def first() -> int:
        bench = Bench(instance)
        bench.load("l1", "a")
        ready = await bench.inbox.next(RuntimeReady)
        bench.supervisor.forget()
        (record,) = bench.records()
        bare = msgspec.structs.replace(record, pid=None, start_ticks=None, ready=False)
        Registry(instance.state.registry).write(bare)
        return ready.pid

    pid = asyncio.run(first())

    async def second(bench: Bench) -> None:
        assert [known.pid for known in bench.inventory().runtimes] == [pid]
        assert (await bench.inbox.next(RuntimeReady)).pid == pid

    play(instance, second)


def test_orphans_of_an_earlier_daemon_are_ended_and_nobody_else(directory: Path) -> None:
    """A stranger with the orphan's number, or without our marks, is left alone."""
    models = {"a": simulated(100), "b": simulated(100)}
    old = make_instance(directory, models)

    async def first() -> int:
        bench = Bench(old)
        bench.load("l1", "a")
        ready = await bench.inbox.next(RuntimeReady)
        bench.supervisor.forget()
        return ready.pid

    orphan = asyncio.run(first())
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    registry = Registry(old.state.registry)
    (record,) = registry.records()
    registry.write(
        msgspec.structs.replace(
            record,
            load_id=LoadId("l9"),
            pid=stranger.pid,
            start_ticks=identity.start_ticks(stranger.pid),
        )
    )

    async def second(bench: Bench) -> None:
        assert bench.inventory().runtimes == ()
        assert bench.records() == []
        assert not identity.is_alive(orphan, None)

    try:
        play(make_instance(directory, models), second)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_damaged_registry_entry_is_set_aside(directory: Path) -> None:
    instance = make_instance(directory, {"a": simulated()})
    instance.state.registry.mkdir()
    (instance.state.registry / "x.json").write_text("{")

    async def story(bench: Bench) -> None:
        assert bench.inventory().runtimes == ()
        assert (bench.instance.state.registry / "x.bad").read_text() == "{"

    play(instance, story)


# --- measuring ---------------------------------------------------------------------------


def stored(instance: Instance, model_id: str = "m") -> Profile:
    conditions = Launches(instance).conditions(ModelId(model_id))
    return ProfileStore(instance.state.profiles).get(conditions)


def test_c42_an_image_encoder_that_grows_raises_the_stored_footprint(directory: Path) -> None:
    """The encoder takes its buffer with the first image; the next load must reserve it."""
    mmproj = directory / "mmproj.gguf"
    mmproj.write_bytes(b"GGUF")
    model = {"mmproj": str(mmproj), "capabilities": ["chat", "vision"]}
    instance = fake(directory, model=model, fake={"IMAGE_MB": "64"})

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        assert ready.footprint_bytes is not None
        before = stored(instance).footprint_bytes
        assert before == ready.footprint_bytes
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        chat = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 1}
        body = json.dumps(chat).encode()
        await health.request(ready.address, "POST", "/v1/chat/completions", body)
        bench.supervisor.keep_house()
        grown = await bench.inbox.next(FootprintMeasured)
        assert grown.footprint_bytes >= before + 60 * MB
        assert stored(instance).footprint_bytes == grown.footprint_bytes
        (profile,) = bench.inventory().profiles
        assert profile.footprint_bytes == grown.footprint_bytes

    play(instance, story)


def test_c42_out_of_memory_at_work_raises_what_the_next_load_needs(directory: Path) -> None:
    """Not a crash loop: the measurement that was too small is gone, and its size not enough."""
    instance = fake(directory, fake={"CRASH": "request:2", "EXIT": "-6"})

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        log = bench.instance.state.logs / "m.log"
        with log.open("a") as file:
            file.write("ggml_cuda: cudaMalloc failed: out of memory\n")
        with suppress(EOFError, OSError):
            await health.request(ready.address, "POST", "/v1/completions", b'{"prompt": "x"}')
        exited = await bench.inbox.next(RuntimeExited)
        assert exited.cause is FailureCause.OUT_OF_MEMORY
        assert stored(instance).footprint_bytes is None
        assert stored(instance).out_of_memory_at_bytes == ready.footprint_bytes

    play(instance, story)


@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        ({"N_CTX": "4096"}, {"ctx": 16384}, "a context of 4096 instead of 16384"),
        (
            {"LAYERS": "20/40"},
            {"args": ["-ngl", "all"]},
            "20 of 40 layers on the device instead of 40",
        ),
    ],
)
def test_c48_what_the_runtime_made_smaller_is_reported_and_not_stored(
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, str],
    model: dict[str, Any],
    words: str,
) -> None:
    instance = fake(directory, model=model, fake={"MEMORY": "1", **settings})

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        ready = await bench.inbox.next(RuntimeReady)
        assert ready.footprint_bytes is None
        bench.supervisor.keep_house()
        assert bench.inbox.of(FootprintMeasured) == []
        profile = stored(instance)
        assert (profile.footprint_bytes, profile.shrunk) == (None, words)
        assert f"m runs with {words}" in caplog.text

    play(instance, story)


def test_llama_cpps_own_figures_are_stored_beside_the_footprint(directory: Path) -> None:
    instance = fake(directory, model={"args": ["-ngl", "all"]}, fake={"MEMORY": "1"})

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        await bench.inbox.next(RuntimeReady)
        profile = stored(instance)
        assert profile.footprint_bytes is not None
        assert profile.reported == Reported(
            weights_bytes=round(7100.5 * MB),
            context_bytes=320 * MB,
            compute_bytes=round(97.5 * MB),
            output_bytes=MB // 2,
        )

    play(instance, story)


def test_a_small_model_is_probed_with_a_full_batch(directory: Path) -> None:
    """A probe of one token leaves most of the compute buffer untouched, so unmeasured."""
    record = directory / "record"
    instance = fake(directory, fake={"RECORD": str(record)})

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        await bench.inbox.next(RuntimeReady)
        (probe,) = [json.loads(line) for line in record.read_text().splitlines()[:1]]
        assert len(json.loads(probe["body"])["prompt"].split()) == CPU_BATCH - SPECIAL

    play(instance, story)


def test_a_big_model_is_probed_with_one_token(directory: Path) -> None:
    record = directory / "record"
    instance = fake(directory, fake={"RECORD": str(record)})
    with (directory / "m.gguf").open("ab") as file:
        file.truncate(4 << 30)  # sparse

    async def story(bench: Bench) -> None:
        bench.load("l1", "m")
        await bench.inbox.next(RuntimeReady)
        (probe,) = [json.loads(line) for line in record.read_text().splitlines()[:1]]
        assert json.loads(probe["body"])["prompt"] == "hello"

    play(instance, story)
