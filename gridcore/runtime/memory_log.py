"""What llama.cpp's own log says of its memory: buffers, context, layers on the device.

It holds the lines that b11434 prints at ``-lv 4``, and knows no files. A runtime that fits
itself to the free memory first runs without allocating; what it prints then does not count.
"""

import re

from gridcore.store.profiles import Reported
from gridcore.units import MB

TELLING = (b"buffer size", b"offloaded ", b"llama_context: n_ctx ")
"""Every line of interest holds one of these."""

_BUFFER = re.compile(r"(model|KV|RS|compute|output) buffer size = *([\d.]+) MiB")
_CONTEXT = re.compile(r"llama_context: n_ctx += (\d+)")
_LAYERS = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_KINDS = {"KV": "context", "RS": "context", "model": "weights"}


class MemoryLog:
    """Sums of one load. A draft model's buffers are counted in, as its process is one."""

    def __init__(self) -> None:
        self.n_ctx: int | None = None
        self.layers: tuple[int, int] | None = None
        """On the device, of how many; of the model itself, not of its draft."""
        self._bytes: dict[str, int] = {}
        self._is_dry = False

    @property
    def reported(self) -> Reported | None:
        """None as long as no weights were reported: an older build, or a quiet one."""
        if "weights" not in self._bytes:
            return None
        return Reported(**{f"{kind}_bytes": n for kind, n in self._bytes.items()})

    def take(self, line: str) -> None:
        if found := _BUFFER.search(line):
            self._take_buffer(found[1], float(found[2]))
        elif found := _CONTEXT.search(line):
            self.n_ctx = int(found[1])
        elif found := _LAYERS.search(line):
            layers = (int(found[1]), int(found[2]))
            if self.layers is None or self.layers[1] == layers[1]:
                self.layers = layers

    def shrunk(self, *, ctx: int, gpu_layers: int | None) -> str:
        """Say what is smaller than configured; empty if nothing is.

        Args:
            gpu_layers: as configured; None is all.
        """
        found = []
        if self.n_ctx is not None and self.n_ctx < ctx:
            found.append(f"a context of {self.n_ctx} instead of {ctx}")
        if self.layers is not None:
            on_device, n_layers = self.layers
            wanted = n_layers if gpu_layers is None else min(gpu_layers, n_layers)
            if on_device < wanted:
                found.append(f"{on_device} of {n_layers} layers on the device instead of {wanted}")
        return " and ".join(found)

    def _take_buffer(self, name: str, mib: float) -> None:
        if name == "model":
            if mib == 0:
                self._is_dry = True
                self._bytes.clear()
                return
            self._is_dry = False
        if self._is_dry:
            return
        kind = _KINDS.get(name, name)
        self._bytes[kind] = self._bytes.get(kind, 0) + round(mib * MB)
