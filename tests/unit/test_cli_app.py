"""The command line: exit codes, one line a problem, never a traceback."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridcore import __version__
from gridcore.cli.app import main
from gridcore.cli.examples import example
from gridcore.cli.run import Service, ensure_instance, service_argv
from gridcore.cli.table import table
from gridcore.config.schema import RuntimeKind
from gridcore.errors import ConfigError
from gridcore.group.lock import FileLock
from gridcore.instance import read_instance
from gridcore.paths import runtime_dir_for
from tests.support.runtimes import short_directory

ROOT = Path(__file__).parents[2]
SIMULATION = ROOT / "examples" / "simulation.yaml"

SMALL = """\
gpu: { device: simulation, simulation: { total_mb: 1024 } }
models:
  a: { simulated: { vram_mb: 400 }, aliases: [x], capabilities: [chat, vision] }
families:
  f: { preferred: a }
"""


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GRIDCORE_CONFIG", raising=False)
    with short_directory() as runtime:  # pytest's own paths are too long for sockets
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        yield


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(SMALL)
    return path


class Output:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object) -> tuple[int, list[str], list[str]]:
        code = main([str(arg) for arg in args])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return code, out.splitlines(), err.splitlines()


@pytest.fixture
def gridcore(capsys: pytest.CaptureFixture[str]) -> Output:
    return Output(capsys)


def test_version(gridcore: Output) -> None:
    assert gridcore("--version") == (0, [f"gridcore {__version__}"], [])
    assert gridcore("version") == (0, [f"gridcore {__version__}"], [])


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["check", "--confg", "x"], "No such option: --confg"),
        (["run"], "Missing argument"),
        (["run", "frontend"], "'frontend' is not one of 'gateway', 'scheduler'"),
        (["serve", "--listen", "localhost"], "'localhost' has no port"),
        (["serve", "--log-level", "loud"], "'loud' is not one of"),
        (["serve", "--simulation", "--config", "x"], "leave --config out"),
        (["run", "gateway", "--instance", "x", "--config", "y"], "--instance stands for"),
    ],
)
def test_a_usage_problem_is_exit_code_1(gridcore: Output, args: list[str], expected: str) -> None:
    code, out, err = gridcore(*args)
    assert code == 1
    assert out == []
    assert expected in " ".join(err)


def test_help_names_every_command(gridcore: Output) -> None:
    code, out, _ = gridcore("--help")
    assert code == 0
    verbs = ("serve", "run", "check", "models", "fit", "profiles", "bench", "status", "events")
    for verb in (*verbs, "version"):
        assert any(line.split()[:1] == [verb] for line in out)


def test_help_imports_nothing_heavy() -> None:
    """Help and completion must not wait for the web server, the bus or the terminal library."""
    code = (
        "import sys; from gridcore.cli import app\n"
        "heavy = {'rich', 'zmq', 'httpx', 'aiohttp', 'uvicorn', 'yaml', 'services', 'asyncio'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("args", [["status"], ["status", "--json"], ["events"], ["status", "-w"]])
def test_without_a_daemon_one_line_says_so(gridcore: Output, args: list[str]) -> None:
    code, out, err = gridcore(*args)
    assert (code, out) == (1, [])
    assert len(err) == 1
    assert err[0].startswith("gridcore: no daemon is running (there is no socket at ")


def test_a_socket_left_by_a_killed_daemon_is_recognised(gridcore: Output) -> None:
    directory = runtime_dir_for(None)
    directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "events"))
    code, _, err = gridcore("status")
    assert code == 1
    assert "is left over: its daemon has died" in err[0]


class TestCheck:
    def test_all_is_well(self, gridcore: Output) -> None:
        code, out, err = gridcore("check", "--config", SIMULATION)
        assert (code, err) == (0, [])
        assert out[-1] == "✓ ok"
        assert any(
            line.split() == ["qwen3-14b", "simulated", "2", "9732", "MB", "yes"] for line in out
        )

    def test_each_problem_is_a_line(self, gridcore: Output, tmp_path: Path) -> None:
        path = tmp_path / "config.yaml"
        path.write_text("gpu:\n  headrom_mb: 1\npolicy:\n  background_share: 7\n")
        code, out, _ = gridcore("check", "--config", path)
        assert code == 1
        assert out == [
            f"✗ {path}:2: gpu.headrom_mb: unknown key; did you mean headroom_mb?",
            f"✗ {path}:4: policy.background_share: must be at most 1, got 7",
        ]

    def test_the_default_config_is_read(self, gridcore: Output, tmp_path: Path) -> None:
        code, out, _ = gridcore("check")
        assert code == 1
        assert f"{tmp_path}/config/gridcore/config.yaml: there is no such file" in out[0]
        (tmp_path / "config" / "gridcore").mkdir(parents=True)
        (tmp_path / "config" / "gridcore" / "config.yaml").write_text(SMALL)
        assert gridcore("check")[0] == 0

    @pytest.mark.parametrize(
        ("text", "line", "expected"),
        [
            (
                "gpu: { device: simulation, simulation: { total_mb: 1024 } }\n"
                "models:\n  a: { simulated: { vram_mb: 4000 } }",
                3,
                "models.a: needs 4000 MB, the budget is 512 MB: it can never be loaded",
            ),
            (
                "gpu: { device: simulation, simulation: { total_mb: 1024 } }\nmodels:\n"
                "  a: { simulated: { vram_mb: 400 }, pinned: true }\n"
                "  b: { simulated: { vram_mb: 400 }, pinned: true }",
                4,
                "models.b.pinned: pinned models need 800 MB together, the budget is 512 MB",
            ),
            (
                "gpu:\n  device: simulation\n  headroom_mb: 2048\n  simulation: { total_mb: 1024 }",
                3,
                "gpu.headroom_mb: 2048 MB leave nothing of the 1024 MB that Simulated GPU may use",
            ),
            (
                "gpu:\n  device: nvidia:0",
                2,
                "gpu.device: nvidia:0 is not supported; use cpu or simulation",
            ),
            (
                "runtimes:\n  llamacpp:\n    binary: /no/such/llama-server",
                3,
                "runtimes.llamacpp.binary: there is no file /no/such/llama-server",
            ),
            (
                "runtimes:\n  llamacpp:\n    binary: config.yaml",
                3,
                "is not executable: chmod +x",
            ),
            (
                "models:\n  m:\n    runtime: embedded\n    path: missing.gguf",
                4,
                "missing.gguf: No such file or directory",
            ),
            (
                "models:\n  m:\n    runtime: embedded\n    path: config.yaml",
                4,
                "not a GGUF file",
            ),
        ],
    )
    def test_what_the_machine_lacks(
        self, gridcore: Output, tmp_path: Path, text: str, line: int, expected: str
    ) -> None:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        code, out, _ = gridcore("check", "--config", path)
        assert code == 1
        assert len(out) == 1, out
        assert out[0].startswith(f"✗ {path}:{line}: ")
        assert expected in out[0]

    def test_llamacpp_without_a_binary(
        self, gridcore: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        path = tmp_path / "config.yaml"
        path.write_text("models:\n  m:\n    runtime: llamacpp\n    path: m.gguf\n")
        code, out, _ = gridcore("check", "--config", path)
        assert code == 1
        assert out == [
            f"✗ {path}:3: models.m.runtime: llamacpp needs llama-server, which is not on PATH: "
            "set runtimes.llamacpp.binary"
        ]


class TestModels:
    def test_listing(self, gridcore: Output, small: Path) -> None:
        code, out, err = gridcore("models", "--config", small)
        assert (code, err) == (0, [])
        assert out == [
            "MODEL  RUNTIME    CAN          CTX / SLOTS  FOOTPRINT  FITS  ALIASES",
            "a      simulated  chat,vision     4096 / 1     400 MB  yes   x",
            "family f: a",
            "budget 512 MB on Simulated GPU",
        ]

    def test_explain(self, gridcore: Output, small: Path) -> None:
        code, out, _ = gridcore("models", "--explain", "--config", small)
        assert code == 0
        assert out[0] == "a: 400 MB, simulated: vram_mb in the config, no file is read"
        assert "measured: nothing yet" in out[1]
        assert gridcore("models", "--explain", "a", "--config", small)[1] == out
        code, _, err = gridcore("models", "--explain", "b", "--config", small)
        assert code == 1
        assert "there is no model b; the config has a" in " ".join(err)

    def test_no_models(self, gridcore: Output, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("gpu: { device: simulation }")
        code, out, _ = gridcore("models", "--config", tmp_path / "config.yaml")
        assert (code, out) == (0, ["no models: name one under models: in the config"])

    def test_a_wrong_config(self, gridcore: Output, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("gpu: { devise: cpu, headrom_mb: 1 }")
        code, out, err = gridcore("models", "--config", tmp_path / "config.yaml")
        assert (code, out, len(err)) == (1, [], 2)
        assert err[0].endswith("gpu.devise: unknown key; did you mean device?")


class TestRun:
    def test_the_command_line_of_a_service(self) -> None:
        argv = service_argv(Service.GPU_MONITOR, Path("/r/instance.json"))
        assert argv[1:] == [
            *("-P", "-m", "services.gpu_monitor"),
            *("--instance", "/r/instance.json", "--name", "gpu-monitor"),
        ]
        assert service_argv(Service.GATEWAY, Path("/i"))[-1] == "gateway-0"

    def test_services_that_start_one_by_one_share_an_instance(
        self, small: Path, tmp_path: Path
    ) -> None:
        first = ensure_instance(small, tmp_path / "s")
        written = read_instance(first)
        assert read_instance(ensure_instance(small, tmp_path / "s")) == written
        assert written.config.models["a"].runtime is RuntimeKind.SIMULATED
        assert written.device == "simulation"
        assert Path(written.state_dir) == tmp_path / "s"
        assert first.parent == runtime_dir_for(tmp_path / "s")
        assert written.runtime.simulation.is_dir()

    def test_an_edited_config_makes_a_new_instance(self, small: Path, tmp_path: Path) -> None:
        path = ensure_instance(small, tmp_path / "s")
        before = read_instance(path)
        small.write_text(SMALL.replace("400", "300"))
        newer = path.stat().st_mtime_ns + 1_000_000
        os.utime(small, ns=(newer, newer))
        after = read_instance(ensure_instance(small, tmp_path / "s"))
        assert after.instance_id != before.instance_id
        assert after.settings.models[0].estimated_bytes == 300 << 20

    def test_a_running_daemon_keeps_its_instance(self, small: Path, tmp_path: Path) -> None:
        path = ensure_instance(small, tmp_path / "s")
        before = read_instance(path)
        small.write_text(SMALL.replace("400", "300"))
        with FileLock(path.parent / "lock", owned="runtime directory"):
            assert read_instance(ensure_instance(small, tmp_path / "s")) == before

    def test_a_wrong_config_writes_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "config.yaml").write_text("models: { m: { path: missing.gguf } }")
        with pytest.raises(ConfigError):
            ensure_instance(tmp_path / "config.yaml", tmp_path / "s")
        assert not (runtime_dir_for(tmp_path / "s") / "instance.json").exists()

    def test_a_service_of_a_daemon_that_is_not_there(self, tmp_path: Path) -> None:
        """The CLI replaces itself by the service, whose own error it is."""
        command = [sys.executable, "-m", "gridcore.cli.app", "run", "metrics-exporter"]
        done = subprocess.run(
            [*command, "--instance", str(tmp_path / "none.json")],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "none.json" in done.stderr
        assert "Traceback" not in done.stderr


def test_examples_are_found() -> None:
    assert example("simulation.yaml") == SIMULATION
    assert example("config.example.yaml") == ROOT / "config.example.yaml"


def test_columns_fit_their_widest_cell() -> None:
    assert table(["A", "N", ""], [["x", "10 MB", ""], ["longer", "9 MB", "y"]]) == [
        "A           N",
        "x       10 MB",
        "longer   9 MB  y",
    ]
