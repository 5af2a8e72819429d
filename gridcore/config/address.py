"""The address of a listening socket, as people write it: ``127.0.0.1:8080``, ``[::1]:8080``."""

import ipaddress
import re

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
PORT_MAX = 65535


def parse_listen(text: str) -> tuple[str, int]:
    """Split ``host:port``; the host of an IPv6 address comes without its brackets.

    Raises:
        ValueError: not such an address; the text says what is missing.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise ValueError(f"{text!r} has no port: write host:port, such as 127.0.0.1:8080")
    if int(port[:6]) > PORT_MAX:
        raise ValueError(f"port {port[:12]} is above {PORT_MAX}")
    if not host:
        raise ValueError(f"{text!r} has no host: write 127.0.0.1{text}, or 0.0.0.0{text} for all")
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1].partition("%")[0])
        except ValueError:
            raise ValueError(f"{host} is not an IPv6 address") from None
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets: [{host}]:{port}")
    if not _is_host(host):
        raise ValueError(f"{host!r} is neither an IPv4 address nor a host name")
    return host, int(port)


def _is_host(host: str) -> bool:
    if re.fullmatch(r"[0-9.]+", host):  # digits and dots are an address or a mistake
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return False
        return True
    return _HOST_NAME.fullmatch(host) is not None
