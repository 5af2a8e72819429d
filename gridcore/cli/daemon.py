"""Finds the running daemon of this user, or says that there is none."""

import socket
from pathlib import Path

from gridcore.errors import GridcoreError
from gridcore.paths import RuntimePaths, runtime_dir_for


def running_daemon(state_dir: Path | None) -> RuntimePaths:
    """The sockets of the daemon with this state directory.

    Raises:
        GridcoreError: nobody listens there.
    """
    paths = RuntimePaths(runtime_dir_for(state_dir))
    if is_listening(paths.events):
        return paths
    if paths.events.exists():
        what = f"{paths.events} is left over: its daemon has died"
    else:
        what = f"there is no socket at {paths.events}"
    raise GridcoreError(f"no daemon is running ({what}); start one with gridcore serve")


def is_listening(path: Path) -> bool:
    """Whether a process accepts connections on a unix socket; a killed one leaves the file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
