"""One step against a runtime: send the request, read the answer, say how it ended.

It owns the upstream connection and knows nothing of the client's: what comes is put into a sink.
A step of which no answer byte has reached the client is LOST when the runtime dies, and the
scheduler decides what becomes of it; after that it is BROKEN.
"""

from collections.abc import Awaitable
from typing import Protocol

from gridcore.core.events import JobKind, StepOutcome
from gridcore.http.ask import Ask
from gridcore.http.assemble import Assembler
from gridcore.http.embeddings import BadVectors, EmbeddingMerger
from gridcore.http.jobs import Step, StepResult
from gridcore.http.openai import ApiError, from_runtime, status_in_event
from gridcore.http.spool import Spool
from gridcore.http.sse import (
    EventKind,
    EventSplitter,
    StreamError,
    TokenCounts,
    has_counts,
    kind_of,
    payload_of,
    token_counts,
)
from gridcore.http.upstream import UPSTREAM_ERRORS, Response, Upstream

PATHS = {
    JobKind.CHAT: "/v1/chat/completions",
    JobKind.COMPLETION: "/v1/completions",
    JobKind.EMBEDDING: "/v1/embeddings",
}
_ERROR_BYTES_MAX = 1 << 20
_DETAIL_CHARS_MAX = 300


class Sink(Protocol):
    """Where the events of one step go."""

    def begin(self) -> None: ...

    def add(self, event: bytes) -> None: ...

    def room(self) -> Awaitable[None] | None: ...

    def result(self, failure: str) -> StepResult: ...


async def run_generation(step: Step, upstream: Upstream, ask: Ask, sink: Sink) -> StepResult:
    """Run a chat or completion step; its events go to the sink as they come."""
    grant = step.grant
    failure = "the stream ended without its end mark"
    try:
        async with upstream.request(
            "POST",
            grant.address,
            PATHS[ask.kind],
            body=ask.upstream_body(grant.model_id, grant.slots),
        ) as response:
            if response.status != 200:
                return await _error_answer(response)
            sink.begin()
            splitter = EventSplitter()
            async for chunk in response.chunks():
                for event in splitter.feed(chunk):
                    sink.add(event)
                full = sink.room()
                if full is not None:
                    await full
    except (*UPSTREAM_ERRORS, StreamError) as error:
        failure = describe(error)
    return sink.result(failure)


async def run_embedding(
    step: Step, upstream: Upstream, ask: Ask, merger: EmbeddingMerger
) -> StepResult:
    """Run one range of an embedding request and merge its vectors."""
    grant = step.grant
    assert ask.inputs is not None
    body = ask.inputs.chunk(grant.model_id, grant.first, grant.count)
    try:
        async with upstream.request(
            "POST", grant.address, PATHS[JobKind.EMBEDDING], body=(body,)
        ) as response:
            if response.status != 200:
                return await _error_answer(response)
            answer = await response.read()
    except UPSTREAM_ERRORS as error:
        return StepResult(outcome=StepOutcome.LOST, slot_idle=False, detail=describe(error))
    try:
        n_tokens = merger.add(grant.first, grant.count, answer)
    except BadVectors as error:
        return StepResult(
            outcome=StepOutcome.DONE,
            last=True,
            detail=str(error),
            error=ApiError(502, "bad_runtime_answer", str(error)),
        )
    step.job.items_done = merger.prefix_done
    return StepResult(
        outcome=StepOutcome.DONE,
        last=merger.is_complete,
        counts=TokenCounts(prompt_tokens=n_tokens),
    )


class StreamSink:
    """Passes the events a streaming client asked for into its spool, byte for byte."""

    def __init__(self, spool: Spool, *, wants_progress: bool) -> None:
        self._spool = spool
        self._wants_progress = wants_progress
        self._is_done = False
        self._has_error = False
        self._counts_event: bytes | None = None
        self._first_byte_ns: int | None = None
        self._step: Step | None = None

    def attach(self, step: Step) -> None:
        self._step = step

    def begin(self) -> None:
        self._spool.put(b"")

    def room(self) -> Awaitable[None] | None:
        return self._spool.room() if self._spool.is_full else None

    def add(self, event: bytes) -> None:
        assert self._step is not None
        match kind_of(event):
            case EventKind.ANSWER:
                if self._first_byte_ns is None:
                    self._step.begin_answer()
                    self._first_byte_ns = self._step.age_ns()
                if has_counts(event):
                    self._counts_event = event
                self._spool.put(event)
            case EventKind.PROGRESS:
                if self._wants_progress:
                    self._spool.put(event)
            case EventKind.COMMENT:
                self._spool.put(event)
            case EventKind.DONE:
                self._is_done = True
                self._spool.put(event)
            case EventKind.ERROR:
                payload = payload_of(event)
                self._has_error = True
                self._spool.put(from_runtime(status_in_event(payload), payload).event())
            case EventKind.NOTHING:
                pass

    def result(self, failure: str) -> StepResult:
        assert self._step is not None
        counts = TokenCounts() if self._counts_event is None else token_counts(self._counts_event)
        if self._is_done or self._has_error:
            return StepResult(
                outcome=StepOutcome.DONE,
                last=True,
                detail="an error in the stream" if self._has_error else "",
                first_byte_ns=self._first_byte_ns,
                counts=counts,
            )
        if not self._step.answer_begun:
            return StepResult(outcome=StepOutcome.LOST, slot_idle=False, detail=failure)
        return StepResult(
            outcome=StepOutcome.BROKEN,
            last=True,
            slot_idle=False,
            detail=failure,
            error=ApiError(
                502, "runtime_died", f"the runtime ended in the middle of the answer: {failure}"
            ),
            first_byte_ns=self._first_byte_ns,
        )


class WholeSink:
    """Collects the events of an answer for a client that wants it in one piece."""

    def __init__(self, kind: JobKind) -> None:
        self._assembler = Assembler(kind)
        self._counts_event: bytes | None = None
        self._first_byte_ns: int | None = None
        self._step: Step | None = None

    def attach(self, step: Step) -> None:
        self._step = step

    def begin(self) -> None:
        pass

    def room(self) -> Awaitable[None] | None:
        return None

    def add(self, event: bytes) -> None:
        assert self._step is not None
        self._assembler.add(event)
        if self._first_byte_ns is None and kind_of(event) is EventKind.ANSWER:
            self._first_byte_ns = self._step.age_ns()
        if has_counts(event):
            self._counts_event = event

    def result(self, failure: str) -> StepResult:
        error = self._assembler.error
        if error is None and not self._assembler.is_done:
            return StepResult(outcome=StepOutcome.LOST, slot_idle=False, detail=failure)
        counts = TokenCounts() if self._counts_event is None else token_counts(self._counts_event)
        return StepResult(
            outcome=StepOutcome.DONE,
            last=True,
            detail="" if error is None else _detail_of(error),
            answer=None if error else self._assembler.result(),
            error=error,
            first_byte_ns=self._first_byte_ns,
            counts=counts,
        )


async def _error_answer(response: Response) -> StepResult:
    """Read an answer that is an error; a runtime that is not ready has not answered at all."""
    body = b""
    async for piece in response.chunks():
        body += piece
        if len(body) > _ERROR_BYTES_MAX:
            break
    if response.status == 503:
        return StepResult(outcome=StepOutcome.LOST, detail="the runtime answered 503, not ready")
    error = from_runtime(response.status if response.status >= 400 else 502, body)
    return StepResult(outcome=StepOutcome.DONE, last=True, detail=_detail_of(error), error=error)


def _detail_of(error: ApiError) -> str:
    """Describe an error answer; only a runtime's own failures are quoted, as the message of a
    client's mistake may quote its prompt."""
    text = f"HTTP {error.status} {error.error_type}"
    return f"{text}: {error.message[:_DETAIL_CHARS_MAX]}" if error.status >= 500 else text


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_DETAIL_CHARS_MAX]
