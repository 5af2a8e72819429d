"""One embedding request as many: its inputs as slices, their vectors as one answer.

Pure. Inputs and vectors are never decoded; they are cut out of one text and put into another.
A chunk may be done twice (its runtime died after a part of the answer); the later result of an
input replaces the earlier one.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from gridcore.http.body import Body
from gridcore.http.openai import bad_request

_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VECTORS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_USAGE = msgspec.json.Decoder(dict[str, Any])

_OWN_FIELDS = frozenset({"input", "model", "gridcore", "stream"})


class BadVectors(Exception):  # noqa: N818 - what was found, not an error class of its own
    """The runtime's answer to a chunk is not the list of vectors asked for."""


class EmbeddingInputs:
    """The inputs of a request in the order the client sent them."""

    def __init__(self, body: Body) -> None:
        """
        Raises:
            ApiError: 400 when there is nothing to embed.
        """
        self._items = _split(body)
        self._others = b"".join(
            msgspec.json.encode(key) + b":" + bytes(value) + b","
            for key, value in body.fields.items()
            if key not in _OWN_FIELDS
        )

    def __len__(self) -> int:
        return len(self._items)

    def chunk(self, model: str, first: int, count: int) -> bytes:
        """Build the request for a range of inputs; the client's other fields go with it."""
        inputs = b",".join(bytes(item) for item in self._items[first : first + count])
        name = msgspec.json.encode(model)
        return b"".join((b"{", self._others, b'"model":', name, b',"input":[', inputs, b"]}"))


def _split(body: Body) -> list[msgspec.Raw]:
    value = body.fields.get("input")
    if value is None or not body.has("input"):
        raise bad_request("missing_input", "input is required: a text or a list", param="input")
    if bytes(memoryview(value)[:1]) != b"[":
        _require_item(value)
        return [value]
    try:
        items = _ITEMS.decode(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise bad_request("invalid_type", f"input: {error}", param="input") from None
    if not items:
        raise bad_request("empty_input", "input is an empty list", param="input")
    if any(bytes(memoryview(item)[:1]) in b"-0123456789" for item in items):
        return [value]  # one prompt, given as its tokens
    for item in items:
        _require_item(item)
    return items


def _require_item(item: msgspec.Raw) -> None:
    if bytes(memoryview(item)[:1]) not in (b'"', b"[", b"{"):
        raise bad_request(
            "invalid_type",
            "input must be a text, a list of tokens, or a list of these",
            param="input",
        )


class EmbeddingMerger:
    """Collects the vectors of chunks, in any order, into one answer."""

    def __init__(self, n_inputs: int) -> None:
        self._vectors: list[bytes | None] = [None] * n_inputs
        self._missing = n_inputs
        self._fields: dict[str, msgspec.Raw] = {}
        self._usage: dict[str, int] = {}
        self.prefix_done = 0
        """Inputs that are done without a gap, from the first on."""

    @property
    def is_complete(self) -> bool:
        return self._missing == 0

    def has(self, first: int, count: int) -> bool:
        return all(vector is not None for vector in self._vectors[first : first + count])

    def add(self, first: int, count: int, answer: bytes) -> int | None:
        """Take a runtime's answer for a range; return its prompt tokens, if it says.

        Raises:
            BadVectors: not exactly one vector for each input.
        """
        try:
            fields = _FIELDS.decode(answer)
            vectors = _VECTORS.decode(fields["data"])
            indexes = [msgspec.json.decode(vector["index"], type=int) for vector in vectors]
            usage = _USAGE.decode(fields["usage"]) if "usage" in fields else {}
        except (msgspec.MsgspecError, RecursionError, KeyError) as error:
            raise BadVectors(f"the answer to {count} inputs cannot be read: {error}") from None
        if sorted(indexes) != list(range(count)):
            raise BadVectors(f"{count} inputs brought {len(indexes)} vectors: {indexes[:8]}")
        for index, vector in zip(indexes, vectors, strict=True):
            position = first + index
            self._missing -= self._vectors[position] is None
            self._vectors[position] = _renumbered(vector, position)
        counts = {key: number for key, number in usage.items() if isinstance(number, int)}
        for key, number in counts.items():
            self._usage[key] = self._usage.get(key, 0) + number
        if not self._fields:
            self._fields = {k: v.copy() for k, v in fields.items() if k not in ("data", "usage")}
        while self.prefix_done < len(self._vectors) and self._vectors[self.prefix_done]:
            self.prefix_done += 1
        return counts.get("prompt_tokens")

    def answer(self, model: str) -> Iterator[bytes]:
        """Yield the whole answer in pieces; vectors are the bytes the runtime sent."""
        head = {**self._fields, "model": msgspec.Raw(msgspec.json.encode(model))}
        if self._usage:
            head["usage"] = msgspec.Raw(msgspec.json.encode(self._usage))
        yield msgspec.json.encode(head)[:-1] + b',"data":['
        for position, vector in enumerate(self._vectors):
            assert vector is not None
            yield vector if position == 0 else b"," + vector
        yield b"]}"


def _renumbered(vector: dict[str, msgspec.Raw], position: int) -> bytes:
    return msgspec.json.encode({**vector, "index": position})
