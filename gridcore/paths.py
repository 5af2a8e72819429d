"""Where things live: state that survives, sockets that do not.

The state directory holds the lock, profiles, the registry and logs. The runtime directory
holds sockets and the resolved instance; it is 0700, ours, and short enough for a socket path.
"""

import hashlib
import os
import stat
import sys
from pathlib import Path

from gridcore.errors import GridcoreError

SOCKET_PATH_BYTES_MAX = 103 if sys.platform == "darwin" else 107
"""sun_path is 108 bytes on Linux and 104 on macOS, one of them the closing zero."""
SOCKET_NAME_BYTES_MAX = 24
"""Longest name below the runtime directory: ``r/`` and a load id, with room to spare."""


def default_config_path() -> Path:
    named = os.environ.get("GRIDCORE_CONFIG")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "gridcore" / "config.yaml"


def default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "gridcore"


def runtime_dir_for(state_dir: Path | None) -> Path:
    """The directory of a daemon's sockets; an explicit state directory gets one of its own."""
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(xdg) / "gridcore" if xdg else Path(f"/tmp/gridcore-{os.getuid()}")  # noqa: S108 - 0700 and checked
    if state_dir is None:
        return base
    name = hashlib.sha256(os.fsencode(state_dir.expanduser().resolve())).hexdigest()[:8]
    return base / name


def make_private_dir(path: Path) -> Path:
    """Create a directory that only we can enter, or refuse one that is not.

    Raises:
        GridcoreError: a symlink, another owner, or a path too long for the sockets in it.
    """
    length = len(os.fsencode(path)) + 1 + SOCKET_NAME_BYTES_MAX
    if length > SOCKET_PATH_BYTES_MAX:
        raise GridcoreError(
            f"{path} is too long for a socket: {length} bytes with the name, "
            f"{SOCKET_PATH_BYTES_MAX} are possible; set XDG_RUNTIME_DIR to a shorter path"
        )
    parent = path.parent
    if parent.name.startswith("gridcore"):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(parent)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(path)
    return path


def _require_private(path: Path) -> None:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode) or not stat.S_ISDIR(info.st_mode):
        raise GridcoreError(f"{path} is not a directory of its own (a link?): remove it")
    if info.st_uid != os.getuid():
        raise GridcoreError(f"{path} belongs to uid {info.st_uid}, not to us: remove it")
    if info.st_mode & 0o077:
        path.chmod(0o700)


class RuntimePaths:
    """Names below the runtime directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.instance = directory / "instance.json"
        self.control = directory / "control"
        self.events = directory / "events"
        self.metrics = directory / "metrics"
        self.runtimes = directory / "r"
        """One unix socket per runtime, named by its load id."""
        self.simulation = directory / "sim"
        """Claims on a simulated card, one file per process."""


class StatePaths:
    """Names below the state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = directory / "gridcore.lock"
        self.profiles = directory / "profiles.json"
        self.registry = directory / "registry"
        self.logs = directory / "logs"
        self.last_snapshot = directory / "last-snapshot.json"
