"""One daemon per state directory, per runtime directory, and per card and user.

A lock is an ``flock`` on a file that holds the pid of its owner. It ends with the process however
that ends, and no child inherits it (Python opens files close-on-exec). It must be held before any
socket is bound: a second bind of an ipc path succeeds, and steals it.
"""

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from gridcore.errors import AlreadyRunningError, GridcoreError


class FileLock:
    """Held from the moment it exists until ``release``."""

    def __init__(self, path: Path, *, owned: str) -> None:
        """Take the lock, or say who has it.

        Args:
            owned: what it protects, for the sentence.

        Raises:
            AlreadyRunningError: another process holds it.
        """
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take(owned)
        except BaseException:
            os.close(self._fd)
            raise

    def _take(self, owned: str) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            raise AlreadyRunningError(
                f"GridCore is running already with this {owned}"
                f" ({f'pid {pid}' if pid else 'its pid is not known'}, lock {self._path}): stop it"
                " first, or give this one a --state-dir and a port of its own"
            ) from None
        except OSError as error:
            hint = "; is it on a network file system?" if error.errno == errno.ENOLCK else ""
            raise GridcoreError(f"cannot lock {self._path}: {error.strerror}{hint}") from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back. The file stays: removing it could unlock a name somebody waits on."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.release()
