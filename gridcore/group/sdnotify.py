"""systemd's readiness protocol: one datagram to ``$NOTIFY_SOCKET``; without it, nothing."""

import os
import socket


def notify(**state: str | int) -> None:
    """Tell systemd, such as ``notify(READY=1, STATUS="serving")``; failures do not matter."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    message = "\n".join(f"{key}={value}" for key, value in state.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1.0)
            channel.sendto(message.encode(), address)
    except OSError:
        pass
