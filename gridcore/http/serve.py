"""A job from its submission to its answer: wait for grants, run steps, write to the client.

One coroutine per request. It is cancelled when its client goes away, at whatever await it is;
closing the job then closes every upstream connection it has.
"""

import asyncio

from gridcore.clock import monotonic_ns
from gridcore.core.events import JobSubmitted
from gridcore.http.answer import Answer
from gridcore.http.ask import Ask
from gridcore.http.embeddings import EmbeddingMerger
from gridcore.http.jobs import Job, Step, StepResult, Word
from gridcore.http.openai import ApiError
from gridcore.http.proxy import StreamSink, WholeSink, run_embedding, run_generation
from gridcore.http.spool import Spool
from gridcore.http.upstream import Upstream
from gridcore.ids import PeerId, new_job_id
from gridcore.ipc.messages import GrantStep
from gridcore.units import NS_PER_MS, NS_PER_S, format_duration

COMMENT_EVERY_S = 5.0
"""Proxies on the way close idle connections after 30 s or more."""


def submission(ask: Ask, gateway: PeerId) -> JobSubmitted:
    channels = ask.channels
    return JobSubmitted(
        job_id=new_job_id(),
        gateway=gateway,
        target=ask.target.name,
        workload=channels.workload,
        kind=ask.kind,
        class_from=channels.class_from,
        client=ask.client,
        items=1 if ask.inputs is None else len(ask.inputs),
        width=ask.width,
        needs=ask.needs,
        quality=channels.quality,
        max_wait_ns=channels.max_wait_ns,
        affinity=ask.affinity,
    )


def describe_job(answer: Answer, ask: Ask, job: Job) -> None:
    """Set the response headers that are known before anything runs."""
    channels = ask.channels
    answer.set("X-GridCore-Job-Id", job.job_id)
    answer.set("X-GridCore-Class", f"{channels.workload}; from={channels.class_from}")
    if ask.target.is_family:
        answer.set("X-GridCore-Family", ask.target.name)


def _describe_grant(answer: Answer, grant: GrantStep) -> None:
    answer.set("X-GridCore-Model", grant.model_id)
    answer.set("X-GridCore-Queue-Ms", str(grant.waited_ns // NS_PER_MS))


class Generation:
    """A chat or a completion: one step, again and again until one of them is answered."""

    def __init__(
        self,
        *,
        ask: Ask,
        job: Job,
        answer: Answer,
        upstream: Upstream,
        comments_after_ns: int,
    ) -> None:
        self._ask = ask
        self._job = job
        self._answer = answer
        self._upstream = upstream
        self._comment_at_ns = job.arrived_ns + comments_after_ns

    async def serve(self) -> None:
        """
        Raises:
            ApiError: what the client is told instead of an answer.
        """
        while True:
            word = await self._next_word()
            match word:
                case ApiError():
                    raise word
                case StepResult(last=True):
                    await self._finish(word)
                    return
                case StepResult():
                    continue
                case GrantStep():
                    if self._ask.stream:
                        await self._stream(word)
                    else:
                        self._assemble(word)

    async def _stream(self, grant: GrantStep) -> None:
        spool = Spool()
        sink = StreamSink(spool, wants_progress=self._ask.wants_progress)
        step = self._run(grant, sink)
        assert step.task is not None
        step.task.add_done_callback(lambda _: spool.close())
        while (data := await spool.take()) is not None:
            if not self._answer.has_begun:
                _describe_grant(self._answer, grant)
                await self._answer.begin_stream()
            if data:
                await self._answer.write(data)

    def _assemble(self, grant: GrantStep) -> None:
        _describe_grant(self._answer, grant)
        self._run(grant, WholeSink(self._ask.kind))

    def _run(self, grant: GrantStep, sink: StreamSink | WholeSink) -> Step:
        async def work(step: Step) -> StepResult:
            sink.attach(step)
            return await run_generation(step, self._upstream, self._ask, sink)

        return self._job.run(grant, work)

    async def _finish(self, result: StepResult) -> None:
        if result.error is not None:
            raise result.error
        if result.answer is not None:
            await self._answer.json(result.answer)
        else:
            await self._answer.end()

    async def _next_word(self) -> Word:
        """Wait for what comes next; a client that streams and waits long sees that we live.

        With a longest wait nothing is written before the first answer byte: the status must
        still be able to say that it has passed.
        """
        job, answer = self._job, self._answer
        may_comment = self._ask.stream and (answer.has_begun or job.submitted.max_wait_ns is None)
        while may_comment:
            delay_s = max(0.0, (self._comment_at_ns - monotonic_ns()) / NS_PER_S)
            try:
                async with asyncio.timeout(delay_s):
                    return await job.next_word()
            except TimeoutError:
                pass
            now_ns = monotonic_ns()
            self._comment_at_ns = now_ns + int(COMMENT_EVERY_S * NS_PER_S)
            if not answer.has_begun:
                await answer.begin_stream()
            waited = format_duration(now_ns - job.arrived_ns)
            name = self._ask.target.name.encode("ascii", "backslashreplace").decode()
            await answer.write(f": waiting {waited} for {name}\n\n".encode())
        return await job.next_word()


class Embedding:
    """Many inputs, cut into the ranges the scheduler grants, answered as one."""

    def __init__(self, *, ask: Ask, job: Job, answer: Answer, upstream: Upstream) -> None:
        assert ask.inputs is not None
        self._ask = ask
        self._job = job
        self._answer = answer
        self._upstream = upstream
        self._merger = EmbeddingMerger(len(ask.inputs))

    async def serve(self) -> None:
        """
        Raises:
            ApiError: what the client is told instead of an answer.
        """
        model = ""
        while not self._merger.is_complete:
            word = await self._job.next_word()
            match word:
                case ApiError():
                    raise word
                case StepResult(error=ApiError() as error):
                    raise error
                case StepResult():
                    continue
                case GrantStep():
                    if not model:
                        model = word.model_id
                        _describe_grant(self._answer, word)
                    self._start(word)
        await self._answer.json(self._merger.answer(model))

    def _start(self, grant: GrantStep) -> None:
        if self._merger.has(grant.first, grant.count):
            self._job.skip(grant)
            return

        async def work(step: Step) -> StepResult:
            return await run_embedding(step, self._upstream, self._ask, self._merger)

        self._job.run(grant, work)
