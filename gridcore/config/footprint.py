"""What a load of a model reserves before anything has been measured, and where that comes from.

The estimate reads the same arguments that the launch will use (``runtime/argv.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gridcore.config.schema import Config, RuntimeKind
from gridcore.errors import GridcoreError
from gridcore.runtime.argv import resolved_args
from gridcore.units import GB, MB, NS_PER_S

if TYPE_CHECKING:
    from gridcore.gguf.breakdown import Row
    from gridcore.gguf.estimate import Estimate
    from gridcore.gguf.fit import Question

DISK_BYTES_PER_S = 1 * GB
"""A guess for the first load: a slow SSD reads half of this, the page cache ten times as much."""
START_NS = 1 * NS_PER_S
"""Start and warm-up of a runtime, whatever the size of its model."""
_DISCRETE = ("nvidia", "amd", "intel")
_BACKEND_BY_DEVICE = {"nvidia": "cuda", "amd": "hip", "intel": "vulkan", "apple": "metal"}


class Footprint(Struct, frozen=True, kw_only=True):
    """
    Args:
        source: where the number comes from, in words.
        estimate: its parts, when it was computed from the file.
        notes: what makes the number less certain than usual.
    """

    total_bytes: int
    source: str
    load_ns: int
    estimate: "Estimate | None" = None
    notes: tuple[str, ...] = ()


def has_unified_memory(device: str) -> bool:
    """Device memory is host memory: what a runtime keeps on the CPU counts too."""
    return device in ("cpu", "apple")


DryRun = Callable[[str, str, Sequence[str], Mapping[str, str]], "tuple[Row, ...]"]
"""Asks a llama-server (binary, model file, arguments, variables) for its own breakdown."""


def footprint(
    config: Config,
    model_id: str,
    *,
    kind: RuntimeKind,
    device: str,
    llama_server: str | None,
    dry_run: DryRun | None = None,
) -> Footprint:
    """Estimate one model as it will be launched.

    Args:
        dry_run: asked about architectures that the rules do not know, if there is a
            llama-server.

    Raises:
        GridcoreError: a file is missing or no GGUF, or an argument is wrong; the text says which.
    """
    model = config.models[model_id]
    if kind is RuntimeKind.SIMULATED:
        assert model.simulated is not None
        return Footprint(
            total_bytes=(model.footprint_mb or model.simulated.vram_mb) * MB,
            source="simulated" if model.footprint_mb is None else "footprint_mb",
            load_ns=model.simulated.load_time_ns,
        )
    asked = question(config, model_id, kind=kind, device=device, llama_server=llama_server)
    load_ns = asked.file_bytes * NS_PER_S // DISK_BYTES_PER_S + START_NS
    if model.footprint_mb is not None:
        return Footprint(
            total_bytes=model.footprint_mb * MB, source="footprint_mb", load_ns=load_ns
        )
    found, source = asked.estimate(), "estimated from the file"
    notes: tuple[str, ...] = ()
    if not found.is_known and dry_run is not None and kind is RuntimeKind.LLAMACPP:
        assert llama_server is not None
        try:
            rows = dry_run(llama_server, asked.header.path, asked.args, asked.env)
        except GridcoreError as error:
            notes = (f"llama-server could not be asked instead: {error}",)
        else:
            from gridcore.gguf.breakdown import with_breakdown  # noqa: PLC0415

            found, source = with_breakdown(found, rows), "llama-server's own dry run"
    return Footprint(
        total_bytes=reserved_bytes(found, device),
        source=source,
        load_ns=load_ns,
        estimate=found,
        notes=(*found.notes, *notes),
    )


def reserved_bytes(found: "Estimate", device: str) -> int:
    """Return what of an estimate comes out of this device's memory."""
    on_card = device.startswith(_DISCRETE)
    return found.device.total_bytes if on_card else found.unified_total_bytes


def question(
    config: Config, model_id: str, *, kind: RuntimeKind, device: str, llama_server: str | None
) -> "Question":
    """Read a model's files and say with which arguments it will run.

    Raises:
        GridcoreError: see ``footprint``.
    """
    # Not needed for simulated models, and the slowest imports of a start.
    from gridcore.gguf.estimate import Backend  # noqa: PLC0415
    from gridcore.gguf.fit import Question  # noqa: PLC0415
    from gridcore.gguf.flags import parse_flags  # noqa: PLC0415
    from gridcore.gguf.header import read_header  # noqa: PLC0415

    model = config.models[model_id]
    assert model.path is not None
    header = read_header(model.path)
    header.require_data()
    args = resolved_args(config, model_id, device=device, llama_server=llama_server)
    env = dict(model.env)
    if kind is RuntimeKind.LLAMACPP:
        env = {**config.runtimes.llamacpp.env, **env}
    draft_path = parse_flags(args, env).draft_model
    on_host = kind is RuntimeKind.EMBEDDED or device in ("cpu", "simulation")
    return Question(
        header=header,
        args=tuple(args),
        env=env,
        backend=Backend.CPU if on_host else Backend(_BACKEND_BY_DEVICE[device.partition(":")[0]]),
        mmproj=read_header(model.mmproj) if model.mmproj is not None else None,
        draft=read_header(draft_path) if draft_path is not None else None,
        in_wheel=kind is RuntimeKind.EMBEDDED,
    )
