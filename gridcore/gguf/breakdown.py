"""llama.cpp's own breakdown of its memory, in place of the rules.

``llama-server --fit on --log-jsonl`` prints one before it loads. It knows every architecture;
what it does not contain (output buffer, projector, draft, the process) stays as estimated.
"""

import msgspec

from gridcore.gguf.estimate import NOT_COMPARED, Estimate, Footprint, Part
from gridcore.units import MB

LINE = b'"fit_memory_breakdown"'
_KINDS = ("weights", "context", "compute")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One device, the host, or another kind of buffer in host memory; in whole MiB."""

    kind: str
    name: str
    model: int
    context: int
    compute: int


class _Data(msgspec.Struct):
    unit: str
    rows: list[Row]


class _Line(msgspec.Struct):
    type: str
    data: _Data


def read_breakdown(line: bytes) -> tuple[Row, ...] | None:
    """Read the rows of a line of the log; None if it is another one."""
    if LINE not in line:
        return None
    try:
        found = msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError:
        return None
    if found.type != "fit_memory_breakdown" or found.data.unit != "MiB":
        return None
    return tuple(found.data.rows)


def with_breakdown(estimated: Estimate, rows: tuple[Row, ...]) -> Estimate:
    """Put a breakdown in place of what the rules found."""
    devices = [row for row in rows if row.kind == "device"]
    parts: list[Part] = []
    for row in rows:
        where = "host"
        if row.kind == "device":
            where = "device" if len(devices) == 1 else f"device {devices.index(row)}"
        for kind, n_mib in zip(_KINDS, (row.model, row.context, row.compute), strict=True):
            if n_mib:
                what = f"{kind}, {row.name}"
                parts.append(Part(what, where, n_mib * MB, "llama-server's fit pass", kind))
    parts += [part for part in estimated.parts if _is_beside(part)]
    per_device = tuple(
        _sum(parts, "device" if len(devices) == 1 else f"device {n}") for n in range(len(devices))
    )
    return msgspec.structs.replace(
        estimated,
        device=_total(per_device),
        host=_sum(parts, "host"),
        per_device=per_device,
        is_known=True,
        source="dry-run",
        notes=tuple(note for note in estimated.notes if NOT_COMPARED not in note),
        parts=tuple(parts),
    )


def _is_beside(part: Part) -> bool:
    """Is it something that the breakdown does not contain?"""
    return part.kind == "overhead" or part.what.startswith(("projector", "draft: ", "MTP "))


def _sum(parts: list[Part], where: str) -> Footprint:
    def total(kind: str) -> int:
        return sum(part.bytes for part in parts if part.kind == kind and part.where == where)

    return Footprint(
        weights_bytes=total("weights"),
        context_bytes=total("context"),
        compute_bytes=total("compute"),
        overhead_bytes=total("overhead"),
    )


def _total(footprints: tuple[Footprint, ...]) -> Footprint:
    return Footprint(
        weights_bytes=sum(each.weights_bytes for each in footprints),
        context_bytes=sum(each.context_bytes for each in footprints),
        compute_bytes=sum(each.compute_bytes for each in footprints),
        overhead_bytes=sum(each.overhead_bytes for each in footprints),
    )
