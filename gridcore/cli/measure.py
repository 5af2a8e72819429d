"""Measures one model through a running daemon's HTTP API, as any client would use it.

It knows no terminal: what it does is told to ``progress``. The speed of a prompt is the runtime's
own figure, so that waiting in the queue is not in it; generation is timed here, from the first
token to the last.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from gridcore.client import Client, ClientError
from gridcore.clock import monotonic_ns
from gridcore.config.schema import Capability, ModelConfig, RuntimeKind
from gridcore.core.notes import Verb
from gridcore.errors import GridcoreError
from gridcore.ids import ModelId
from gridcore.instance import Instance
from gridcore.ipc.events import BlockingEventSubscriber
from gridcore.ipc.messages import EventEnvelope
from gridcore.runtime.argv import batch_tokens, slot_context_tokens
from gridcore.runtime.launch import SPECIAL, Launches
from gridcore.store.profiles import ProfileStore, Speeds
from gridcore.units import NS_PER_S, format_duration

PROMPT_TOKENS = 256
GENERATED_TOKENS = 64
"""Long enough to average over, short enough for a slow machine: seconds to a minute a model."""
POLL_S = 0.5
LOAD_NS_MAX = 900 * NS_PER_S
RESTART_NS_MAX = 15 * NS_PER_S
REQUEST_S_MAX = 900.0
SETTLE_S = 6.0
"""The supervisor looks at footprints every five seconds; after the first full batch they grow."""


class Measurement(Struct, frozen=True, kw_only=True):
    model_id: str
    was_loaded: bool
    """Before; then its load time is that of an earlier load."""
    footprint_bytes: int | None
    estimated_bytes: int | None
    load_s: float | None
    speeds: Speeds


class _Answer(Struct, frozen=True, kw_only=True):
    first_ns: int
    last_ns: int
    n_tokens: int
    prompt_per_s: float | None

    @property
    def per_s(self) -> float | None:
        """The first token is the prompt's; without a second one there is no speed."""
        took_ns = self.last_ns - self.first_ns
        return (self.n_tokens - 1) * NS_PER_S / took_ns if took_ns > 0 else None


async def measure(
    instance: Instance, url: str, model_id: str, progress: Callable[[str], None]
) -> Measurement:
    """Load a model if it is not, measure it, store what was found, and leave it as it was.

    Raises:
        GridcoreError: it cannot be loaded, or a request failed; the text says why.
    """
    model = instance.config.models[model_id]
    with Client(url) as client:
        was_loaded = (await _model(client, model_id))["phase"] == "ready"
        if not was_loaded:
            progress("loading")
            _load(client, instance.runtime.events, model_id)
        speeds = await _speeds(url, model_id, model, progress)
        if model.runtime is not RuntimeKind.SIMULATED:
            progress("waiting for its footprint to settle")
            await asyncio.sleep(SETTLE_S)
        seen = await _model(client, model_id)
        if not was_loaded:
            client.unload(model_id)
    conditions = Launches(instance).conditions(ModelId(model_id))
    ProfileStore(instance.state.profiles).timed(conditions, model_id, speeds)
    return Measurement(
        model_id=model_id,
        was_loaded=was_loaded,
        footprint_bytes=seen["footprint"]["measured_bytes"],
        estimated_bytes=seen["footprint"]["estimated_bytes"],
        load_s=seen["load_seconds"],
        speeds=speeds,
    )


async def _model(client: Client, model_id: str) -> dict[str, Any]:
    """What the daemon says of it; a scheduler that is being restarted is waited for."""
    deadline_ns = monotonic_ns() + RESTART_NS_MAX
    while True:
        try:
            models = client.state()["models"]
        except ClientError as error:
            if error.status != 503 or monotonic_ns() > deadline_ns:
                raise
            await asyncio.sleep(POLL_S)
        else:
            found: dict[str, Any] = next(model for model in models if model["id"] == model_id)
            return found


def _load(client: Client, events: Path, model_id: str) -> None:
    """Ask for it, and follow the daemon's notes until it is there or cannot be."""
    subscriber = BlockingEventSubscriber(events)
    deadline_ns = monotonic_ns() + LOAD_NS_MAX
    try:
        while _next(subscriber, deadline_ns, model_id).snapshot is None:
            pass  # from the first one on nothing is missed
        client.load(model_id)
        while True:
            note = _next(subscriber, deadline_ns, model_id).note
            if note is None or note.model_id != model_id:
                continue
            if note.verb is Verb.LOADED:
                return
            if note.verb is Verb.FAIL:
                raise GridcoreError(f"{model_id}: {note.text}")
    finally:
        subscriber.close()


def _next(subscriber: BlockingEventSubscriber, deadline_ns: int, model_id: str) -> EventEnvelope:
    while monotonic_ns() < deadline_ns:
        event = subscriber.receive(timeout_s=POLL_S)
        if event is not None:
            return event
    raise GridcoreError(
        f"{model_id} was not loaded within {format_duration(LOAD_NS_MAX)}; gridcore status says "
        "what it waits for"
    )


async def _speeds(
    url: str, model_id: str, model: ModelConfig, progress: Callable[[str], None]
) -> Speeds:
    on_cpu = model.runtime is RuntimeKind.EMBEDDED
    batch = batch_tokens(model, on_cpu=on_cpu)
    async with httpx.AsyncClient(
        base_url=url, timeout=REQUEST_S_MAX, trust_env=False, follow_redirects=False
    ) as http:
        if Capability.EMBEDDING in model.capabilities:
            progress("a full batch")
            n_tokens = min(batch, slot_context_tokens(model)) - SPECIAL
            return Speeds(prompt=await _embed(http, model_id, max(1, n_tokens)))
        if Capability.RERANK in model.capabilities:
            return Speeds()
        room = slot_context_tokens(model) - GENERATED_TOKENS - SPECIAL
        n_prompt = max(1, min(max(PROMPT_TOKENS, batch), room))
        progress("one stream")
        alone = await _generate(http, model_id, n_prompt, "one")
        speeds = Speeds(prompt=alone.prompt_per_s, generation=alone.per_s)
        if model.parallel == 1:
            return speeds
        progress(f"{model.parallel} streams")
        answers = await asyncio.gather(
            *(_generate(http, model_id, 1, str(n)) for n in range(model.parallel))
        )
        took_ns = max(a.last_ns for a in answers) - min(a.first_ns for a in answers)
        n_tokens = sum(a.n_tokens for a in answers) - len(answers)
        together = n_tokens * NS_PER_S / took_ns if took_ns > 0 else None
        return msgspec.structs.replace(speeds, streams=model.parallel, together=together)


async def _generate(http: httpx.AsyncClient, model_id: str, n_prompt: int, name: str) -> _Answer:
    """Stream one completion; the prompts of two streams share nothing that could be cached."""
    body = {
        "model": model_id,
        "prompt": f"Stream {name}:" + " the" * n_prompt,
        "max_tokens": GENERATED_TOKENS,
        "stream": True,
        "cache_prompt": False,
        "ignore_eos": True,
    }
    first_ns = last_ns = n_tokens = 0
    timings: dict[str, Any] = {}
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if not response.is_success:
                await _refuse(model_id, response)
            async for line in response.aiter_lines():
                event = _event(line)
                timings = event.get("timings") or timings
                if any(choice.get("text") for choice in event.get("choices", ())):
                    last_ns = monotonic_ns()
                    first_ns = first_ns or last_ns
                    n_tokens += 1
    except httpx.HTTPError as error:
        raise GridcoreError(f"{model_id}: its request failed: {error}") from error
    if not n_tokens:
        raise GridcoreError(f"{model_id} answered without a token")
    return _Answer(
        first_ns=first_ns,
        last_ns=last_ns,
        n_tokens=int(timings.get("predicted_n") or n_tokens),
        prompt_per_s=timings.get("prompt_per_second"),
    )


async def _embed(http: httpx.AsyncClient, model_id: str, n_tokens: int) -> float | None:
    body = {"model": model_id, "input": "hello" + " the" * (n_tokens - 1)}
    began_ns = monotonic_ns()
    try:
        response = await http.post("/v1/embeddings", json=body)
    except httpx.HTTPError as error:
        raise GridcoreError(f"{model_id}: its request failed: {error}") from error
    took_ns = monotonic_ns() - began_ns
    if not response.is_success:
        await _refuse(model_id, response)
    counted = (response.json().get("usage") or {}).get("prompt_tokens") or n_tokens
    return float(counted) * NS_PER_S / took_ns


async def _refuse(model_id: str, response: httpx.Response) -> None:
    await response.aread()
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = response.text[:200]
    raise GridcoreError(f"{model_id}: its request was answered {response.status_code}: {said}")


def _event(line: str) -> dict[str, Any]:
    data = line.removeprefix("data:").strip()
    if data == line.strip() or data == "[DONE]":
        return {}  # a comment, an empty line, another field
    try:
        event = json.loads(data)
    except ValueError:
        return {}
    if isinstance(event, dict) and "error" in event:
        raise GridcoreError(f"a stream ended with an error: {event['error']}")
    return event if isinstance(event, dict) else {}
