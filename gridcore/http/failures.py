"""How an unexpected exception is logged: where it happened and its type, never its text.

The text of a decoding error may quote the request, and prompts do not belong in logs.
"""

import logging
import traceback

from gridcore.http.openai import ApiError

log = logging.getLogger("gridcore.gateway")

INTERNAL_ERROR = ApiError(
    500, "internal_error", "an internal error of the gateway; its log says where"
)


def log_failure(what: str, error: BaseException) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    where = "".join(f"\n  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    log.error("%s: %s%s", what, type(error).__name__, where)
