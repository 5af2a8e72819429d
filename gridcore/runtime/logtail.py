"""Reads what a runtime wrote, and keeps its log files small.

A runtime's output is a file opened for append, never a pipe: an unread pipe wedges llama-server
while /health stays 200. ``sign_of`` is pure and holds the lines that llama.cpp b11434 prints.
"""

import os
import re
import shutil
from collections import deque
from pathlib import Path

from gridcore.runtime.lifecycle import Sign
from gridcore.runtime.memory_log import TELLING as OF_MEMORY
from gridcore.runtime.memory_log import MemoryLog

READ_BYTES_MAX = 8 << 20
"""Per look; a runtime that writes faster than this loses lines here, not in its file."""
CHUNK_BYTES = 256 << 10
LINE_CHARS_MAX = 300
LAST_LINES_KEPT = 3
_KEPT = 40

_OUT_OF_MEMORY = re.compile(
    r"cudaMalloc failed: out of memory"
    r"|CUDA error: out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|hipMalloc failed"
    r"|ErrorOutOf(?:Device|Host)Memory"
    r"|Device memory allocation of size \d+ failed"
    r"|error: failed to allocate buffer, size ="
    r"|failed to allocate Metal buffer"
    r"|kIOGPUCommandBufferCallbackErrorOutOfMemory"
    r"|ggml_aligned_malloc: insufficient memory"
    r"|cpu_buffer_type_alloc_buffer: failed to allocate buffer"
    r"|alloc_buffer_n_default: failed to allocate"
    r"|gallocr_reserve_n_impl: failed to allocate"
    r"|error loading model: unable to allocate"
    r"|failed to allocate buffer for (?:kv|rs) cache"
    r"|failed to allocate compute (?:pp|tg) buffers"
)
_HARMLESS = re.compile(r"pinned memory|prompt cache state")
"""Host allocations that llama.cpp does without."""
_BACKEND_BROKEN = re.compile(
    r"backend is in error state from a previous command buffer failure|ErrorDeviceLost"
)
_BAD_CONFIG = re.compile(
    r"^error: invalid argument"
    r"|^error: unknown argument"
    r"|^error: argument has been removed"
    r"|^error while handling argument"
    r"|^gridcore: "
    r"|failed to open GGUF file"
    r"|invalid magic characters"
    r"|data is not within the file bounds"
    r"|unknown model architecture"
    r"|quantized V cache requires"
    r"|unknown buffer type"
    r"|failed to load multimodal model"
)
_TELLING = tuple(
    word.encode()
    for word in (
        *("alloc", "ALLOC", "emory", "rror", "fail", "magic", "bounds", "unknown"),
        *("V cache", "gridcore: "),
    )
)
"""Every line that is a sign holds one of these."""
_COMPLAINT = re.compile(r"\b[EW] |error|fail|fatal|abort|assert", re.IGNORECASE)


def sign_of(line: str) -> Sign | None:
    """Say what a log line proves, if it proves anything."""
    if _BACKEND_BROKEN.search(line):
        return Sign.BACKEND_BROKEN
    if _OUT_OF_MEMORY.search(line):
        return None if _HARMLESS.search(line) else Sign.OUT_OF_MEMORY
    if _BAD_CONFIG.search(line):
        return Sign.BAD_CONFIG
    return None


class LogTail:
    """Follows one file from where it ended when the runtime was started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.position = _size(path)
        self.memory = MemoryLog()
        self._partial = b""
        self._recent: deque[str] = deque(maxlen=_KEPT)

    def read_new(self) -> list[tuple[Sign, str]]:
        """Read what was added; return the lines that prove something."""
        signs: list[tuple[Sign, str]] = []
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.position:
                    self.position = 0  # rotated
                file.seek(self.position)
                left = READ_BYTES_MAX
                while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
                    left -= len(chunk)
                    self.position += len(chunk)
                    self._take(chunk, signs)
        except OSError:
            return signs
        return signs

    def last_lines(self) -> tuple[str, ...]:
        """Return the last few lines, those that complain before others."""
        lines = [*self._recent]
        if self._partial:
            lines.append(_text(self._partial))
        complaints = [line for line in lines if _COMPLAINT.search(line)]
        return tuple((complaints or lines)[-LAST_LINES_KEPT:])

    def _take(self, chunk: bytes, signs: list[tuple[Sign, str]]) -> None:
        data = self._partial + chunk
        *lines, self._partial = data.split(b"\n")
        self._partial = self._partial[:CHUNK_BYTES]
        for raw in lines[-_KEPT:]:
            if raw.strip():
                self._recent.append(_text(raw))
        # Megabytes of other lines cost a few passes over bytes, not an expression per line.
        if any(word in data for word in OF_MEMORY):
            for raw in lines:
                if any(word in raw for word in OF_MEMORY):
                    self.memory.take(_text(raw))
        if not any(word in data for word in _TELLING):
            return
        for raw in lines:
            line = _text(raw)
            sign = sign_of(line)
            if sign is not None:
                signs.append((sign, line))


def rotate(path: Path, *, limit_bytes: int, keep: int) -> bool:
    """Copy a log that has grown beyond the limit aside and truncate it; the writer appends on."""
    if _size(path) <= limit_bytes:
        return False
    for n in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{n}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{n + 1}"))
    if keep > 0:
        shutil.copy(path, path.with_name(f"{path.name}.1"))
    os.truncate(path, 0)
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip()[:LINE_CHARS_MAX]
