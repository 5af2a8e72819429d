"""Bytes of weights by place, as the loader's buffers hold them."""

from collections.abc import Sequence

import msgspec

from gridcore.gguf.offload import HOST, PlacedTensor

# llama-arch.cpp groups: what a person recognises in a table.
_EXPERTS = ("_exps", "_chexps")


class WeightBytes(msgspec.Struct, frozen=True):
    """Bytes of one group of tensors at one place."""

    group: str
    place: int
    bytes: int


def weight_bytes(placed: Sequence[PlacedTensor]) -> list[WeightBytes]:
    """Sum the tensors by group and place, in the order they first appear."""
    totals: dict[tuple[str, int], int] = {}
    for item in placed:
        key = (_group(item), item.place)
        totals[key] = totals.get(key, 0) + item.bytes
    return [WeightBytes(group, place, size) for (group, place), size in totals.items()]


def total_bytes(placed: Sequence[PlacedTensor], *, on_host: bool) -> int:
    return sum(item.bytes for item in placed if (item.place == HOST) is on_host)


def _group(item: PlacedTensor) -> str:
    if item.is_copy:
        return "output (second copy of the tied embeddings)"
    if item.block is not None:
        part = item.name.split(".", 2)[2]
        if any(mark in part for mark in _EXPERTS):
            return "experts"
        return "layers"
    base = item.name.split(".", 1)[0]
    if base in ("token_embd", "per_layer_token_embd", "position_embd", "token_types"):
        return "token embeddings"
    if base.startswith(("output", "cls")):
        return "output"
    return "other"
