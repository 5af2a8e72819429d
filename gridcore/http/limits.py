"""Reading a request's body within bounds."""

from gridcore.http.answer import Receive
from gridcore.http.gateway import Gateway
from gridcore.http.openai import ApiError
from gridcore.units import MB

HELD_BODY_BYTES_MAX = 2048 * MB
"""Of all open requests together: twenty of the largest; a queue of chats is a hundredth of it."""


async def read_body(
    receive: Receive, headers: dict[bytes, bytes], gateway: Gateway, *, n_bytes_max: int
) -> bytes | None:
    """Read a body; None when the client left while sending it.

    The bytes count as held by the gateway until the caller takes them off again. A declared
    length is believed before a byte is read, so that a client that asks first (Expect:
    100-continue) need not send it.

    Raises:
        ApiError: 413 for one that is too large, 503 when too much is held already.
    """
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > n_bytes_max:
        raise _too_large(n_bytes_max)
    pieces: list[bytes] = []
    n_bytes = 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                gateway.held_body_bytes -= n_bytes
                return None
            piece: bytes = message.get("body", b"")
            n_bytes += len(piece)
            gateway.held_body_bytes += len(piece)
            if n_bytes > n_bytes_max:
                raise _too_large(n_bytes_max)
            if gateway.held_body_bytes > HELD_BODY_BYTES_MAX:
                raise ApiError(
                    503,
                    "gateway_full",
                    f"the open requests hold {HELD_BODY_BYTES_MAX // MB} MB already",
                    retry_after_s=10,
                )
            pieces.append(piece)
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except ApiError:
        gateway.held_body_bytes -= n_bytes
        raise


def _too_large(n_bytes_max: int) -> ApiError:
    return ApiError(
        413,
        "body_too_large",
        f"the request body is larger than {n_bytes_max // MB} MB (server.max_body_mb)",
    )
