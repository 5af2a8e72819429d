"""Whatever bytes come: an ApiError with a 4xx, or a body that two JSON parsers agree about."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcore.http.body import scan
from gridcore.http.openai import ApiError
from gridcore.http.sse import EventSplitter

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
SPACE = st.sampled_from(["", " ", "\n", "\t \r\n"])
PAIRS = st.lists(st.tuples(st.text(max_size=4), VALUES, SPACE, SPACE, st.booleans()), max_size=6)


def render(pairs: list[tuple[str, Any, str, str, bool]]) -> bytes:
    members = [
        f"{before}{json.dumps(key, ensure_ascii=escaped)}{after}:{before}"
        f"{json.dumps(value, ensure_ascii=escaped)}{after}"
        for key, value, before, after, escaped in pairs
    ]
    return ("{" + ",".join(members) + "}").encode("utf-8", "surrogatepass")


@given(PAIRS)
def test_duplicates_are_found_and_nothing_else_is_refused(
    pairs: list[tuple[str, Any, str, str, bool]],
) -> None:
    raw = render(pairs)
    keys = [key for key, *_ in pairs]
    if len(set(keys)) < len(keys):
        with pytest.raises(ApiError) as refused:
            scan(raw)
        assert refused.value.code == "duplicate_key"
        return
    body = scan(raw)
    passed = json.loads(b"".join(body.with_fields({"model": "m", "stream": True})))
    assert passed == {**json.loads(raw), "model": "m", "stream": True}


@given(st.binary(max_size=64) | st.text(alphabet='{}[]",:\\ab1 \n', max_size=32).map(str.encode))
def test_no_bytes_are_a_crash(raw: bytes) -> None:
    try:
        body = scan(raw)
    except ApiError:
        return  # any other exception is a crash
    assert isinstance(json.loads(raw), dict)
    assert raw.startswith(bytes(body.with_fields({"a": 1})[0]))


@given(st.lists(st.binary(max_size=12)), st.data())
def test_events_do_not_depend_on_how_they_were_cut(texts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(b"data: " + text.replace(b"\n", b"") + b"\n\n" for text in texts)
    whole = EventSplitter().feed(stream)
    splitter, events, position = EventSplitter(), [], 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        events += splitter.feed(stream[position : position + size])
        position += size
    assert events == whole
    assert b"".join(events) == stream
    assert splitter.rest == b""
