"""Bodies pass through byte for byte, and two readers never see different requests."""

import json

import pytest

from gridcore.http.body import scan
from gridcore.http.openai import ApiError


def sent(raw: bytes, **added: object) -> bytes:
    return b"".join(scan(raw).with_fields(added))


def test_what_the_client_sent_is_a_prefix_of_what_is_passed_on() -> None:
    raw = b'{ "model" : "a",\n "temperature":1.50, "x":"\\u00e9\\/" }\n'
    passed = sent(raw, model="b", stream=True)
    assert (
        passed
        == b'{ "model" : "a",\n "temperature":1.50, "x":"\\u00e9\\/" ,"model":"b","stream":true}'
    )
    assert json.loads(passed)["model"] == "b"


def test_an_empty_object_gets_no_leading_comma() -> None:
    assert sent(b" {} ", model="b") == b' {"model":"b"}'


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a":{"b":1},"c":2,"a":{"b":1}}',
        b'{"a":1,"\\u0061":2}',
        b'{"b":0,"a":[1,2],"a":[1,2,3]}',
        b'{"a":1,"b":2,"a":12,"b":2}',
        b'{"a":12,"a":1}',
    ],
)
def test_a_key_sent_twice_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        scan(raw)
    assert (refused.value.status, refused.value.code) == (400, "duplicate_key")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "empty_body"),
        (b" \r\n", "empty_body"),
        (b"[1]", "body_not_an_object"),
        (b'"text"', "body_not_an_object"),
        (b"null", "body_not_an_object"),
        (b"{", "invalid_json"),
        (b'{"a":1}x', "invalid_json"),
        (b'{"a":NaN}', "invalid_json"),
        (b'{"a":Infinity}', "invalid_json"),
        (b"{'a':1}", "invalid_json"),
        (b'{"a":1,}', "invalid_json"),
        (b'{"a":"\xff"}', "invalid_json"),
        (b'{"\xff":1}', "invalid_json"),
        (b'{"a":"\\ud800"}', "invalid_json"),
        (b'\xef\xbb\xbf{"a":1}', "invalid_json"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "invalid_json"),
    ],
)
def test_bad_bodies_are_the_clients_error(raw: bytes, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        scan(raw)
    assert (refused.value.status, refused.value.code) == (400, code)


def test_a_value_of_the_wrong_type_names_its_key() -> None:
    body = scan(b'{"stream":"yes","n":null}')
    assert body.get("n", int, default=1) == 1
    with pytest.raises(ApiError) as refused:
        body.get("stream", bool, default=False)
    assert (refused.value.code, refused.value.param) == ("invalid_type", "stream")


def test_a_large_value_is_compared_in_pieces() -> None:
    image = b"A" * 5_000_000
    raw = b'{"image":"' + image + b'","n":1}'
    assert sent(raw, n=2).startswith(raw[:-1])
    with pytest.raises(ApiError) as refused:
        scan(b'{"image":"' + image + b'B","image":"' + image + b'C"}')
    assert refused.value.code == "duplicate_key"
