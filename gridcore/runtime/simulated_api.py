"""llama-server's HTTP API over a simulated model: same paths, same JSON, same errors.

Shapes and sentences are those of llama.cpp b11434; clients cannot tell the difference but by
the text.
"""

import asyncio
import base64
import json
import secrets
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gridcore.clock import wall_time_s
from gridcore.runtime.http_server import Request, Responder
from gridcore.runtime.simulated_model import SimulatedModel, pieces_of, token_of

Json = dict[str, Any]
Route = Callable[[Request, Responder], Awaitable[None]]

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
}
NO_IMAGES = (
    "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
)


class ApiError(Exception):
    """An error answer."""

    def __init__(self, status: int, message: str, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"code": status, "message": message, "type": _TYPES[status], **more}


@dataclass
class Generation:
    """One choice being generated."""

    index: int
    n_prompt: int
    prompt_ms: float = 0.0
    n_tokens: int = 0
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Progress:
    processed: int


@dataclass(frozen=True)
class Token:
    text: str


@dataclass(frozen=True)
class Ended:
    pass


Part = Progress | Token | Ended


class Api:
    def __init__(self, model: SimulatedModel) -> None:
        self.model = model
        self._spec = model.spec
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/health"): self._health,
            ("GET", "/v1/models"): self.models,
            ("GET", "/models"): self.models,
            ("GET", "/props"): self._props,
            ("GET", "/slots"): self._slots,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/completions"): self._completions,
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/embeddings"): self._embeddings,
            ("POST", "/v1/rerank"): self._rerank,
            ("POST", "/rerank"): self._rerank,
        }

    async def handle(self, request: Request, responder: Responder) -> None:
        route = self._routes.get((request.method, request.path))
        try:
            if route is None:
                raise ApiError(404, "File Not Found")
            try:
                await route(request, responder)
            except (TypeError, ValueError, AttributeError, KeyError) as error:
                # As llama-server, whose JSON library throws where a field has another type.
                raise ApiError(400, f"[json.exception.type_error.302] {error}") from error
        except ApiError as error:
            if responder.begun:
                await responder.write(_event({"error": error.body}))
                await responder.end()
            else:
                await responder.send(error.status, _dump({"error": error.body}))

    # --- metadata ------------------------------------------------------------------------

    async def _health(self, _: Request, responder: Responder) -> None:
        await responder.send(200, b'{"status":"ok"}')

    async def models(self, _: Request, responder: Responder) -> None:
        spec = self._spec
        modalities = ["text", "image"] if spec.mmproj else ["text"]
        entry = {
            "id": spec.model_id,
            "aliases": [spec.model_id],
            "tags": [],
            "object": "model",
            "architecture": {"input_modalities": modalities, "output_modalities": ["text"]},
            "created": int(wall_time_s()),
            "owned_by": "llamacpp",
            "meta": {"n_ctx": spec.slot_context, "size": spec.footprint_bytes},
        }
        await responder.send(200, _dump({"object": "list", "data": [entry]}))

    async def _props(self, _: Request, responder: Responder) -> None:
        spec = self._spec
        props = {
            "default_generation_settings": {"n_ctx": spec.slot_context},
            "total_slots": spec.slots,
            "model_alias": spec.model_id,
            "model_path": "simulated",
            "modalities": {"vision": spec.mmproj, "video": False, "audio": False},
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "build_info": "simulated",
            "is_sleeping": False,
        }
        await responder.send(200, _dump(props))

    async def _slots(self, _: Request, responder: Responder) -> None:
        context = self._spec.slot_context
        slots = [
            {"id": n, "n_ctx": context, "speculative": False, "is_processing": busy}
            for n, busy in enumerate(self.model.slots.busy)
        ]
        await responder.send(200, _dump(slots))

    async def _metrics(self, _: Request, responder: Responder) -> None:
        slots = self.model.slots
        readings = {
            "prompt_tokens_total": ("counter", self.model.prompt_tokens_total),
            "tokens_predicted_total": ("counter", self.model.predicted_tokens_total),
            "requests_processing": ("gauge", sum(slots.busy)),
            "requests_deferred": ("gauge", slots.n_waiting),
        }
        lines = []
        for name, (kind, value) in readings.items():
            lines += [f"# TYPE llamacpp:{name} {kind}", f"llamacpp:{name} {value}"]
        text = "\n".join(lines) + "\n"
        await responder.send(200, text.encode(), "text/plain; version=0.0.4")

    async def _tokenize(self, request: Request, responder: Responder) -> None:
        content = _body(request).get("content", "")
        tokens = [token_of(piece) for piece in pieces_of(str(content))]
        await responder.send(200, _dump({"tokens": tokens}))

    async def _detokenize(self, request: Request, responder: Responder) -> None:
        tokens = _body(request).get("tokens", [])
        await responder.send(200, _dump({"content": " ".join(f"t{n}" for n in tokens)}))

    # --- text ----------------------------------------------------------------------------

    async def _chat(self, request: Request, responder: Responder) -> None:
        body = _body(request)
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise ApiError(400, "'messages' is required")
        n_prompt = self._n_prompt_tokens(_chat_text(messages, images=self._spec.mmproj))
        await self._generate(body, n_prompt, _ChatShape(self._spec.model_id), responder)

    async def _completions(self, request: Request, responder: Responder) -> None:
        body = _body(request)
        if "prompt" not in body:
            raise ApiError(400, "[json.exception.out_of_range.403] key 'prompt' not found")
        prompt = body["prompt"]
        text = prompt if isinstance(prompt, str) else " ".join(str(part) for part in prompt)
        shape = _CompletionShape(self._spec.model_id)
        await self._generate(body, self._n_prompt_tokens(text), shape, responder)

    def _n_prompt_tokens(self, text: str) -> int:
        count, context = max(1, len(pieces_of(text))), self._spec.slot_context
        if count > context:
            raise ApiError(
                400,
                f"request ({count} tokens) exceeds the available context size "
                f"({context} tokens), try increasing it",
                type="exceed_context_size_error",
                n_prompt_tokens=count,
                n_ctx=context,
            )
        return count

    async def _generate(
        self, body: Json, n_prompt: int, shape: "_Shape", responder: Responder
    ) -> None:
        width = body.get("n") or 1
        if width > self._spec.slots:
            raise ApiError(400, f"n_cmpl cannot be greater than the number of slots, {width} given")
        if body.get("stream"):
            await self._stream(body, n_prompt, width, shape, responder)
            return
        texts = [""] * width
        done: list[Generation] = []
        async with aclosing(self._choices(body, n_prompt, width)) as choices:
            async for generation, part in choices:
                if isinstance(part, Token):
                    texts[generation.index] += part.text
                elif isinstance(part, Ended):
                    done.append(generation)
        done.sort(key=lambda each: each.index)
        made = [shape.choice(each, texts[each.index]) for each in done]
        reply = shape.reply(made, usage=_usage(done), timings=self._timings(done[0]))
        await responder.send(200, _dump(reply))

    async def _stream(
        self, body: Json, n_prompt: int, width: int, shape: "_Shape", responder: Responder
    ) -> None:
        """Headers when the slot starts, the first chunk with the first token, as llama-server."""
        wants_progress, wants_usage = bool(body.get("return_progress")), _wants_usage(body)
        done: list[Generation] = []
        greeted: set[int] = set()
        async with aclosing(self._choices(body, n_prompt, width)) as choices:
            async for generation, part in choices:
                index = generation.index
                if not responder.begun:
                    await responder.begin(200, "text/event-stream")
                if isinstance(part, Progress):
                    if wants_progress:
                        await responder.write(_event(shape.progress(generation, part)))
                    continue
                if shape.has_first and index not in greeted:
                    greeted.add(index)
                    await responder.write(_event(shape.first(index)))
                if isinstance(part, Token):
                    await responder.write(_event(shape.delta(index, part.text)))
                    continue
                done.append(generation)
                last = shape.last(generation)
                if shape.usage_in_last:
                    last |= {"usage": _usage([generation]), "timings": self._timings(generation)}
                elif not wants_usage:
                    last |= {"timings": self._timings(generation)}
                await responder.write(_event(last))
        if wants_usage and not shape.usage_in_last:
            tail = shape.reply([], usage=_usage(done), timings=self._timings(done[0]))
            await responder.write(_event(tail))
        await responder.write(b"data: [DONE]\n\n")
        await responder.end()

    async def _choices(
        self, body: Json, n_prompt: int, width: int
    ) -> AsyncGenerator[tuple[Generation, Part], None]:
        """Yield the parts of all choices as they come; every choice ends with ``Ended``."""
        if width == 1:
            async with aclosing(self._choice(body, n_prompt, 0, body.get("id_slot"))) as parts:
                async for each in parts:
                    yield each
            return
        queue: asyncio.Queue[tuple[Generation, Part]] = asyncio.Queue()

        async def run(index: int) -> None:
            async with aclosing(self._choice(body, n_prompt, index, None)) as parts:
                async for each in parts:
                    if index == 0 or not isinstance(each[1], Progress):
                        queue.put_nowait(each)

        tasks = [asyncio.create_task(run(index)) for index in range(width)]
        try:
            left = width
            while left:
                each = await queue.get()
                left -= isinstance(each[1], Ended)
                yield each
        finally:
            for task in tasks:
                task.cancel()

    async def _choice(
        self, body: Json, n_prompt: int, index: int, id_slot: int | None
    ) -> AsyncGenerator[tuple[Generation, Part], None]:
        limit = _token_limit(body)
        wanted = id_slot if id_slot is not None and id_slot >= 0 else None
        generation = Generation(index, n_prompt)
        async with self.model.slots.one(wanted):
            yield generation, Progress(0)
            async for processed, took_ms in self.model.read_prompt(n_prompt):
                generation.prompt_ms = took_ms
                yield generation, Progress(processed)
            room = self._spec.slot_context - n_prompt
            bound = room if limit is None else min(limit, room)
            endless = bool(body.get("ignore_eos"))
            async for piece in self.model.tokens(bound, endless=endless):
                generation.n_tokens += 1
                yield generation, Token(piece)
            if endless or generation.n_tokens < len(pieces_of(self._spec.reply)):
                generation.finish_reason = "length"
        yield generation, Ended()

    def _timings(self, generation: Generation) -> Json:
        per_token_ms = 1000 / self._spec.tokens_per_second
        predicted_ms = generation.n_tokens * per_token_ms
        return {
            "cache_n": 0,
            "prompt_n": generation.n_prompt,
            "prompt_ms": generation.prompt_ms,
            "prompt_per_token_ms": generation.prompt_ms / generation.n_prompt,
            "prompt_per_second": self._spec.prompt_tokens_per_second,
            "predicted_n": generation.n_tokens,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": per_token_ms,
            "predicted_per_second": self._spec.tokens_per_second,
        }

    # --- vectors -------------------------------------------------------------------------

    async def _embeddings(self, request: Request, responder: Responder) -> None:
        if not self._spec.embeddings:
            raise ApiError(
                501, "This server does not support embeddings. Start it with `--embeddings`"
            )
        body = _body(request)
        inputs = _inputs(body)
        counts = [max(1, len(pieces_of(text))) for text in inputs]
        for count in counts:
            if count > self._spec.batch:
                raise ApiError(
                    500,
                    f"input ({count} tokens) is too large to process. increase the physical "
                    f"batch size (current batch size: {self._spec.batch})",
                )
        vectors = await self.model.embed(inputs)
        as_base64 = body.get("encoding_format") == "base64"
        data = [
            {"embedding": _base64(v) if as_base64 else v, "index": n, "object": "embedding"}
            for n, v in enumerate(vectors)
        ]
        usage = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
        model = body.get("model") or self._spec.model_id
        reply = {"model": model, "object": "list", "usage": usage, "data": data}
        await responder.send(200, _dump(reply))

    async def _rerank(self, request: Request, responder: Responder) -> None:
        if not self._spec.rerank:
            raise ApiError(
                501, "This server does not support reranking. Start it with `--reranking`"
            )
        body = _body(request)
        query, documents = body.get("query"), body.get("documents", body.get("texts"))
        if not isinstance(query, str):
            raise ApiError(400, '"query" must be provided')
        if not isinstance(documents, list) or not documents:
            raise ApiError(400, '"documents" must be a non-empty string array')
        vectors = await self.model.embed([f"{query}\0{document}" for document in documents])
        scored = [{"index": n, "relevance_score": v[0]} for n, v in enumerate(vectors)]
        scored.sort(key=lambda each: -float(each["relevance_score"]))
        count = sum(len(pieces_of(str(document))) for document in documents)
        usage = {"prompt_tokens": count, "total_tokens": count}
        reply = {"model": self._spec.model_id, "object": "list", "usage": usage, "results": scored}
        await responder.send(200, _dump(reply))


class _Shape:
    """How an answer of one endpoint looks; ids and times are drawn once per answer."""

    kind = ""
    chunk_kind = ""
    has_first = False
    usage_in_last = False

    def __init__(self, model_id: str) -> None:
        self._envelope: Json = {
            "created": int(wall_time_s()),
            "id": f"chatcmpl-{secrets.token_urlsafe(24)}",
            "model": model_id,
            "system_fingerprint": "simulated",
        }

    def chunk(self, choices: list[Json]) -> Json:
        return {"choices": choices, **self._envelope, "object": self.chunk_kind}

    def reply(self, choices: list[Json], *, usage: Json, timings: Json) -> Json:
        kind = self.kind if choices else self.chunk_kind
        head: Json = {"choices": choices, **self._envelope, "object": kind}
        return head | {"usage": usage, "timings": timings}

    def progress(self, generation: Generation, progress: Progress) -> Json:
        fields = {"total": generation.n_prompt, "cache": 0, "processed": progress.processed}
        took_ms = int(generation.prompt_ms)
        return self.first(generation.index) | {"prompt_progress": {**fields, "time_ms": took_ms}}

    def first(self, index: int) -> Json:
        raise NotImplementedError

    def delta(self, index: int, text: str) -> Json:
        raise NotImplementedError

    def last(self, generation: Generation) -> Json:
        raise NotImplementedError

    def choice(self, generation: Generation, text: str) -> Json:
        raise NotImplementedError


class _ChatShape(_Shape):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    has_first = True

    def first(self, index: int) -> Json:
        delta = {"role": "assistant", "content": None}
        return self.chunk([{"finish_reason": None, "index": index, "delta": delta}])

    def delta(self, index: int, text: str) -> Json:
        return self.chunk([{"finish_reason": None, "index": index, "delta": {"content": text}}])

    def last(self, generation: Generation) -> Json:
        reason = generation.finish_reason
        return self.chunk([{"finish_reason": reason, "index": generation.index, "delta": {}}])

    def choice(self, generation: Generation, text: str) -> Json:
        message = {"role": "assistant", "content": text}
        reason = generation.finish_reason
        return {"finish_reason": reason, "index": generation.index, "message": message}


class _CompletionShape(_Shape):
    kind = "text_completion"
    chunk_kind = "text_completion"
    usage_in_last = True

    def first(self, index: int) -> Json:
        return self.delta(index, "")

    def delta(self, index: int, text: str) -> Json:
        return self.chunk([_text_choice(index, text, None)])

    def last(self, generation: Generation) -> Json:
        return self.chunk([_text_choice(generation.index, "", generation.finish_reason)])

    def choice(self, generation: Generation, text: str) -> Json:
        return _text_choice(generation.index, text, generation.finish_reason)


def _text_choice(index: int, text: str, finish_reason: str | None) -> Json:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish_reason}


def _body(request: Request) -> Json:
    prefix = "[json.exception.parse_error.101] parse error at line"
    if not request.body:
        raise ApiError(
            400,
            f"{prefix} 1, column 1: attempting to parse an empty input; check that your input "
            "string or stream contains the expected JSON",
        )
    try:
        body = json.loads(request.body)
    except json.JSONDecodeError as error:
        message = f"{prefix} {error.lineno}, column {error.colno}: {error.msg}"
        raise ApiError(400, message) from None
    except UnicodeDecodeError:
        raise ApiError(400, f"{prefix} 1, column 1: invalid UTF-8") from None
    if not isinstance(body, dict):
        raise ApiError(400, "[json.exception.type_error.302] type must be object")
    return body


def _chat_text(messages: list[Any], *, images: bool) -> str:
    texts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            texts.append(content)
        for part in content if isinstance(content, list) else []:
            if part.get("type") == "text":
                texts.append(str(part.get("text", "")))
            elif not images:
                raise ApiError(500, NO_IMAGES)
    return "\n".join(texts)


def _token_limit(body: Json) -> int | None:
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        value = body.get(name)
        if isinstance(value, int) and value >= 0:
            return value
    return None


def _wants_usage(body: Json) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _inputs(body: Json) -> list[str]:
    """Accept a text, a list of texts, tokens, a list of token lists, and mixtures."""
    value = body.get("input", body.get("content"))
    if value is None:
        raise ApiError(400, '"input" or "content" must be provided')
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ApiError(400, '"input" must not be empty')
    if all(isinstance(each, int) for each in value):
        return [_token_text(value)]
    return [each if isinstance(each, str) else _token_text(each) for each in value]


def _token_text(tokens: list[int]) -> str:
    return " ".join(str(token) for token in tokens)


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _usage(generations: list[Generation]) -> Json:
    n_prompt = generations[0].n_prompt
    n_tokens = sum(each.n_tokens for each in generations)
    return {
        "completion_tokens": n_tokens,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _event(value: object) -> bytes:
    return b"data: " + _dump(value) + b"\n\n"
