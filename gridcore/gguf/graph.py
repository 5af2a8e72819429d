"""What one layer needs while it runs, in floats a token.

llama.cpp reserves for a batch of ``ubatch`` tokens; ggml-alloc.c lays tensors into holes of
freed ones, so the size is the peak of one layer plus what lives for the whole graph. The peaks
here are floats per token, read from the graphs of src/models/*.cpp and checked against what
llama.cpp reports. E is the embedding length, FF a feed-forward width, Q the width of all heads.
"""

from collections.abc import Sequence

import msgspec

from gridcore.gguf.context import CacheShape
from gridcore.gguf.flags import Flags, cache_type
from gridcore.gguf.header import Header
from gridcore.gguf.hparams import HyperParameters, Layer
from gridcore.gguf.offload import HOST, PlacedTensor

FLOAT_BYTES = 4
HALF_BYTES = 2
INPUT_FLOATS = 5  # position, K and V cell indices (8 bytes each) of a token


class BlockShape(msgspec.Struct, frozen=True):
    """Widths of one block's matrices, from its tensors; 0 where it has none."""

    n_ff: int = 0
    is_gated: bool = True
    n_ff_expert: int = 0
    is_expert_gated: bool = True
    n_ff_shared: int = 0
    q_width: int = 0
    q_projected: int = 0  # twice q_width where attention is gated
    is_parallel: bool = False  # attention and feed-forward share one norm
    ssm_in: int = 0
    ssm_conv: int = 0
    ssm_x: int = 0
    qkv: int = 0
    ffn_on_host: bool = False
    experts_on_host: bool = False


def block_shapes(
    header: Header,
    hparams: HyperParameters,
    placed: Sequence[PlacedTensor],
    *,
    ffn_returns: bool = False,
) -> list[BlockShape]:
    """Read the widths of every block from the tensor table.

    ``ffn_returns``: dense feed-forward weights on the host are multiplied on the device.
    """
    by_block: list[dict[str, tuple[int, ...]]] = [{} for _ in range(hparams.n_layer)]
    for tensor in header.tensors:
        parts = tensor.name.split(".", 2)
        if len(parts) == 3 and parts[0] == "blk" and parts[1].isdigit():
            il = int(parts[1])
            if il < len(by_block):
                by_block[il][parts[2].removesuffix(".weight")] = tensor.shape
    moved: dict[int, set[str]] = {}
    for item in placed:
        if item.is_moved and item.place == HOST and item.block is not None:
            if ffn_returns and "_exps" not in item.name:
                continue
            moved.setdefault(item.block, set()).add(item.name.split(".", 2)[2])
    return [
        _block_shape(shapes, hparams.layers[il], moved.get(il, set()))
        for il, shapes in enumerate(by_block)
    ]


def _block_shape(shapes: dict[str, tuple[int, ...]], layer: Layer, moved: set[str]) -> BlockShape:
    def rows(name: str) -> int:
        shape = shapes.get(name, ())
        return shape[1] if len(shape) > 1 else 0

    def columns(name: str) -> int:
        return shapes[name][0] if name in shapes else 0

    n_ff = columns("ffn_down")
    q_width = columns("attn_output") or layer.n_head * layer.head_v
    norms = ("ffn_norm", "post_attention_norm", "attn_output_norm", "attn_post_norm")
    return BlockShape(
        n_ff=n_ff,
        is_gated="ffn_gate" in shapes or rows("ffn_up") == 2 * n_ff,
        n_ff_expert=columns("ffn_down_exps"),
        is_expert_gated="ffn_gate_exps" in shapes or "ffn_gate_up_exps" in shapes,
        n_ff_shared=columns("ffn_down_shexp"),
        q_width=q_width,
        q_projected=rows("attn_q") or q_width,
        is_parallel=not any(norm in shapes for norm in norms) and n_ff > 0,
        ssm_in=rows("ssm_in"),
        ssm_conv=rows("ssm_conv1d"),
        ssm_x=rows("ssm_x"),
        qkv=rows("attn_qkv") if "ssm_out" in shapes else 0,
        ffn_on_host=any(name.startswith("ffn_down.") for name in moved),
        experts_on_host=any("_exps" in name for name in moved),
    )


def ffn_floats(hparams: HyperParameters, block: BlockShape) -> int:
    """Peak of the feed-forward part (llama-graph.cpp build_ffn, build_moe_ffn)."""
    embd, used = hparams.n_embd, hparams.n_expert_used
    peaks = [0]
    if block.n_ff and not block.ffn_on_host:
        # gate, up and their product, beside the residual, its norm and the batch's embeddings.
        width = 3 * block.n_ff if block.is_gated else block.n_ff
        around = 2 * embd if not block.is_gated and not hparams.has_memory else 4 * embd
        peaks.append(width + around + (embd if block.is_parallel else 0))
    if block.n_ff_expert:
        if block.experts_on_host:
            peaks.append(used * embd + 4 * embd)  # the experts' results come back
        else:
            peaks.append(_expert_floats(hparams, block))
    if block.n_ff_shared:
        peaks.append(3 * block.n_ff_shared + 5 * embd)
    peak = max(peaks)
    if not peak:
        return 0
    if hparams.architecture == "gemma3n":
        peak += 5 * embd  # four AltUp streams and the correction
    return peak


def _expert_floats(hparams: HyperParameters, block: BlockShape) -> int:
    embd, used, width = hparams.n_embd, hparams.n_expert_used, block.n_ff_expert
    if not block.is_expert_gated:
        return used * width + used * embd + 5 * embd
    peak = 3 * used * width + 4 * embd
    if 2 * width < embd:
        peak += used * embd  # the results do not fit into the hole that gate and up leave
    if hparams.architecture == "llama4":
        peak += used * embd  # llama4.cpp weighs the inputs, not the results
    return peak


def attention_floats(hparams: HyperParameters, block: BlockShape, layer: Layer) -> int:
    """Peak of attention with flash attention (llama-graph.cpp build_attn)."""
    embd = hparams.n_embd
    if hparams.is_mla:
        heads = layer.n_head
        absorbed = heads * (2 * hparams.kv_lora + hparams.rope_dims)
        return absorbed + heads * hparams.head_k_mla + 5 * embd + 2 * hparams.kv_lora
    if hparams.architecture == "gemma3n":
        return 18 * embd
    rotated = block.q_width if block.q_width > embd else 0
    gate = block.q_projected - block.q_width
    parallel = embd if block.is_parallel else 0
    return 4 * embd + block.q_width + rotated + max(0, gate) + parallel


def state_floats(hparams: HyperParameters, block: BlockShape, shape: CacheShape) -> int:
    """Peak of a recurrent layer (mamba-base.cpp, delta-net-base.cpp); states add per slot."""
    embd, inner = hparams.n_embd, hparams.ssm_inner
    per_token = shape.n_slots / max(1, shape.ubatch_reserved)
    states = int((hparams.state_s + hparams.state_r) * per_token)
    if block.qkv:
        return 4 * embd + 2 * block.qkv + int(hparams.state_r * per_token)
    if block.ssm_x:  # Mamba 1 computes its step size from the convolved input
        return 5 * inner + 2 * embd + 2 * block.ssm_x - 2 * hparams.ssm_state + states
    if block.ssm_in:
        return 2 * embd + block.ssm_in + 2 * block.ssm_conv + 2 * inner + states
    return 7 * embd  # short convolutions: three projections


def scores_floats(
    hparams: HyperParameters, block: BlockShape, layer: Layer, shape: CacheShape
) -> int:
    """Peak of attention without flash attention: all scores at once, in F32."""
    embd = hparams.n_embd
    cells = max(shape.cells, shape.cells_swa) if hparams.has_memory else shape.ubatch_reserved
    scores = layer.n_head * cells
    if hparams.is_mla:
        heads = layer.n_head
        return (
            scores
            + heads * (2 * hparams.kv_lora + hparams.rope_dims)
            + heads * hparams.head_k_mla
            + 4 * embd
        )
    rotated = block.q_width if block.q_width > embd else 0
    gate = max(0, block.q_projected - block.q_width)
    return scores + 4 * embd + block.q_width + rotated + gate


def mask_floats(hparams: HyperParameters, shape: CacheShape, *, flash: bool) -> int:
    """Attention masks of a token: F16 with flash attention, F32 without (llama-graph.cpp)."""
    attention = [layer for layer in hparams.layers[: hparams.n_layer_main] if layer.n_head_kv]
    if hparams.has_memory and not any(layer.has_attention for layer in attention):
        return 0
    cells = shape.cells if hparams.has_memory else shape.ubatch_reserved
    floats = cells if any(not layer.is_swa for layer in attention) else 0
    if hparams.has_swa:
        floats += shape.cells_swa if hparams.has_memory else cells
    return floats // 2 if flash else floats


def index_floats(hparams: HyperParameters, *, flash: bool) -> int:
    """Positions and cell indices of a token, a set for each cache."""
    caches = 2 if hparams.has_swa else 1
    floats = INPUT_FLOATS + 4 * (caches - 1)
    if not flash and hparams.has_memory and not hparams.is_mla:
        # A transposed V cache is addressed element by element, 8 bytes each.
        floats += 2 * hparams.v_width_max * caches
    return floats


def rotation_bytes(hparams: HyperParameters, flags: Flags) -> int:
    """Hadamard matrices that spread outliers before a cache is quantized (llama-kv-cache.cpp)."""
    if hparams.is_mla or not hparams.has_memory:
        return 0
    total = 0
    layers = [layer for layer in hparams.layers if layer.has_attention and layer.n_head_kv]
    for swa in (False, True):
        layer = next((layer for layer in layers if layer.is_swa is swa), None)
        if layer is None:
            continue
        if cache_type(flags.cache_type_k, "-ctk").block > 1 and layer.head_k % 64 == 0:
            size = 64
            while layer.head_k % (2 * size) == 0:
                size *= 2
            total += size * size * FLOAT_BYTES
        if cache_type(flags.cache_type_v, "-ctv").block > 1 and layer.head_v % 64 == 0:
            total += 64 * 64 * FLOAT_BYTES
    return total
