"""The HTTP listening socket: bound once by the launcher, inherited by gateways.

It stays open while a gateway restarts, so that clients wait in the backlog and are not refused.
"""

import errno
import os
import socket

from gridcore.config.address import parse_listen
from gridcore.errors import ListenError

BACKLOG = 1024
"""Clients that may wait for a gateway to come back; the kernel caps it (4096 on Linux)."""


def open_listener(listen: str) -> socket.socket:
    """Bind ``host:port`` and listen; port 0 takes a free one.

    Raises:
        ListenError: the address cannot be used; it names the holder where that is known.
    """
    try:
        host, port = parse_listen(listen)
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (ValueError, OSError) as error:
        raise ListenError(f"server.listen {listen}: {error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        # No SO_REUSEPORT: a second daemon must fail here and not share the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(_why(listen, port, error)) from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """``host:port`` as bound."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_address(listen: str) -> tuple[str, int]:
    """Where a client on this machine finds a listener, also one on all addresses."""
    host, port = parse_listen(listen)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def _why(listen: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = _holder(port)
        by = f" by {holder}" if holder else ""
        return f"{listen} is in use{by}: stop it, or choose another port with --listen host:port"
    if error.errno == errno.EACCES:
        return f"{listen} needs more rights: ports below 1024 are the system's; choose another"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{listen}: this machine has no such address; set server.listen to one that it has"
    return f"{listen} cannot be bound: {os.strerror(error.errno or 0)}; set server.listen"


def _holder(port: int) -> str | None:
    """Who listens on a port, as far as we may see it: our own user's processes mostly."""
    import psutil  # noqa: PLC0415 - only for this sentence

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or connection.pid is None:
                continue
            if connection.laddr and connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return None
