"""Errors are objects that clients can read, whoever made them."""

import json

import pytest

from gridcore.http.answer import header_value
from gridcore.http.openai import ApiError, from_runtime, status_in_event


def test_an_error_has_all_four_fields() -> None:
    error = ApiError(503, "queue_timeout", "waited", retry_after_s=3)
    assert json.loads(error.body()) == {
        "error": {
            "message": "waited",
            "type": "unavailable_error",
            "code": "queue_timeout",
            "param": None,
        }
    }
    assert error.event() == b"data: " + error.body() + b"\n\n"


BAD_REQUEST = "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "error_type", "code", "message"),
    [
        (
            b'{"error":{"code":400,"message":"m","type":"invalid_request_error"}}',
            *(BAD_REQUEST, None, "m"),
        ),
        (
            b'{"error":{"code":400,"message":"m","type":"exceed_context_size_error","n_ctx":1}}',
            *("exceed_context_size_error", "context_length_exceeded", "m"),
        ),
        (b'{"error":"text"}', BAD_REQUEST, None, "text"),
        (b"<html>", BAD_REQUEST, None, "<html>"),
        (b"", BAD_REQUEST, None, "the runtime answered 400 without a message"),
        (b"[1]", BAD_REQUEST, None, "[1]"),
        (
            b'{"error":{"message":null,"code":"c"}}',
            *(BAD_REQUEST, "c", "the runtime answered 400"),
        ),
    ],
)
def test_a_runtimes_error_becomes_one(
    body: bytes, error_type: str, code: str | None, message: str
) -> None:
    shown = json.loads(from_runtime(400, body).body())["error"]
    assert (shown["type"], shown["code"], shown["message"]) == (error_type, code, message)
    assert shown["param"] is None


def test_what_else_a_runtime_says_is_kept() -> None:
    body = b'{"error":{"code":400,"message":"m","type":"x","n_prompt_tokens":7,"n_ctx":4}}'
    shown = json.loads(from_runtime(400, body).body())["error"]
    assert (shown["n_prompt_tokens"], shown["n_ctx"]) == (7, 4)


def test_the_status_of_an_error_event() -> None:
    assert status_in_event(b'{"error":{"code":400}}') == 400
    assert status_in_event(b'{"error":{"code":"x"}}') == 500
    assert status_in_event(b'{"error":') == 500


def test_no_name_ends_a_header_line() -> None:
    assert header_value("a\r\nb: c") == b"a??b: c"
    assert header_value("modèle") == b"mod\\xe8le"
