"""A request body as it arrived: bytes that are looked at and added to, never re-encoded.

Pure. One scan finds the top-level values as slices of the body; what the gateway must set is
appended before the final ``}``, where a JSON parser that keeps the last of two equal keys (as
llama-server's does) lets it win. A client's own duplicate keys would make the two of us read
different requests, so they are refused.
"""

import re
from typing import Any, TypeVar

import msgspec

from gridcore.http.openai import ApiError, bad_request

T = TypeVar("T")

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KEY = re.compile(rb'[ \t\r\n]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t\r\n]*:[ \t\r\n]*')
_AFTER_VALUE = re.compile(rb"[ \t\r\n]*([,}])")
_COMPARE_BYTES = 1 << 20
"""A value is compared in pieces: one of 30 MB (an image) is never copied whole."""


class Body:
    """``fields`` are the top-level values; ``raw`` is the body itself, which never changes."""

    __slots__ = ("_end", "fields", "raw")

    def __init__(self, raw: bytes, fields: dict[str, msgspec.Raw], end: int) -> None:
        self.raw = raw
        self.fields = fields
        self._end = end

    def has(self, key: str) -> bool:
        """Is the key there with a value other than null?"""
        value = self.fields.get(key)
        return value is not None and bytes(memoryview(value)[:4]) != b"null"

    def get(self, key: str, kind: type[T], default: T) -> T:
        """Decode one value; null counts as absent.

        Raises:
            ApiError: the value is of another type.
        """
        if not self.has(key):
            return default
        try:
            return msgspec.json.decode(self.fields[key], type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise bad_request("invalid_type", f"{key}: {error}", param=key) from None

    def with_fields(self, added: dict[str, Any]) -> tuple[memoryview, bytes]:
        """Return the body with fields added at its end, in two pieces to be sent in order."""
        text = msgspec.json.encode(added)[1:]
        comma = b"," if self.fields else b""
        return memoryview(self.raw)[: self._end], comma + text


def scan(raw: bytes) -> Body:
    """Look at a body once.

    Raises:
        ApiError: 400 when it is empty, not JSON, not an object or has a key twice.
    """
    if not raw.strip(b" \t\r\n"):
        raise bad_request("empty_body", "the request body is empty; send a JSON object")
    try:
        if not raw.isascii():
            raw.decode()
        fields = _OBJECT.decode(raw)
    except msgspec.ValidationError:
        raise bad_request(
            "body_not_an_object", "the request body must be a JSON object, such as {...}"
        ) from None
    except RecursionError:
        raise bad_request("invalid_json", "the request body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request("invalid_json", f"the request body is not JSON: {error}") from None
    _refuse_duplicates(raw, fields)
    return Body(raw, fields, raw.rindex(b"}"))


def _refuse_duplicates(raw: bytes, fields: dict[str, msgspec.Raw]) -> None:
    """Walk the top level along the values already found.

    The decoder keeps the last of two equal keys. So where a value differs from the one found
    for its key, or a key comes again, the client has sent that key twice.
    """
    seen: set[str] = set()
    position = raw.index(b"{") + 1
    while len(seen) < len(fields):
        match = _KEY.match(raw, position)
        if match is None:
            raise bad_request("invalid_json", f"no key where one must be, at byte {position}")
        key = _key_text(match[1])
        value = memoryview(fields[key]) if key in fields else None
        if key in seen or value is None or not _is_at(raw, match.end(), value):
            raise _duplicate(key)
        after = _AFTER_VALUE.match(raw, match.end() + len(value))
        if after is None:
            raise _duplicate(key)
        seen.add(key)
        position = after.end()
        if after[1] == b"}":
            return
    if fields:
        match = _KEY.match(raw, position)
        raise _duplicate(_key_text(match[1]) if match else "?")


def _key_text(quoted: bytes) -> str:
    if b"\\" in quoted:
        return msgspec.json.decode(b'"' + quoted + b'"', type=str)
    return quoted.decode()


def _is_at(raw: bytes, position: int, value: memoryview) -> bool:
    if len(value) <= _COMPARE_BYTES:
        return raw.startswith(value.tobytes(), position)
    return all(
        raw.startswith(value[start : start + _COMPARE_BYTES].tobytes(), position + start)
        for start in range(0, len(value), _COMPARE_BYTES)
    )


def _duplicate(key: str) -> ApiError:
    return bad_request("duplicate_key", f"the key {key!r} is in the body twice", param=key)
