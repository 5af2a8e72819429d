"""Bytes of compute buffers: the working memory of one prompt batch.

llama.cpp reserves for a batch of ``ubatch`` tokens on every device that has layers, and on the
host. What a layer needs is known to gridcore.gguf.graph; this adds what surrounds it: inputs
that live for the whole graph, what crosses between devices, what CUDA copies.
"""

from collections.abc import Container

import msgspec

from gridcore.gguf.context import CacheShape, flash_attention, runs_attention_on_host
from gridcore.gguf.flags import Flags, SplitMode, cache_type
from gridcore.gguf.graph import (
    FLOAT_BYTES,
    HALF_BYTES,
    BlockShape,
    attention_floats,
    block_shapes,
    ffn_floats,
    index_floats,
    mask_floats,
    rotation_bytes,
    scores_floats,
    state_floats,
)
from gridcore.gguf.header import Header
from gridcore.gguf.hparams import HyperParameters, Layer, LayerKind
from gridcore.gguf.offload import HOST, Offload, PlacedTensor

PIPELINE_COPIES = 4  # ggml-backend.cpp GGML_SCHED_MAX_COPIES
OP_OFFLOAD_BATCH_MIN = 32  # ggml-cuda.cu GGML_OP_OFFLOAD_MIN_BATCH


class ContextPlan(msgspec.Struct, frozen=True):
    """All that a context is made from: the model, its parameters and where its parts lie."""

    header: Header
    hparams: HyperParameters
    flags: Flags
    shape: CacheShape
    offload: Offload
    placed: list[PlacedTensor]


class ComputeBytes(msgspec.Struct, frozen=True):
    """Compute buffers per device and on the host, and the output buffer there."""

    devices: tuple[int, ...]
    host: int
    output: int


class _Graph:
    """The reserved graph of one context: its peaks by place, and what surrounds them."""

    def __init__(self, plan: ContextPlan, *, like_cuda: bool) -> None:
        hparams, flags, shape = plan.hparams, plan.flags, plan.shape
        self.hparams = hparams
        self.flags = flags
        self.shape = shape
        self.offload = plan.offload
        self.placed = plan.placed
        self.flash = flash_attention(hparams, flags)
        large = shape.ubatch_reserved >= OP_OFFLOAD_BATCH_MIN
        # Are large batches of host weights computed on the device (ggml-backend.cpp)?
        self.offloads_operations = like_cuda and flags.op_offload and large
        self.blocks = block_shapes(
            plan.header, hparams, plan.placed, ffn_returns=self.offloads_operations
        )
        self.has_experts_on_host = any(block.experts_on_host for block in self.blocks)
        self.masks = mask_floats(hparams, shape, flash=self.flash)
        self.indices = index_floats(hparams, flash=self.flash)
        self.per_layer = hparams.n_embd_per_layer * hparams.n_layer
        self.main = range(hparams.n_layer_main)
        self.rotation = rotation_bytes(hparams, flags)
        self.logits = _logits_bytes(hparams, flags, shape)
        self.embeddings = _embedding_bytes(hparams, flags, shape)
        self.float_bytes = shape.ubatch_reserved * FLOAT_BYTES  # of one float a token
        self.host_attention = runs_attention_on_host(hparams, flags)

    def owned(self, place: int) -> list[int]:
        return [il for il in self.main if self.offload.blocks[il] == place]

    def attends(self, il: int) -> bool:
        """Layers that reuse another's cache attend too."""
        layer = self.hparams.layers[il]
        without_memory = not self.hparams.has_memory
        shares = layer.kind is LayerKind.NEITHER and (without_memory or self.shares_cache(il))
        return layer.has_attention or shares

    def shares_cache(self, il: int) -> bool:
        """Has this layer no cache of its own, though it attends (gemma3n, gemma4)?"""
        hparams = self.hparams
        layer = hparams.layers[il]
        return (
            hparams.has_memory
            and layer.kind is LayerKind.NEITHER
            and layer.n_head_kv > 0
            and self.blocks[il].q_width > 0
        )

    def peak(self, place: int) -> int:
        """Floats a token of the widest layer at a place."""
        return max((self.layer_peak(il) for il in self.owned(place)), default=0)

    def layer_peak(self, il: int) -> int:
        hparams, layer, block = self.hparams, self.hparams.layers[il], self.blocks[il]
        floats = ffn_floats(hparams, block)
        if self.attends(il) and not (self.host_attention and self.offload.blocks[il] != HOST):
            if self.flash:
                floats = max(floats, attention_floats(hparams, block, layer))
            else:
                floats = max(floats, scores_floats(hparams, block, layer, self.shape))
        if layer.has_state:
            state = state_floats(hparams, block, self.shape)
            if self.has_experts_on_host:  # their results wait beside the state
                state += (5 if block.qkv else 2) * hparams.n_embd
            floats = max(floats, state)
        return floats

    def cache_row_bytes(self, layer: Layer) -> int:
        row = cache_type(self.flags.cache_type_k, "-ctk").row_bytes(layer.k_width)
        if not self.hparams.is_mla:
            row += cache_type(self.flags.cache_type_v, "-ctv").row_bytes(layer.v_width)
        return row

    def cache_bytes(self, il: int) -> int:
        layer = self.hparams.layers[il]
        cells = self.shape.cells_swa if layer.is_swa else self.shape.cells
        return cells * self.shape.n_streams * self.cache_row_bytes(layer)

    # ---- one device ----

    def is_pipelined(self) -> bool:
        """Several devices work on several batches at once (llama-context.cpp)."""
        flags, offload = self.flags, self.offload
        return (
            offload.n_devices > 1
            and offload.is_full
            and not flags.overrides
            and flags.kv_offload
            and flags.split_mode is SplitMode.LAYER
        )

    def device_bytes(self, device: int, *, like_cuda: bool) -> int:
        hparams, owned = self.hparams, self.owned(device)
        has_output = self.offload.output == device
        if owned:
            floats = self.device_floats(device, owned)
            n_bytes = floats * self.float_bytes + self.rotation
            n_bytes += self.foreign_shared_bytes(device, owned)
            if not self.flags.kv_offload and not self.host_attention:
                n_bytes = max(n_bytes, self.fetched_cache_bytes(owned))
        elif has_output:
            n_bytes = self.logits + hparams.n_embd * FLOAT_BYTES
            n_bytes += self.left_over_floats() * self.float_bytes
        else:
            n_bytes = 0
        if has_output and owned:
            around = self.masks + self.indices + 2 * hparams.n_embd
            n_bytes = max(n_bytes, self.logits + around * self.float_bytes + self.embeddings)
        if like_cuda:
            n_bytes = self.cuda_bytes(n_bytes, owned)
        return n_bytes

    def device_floats(self, device: int, owned: list[int]) -> int:
        hparams = self.hparams
        floats = self.peak(device) + self.indices + self.per_layer
        masks = self.masks if any(self.attends(il) for il in owned) else 0
        floats += 0 if self.host_attention else masks
        if self.host_attention:
            floats -= 2 * hparams.n_embd
        if self.is_pipelined():
            # Every input is kept once for each batch in flight: tokens' embeddings, masks.
            floats += (12 if owned[0] == 0 else 7) * hparams.n_embd
            floats += (PIPELINE_COPIES - 1) * (masks + self.indices)
            floats += (PIPELINE_COPIES - 1) * self.per_layer if owned[0] == 0 else 0
            if hparams.architecture == "gemma3n":
                floats += 38 * hparams.n_embd  # the AltUp streams cross devices as well
            if any(self.blocks[il].ssm_x for il in owned) and (masks or not self.masks):
                floats += (2 if owned[0] == 0 else 6) * hparams.ssm_inner  # as measured
        elif owned[0] != 0 and (hparams.has_memory or self.blocks[owned[0]].is_gated):
            # The batch's embeddings stay with the first block.
            if any(self.blocks[il].experts_on_host for il in owned):
                floats += hparams.n_embd
            elif hparams.architecture == "gemma3n":
                floats -= 10 * hparams.n_embd
            elif not any(self.blocks[il].n_ff_expert for il in owned):
                floats -= 2 * hparams.n_embd
        return floats

    def left_over_floats(self) -> int:
        """With -ngl 1 the last block's sums run beside the output where rows are picked late."""
        hparams = self.hparams
        last = self.blocks[hparams.n_layer_main - 1] if self.main else BlockShape()
        if hparams.architecture not in _PICKS_ROWS_LATE:
            return 0
        if hparams.architecture == "gemma3n":
            return 10 * hparams.n_embd + self.per_layer
        if hparams.architecture == "gpt-oss":
            return (hparams.n_expert_used + 2) * hparams.n_embd
        return (3 if last.n_ff_expert else 2) * hparams.n_embd

    def foreign_shared_bytes(self, device: int, owned: list[int]) -> int:
        """Layers that reuse a cache on another device fetch it, all in the same graph split."""
        hparams = self.hparams
        total = 0
        for il in owned:
            if not self.shares_cache(il):
                continue
            source = next(
                (
                    other
                    for other in range(il, -1, -1)
                    if hparams.layers[other].has_attention
                    and hparams.layers[other].is_swa == hparams.layers[il].is_swa
                ),
                None,
            )
            if source is None:
                continue
            if self.flags.kv_offload and self.offload.blocks[source] == device:
                continue
            total += self.cache_bytes(source)
        return total * (PIPELINE_COPIES if self.is_pipelined() else 1)

    def fetched_cache_bytes(self, owned: list[int]) -> int:
        """With -nkvo a layer's whole K and V are copied to the device for its attention."""
        largest = 0
        for il in owned:
            layer = self.hparams.layers[il]
            if layer.has_attention:
                around = attention_floats(self.hparams, self.blocks[il], layer)
                around += self.masks + self.indices + self.per_layer
                largest = max(largest, self.cache_bytes(il) + around * self.float_bytes)
        return largest

    # ---- CUDA ----

    def cuda_bytes(self, n_bytes: int, owned: list[int]) -> int:
        """Add F16 copies of a quantized cache, and host weights computed on the device."""
        flags, hparams = self.flags, self.hparams
        surround = self.masks + self.indices
        names = (flags.cache_type_k, flags.cache_type_v)
        if self.flash and any(cache_type(n, "-ctk").block > 1 or n == "bf16" for n in names):
            # fattn.cu ggml_cuda_flash_attn_ext_get_alloc_size: K and V of one layer in F16.
            for il in owned:
                layer = hparams.layers[il]
                if layer.has_attention:
                    cells = self.shape.cells_swa if layer.is_swa else self.shape.cells
                    width = layer.k_width + (0 if hparams.is_mla else layer.v_width)
                    scratch = HALF_BYTES * cells * self.shape.n_streams * width
                    around = attention_floats(hparams, self.blocks[il], layer) + surround
                    n_bytes = max(n_bytes, scratch + around * self.float_bytes)
        if not self.offloads_operations:
            return n_bytes
        return max(n_bytes + self.copied_weight_bytes(self.main), self.visiting_bytes())

    def copied_weight_bytes(self, blocks: Container[int]) -> int:
        """The largest weights of one block that wait on the device together.

        Matrices are fetched one after the other; of experts without a gate two are there at
        once.
        """
        sizes_by_block: dict[int, list[int]] = {}
        for item in self.placed:
            if item.block is None or item.block not in blocks or item.place != HOST:
                continue
            if len(item.tensor.shape) > 1:
                sizes_by_block.setdefault(item.block, []).append(item.bytes)
        largest = 0
        for il, sizes in sizes_by_block.items():
            block = self.blocks[il]
            pair = block.n_ff_expert > 0 and not block.is_expert_gated
            largest = max(largest, sum(sorted(sizes)[-2:] if pair else [max(sizes)]))
        return largest

    def visiting_bytes(self) -> int:
        """Peak of host layers, whose matrices are multiplied on the device."""
        hparams = self.hparams
        visiting = self.owned(HOST)
        surround = self.masks + self.indices + self.per_layer
        largest = 0
        for il in visiting:
            layer, block = hparams.layers[il], self.blocks[il]
            floats = self.layer_peak(il)
            # Tokens' embeddings are not there; where experts are, the masks still are.
            floats += surround if block.n_ff_expert else -2 * hparams.n_embd
            largest = max(largest, floats * self.float_bytes)
            if layer.has_attention:
                around = attention_floats(hparams, block, layer) + surround
                fetched = self.cache_bytes(il)
                if layer.head_k % 64:  # kernels for odd head sizes need one of them padded
                    fetched += fetched // 2
                largest = max(largest, fetched + around * self.float_bytes)
        return largest + self.copied_weight_bytes(visiting) if largest else 0

    # ---- the host ----

    def per_layer_hole(self) -> int:
        """Room of the per-layer embeddings before they were reordered, if nothing fits it."""
        widest = max((block.n_ff for block in self.blocks), default=0)
        if not self.per_layer:
            return 0
        return self.per_layer - widest if widest <= self.per_layer else self.per_layer

    def host_bytes(self) -> int:
        hparams = self.hparams
        embd = hparams.n_embd
        surround = self.masks + self.indices
        scaled = embd + 2 if self.per_layer else 0  # per-layer inputs need theirs scaled
        floats = 4 * embd + surround + self.per_layer + scaled + 4
        if self.is_pipelined():
            # Inputs are kept for each batch in flight (ggml-backend.cpp).
            floats = 10 * embd + PIPELINE_COPIES * (surround + 4) + self.per_layer + scaled
        offloaded = self.offloads_operations
        cpu_peak = self.peak(HOST)
        if cpu_peak and not offloaded:
            # The host also keeps room for embeddings given instead of tokens.
            given = embd if hparams.has_memory or self.blocks[0].is_gated else 3 * embd
            given += 3 * embd if hparams.architecture == "gemma3n" else self.per_layer_hole()
            floats = max(floats, cpu_peak + given + surround + self.per_layer)
        if self.host_attention and not cpu_peak:
            for il in self.main:
                if self.hparams.layers[il].has_attention:
                    scores = scores_floats(hparams, self.blocks[il], hparams.layers[il], self.shape)
                    floats = max(floats, scores + surround)
        for il in self.main:
            block = self.blocks[il]
            if offloaded:
                break
            if block.ffn_on_host:
                width = 3 * block.n_ff + (5 if self.per_layer else 2) * embd
                floats = max(floats, width + surround + 4)
            if block.experts_on_host:
                used = hparams.n_expert_used
                width = max(3 * used * block.n_ff_expert + 2 * embd, 2 * used * embd + embd)
                floats = max(floats, width + surround + 4)
        n_bytes = floats * self.float_bytes + self.rotation
        if self.offload.output == HOST:
            around = (surround + 2 * embd) * self.float_bytes
            n_bytes = max(n_bytes, self.logits + around + self.embeddings)
        return n_bytes


# These pick the rows that need an output after the last block, not inside it.
_PICKS_ROWS_LATE = frozenset(
    {
        "gpt-oss",
        "gemma3n",
        "qwen3next",
        "qwen35",
        "qwen35moe",
        "nemotron_h",
        "nemotron_h_moe",
        "mamba",
        "mamba2",
    }
)


def compute_bytes(plan: ContextPlan, *, like_cuda: bool) -> ComputeBytes:
    """Sizes of the compute buffers that llama_context reserves before it serves."""
    graph = _Graph(plan, like_cuda=like_cuda)
    n_devices = plan.offload.n_devices
    return ComputeBytes(
        devices=tuple(graph.device_bytes(d, like_cuda=like_cuda) for d in range(n_devices)),
        host=graph.host_bytes(),
        output=_output_bytes(plan.hparams, plan.flags, plan.shape),
    )


def _logits_bytes(hparams: HyperParameters, flags: Flags, shape: CacheShape) -> int:
    """Logits of a batch: a row a slot for chat, a row a token for embeddings.

    (server-context.cpp server_output_limits).
    """
    if not hparams.has_memory:
        return 0
    rows = min(shape.ubatch, shape.n_slots)
    if flags.wants_all_outputs:
        rows = shape.ubatch_reserved
    return rows * hparams.n_vocab * FLOAT_BYTES


def _embedding_bytes(hparams: HyperParameters, flags: Flags, shape: CacheShape) -> int:
    """A batch's embeddings and their pooling, which stay beside its logits.

    Measured with b11434 on the CPU: three rows a token with any pooling, four without.
    """
    if not (hparams.has_memory and flags.wants_all_outputs):
        return 0
    rows = 4 if flags.pooling == "none" else 3
    return shape.ubatch_reserved * (rows * hparams.n_embd + 8) * FLOAT_BYTES


def _output_bytes(hparams: HyperParameters, flags: Flags, shape: CacheShape) -> int:
    """llama-context.cpp output_reserve: logits a slot, in host memory and in no breakdown.

    With embeddings every token of a batch is an output; the buffer grows to that with the first
    such batch, though only the embeddings are read from it.
    """
    rows, width = shape.n_slots, hparams.n_vocab
    if flags.wants_all_outputs:
        rows = max(rows, shape.batch)
        width += hparams.n_embd
    return rows * width * FLOAT_BYTES
