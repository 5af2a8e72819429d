"""Addresses of the bus and names on it: the only place that spells either.

A link name says who a peer is (``gateway-0``), never which incarnation; that is its boot id.
"""

import os
import re
from pathlib import Path

from gridcore.errors import GridcoreError
from gridcore.ids import PeerId
from gridcore.paths import SOCKET_PATH_BYTES_MAX, RuntimePaths

_NAME = re.compile(rb"[a-z][a-z0-9-]{0,31}")


def ipc_address(path: Path) -> str:
    """The ZeroMQ address of a socket path.

    Raises:
        GridcoreError: longer than the platform can bind.
    """
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES_MAX:
        raise GridcoreError(
            f"the socket path {path} has {length} bytes, {SOCKET_PATH_BYTES_MAX} are possible; "
            "set XDG_RUNTIME_DIR to a shorter path"
        )
    return f"ipc://{path}"


def identity_of(name: PeerId) -> bytes:
    identity = name.encode()
    if not _NAME.fullmatch(identity):
        raise GridcoreError(
            f"{name!r} cannot be a link name: use at most 32 of a-z, 0-9 and -, a letter first"
        )
    return identity


def peer_of(identity: bytes) -> PeerId | None:
    """The name behind a routing id; None for one that ZeroMQ made up.

    A connection that a newer one of the same name has replaced is renamed to five random bytes;
    what it still delivers belongs to nobody.
    """
    return PeerId(identity.decode()) if _NAME.fullmatch(identity) else None


def remove_stale_sockets(runtime: RuntimePaths) -> list[Path]:
    """Remove socket files that a killed daemon left; call only with its lock held.

    Those of runtimes stay: a runtime may have outlived its daemon, and the registry decides.
    """
    removed = []
    for path in (runtime.control, runtime.events, runtime.metrics):
        if path.is_socket():
            path.unlink()
            removed.append(path)
    return removed
