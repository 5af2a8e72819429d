"""Decides which tensor and which layer lies on a device and which in host memory.

It follows llama-model.cpp load_tensors and llama-model-loader.cpp create_tensor: layers are
counted from the last one, the output layer first; an override moves a tensor alone, while the
cache and the computation stay with the layer.
"""

import re
from collections.abc import Sequence

import msgspec

from gridcore.gguf.flags import Override
from gridcore.gguf.header import Header, Tensor
from gridcore.gguf.hparams import HyperParameters

HOST = -1
"""The place of what is in host memory; devices are numbered from 0."""


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """Where layers go: ``device_of_layer[il]`` is a device number or HOST, output last."""

    device_of_layer: tuple[int, ...]
    n_devices: int

    @property
    def output(self) -> int:
        return self.device_of_layer[-1]

    @property
    def blocks(self) -> tuple[int, ...]:
        return self.device_of_layer[:-1]

    @property
    def is_full(self) -> bool:
        return HOST not in self.device_of_layer


class PlacedTensor(msgspec.Struct, frozen=True):
    """A tensor and its place; ``is_moved`` when an override put it there."""

    name: str
    bytes: int
    place: int
    block: int | None
    is_moved: bool
    is_copy: bool
    tensor: Tensor


def place_layers(
    hparams: HyperParameters, gpu_layers: int, n_devices: int, shares: Sequence[float] = ()
) -> Offload:
    """Assign blocks and the output layer to devices.

    The first block on a device is block_count + 1 - gpu_layers, NextN blocks counted even if
    they are not loaded; several devices take consecutive runs in proportion to their shares
    (llama-model.cpp load_tensors).
    """
    n_layer = hparams.n_layer
    n_offloaded = min(gpu_layers, n_layer + 1) if n_devices > 0 else 0
    first = max(n_layer + 1 - n_offloaded, 0)
    splits = _cumulative(shares, n_devices)
    places: list[int] = []
    for il in range(n_layer + 1):
        if n_offloaded <= 0 or il < first:
            places.append(HOST)
            continue
        position = (il - first) / n_offloaded
        # std::upper_bound: the first device whose cumulative share is above the position.
        device = next((d for d, split in enumerate(splits) if split > position), n_devices - 1)
        places.append(device)
    return Offload(device_of_layer=tuple(places), n_devices=n_devices)


def _cumulative(shares: Sequence[float], n_devices: int) -> list[float]:
    wanted = list(shares[:n_devices]) + [0.0] * (n_devices - len(shares))
    if sum(wanted) <= 0:
        wanted = [1.0] * n_devices  # real splits follow free memory; equal cards are assumed
    total = sum(wanted)
    cumulative, so_far = [], 0.0
    for share in wanted:
        so_far += share
        cumulative.append(so_far / total)
    return cumulative


# llama-arch.cpp LLM_TENSOR_INFOS: tensors outside the blocks by the layer they belong to.
_INPUT = frozenset({"token_embd", "position_embd", "token_types", "per_layer_token_embd"})
_FIRST_BLOCK = frozenset({"token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm"})
_PER_DEVICE = frozenset({"rope_freqs", "rope_factors_long", "rope_factors_short"})
_EMBEDDING_NORM_IS_OUTPUT = frozenset({"lfm2", "lfm2moe"})

# Encoders end without an output matrix, so their token embedding is not used twice.
_NO_OUTPUT = frozenset(
    {
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "jina-bert-v2",
        "jina-bert-v3",
        "neo-bert",
        "modern-bert",
        "eurobert",
    }
)
# These create the output before the input embedding: the host keeps a copy even of its own.
_OUTPUT_CREATED_FIRST = frozenset({"gemma3n", "gemma4"})

_BLOCK = re.compile(r"blk\.(\d+)\.")


def place_tensors(
    header: Header,
    hparams: HyperParameters,
    offload: Offload,
    overrides: Sequence[Override],
    *,
    with_nextn: bool,
) -> list[PlacedTensor]:
    """Place every tensor that is loaded, the second copy of tied embeddings included."""
    patterns = [(re.compile(override.pattern), override) for override in overrides]
    placed: list[PlacedTensor] = []
    names = {tensor.name for tensor in header.tensors}

    def put(tensor: Tensor, layer_place: int, block: int | None, *, is_copy: bool) -> None:
        moved = next((o for pattern, o in patterns if pattern.search(tensor.name)), None)
        place = layer_place
        if moved is not None:
            place = HOST if moved.on_host else _device_number(moved, layer_place)
        placed.append(
            PlacedTensor(
                tensor.name, tensor.size_bytes, place, block, place != layer_place, is_copy, tensor
            )
        )

    for tensor in header.tensors:
        base = tensor.name.split(".", 1)[0]
        match = _BLOCK.match(tensor.name)
        if match is not None:
            block = int(match[1])
            if block >= hparams.n_layer or (block >= hparams.n_layer_main and not with_nextn):
                continue  # TENSOR_SKIP: NextN blocks are loaded for MTP drafting only
            put(tensor, offload.blocks[block], block, is_copy=False)
        elif base in _PER_DEVICE:
            for place in sorted(set(offload.blocks)):
                put(tensor, place, None, is_copy=False)
        elif base == "token_embd_norm" and hparams.architecture in _EMBEDDING_NORM_IS_OUTPUT:
            put(tensor, offload.output, None, is_copy=False)
        elif base in _FIRST_BLOCK:
            put(tensor, offload.blocks[0] if offload.blocks else HOST, None, is_copy=False)
        elif base in _INPUT:
            put(tensor, HOST, None, is_copy=False)
        else:
            put(tensor, offload.output, None, is_copy=False)

    tied = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
    if (
        tied is not None
        and "output.weight" not in names
        and hparams.architecture not in _NO_OUTPUT
        and (offload.output != HOST or hparams.architecture in _OUTPUT_CREATED_FIRST)
    ):
        put(tied, offload.output, None, is_copy=True)
    return placed


def _device_number(override: Override, default: int) -> int:
    """CUDA1, Vulkan0, MTL0 and the like end in their number; others mean the first device."""
    digits = re.search(r"(\d+)$", override.buffer)
    if digits is None:
        return max(default, 0)
    return int(digits[1])
