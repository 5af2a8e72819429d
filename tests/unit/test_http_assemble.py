"""A stream put together equals the answer that would have come in one piece."""

import json
from typing import Any

import pytest

from gridcore.core.events import JobKind
from gridcore.http.assemble import Assembler
from gridcore.http.sse import EventKind, StreamError, TokenCounts, kind_of, token_counts

HEAD = {"created": 1, "id": "c", "model": "m", "system_fingerprint": "f"}


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def chunk(*choices: dict[str, Any], **more: Any) -> bytes:
    return event({"choices": list(choices), **HEAD, "object": "chat.completion.chunk", **more})


def delta(
    index: int = 0, finish_reason: str | None = None, logprobs: Any = None, **fields: Any
) -> dict[str, Any]:
    made = {"finish_reason": finish_reason, "index": index, "delta": fields}
    return made if logprobs is None else {**made, "logprobs": logprobs}


def assembled(kind: JobKind, *events: bytes) -> dict[str, Any]:
    assembler = Assembler(kind)
    for each in events:
        assembler.add(each)
    assert assembler.is_done
    document: dict[str, Any] = json.loads(assembler.result())
    return document


DONE = b"data: [DONE]\n\n"


def test_progress_pings_and_null_leave_no_trace() -> None:
    answer = assembled(
        JobKind.CHAT,
        chunk(delta(role="assistant", content=None), prompt_progress={"total": 3}),
        b":\n\n",
        b"data: null\n\n",
        chunk(delta(role="assistant", content=None)),
        chunk(delta(content="Hel")),
        chunk(delta(content="lo")),
        chunk(delta(finish_reason="stop")),
        chunk(usage={"prompt_tokens": 3, "completion_tokens": 2}, timings={"cache_n": 1}),
        DONE,
    )
    assert answer == {
        "choices": [
            {
                "finish_reason": "stop",
                "index": 0,
                "message": {"role": "assistant", "content": "Hello"},
            }
        ],
        **HEAD,
        "object": "chat.completion",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "timings": {"cache_n": 1},
    }


def test_the_counts_shown_are_those_of_the_first_choice() -> None:
    answer = assembled(
        JobKind.CHAT,
        chunk(delta(1, content="b")),
        chunk(delta(0, content="a")),
        chunk(delta(1, finish_reason="length")),
        chunk(usage={"completion_tokens": 11}),
        chunk(delta(0, finish_reason="stop")),
        chunk(usage={"completion_tokens": 10}),
        DONE,
    )
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "b"]
    assert answer["usage"] == {"completion_tokens": 10}


def test_tool_calls_are_merged_and_content_is_an_empty_text() -> None:
    first = {"name": "f", "arguments": "{"}
    call = {"index": 0, "id": "x", "type": "function", "function": first}
    second = {"name": "g", "arguments": ""}
    other = {"index": 1, "id": "y", "type": "function", "function": second}
    answer = assembled(
        JobKind.CHAT,
        chunk(delta(role="assistant", content=None)),
        chunk(delta(reasoning_content="hm")),
        chunk(delta(tool_calls=[call])),
        chunk(delta(tool_calls=[{"index": 0, "function": {"arguments": "}"}}])),
        chunk(delta(tool_calls=[other])),
        chunk(delta(finish_reason="tool_calls")),
        DONE,
    )
    message = answer["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "y", "type": "function", "function": {"name": "g", "arguments": ""}},
        ],
    }


def test_logprobs_of_all_tokens_are_there() -> None:
    answer = assembled(
        JobKind.CHAT,
        chunk(delta(content="a", logprobs={"content": [{"token": "a"}]})),
        chunk(delta(content="b", logprobs={"content": [{"token": "b"}]})),
        chunk(delta(finish_reason="stop")),
        DONE,
    )
    assert answer["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}


def test_a_completion_of_two_prompts() -> None:
    def text(index: int, value: str, reason: str | None = None, **more: Any) -> bytes:
        choice = {"text": value, "index": index, "logprobs": None, "finish_reason": reason}
        return event({"choices": [choice], **HEAD, "object": "text_completion", **more})

    answer = assembled(
        JobKind.COMPLETION,
        text(1, "b"),
        b"data: null\n\n",
        text(0, "a"),
        text(1, "", "length", usage={"completion_tokens": 2}),
        text(0, "", "stop", usage={"completion_tokens": 1}),
        DONE,
    )
    assert answer == {
        "choices": [
            {"text": "a", "index": 0, "logprobs": None, "finish_reason": "stop"},
            {"text": "b", "index": 1, "logprobs": None, "finish_reason": "length"},
        ],
        **HEAD,
        "object": "text_completion",
        "usage": {"completion_tokens": 1},
    }


def test_an_error_in_the_stream_is_the_answer() -> None:
    assembler = Assembler(JobKind.CHAT)
    assembler.add(
        event({"error": {"code": 500, "message": "Compute error.", "type": "server_error"}})
    )
    assert assembler.error is not None
    assert (assembler.error.status, assembler.error.message) == (500, "Compute error.")


@pytest.mark.parametrize("bad", [b"data: {x\n\n", b"data: [1]\n\n", b'data: {"choices":[1]}\n\n'])
def test_what_is_no_event_stream_is_said(bad: bytes) -> None:
    with pytest.raises(StreamError):
        Assembler(JobKind.CHAT).add(bad)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (chunk(delta(content='say "prompt_progress": and "error":')), EventKind.ANSWER),
        (chunk(delta(content="x"), prompt_progress={}), EventKind.PROGRESS),
        (event({"error": {}}), EventKind.ERROR),
        (b"error: {}\n\n", EventKind.ERROR),
        (DONE, EventKind.DONE),
        (b"data: null\n\n", EventKind.NOTHING),
        (b":\n\n", EventKind.COMMENT),
    ],
)
def test_the_kind_of_an_event(raw: bytes, kind: EventKind) -> None:
    assert kind_of(raw) is kind


def test_tokens_come_from_usage_or_from_timings() -> None:
    assert token_counts(chunk(usage={"prompt_tokens": 5, "completion_tokens": 2})) == TokenCounts(
        5, 2
    )
    timings = {"cache_n": 4, "prompt_n": 1, "predicted_n": 7}
    assert token_counts(chunk(timings=timings)) == TokenCounts(5, 7)
    assert token_counts(chunk()) == TokenCounts()
