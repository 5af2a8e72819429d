"""How a service learns that the launcher is gone: the end of a pipe that only the launcher, and
the services that must end before this one, hold open.

A thread waits for it, because the loop may be the thing that hangs.
"""

import os
import signal
import threading

LAST_RESORT_S = 120.0
"""A service that has not ended this long after its SIGTERM never will: longer than any drain."""


def watch_parent(fd: int | None, *, last_resort_s: float = LAST_RESORT_S) -> None:
    """Send this process SIGTERM once the other end of ``fd`` is closed, then SIGKILL.

    None is for a service that was started alone. Install the SIGTERM handler first.
    """
    if fd is None:
        return
    os.set_inheritable(fd, False)
    threading.Thread(target=_watch, args=(fd, last_resort_s), name="parent", daemon=True).start()


def _watch(fd: int, last_resort_s: float) -> None:
    while os.read(fd, 1):
        pass  # nobody writes; only the end matters
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(last_resort_s)
    os.kill(os.getpid(), signal.SIGKILL)
