"""Inputs are cut and vectors put together without touching their bytes."""

import json
from typing import Any

import pytest

from gridcore.http.body import scan
from gridcore.http.embeddings import BadVectors, EmbeddingInputs, EmbeddingMerger
from gridcore.http.openai import ApiError


def inputs(value: str, more: str = "") -> EmbeddingInputs:
    return EmbeddingInputs(scan(f'{{"model":"x","input":{value}{more}}}'.encode()))


@pytest.mark.parametrize(
    ("value", "count", "chunk"),
    [
        ('"a"', 1, b'["a"]'),
        ('["a", "\\u00e9"]', 2, b'["a","\\u00e9"]'),
        ("[1, 2,3]", 1, b"[[1, 2,3]]"),
        ("[[1],[2, 3]]", 2, b"[[1],[2, 3]]"),
        ('["a",[1]]', 2, b'["a",[1]]'),
        ('[1,"a"]', 1, b'[[1,"a"]]'),
    ],
)
def test_every_form_of_input(value: str, count: int, chunk: bytes) -> None:
    made = inputs(value)
    assert len(made) == count
    assert made.chunk("m", 0, count) == b'{"model":"m","input":' + chunk + b"}"


def test_a_chunk_is_a_range_with_the_clients_other_fields() -> None:
    made = inputs(
        '["a","b","c"]', ',"encoding_format":"base64","gridcore":{"class":"batch"},"user":"u"'
    )
    assert made.chunk("m", 1, 2) == (
        b'{"encoding_format":"base64","user":"u","model":"m","input":["b","c"]}'
    )


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("[]", "empty_input"),
        ("null", "missing_input"),
        ("1", "invalid_type"),
        ('["a",null]', "invalid_type"),
        ("true", "invalid_type"),
    ],
)
def test_nothing_to_embed(value: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        inputs(value)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, "input")


def test_no_input_at_all() -> None:
    with pytest.raises(ApiError) as refused:
        EmbeddingInputs(scan(b'{"model":"x"}'))
    assert refused.value.code == "missing_input"


def reply(*vectors: str, order: list[int] | None = None, tokens: int = 2) -> bytes:
    data = ",".join(
        f'{{"embedding":{vectors[i]},"index":{i},"object":"embedding"}}'
        for i in order or range(len(vectors))
    )
    usage = f'{{"prompt_tokens":{tokens},"total_tokens":{tokens},"details":{{}}}}'
    return f'{{"model":"u","object":"list","usage":{usage},"data":[{data}]}}'.encode()


def merged(merger: EmbeddingMerger) -> tuple[bytes, dict[str, Any]]:
    text = b"".join(merger.answer("m"))
    return text, json.loads(text)


def test_chunks_in_any_order_become_one_answer() -> None:
    merger = EmbeddingMerger(4)
    assert merger.add(2, 2, reply("[3.0e0]", "[4]")) == 2
    assert (merger.is_complete, merger.prefix_done, merger.has(2, 2)) == (False, 0, True)
    assert merger.add(0, 2, reply("[1.50]", '"AAA="', order=[1, 0])) == 2
    assert (merger.is_complete, merger.prefix_done) == (True, 4)
    text, answer = merged(merger)
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
    for vector in (b"[1.50]", b'"AAA="', b"[3.0e0]", b"[4]"):
        assert b'"embedding":' + vector in text
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert (answer["model"], answer["object"]) == ("m", "list")


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}", reply("[1]"), reply("[1]", "[2]", "[3]"), reply("[1]", "[2]", order=[0, 0])],
)
def test_an_answer_with_other_vectors_is_not_believed(answer: bytes) -> None:
    merger = EmbeddingMerger(2)
    with pytest.raises(BadVectors):
        merger.add(0, 2, answer)
    assert not merger.is_complete
