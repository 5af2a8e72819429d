"""The answer a client gets that did not ask for a stream, put together from one.

Pure. Upstream is always a stream, because only a stream's slot is freed when its client leaves.
The result equals llama-server's own non-streaming answer, ids and times aside.
"""

from typing import Any

import msgspec

from gridcore.core.events import JobKind
from gridcore.http.openai import ApiError, from_runtime, status_in_event
from gridcore.http.sse import EventKind, StreamError, kind_of, payload_of

_OBJECT = msgspec.json.Decoder(dict[str, Any])
_CHUNK_ONLY = ("choices", "object", "usage", "timings", "prompt_progress")


class Assembler:
    """Takes events in order; ``result()`` is the whole answer once ``is_done``."""

    def __init__(self, kind: JobKind) -> None:
        self._choice = _ChatChoice if kind is JobKind.CHAT else _TextChoice
        self._object = "chat.completion" if kind is JobKind.CHAT else "text_completion"
        self._choices: dict[int, _ChatChoice | _TextChoice] = {}
        self._fields: dict[str, Any] = {}
        self._stats: dict[int, dict[str, Any]] = {}
        self._last_index = 0
        self.is_done = False
        self.error: ApiError | None = None

    def add(self, event: bytes) -> None:
        """
        Raises:
            StreamError: the event is not what a completion stream consists of.
        """
        match kind_of(event):
            case EventKind.ANSWER:
                try:
                    self._add_chunk(_OBJECT.decode(payload_of(event)))
                except (
                    msgspec.MsgspecError,
                    RecursionError,
                    KeyError,
                    TypeError,
                    AttributeError,
                ) as error:
                    raise StreamError(f"an event of the stream cannot be read: {error}") from None
            case EventKind.ERROR:
                payload = payload_of(event)
                self.error = from_runtime(status_in_event(payload), payload)
            case EventKind.DONE:
                self.is_done = True
            case EventKind.PROGRESS | EventKind.COMMENT | EventKind.NOTHING:
                pass

    def _add_chunk(self, chunk: dict[str, Any]) -> None:
        for key, value in chunk.items():
            if key not in _CHUNK_ONLY:
                self._fields[key] = value
        for part in chunk.get("choices") or ():
            index = self._last_index = part.get("index", 0)
            if index not in self._choices:
                self._choices[index] = self._choice(index)
            self._choices[index].add(part)
        # With several choices each one has its own counts, in its last chunk or in a chunk
        # without choices that follows it directly; the answer shows those of the first.
        for key in ("usage", "timings"):
            if chunk.get(key) is not None:
                self._stats.setdefault(self._last_index, {})[key] = chunk[key]

    def result(self) -> bytes:
        choices = [self._choices[index].result() for index in sorted(self._choices)]
        stats = self._stats[min(self._stats)] if self._stats else {}
        answer = {"choices": choices, **self._fields, "object": self._object, **stats}
        return msgspec.json.encode(answer)


class _ChatChoice:
    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: dict[str, list[str]] = {"content": []}
        self._fields: dict[str, Any] = {"role": "assistant"}
        self._tool_calls: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[str, Any] | None = None
        self._finish_reason: str | None = None

    def add(self, part: dict[str, Any]) -> None:
        for key, value in (part.get("delta") or {}).items():
            if key == "tool_calls":
                for call in value or ():
                    self._add_tool_call(call)
            elif key == "role":
                self._fields[key] = value or "assistant"
            elif isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
            elif value is not None:
                self._fields[key] = value
        self._logprobs = _merge_logprobs(self._logprobs, part.get("logprobs"))
        self._finish_reason = part.get("finish_reason") or self._finish_reason

    def _add_tool_call(self, delta: dict[str, Any]) -> None:
        index = delta.get("index", len(self._tool_calls))
        call = self._tool_calls.setdefault(index, {})
        for key, value in delta.items():
            if key == "function":
                function = call.setdefault("function", {"name": "", "arguments": ""})
                for name, text in value.items():
                    function[name] = function.get(name, "") + (text or "")
            elif key != "index" and value is not None:
                call[key] = value

    def result(self) -> dict[str, Any]:
        message = dict(self._fields)
        for key, texts in self._texts.items():
            message[key] = "".join(texts)
        if self._tool_calls:
            message["tool_calls"] = [self._tool_calls[index] for index in sorted(self._tool_calls)]
        choice = {"finish_reason": self._finish_reason, "index": self._index, "message": message}
        if self._logprobs is not None:
            choice["logprobs"] = self._logprobs
        return choice


class _TextChoice:
    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: list[str] = []
        self._logprobs: dict[str, Any] | None = None
        self._finish_reason: str | None = None

    def add(self, part: dict[str, Any]) -> None:
        self._texts.append(part.get("text") or "")
        self._logprobs = _merge_logprobs(self._logprobs, part.get("logprobs"))
        self._finish_reason = part.get("finish_reason") or self._finish_reason

    def result(self) -> dict[str, Any]:
        return {
            "text": "".join(self._texts),
            "index": self._index,
            "logprobs": self._logprobs,
            "finish_reason": self._finish_reason,
        }


def _merge_logprobs(
    merged: dict[str, Any] | None, part: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Lists of one entry per token grow; anything else is replaced."""
    if not part:
        return merged
    merged = merged or {}
    for key, value in part.items():
        if isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key].extend(value)
        else:
            merged[key] = value
    return merged
