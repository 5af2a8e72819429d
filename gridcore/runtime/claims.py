"""Memory of a simulated card: one claim file per process, in one directory.

A claim lasts as long as its process, and for the card's release delay after it, as a driver's
memory does. It must import little: every simulated runtime does this at its start.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gridcore.clock import wall_time_s
from gridcore.runtime import identity


class SimulatedCard:
    def __init__(
        self, directory: Path, *, total_bytes: int, foreign_bytes: int, release_delay_s: float
    ) -> None:
        self._directory = directory
        self.total_bytes = total_bytes
        self.foreign_bytes = foreign_bytes
        self._release_delay_s = release_delay_s

    def claim(self, model_id: str, n_bytes: int) -> bool:
        """Take memory for this process; False if the card has not that much left."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        pid = os.getpid()
        with self._locked():
            held = sum(self.held_by_pid().values()) + self._releasing_bytes()
            if held + self.foreign_bytes + n_bytes > self.total_bytes:
                return False
            text = json.dumps(
                {"bytes": n_bytes, "model": model_id, "ticks": identity.start_ticks(pid)}
            )
            temporary = self._directory / f"{pid}.tmp"
            temporary.write_text(text)
            temporary.replace(self._directory / f"{pid}.json")
            return True

    def used_bytes(self) -> int:
        return sum(self.held_by_pid().values()) + self._releasing_bytes() + self.foreign_bytes

    def held_by_pid(self) -> dict[int, int]:
        """Return the claims of living processes; those of dead ones begin their release."""
        held = {}
        for path in sorted(self._directory.glob("*.json")):
            claim = _read(path)
            if claim is None:
                continue
            n_bytes, ticks = claim
            pid = int(path.stem)
            if identity.is_alive(pid, ticks):
                held[pid] = n_bytes
            else:
                self._begin_release(path)
        return held

    def _begin_release(self, path: Path) -> None:
        # The file's time is when the death was first noticed, for all who look.
        gone = path.with_suffix(".gone")
        with suppress(OSError):
            os.utime(path)
            path.replace(gone)

    def _releasing_bytes(self) -> int:
        total = 0
        for path in self._directory.glob("*.gone"):
            claim = _read(path)
            with suppress(OSError):
                if wall_time_s() - path.stat().st_mtime >= self._release_delay_s:
                    path.unlink()
                elif claim is not None:
                    total += claim[0]
        return total

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _read(path: Path) -> tuple[int, int | None] | None:
    try:
        claim = json.loads(path.read_bytes())
        return int(claim["bytes"]), claim["ticks"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
