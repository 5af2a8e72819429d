"""A runtime's event stream, event by event, and what each of them means to the gateway.

Pure. Events are passed on as the bytes they came in; only those the client did not ask for are
left out. A pattern with unescaped quotes, such as ``"prompt_progress":``, cannot occur inside a
JSON string, so looking for it in the bytes is exact and no event of a stream is parsed.
"""

from enum import Enum, auto

import msgspec
from msgspec import Struct

EVENT_BYTES_MAX = 16 << 20
"""One event with every logprob of a long batch is below 1 MB."""

_PROGRESS = b'"prompt_progress":'


class StreamError(Exception):
    """The runtime sent what is not an event stream."""


class EventKind(Enum):
    ANSWER = auto()
    PROGRESS = auto()
    COMMENT = auto()
    ERROR = auto()
    DONE = auto()
    NOTHING = auto()
    """``data: null``, which a stream of several prompts contains; clients stumble over it."""


class EventSplitter:
    """Cuts chunks, however they arrive, into whole events with their closing blank line."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def rest(self) -> bytes:
        """What has come of an event that is not closed yet."""
        return self._rest

    def feed(self, chunk: bytes) -> list[bytes]:
        """
        Raises:
            StreamError: an event is larger than any real one.
        """
        if self._rest:
            chunk = self._rest + chunk
        *events, self._rest = chunk.split(b"\n\n")
        if len(self._rest) > EVENT_BYTES_MAX:
            raise StreamError(f"an event of more than {EVENT_BYTES_MAX >> 20} MB has no end")
        return [event + b"\n\n" for event in events]


def kind_of(event: bytes) -> EventKind:
    if event.startswith(b"data: {"):
        if event.startswith(b'data: {"error":'):
            return EventKind.ERROR
        return EventKind.PROGRESS if _PROGRESS in event else EventKind.ANSWER
    if event.startswith(b":") or event == b"\n\n":
        return EventKind.COMMENT
    if event.startswith(b"data: [DONE]"):
        return EventKind.DONE
    if event.startswith(b"data: null"):
        return EventKind.NOTHING
    if event.startswith(b"error:"):
        return EventKind.ERROR
    return EventKind.ANSWER


def payload_of(event: bytes) -> bytes:
    """Return the JSON text of a ``data:`` (or old ``error:``) event."""
    return event[event.index(b":") + 1 :].strip()


class TokenCounts(Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Timings(Struct):
    cache_n: int = 0
    prompt_n: int | None = None
    predicted_n: int | None = None


class _Stats(Struct):
    usage: _Usage | None = None
    timings: _Timings | None = None


def has_counts(event: bytes) -> bool:
    return b'"timings":' in event or b'"usage":' in event


def token_counts(event: bytes) -> TokenCounts:
    """Read the tokens of an answer from the event that carries usage or timings.

    A chat stream without ``stream_options.include_usage`` has timings only; adding the option
    would take them out of the chunk where llama-server's own clients look for them.
    """
    try:
        stats = msgspec.json.decode(payload_of(event), type=_Stats)
    except (msgspec.MsgspecError, RecursionError):
        return TokenCounts()
    if stats.usage is not None:
        return TokenCounts(stats.usage.prompt_tokens, stats.usage.completion_tokens)
    timings = stats.timings
    if timings is None or timings.prompt_n is None:
        return TokenCounts()
    return TokenCounts(timings.cache_n + timings.prompt_n, timings.predicted_n)
