"""The error language of the API: every refusal is ``{"error": {message, type, code, param}}``.

Pure. It must not know requests or connections; it knows what clients of the OpenAI API expect
of an error, and how llama-server's own errors (numeric codes, no param) become one of those.
"""

from typing import Any

import msgspec

_TYPE_BY_STATUS = {
    403: "permission_error",
    500: "server_error",
    502: "server_error",
    503: "unavailable_error",
    504: "server_error",
}
_CODE_BY_TYPE = {
    # The code OpenAI's own API uses: client libraries shorten the conversation when they see it.
    "exceed_context_size_error": "context_length_exceeded",
}
_DETAIL_CHARS_MAX = 500
"""A runtime's error that is not JSON is quoted up to here."""


class ApiError(Exception):
    """An answer that is an error; ``str(error)`` is the sentence for the person."""

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        *,
        param: str | None = None,
        error_type: str | None = None,
        retry_after_s: int | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.error_type = error_type or _TYPE_BY_STATUS.get(status, "invalid_request_error")
        self.retry_after_s = retry_after_s
        self.headers = headers
        self.extra = extra or {}

    def body(self) -> bytes:
        """Render the JSON object that is the whole answer."""
        error = {
            "message": self.message,
            "type": self.error_type,
            "code": self.code,
            "param": self.param,
            **self.extra,
        }
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """Render the last event of a stream that cannot be completed; no ``[DONE]`` follows."""
        return b"data: " + self.body() + b"\n\n"


def bad_request(code: str, message: str, *, param: str | None = None) -> ApiError:
    return ApiError(400, code, message, param=param)


def from_runtime(status: int, body: bytes) -> ApiError:
    """Read a runtime's error answer: same status and message, in the form clients parse.

    llama-server's ``code`` is the numeric status and ``param`` is absent; other servers answer
    with a plain string, or with no JSON at all.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        document = None
    found = document.get("error") if isinstance(document, dict) else None
    if isinstance(found, str):
        found = {"message": found}
    if not isinstance(found, dict):
        text = body[:_DETAIL_CHARS_MAX].decode("utf-8", "replace").strip()
        found = {"message": text or f"the runtime answered {status} without a message"}
    error_type = found.get("type")
    code = found.get("code")
    if not isinstance(code, str):
        code = _CODE_BY_TYPE.get(error_type) if isinstance(error_type, str) else None
    param = found.get("param")
    known = ("message", "type", "code", "param")
    return ApiError(
        status,
        code,
        str(found.get("message") or f"the runtime answered {status}"),
        error_type=error_type if isinstance(error_type, str) else None,
        param=param if isinstance(param, str) else None,
        extra={key: value for key, value in found.items() if key not in known},
    )


def status_in_event(payload: bytes) -> int:
    """Return the HTTP status an error event of a stream stands for."""
    try:
        code = msgspec.json.decode(payload)["error"]["code"]
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError):
        return 500
    return code if isinstance(code, int) and 400 <= code <= 599 else 500
