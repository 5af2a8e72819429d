"""What a load of a model reserves before anything has been measured, and where that comes from.

The estimate reads the same arguments that the launch will use (``runtime/argv.py``).
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from gridcore.config.schema import Config, ModelConfig, RuntimeKind
from gridcore.runtime.argv import resolved_args
from gridcore.units import GB, MB, NS_PER_S

if TYPE_CHECKING:
    from gridcore.gguf.estimate import Estimate

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


def footprint(
    config: Config, model_id: str, *, kind: RuntimeKind, device: str, llama_server: str | None
) -> Footprint:
    """Estimate one model as it will be launched.

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
    args = resolved_args(config, model_id, device=device, llama_server=llama_server)
    return _from_files(config, model, args, kind=kind, device=device)


def _from_files(
    config: Config, model: ModelConfig, args: list[str], *, kind: RuntimeKind, device: str
) -> Footprint:
    # Not needed for simulated models, and the slowest imports of a start.
    from gridcore.gguf.flags import parse_flags  # noqa: PLC0415
    from gridcore.gguf.header import read_header  # noqa: PLC0415

    assert model.path is not None
    header = read_header(model.path)
    header.require_data()
    projector = read_header(model.mmproj) if model.mmproj is not None else None
    file_bytes = header.file_bytes + (projector.file_bytes if projector else 0)
    load_ns = file_bytes * NS_PER_S // DISK_BYTES_PER_S + START_NS
    env = dict(model.env)
    if kind is RuntimeKind.LLAMACPP:
        env = {**config.runtimes.llamacpp.env, **env}
    draft_path = parse_flags(args, env).draft_model
    draft = read_header(draft_path) if draft_path is not None else None
    if model.footprint_mb is not None:
        return Footprint(
            total_bytes=model.footprint_mb * MB, source="footprint_mb", load_ns=load_ns
        )
    from gridcore.gguf.estimate import Backend, estimate  # noqa: PLC0415

    on_host = kind is RuntimeKind.EMBEDDED or device in ("cpu", "simulation")
    backend = Backend.CPU if on_host else Backend(_BACKEND_BY_DEVICE[device.partition(":")[0]])
    found = estimate(header, args, env=env, mmproj=projector, draft=draft, backend=backend)
    on_card = device.startswith(_DISCRETE)
    return Footprint(
        total_bytes=found.device.total_bytes if on_card else found.unified_total_bytes,
        source="estimated from the file",
        load_ns=load_ns,
        estimate=found,
        notes=found.notes,
    )
