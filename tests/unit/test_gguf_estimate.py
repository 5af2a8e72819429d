"""Estimates beside llama.cpp's own accounting, and the rules one by one."""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gridcore.gguf.estimate import Backend, Estimate, estimate, largest_context
from gridcore.gguf.flags import FlagError
from gridcore.gguf.header import GgufError, Header, read_header
from gridcore.units import MB
from tests.support.gguf_files import Typed, array, gguf_bytes, text, u32, write
from tests.support.ground_truth import CUDA_EMULATED, DRY_RUN, REAL_LOAD, Case, cases, header

EXACT_BYTES = 256 << 10

# gemma3n and gemma4 keep a second copy of the tied embeddings on the host at -ngl 0. A rule
# covers them since; they are named so that a change of that rule is seen for what it is.
QUIRK_MODELS = ("gemma-3n-e4b-q4_k_m", "gemma-4-e4b-q4_k_m", "gemma-4-e4b-bf16")


def found(model: str | Header, args: str, backend: Backend = Backend.PLAIN) -> Estimate:
    return estimate(
        header(model) if isinstance(model, str) else model, args.split(), backend=backend
    )


def _off(case: Case) -> list[str]:
    device, host = case.estimate.device, case.estimate.host
    pairs = {
        "device weights": (device.weights_bytes, case.device[0]),
        "device context": (device.context_bytes, case.device[1]),
        "host weights": (host.weights_bytes, case.host[0]),
        "host context": (host.context_bytes, case.host[1]),
    }
    return [what for what, (ours, theirs) in pairs.items() if abs(ours - theirs) > EXACT_BYTES]


def test_weights_and_context_are_exact() -> None:
    """On every row that was not really loaded; a real load maps more than the tensors."""
    wrong = {str(c): off for c in cases() if c.source != REAL_LOAD and (off := _off(c))}
    assert not wrong


def test_the_host_copy_of_tied_embeddings_is_known() -> None:
    rows = [c for c in cases() if c.model in QUIRK_MODELS and "-ngl 0" in c.args]
    assert len(rows) >= 4
    assert not any(_off(case) for case in rows)


@pytest.mark.parametrize(
    ("source", "median_percent", "too_high_percent", "too_low_percent"),
    [(DRY_RUN, 0.01, 2.0, 2.0), (CUDA_EMULATED, 0.05, 27.0, 9.5), (REAL_LOAD, 0.01, 0.1, 0.1)],
)
def test_device_total_is_close(
    source: str, median_percent: float, too_high_percent: float, too_low_percent: float
) -> None:
    errors = [e for c in cases() if c.source == source and (e := c.error_percent) is not None]
    assert len(errors) >= 8
    assert statistics.median(map(abs, errors)) < median_percent
    assert max(errors) < too_high_percent
    assert min(errors) > -too_low_percent


def test_context_and_slots_are_llama_servers() -> None:
    split = found("llama-3.1-8b-q4_k_m", "-c 5000 -np 3")
    assert (split.n_ctx, split.n_slots) == (5376, 3)
    auto = found("llama-3.1-8b-q4_k_m", "")
    assert (auto.n_ctx, auto.n_slots) == (131072, 4)


def test_c38_mla_keeps_one_compressed_row_and_old_files_are_charged_the_classic_way() -> None:
    """Tools that count K and V of all heads, or none of the rope part, were off by 81 %."""
    layers, cells = 61, 32768
    metadata = {
        "general.architecture": text("deepseek2"),
        "deepseek2.block_count": u32(layers),
        "deepseek2.embedding_length": u32(7168),
        "deepseek2.context_length": u32(163840),
        "deepseek2.attention.head_count": u32(128),
        "deepseek2.attention.head_count_kv": u32(1),
        "deepseek2.attention.kv_lora_rank": u32(512),
        "deepseek2.rope.dimension_count": u32(64),
        "deepseek2.attention.key_length": u32(576),
        "deepseek2.attention.value_length": u32(512),
        "deepseek2.attention.key_length_mla": u32(192),
        "deepseek2.attention.value_length_mla": u32(128),
    }
    args = f"-c {cells} -np 1"
    assert found(_model(metadata), args).device.context_bytes == layers * 576 * cells * 2
    classic = {k: v for k, v in metadata.items() if not k.endswith("_mla")} | {
        "deepseek2.attention.head_count_kv": u32(128),
        "deepseek2.attention.key_length": u32(192),
        "deepseek2.attention.value_length": u32(128),
    }
    expected = layers * 128 * (192 + 128) * cells * 2
    assert found(_model(classic), args).device.context_bytes == expected


def test_c39_local_layers_cost_their_window_and_global_ones_the_context() -> None:
    """Counting every layer in full was up to 40 times too much."""
    n_layer, pattern = 12, [(il + 1) % 6 != 0 for il in range(12)]
    metadata = {
        "general.architecture": text("gemma4"),
        "gemma4.block_count": u32(n_layer),
        "gemma4.embedding_length": u32(2816),
        "gemma4.context_length": u32(131072),
        "gemma4.attention.head_count": u32(16),
        "gemma4.attention.head_count_kv": array(4, [8 if local else 2 for local in pattern]),
        "gemma4.attention.key_length": u32(512),
        "gemma4.attention.value_length": u32(512),
        "gemma4.attention.key_length_swa": u32(256),
        "gemma4.attention.value_length_swa": u32(256),
        "gemma4.attention.sliding_window": u32(1024),
        "gemma4.attention.sliding_window_pattern": array(7, pattern),
    }
    model = _model(metadata)

    def expected(global_cells: int, local_cells: int) -> int:
        return 2 * global_cells * 2 * 2 * 512 * 2 + 10 * local_cells * 8 * 2 * 256 * 2

    one = found(model, "-c 131072 -np 1")
    assert one.device.context_bytes == expected(131072, 1024 + 512)
    unified = found(model, "-c 131072")
    assert unified.device.context_bytes == expected(131072, 4 * 1024 + 512)
    wide = found(model, "-c 131072 -np 1 -b 2048 -ub 2000")
    assert wide.device.context_bytes == expected(131072, 3072)
    full = found(model, "-c 131072 -np 1 --swa-full")
    assert full.device.context_bytes == expected(131072, 131072)


@pytest.mark.parametrize("model", ["smollm2-135m-real", "gemma-3-270m-real-novocab"])
def test_c41_the_compute_buffer_counts_and_the_output_buffer_is_the_hosts(model: str) -> None:
    rows = [case for case in cases() if case.model == model]
    assert {case.source for case in rows} >= {DRY_RUN, REAL_LOAD}
    for case in rows:
        assert case.estimate.device.overhead_bytes == (
            250 * MB if case.source == CUDA_EMULATED else 0
        )
        if case.source == CUDA_EMULATED or not case.device_bytes:
            continue
        assert case.estimate.device.compute_bytes == pytest.approx(case.device[2], rel=0.1)
        assert case.estimate.host.overhead_bytes == pytest.approx(case.output_bytes, rel=0.1)


def test_a_chat_server_has_no_logits_for_a_whole_batch_and_an_embedder_has() -> None:
    chat = found("qwen3-embedding-0.6b-q8_0", "-c 8192 -np 1 -ub 2048")
    embedder = found("qwen3-embedding-0.6b-q8_0", "-c 8192 -np 1 -ub 2048 --embeddings")
    assert chat.device.compute_bytes < 160 * MB
    assert embedder.device.compute_bytes > 1200 * MB


def test_quantized_v_without_flash_attention_is_refused() -> None:
    with pytest.raises(FlagError, match="-ctv"):
        found("llama-3.1-8b-q4_k_m", "-ctk q8_0 -ctv q8_0 -fa off")


def test_recurrent_state_depends_on_slots_and_not_on_context() -> None:
    def state(args: str) -> int:
        return found("mamba-2.8b-f16", args).device.context_bytes

    assert state("-c 4096 -np 1") == state("-c 65536 -np 1")
    assert state("-c 4096 -np 4") == 4 * state("-c 4096 -np 1")


def test_on_the_cpu_backend_everything_is_host_memory() -> None:
    cpu = found("llama-3.1-8b-q4_k_m", "-c 4096 -np 1", Backend.CPU)
    assert cpu.device.total_bytes == 0
    assert cpu.unified_total_bytes == cpu.host.total_bytes
    assert cpu.host.weights_bytes == header("llama-3.1-8b-q4_k_m").tensor_bytes


@pytest.mark.parametrize(
    ("model", "args", "anonymous_mib"),
    [
        ("smollm2-135m-real", "-c 4096 -np 1 -lm none", 203 + 14),
        ("gemma-3-270m-real-novocab", "-c 8192 -np 1 -lm none", 322 + 14),
        ("gemma-3-270m-real-novocab", "-c 8192 -np 1 -lm none -nr", 321 + 14),
    ],
)
def test_the_process_on_a_cpu_is_within_five_percent(
    model: str, args: str, anonymous_mib: int
) -> None:
    """Beside RssAnon and RssFile of a real llama-server."""
    total = found(model, args, Backend.CPU).unified_total_bytes
    assert total == pytest.approx(anonymous_mib * MB, rel=0.05)


def test_what_grows_while_serving_is_told_apart() -> None:
    """Prompt cache and checkpoints fill host memory later; they are not reserved silently."""
    dense = found("llama-3.1-8b-q4_k_m", "-c 16384 -np 2")
    assert dense.host_growth_bytes == 8192 * MB
    quiet = found("llama-3.1-8b-q4_k_m", "-c 16384 -np 2 --cache-ram 0")
    assert quiet.host_growth_bytes == 0
    assert quiet.host == dense.host
    recurrent = found("mamba-2.8b-f16", "-np 2 --cache-ram 0 -ctxcp 3")
    assert recurrent.host_growth_bytes == 3 * recurrent.device.context_bytes


def test_parts_add_up_to_the_totals() -> None:
    for model in ("gemma-4-e4b-q4_k_m", "nemotron-3-nano-30b-a3b-q4_k_m"):
        whole = found(model, "-c 16384 -np 2 -ngl 20", Backend.CUDA)
        by_place = {"device": 0, "host": 0}
        for part in whole.parts:
            by_place[part.where] += part.bytes
        assert by_place == {
            "device": whole.device.total_bytes,
            "host": whole.host.total_bytes,
        }


def test_an_unknown_architecture_is_estimated_and_says_so() -> None:
    metadata = {
        "general.architecture": text("novel"),
        "novel.block_count": u32(2),
        "novel.embedding_length": u32(64),
        "novel.context_length": u32(4096),
        "novel.attention.head_count": u32(4),
    }
    unknown = found(_model(metadata), "-c 4096 -np 1")
    assert not unknown.verified
    assert any("'novel'" in note for note in unknown.notes)
    assert unknown.device.context_bytes == 2 * 4096 * 2 * 64 * 2
    assert found("llama-3.1-8b-q4_k_m", "-c 4096").verified


def test_layers_of_an_unknown_hybrid_are_told_apart_by_their_tensors() -> None:
    metadata = {
        "general.architecture": text("novel"),
        "novel.block_count": u32(2),
        "novel.embedding_length": u32(64),
        "novel.attention.head_count": u32(4),
        "novel.ssm.conv_kernel": u32(4),
        "novel.ssm.inner_size": u32(128),
        "novel.ssm.state_size": u32(16),
    }
    tensors = [
        ("blk.0.ssm_in.weight", (64, 256), 0, 0),
        ("blk.1.attn_k.weight", (64, 64), 0, 64 * 256 * 4),
    ]
    hybrid = found(_model(metadata, tensors), "-c 4096 -np 1")
    state = 4 * (3 * 128 + 16 * 128)
    assert hybrid.device.context_bytes == state + 4096 * 2 * 64 * 2


def test_a_file_without_a_model_is_refused() -> None:
    with pytest.raises(GgufError, match="architecture is missing"):
        found(_model({}), "")
    with pytest.raises(GgufError, match="--mmproj"):
        found(_model({"general.architecture": text("clip")}), "")
    with pytest.raises(GgufError, match="block_count is 4000000000"):
        found(
            _model(
                {"general.architecture": text("llama"), "llama.block_count": u32(4_000_000_000)}
            ),
            "",
        )


def test_projector_adds_weights_and_an_encode_buffer() -> None:
    projector = _model(
        {
            "general.architecture": text("clip"),
            "clip.vision.embedding_length": u32(1152),
            "clip.vision.feed_forward_length": u32(4304),
            "clip.vision.attention.head_count": u32(16),
            "clip.vision.image_size": u32(896),
            "clip.vision.patch_size": u32(14),
        },
        [("v.weight", (1024, 1024), 1, 0)],
    )
    model = header("gemma-3-4b-q4_k_m")
    plain = estimate(model, ["-c", "8192"])
    seeing = estimate(model, ["-c", "8192"], mmproj=projector)
    assert seeing.device.weights_bytes - plain.device.weights_bytes == 2 << 20
    assert 500 * MB < seeing.device.compute_bytes - plain.device.compute_bytes < 1500 * MB
    on_host = estimate(model, ["-c", "8192", "--no-mmproj-offload"], mmproj=projector)
    assert on_host.device == plain.device
    assert on_host.host.weights_bytes - plain.host.weights_bytes == 2 << 20


@pytest.mark.parametrize(
    ("model", "card_mb", "args"),
    [
        ("llama-3.1-8b-q4_k_m", 8192, ""),
        ("llama-3.1-8b-q8_0", 12288, "-np 2"),
        ("qwen3-30b-a3b-q4_k_m", 20480, "-np 1"),
        ("gemma-3-12b-q4_0", 8192, "-np 1"),
        ("gemma-4-26b-a4b-q4_k_m", 16896, "-ctk q8_0 -ctv q8_0"),
        ("gpt-oss-20b-mxfp4", 12000, "-np 3"),
        ("deepseek-v2-lite-legacy-q4_k_m", 16384, "-np 1"),
        ("qwen3.5-27b-q4_k_m", 18432, ""),
        ("exaone-4.0-32b-q4_k_m", 24576, ""),
        ("granite-4.0-h-tiny-q4_k_m", 4608, "-np 1"),
    ],
)
def test_the_largest_context_fits_and_the_next_does_not(
    model: str, card_mb: int, args: str
) -> None:
    def total(n_ctx: int) -> int:
        return found(model, f"{args} -c {n_ctx}").device.total_bytes

    largest = largest_context(header(model), args.split(), card_mb * MB)
    assert largest is not None
    assert largest % 256 == 0
    assert total(largest) <= card_mb * MB < total(largest + 256)


def test_no_context_fits_a_card_smaller_than_the_weights() -> None:
    assert largest_context(header("llama-3.1-8b-q8_0"), [], 4096 * MB) is None


Tensors = Sequence[tuple[str, Sequence[int], int, int]]


def _model(metadata: Mapping[str, Typed], tensors: Tensors = ()) -> Header:
    with tempfile.TemporaryDirectory() as folder:
        return read_header(write(Path(folder) / "m.gguf", gguf_bytes(metadata, tensors)))
