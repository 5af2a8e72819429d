"""What a model will take, per device and on the host, before it is loaded.

This puts the parts together: weights, context, compute buffers, a projector, a draft model,
and what a backend needs beside them. The parts up to the last follow llama.cpp's accounting.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

import msgspec

from gridcore.gguf.compute import ContextPlan, compute_bytes
from gridcore.gguf.context import CacheShape, cache_shape, context_bytes
from gridcore.gguf.flags import GPU_LAYERS_ALL, FlagError, Flags, SplitMode, parse_flags
from gridcore.gguf.header import ArrayInfo, Header
from gridcore.gguf.hparams import HyperParameters, hyper_parameters
from gridcore.gguf.offload import HOST, place_layers, place_tensors
from gridcore.gguf.weights import weight_bytes
from gridcore.units import MB

_NO_ENV: Mapping[str, str] = MappingProxyType({})


class Backend(StrEnum):
    """What runs the device. ``plain`` is llama.cpp's accounting with nothing added."""

    PLAIN = "plain"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"
    HIP = "hip"
    CPU = "cpu"


# Memory of a process that no breakdown of llama.cpp contains, until a load has been measured.
# CUDA: context and kernels were seen at 107 MB (RTX 4060 Ti) to 555 MB (RTX PRO 6000) in
# llama.cpp #23604 and #20595; cuBLAS adds 4 to 32 MB, the pool tens of MB. HIP is built from
# the same source. Vulkan pipelines are tens of MB; Metal's pool is counted by its buffers.
_DEVICE_OVERHEAD_BYTES = {
    Backend.PLAIN: 0,
    Backend.CUDA: 250 * MB,
    Backend.HIP: 250 * MB,
    Backend.VULKAN: 100 * MB,
    Backend.METAL: 64 * MB,
    Backend.CPU: 0,
}
# A runtime beside its buffers, after its first full batch: what the process holds for itself
# (thread pools, graphs, scratch of the operations), per vocabulary entry candidates for
# sampling, and per token that the file lists its text and its place in the tokenizer's tables.
# Measured on Linux with one to four slots and llama.cpp b11434: 21 MB for 49k entries, 51 MB for
# 262k, 19 MB less for a file without a list. From the wheel in a Python process: 38 and 71 MB.
_PROCESS_BYTES = 14 * MB
_WHEEL_PROCESS_BYTES = 32 * MB
_SAMPLING_BYTES_PER_ENTRY = 64
_TOKENIZER_BYTES_PER_TOKEN = 88
# Backends whose allocator pads like ggml-cuda.cu and that take over host matrices.
_LIKE_CUDA = frozenset({Backend.CUDA, Backend.HIP})
# clip.cpp warms up with an image of its largest size: activations of a patch grid.
MMPROJ_PATCHES_MAX = 4096
NOT_COMPARED = "has not been compared with llama.cpp"


class Part(msgspec.Struct, frozen=True):
    """One row of the explanation: what takes memory, where, how much, by which rule.

    ``kind`` is the column of a breakdown that it belongs to.
    """

    what: str
    where: str
    bytes: int
    rule: str
    kind: str


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes at one place; ``overhead`` is in none of llama.cpp's breakdowns."""

    weights_bytes: int = 0
    context_bytes: int = 0
    compute_bytes: int = 0
    overhead_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.context_bytes + self.compute_bytes + self.overhead_bytes


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A model's footprint. ``device`` sums all devices; ``per_device`` splits it.

    ``host_growth_bytes`` is not in the totals: what llama-server may add in host memory while
    it serves, for its prompt cache and the checkpoints of contexts that cannot be cut.
    """

    device: Footprint
    host: Footprint
    per_device: tuple[Footprint, ...]
    is_known: bool
    """Was llama.cpp asked, or its accounting of this architecture compared with the rules?"""
    is_complete: bool
    """Is everything counted that belongs to it, and nothing by a worst case?"""
    source: str
    notes: tuple[str, ...]
    parts: tuple[Part, ...]
    n_ctx: int
    n_slots: int
    host_growth_bytes: int

    @property
    def verified(self) -> bool:
        return self.is_known and self.is_complete

    @property
    def unified_total_bytes(self) -> int:
        """What a machine with one memory for both must have."""
        return self.device.total_bytes + self.host.total_bytes


def estimate(
    header: Header,
    args: Sequence[str],
    *,
    env: Mapping[str, str] = _NO_ENV,
    mmproj: Header | None = None,
    draft: Header | None = None,
    backend: Backend = Backend.PLAIN,
    in_wheel: bool = False,
) -> Estimate:
    """Estimate what llama-server takes for this model with these arguments.

    Args:
        in_wheel: it runs inside a Python process, from the xllamacpp wheel.

    Raises:
        FlagError: an argument that llama-server would refuse.
    """
    flags = parse_flags(args, env)
    hparams = hyper_parameters(header)
    shape = cache_shape(hparams, flags)
    n_devices = flags.n_devices if flags.has_device and backend is not Backend.CPU else 0
    tally = _Tally(n_devices)
    _add_context(tally, header, hparams, flags, shape, backend=backend)
    if flags.uses_mtp and hparams.n_nextn:
        _add_mtp(tally, header, hparams, flags, shape)
    elif draft is not None:
        _add_draft(tally, draft, flags, shape, backend)
    if mmproj is not None:
        _add_mmproj(tally, mmproj, flags)
    for device in range(n_devices):
        tally.add(
            "backend",
            device,
            "overhead",
            _DEVICE_OVERHEAD_BYTES[backend],
            "context, kernels and pools of the backend; replaced by a measurement",
        )
    if backend is not Backend.PLAIN:
        what = "Python and the wheel" if in_wheel else "llama-server"
        rule = f"{what} beside its buffers; grows with the vocabulary"
        tally.add("process", HOST, "overhead", _process_bytes(header, hparams, in_wheel), rule)
    devices = range(n_devices)
    return Estimate(
        device=tally.footprint(devices),
        host=tally.footprint((HOST,)),
        per_device=tuple(tally.footprint((device,)) for device in devices),
        is_known=hparams.is_known,
        is_complete=mmproj is None and not flags.lora,
        source="rules",
        notes=(
            *_model_notes(header, hparams, shape),
            *_flag_notes(
                flags, backend, has_draft=draft is not None, has_mmproj=mmproj is not None
            ),
        ),
        parts=tuple(tally.parts),
        n_ctx=shape.n_ctx,
        n_slots=shape.n_slots,
        host_growth_bytes=max(0, flags.cache_ram_mb) * MB
        + max(0, flags.checkpoints) * tally.checkpoint_bytes,
    )


def _process_bytes(header: Header, hparams: HyperParameters, in_wheel: bool) -> int:
    listed = header.metadata.get("tokenizer.ggml.tokens")
    n_tokens = listed.length if isinstance(listed, ArrayInfo) else 0
    n_bytes = _WHEEL_PROCESS_BYTES if in_wheel else _PROCESS_BYTES
    n_bytes += _SAMPLING_BYTES_PER_ENTRY * hparams.n_vocab
    return n_bytes + _TOKENIZER_BYTES_PER_TOKEN * n_tokens


def _add_context(
    tally: "_Tally",
    header: Header,
    hparams: HyperParameters,
    flags: Flags,
    shape: CacheShape,
    *,
    backend: Backend,
    prefix: str = "",
) -> None:
    """Add weights, context and compute of one model."""
    offload = place_layers(hparams, flags.gpu_layers, tally.n_devices, flags.tensor_split)
    placed = place_tensors(header, hparams, offload, flags.overrides, with_nextn=flags.uses_mtp)
    for group in weight_bytes(placed):
        rule = "sum of tensor sizes"
        if "tied" in group.group:
            rule = "the file has no output matrix, the device keeps a second copy"
        tally.add(prefix + group.group, group.place, "weights", group.bytes, rule)
    sums: dict[tuple[int, bool, bool], int] = {}
    for cache in context_bytes(hparams, flags, shape, offload):
        if cache.is_state or (cache.is_swa and not flags.swa_full):
            tally.checkpoint_bytes += cache.bytes  # server-context.cpp: a copy of all slots'
        key = (cache.place, cache.is_state, cache.is_swa)
        sums[key] = sums.get(key, 0) + cache.bytes
    for (place, is_state, is_swa), n_bytes in sums.items():
        what, rule = "KV cache", f"{shape.cells} cells x {shape.n_streams} a layer"
        if is_state:
            what, rule = "recurrent state", f"{shape.n_slots} slots, whatever the context"
        elif is_swa:
            what = "KV cache, sliding window"
            rule = f"{shape.cells_swa} cells x {shape.n_streams} a layer"
        tally.add(prefix + what, place, "context", n_bytes, rule)
    plan = ContextPlan(header, hparams, flags, shape, offload, placed)
    compute = compute_bytes(plan, like_cuda=backend in _LIKE_CUDA)
    rule = f"peak of one layer for a batch of {shape.ubatch_reserved} tokens"
    for device, n_bytes in enumerate(compute.devices):
        tally.add(prefix + "compute buffer", device, "compute", n_bytes, rule)
    tally.add(prefix + "compute buffer", HOST, "compute", compute.host, rule)
    rule = f"{shape.n_slots} x vocabulary x 4, in no breakdown"
    if flags.wants_all_outputs:
        rule = f"vocabulary x 4 for each of {shape.batch} tokens, taken by the first full batch"
    tally.add(prefix + "output buffer", HOST, "overhead", compute.output, rule)


def _add_mtp(
    tally: "_Tally", header: Header, hparams: HyperParameters, flags: Flags, shape: CacheShape
) -> None:
    """A second context over the NextN blocks, its buffer like the target's (server-context.cpp)."""
    offload = place_layers(hparams, flags.gpu_layers, tally.n_devices, flags.tensor_split)
    for cache in context_bytes(hparams, flags, shape, offload, nextn_only=True):
        tally.add(
            "MTP KV cache", cache.place, "context", cache.bytes, "the NextN blocks' own cache"
        )
    placed = place_tensors(header, hparams, offload, flags.overrides, with_nextn=True)
    plan = ContextPlan(header, hparams, flags, shape, offload, placed)
    compute = compute_bytes(plan, like_cuda=False)
    for device, n_bytes in enumerate(compute.devices):
        tally.add("MTP compute buffer", device, "compute", n_bytes, "like the target's")
    tally.add("MTP compute buffer", HOST, "compute", compute.host, "like the target's")


def _add_draft(
    tally: "_Tally", draft: Header, flags: Flags, shape: CacheShape, backend: Backend
) -> None:
    """A whole second model with the target's context (common.cpp, speculative)."""
    draft_flags = msgspec.structs.replace(
        flags,
        context=shape.n_ctx,
        slots=flags.slots,
        gpu_layers=flags.draft_gpu_layers,
        overrides=flags.draft_overrides,
        cache_type_k=flags.draft_cache_type_k,
        cache_type_v=flags.draft_cache_type_v,
        devices=flags.draft_devices if flags.draft_devices is not None else flags.devices,
        spec_types=(),
        draft_model=None,
    )
    if draft_flags.devices == ():
        draft_flags = msgspec.structs.replace(draft_flags, gpu_layers=0)
    hparams = hyper_parameters(draft)
    draft_shape = cache_shape(hparams, draft_flags)
    _add_context(tally, draft, hparams, draft_flags, draft_shape, backend=backend, prefix="draft: ")


def _add_mmproj(tally: "_Tally", mmproj: Header, flags: Flags) -> None:
    """Weights of the projector and its buffer for an image of the largest size (clip.cpp)."""
    on_device = tally.n_devices > 0 and flags.mmproj_offload and flags.mmproj_device != "none"
    place = 0 if on_device else HOST
    tally.add("projector", place, "weights", mmproj.tensor_bytes, "sum of tensor sizes")
    tally.add(
        "projector, encode buffer",
        place,
        "compute",
        encode_bytes(mmproj),
        "largest image: patches x (attention scores + 4 feed-forward widths)",
    )


def encode_bytes(mmproj: Header) -> int:
    """Worst-case working memory of encoding one image or a stretch of sound.

    clip.cpp builds one graph over all patches: scores of all heads (F32, no flash attention on
    many backends) or, where they are smaller, the feed-forward of one layer.
    """
    largest = 0
    for kind in ("vision", "audio"):
        embd = _number(mmproj, f"clip.{kind}.embedding_length")
        if not embd:
            continue
        heads = _number(mmproj, f"clip.{kind}.attention.head_count")
        width = _number(mmproj, f"clip.{kind}.feed_forward_length", 4 * embd)
        side = _number(mmproj, f"clip.{kind}.image_size")
        patch = _number(mmproj, f"clip.{kind}.patch_size")
        patches = (side // patch) ** 2 if side and patch else MMPROJ_PATCHES_MAX
        dynamic = _number(mmproj, f"clip.{kind}.image_max_pixels")
        if dynamic and patch:
            patches = max(patches, dynamic // (patch * patch))
        patches = min(max(patches, 1), MMPROJ_PATCHES_MAX)
        floats = patches * (heads * patches + 2 * width + 5 * embd)
        largest = max(largest, 4 * floats)
    return largest


def _number(header: Header, key: str, default: int = 0) -> int:
    value = header.metadata.get(key)
    return int(value) if isinstance(value, int | float) else default


class _Tally:
    """Sums parts by place and kind while they are found."""

    def __init__(self, n_devices: int) -> None:
        self.n_devices = n_devices
        self.parts: list[Part] = []
        self.sums: dict[tuple[int, str], int] = {}
        self.checkpoint_bytes = 0

    def add(self, what: str, place: int, kind: str, n_bytes: int, rule: str) -> None:
        if n_bytes <= 0:
            return
        where = "host"
        if place != HOST:
            place = min(place, max(0, self.n_devices - 1))
            where = "device" if self.n_devices <= 1 else f"device {place}"
        self.parts.append(Part(what, where, n_bytes, rule, kind))
        self.sums[place, kind] = self.sums.get((place, kind), 0) + n_bytes

    def footprint(self, places: Sequence[int]) -> Footprint:
        def total(kind: str) -> int:
            return sum(self.sums.get((place, kind), 0) for place in places)

        return Footprint(
            weights_bytes=total("weights"),
            context_bytes=total("context"),
            compute_bytes=total("compute"),
            overhead_bytes=total("overhead"),
        )


def _model_notes(header: Header, hparams: HyperParameters, shape: CacheShape) -> list[str]:
    notes: list[str] = []
    if not hparams.is_known:
        notes.append(
            f"the architecture {hparams.architecture!r} {NOT_COMPARED}: "
            "weights are exact, the context is an upper bound"
        )
    if header.missing_bytes:
        notes.append(
            f"the file lacks {header.missing_bytes} bytes of its data; llama-server will refuse it"
        )
    if shape.n_ctx > hparams.n_ctx_train > 0:
        notes.append(
            f"memory is taken for {shape.n_ctx} tokens, the model was trained on "
            f"{hparams.n_ctx_train}: a slot will not use more"
        )
    return notes


def _flag_notes(flags: Flags, backend: Backend, *, has_draft: bool, has_mmproj: bool) -> list[str]:
    notes: list[str] = []
    if flags.fit and backend is not Backend.PLAIN and not flags.context:
        notes.append("without -c llama-server's own --fit may lower the context at load")
    if backend is Backend.CPU and flags.load_mode != "none" and flags.repack:
        notes.append("with mmap, repacked weights are a second copy; -lm none avoids it")
    if backend is not Backend.PLAIN and flags.cache_ram_mb:
        limit = f"{flags.cache_ram_mb} MB" if flags.cache_ram_mb > 0 else "any size"
        notes.append(f"the prompt cache may grow to {limit} of host memory; --cache-ram limits it")
    if has_mmproj:
        notes.append("the projector's encode buffer is a worst case and was not compared")
    elif flags.mmproj:
        notes.append("the projector's file was not given and is not counted")
    if flags.draft_model and not has_draft:
        notes.append("the draft model's file was not given and is not counted")
    if flags.lora:
        notes.append("LoRA adapters are not counted")
    if flags.split_mode in (SplitMode.ROW, SplitMode.TENSOR):
        notes.append(f"-sm {flags.split_mode} was not compared with llama.cpp")
    return notes


def largest_context(
    header: Header,
    args: Sequence[str],
    card_bytes: int,
    *,
    env: Mapping[str, str] = _NO_ENV,
    mmproj: Header | None = None,
    draft: Header | None = None,
    backend: Backend = Backend.PLAIN,
    unified: bool = False,
) -> int | None:
    """Return the largest multiple of 256 that fits ``card_bytes``; None if not even 256 does.

    It is the total ``-c`` of these arguments, at most the training context (a slot uses no
    more), times the slots where they do not share one pool. ``unified`` counts the host too,
    as one memory for both must hold it; so does the backend ``cpu``.
    """
    flags = parse_flags(args, env)
    hparams = hyper_parameters(header)
    streams = 1 if flags.is_unified else flags.n_slots
    n_ctx_train = hparams.n_ctx_train or GPU_LAYERS_ALL
    highest = max(1, n_ctx_train * streams // _STEP)

    def fits(steps: int) -> bool:
        chosen = [*args, "-c", str(steps * _STEP)]
        found = estimate(header, chosen, env=env, mmproj=mmproj, draft=draft, backend=backend)
        total = found.device.total_bytes
        if unified or backend is Backend.CPU:
            total = found.unified_total_bytes
        return total <= card_bytes

    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low * _STEP or None


_STEP = 256

__all__ = [
    "Backend",
    "Estimate",
    "FlagError",
    "Footprint",
    "Part",
    "estimate",
    "largest_context",
]
