"""Bytes of what a model remembers: key-value caches and recurrent state.

It follows llama-context.cpp, llama-kv-cache.cpp, llama-kv-cache-iswa.cpp and
llama-memory-recurrent.cpp. A cache lies where its layer lies, unless -nkvo keeps it on the host.
"""

import msgspec

from gridcore.gguf.flags import FlagError, Flags, FlashAttention, cache_type
from gridcore.gguf.hparams import HyperParameters, Layer
from gridcore.gguf.offload import HOST, Offload

CELLS_MULTIPLE = 256  # llama-context.cpp pads n_ctx, llama-kv-cache-iswa.cpp its window
STATE_FLOAT_BYTES = 4  # recurrent state is always F32

# llama-hparams.cpp: these keep 1 + n_max states a slot while they draft.
_ROLLBACK_STATES = frozenset(
    {"qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"}
)
_ROLLBACK_SPECULATION = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash"})


class CacheShape(msgspec.Struct, frozen=True):
    """Sizes of a context in tokens. ``cells`` are those of one stream."""

    n_ctx: int
    n_slots: int
    is_unified: bool
    cells: int
    cells_swa: int
    n_streams: int
    batch: int
    ubatch: int
    ubatch_reserved: int


class CacheBytes(msgspec.Struct, frozen=True):
    """Bytes of one layer's cache or state and its place."""

    layer: int
    place: int
    is_state: bool
    is_swa: bool
    bytes: int


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def cache_shape(hparams: HyperParameters, flags: Flags) -> CacheShape:
    """Resolve context, slots and batch sizes (llama-context.cpp, server.cpp)."""
    n_slots = flags.n_slots
    unified = flags.is_unified
    asked = flags.context
    if asked <= 0 and unified and flags.kv_unified_per_slot > 0:
        asked = n_slots * flags.kv_unified_per_slot
    n_ctx = round_up(asked if asked > 0 else hparams.n_ctx_train, CELLS_MULTIPLE)
    if unified:
        cells, n_streams = n_ctx, 1
    else:
        cells, n_streams = round_up(n_ctx // n_slots, CELLS_MULTIPLE), n_slots
        n_ctx = cells * n_slots
    batch = flags.batch
    if hparams.is_causal:
        batch = min(batch, n_ctx)
    elif flags.wants_all_outputs:
        batch = min(batch, flags.ubatch)  # server.cpp: an embedding batch is one ubatch
    ubatch = min(batch, flags.ubatch or batch)
    window = hparams.n_swa * (n_slots if unified else 1) + ubatch
    cells_swa = cells if flags.swa_full else round_up(min(cells, window), CELLS_MULTIPLE)
    return CacheShape(
        n_ctx=n_ctx,
        n_slots=n_slots,
        is_unified=unified,
        cells=cells,
        cells_swa=cells_swa,
        n_streams=n_streams,
        batch=batch,
        ubatch=ubatch,
        # A reserved batch spreads evenly over the streams (llama-context.cpp graph_reserve).
        ubatch_reserved=round_up(min(ubatch, n_ctx), n_streams),
    )


def flash_attention(hparams: HyperParameters, flags: Flags) -> bool:
    """Decide whether flash attention runs; auto means yes on every backend known here."""
    quantized_v = flags.cache_type_v not in ("f32", "f16", "bf16")
    if flags.flash_attention is FlashAttention.OFF and quantized_v:
        raise FlagError("-ctv: a quantized V cache needs flash attention, and -fa off forbids it")
    if hparams.architecture == "grok":
        return False  # llama-context.cpp: grok's soft-capping is not supported by the kernel
    if flags.flash_attention is FlashAttention.AUTO and runs_attention_on_host(hparams, flags):
        return False
    return flags.flash_attention is not FlashAttention.OFF


# In these the scheduler leaves attention beside a cache that -nkvo keeps on the host, and a flash
# attention that is not on its layer's device is turned off (llama-context.cpp, resolve auto).
_ATTENTION_FOLLOWS_CACHE = frozenset({"falcon-h1", "jamba", "lfm2", "lfm2moe"})


def runs_attention_on_host(hparams: HyperParameters, flags: Flags) -> bool:
    """Does -nkvo move attention itself, and not only the cache, to the host?"""
    return not flags.kv_offload and hparams.architecture in _ATTENTION_FOLLOWS_CACHE


def context_bytes(
    hparams: HyperParameters,
    flags: Flags,
    shape: CacheShape,
    offload: Offload,
    *,
    nextn_only: bool = False,
) -> list[CacheBytes]:
    """List the cache and state of every layer that has one.

    ``nextn_only`` is the second context of MTP drafting, which caches the NextN blocks alone.
    """
    if not hparams.has_memory:
        return []
    if nextn_only:
        first, last = hparams.n_layer_main, hparams.n_layer
    else:
        first, last = 0, hparams.n_layer_main
    found: list[CacheBytes] = []
    for il in range(first, last):
        layer = hparams.layers[il]
        place = offload.blocks[il] if flags.kv_offload else HOST
        if layer.has_attention and layer.n_head_kv:
            n_bytes = attention_bytes(hparams, layer, flags, shape)
            found.append(CacheBytes(il, place, False, layer.is_swa, n_bytes))
        if layer.has_state:
            n_bytes = state_bytes(hparams, flags, shape)
            found.append(CacheBytes(il, place, True, False, n_bytes))
    return found


def attention_bytes(hparams: HyperParameters, layer: Layer, flags: Flags, shape: CacheShape) -> int:
    """cells * streams * (row of K + row of V), llama-kv-cache.cpp constructor."""
    type_k = cache_type(flags.cache_type_k, "-ctk")
    type_v = cache_type(flags.cache_type_v, "-ctv")
    cells = shape.cells_swa if layer.is_swa else shape.cells
    row = type_k.row_bytes(layer.k_width)
    if not hparams.is_mla:  # MLA keeps the compressed row once, as K
        # Without flash attention V is stored transposed, all layers as wide as the widest.
        transposed = not flash_attention(hparams, flags)
        row += type_v.row_bytes(hparams.v_width_max if transposed else layer.v_width)
    return cells * shape.n_streams * row


def state_bytes(hparams: HyperParameters, flags: Flags, shape: CacheShape) -> int:
    """A state for every slot, whatever the context (llama-memory-recurrent.cpp)."""
    states = shape.n_slots
    if hparams.architecture in _ROLLBACK_STATES and _ROLLBACK_SPECULATION & set(flags.spec_types):
        states *= 1 + flags.draft_tokens
    return STATE_FLOAT_BYTES * states * (hparams.state_r + hparams.state_s)
