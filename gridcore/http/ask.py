"""From a request's headers and body to what the scheduler must know of it.

Pure. It refuses what no runtime could serve (an image for a model that sees none, more answers
than slots) and leaves everything else in the body to the runtime, which knows it better.
"""

import hashlib
from typing import Any

import msgspec
from msgspec import Struct

from gridcore.config.schema import Capability, Workload
from gridcore.core.events import JobKind
from gridcore.http.body import Body, scan
from gridcore.http.channels import Channels, read_channels
from gridcore.http.embeddings import EmbeddingInputs
from gridcore.http.names import Names, Target
from gridcore.http.openai import ApiError, bad_request

_AFFINITY_BYTES_MAX = 4096
"""Of each message: enough to tell conversations apart, little enough for images."""
_PROMPT_AFFINITY_BYTES = 512

_CAPABILITY_BY_PART = {
    "image_url": Capability.VISION,
    "input_image": Capability.VISION,
    "image": Capability.VISION,
    "input_audio": Capability.AUDIO,
    "audio_url": Capability.AUDIO,
    "audio": Capability.AUDIO,
}


class Ask(Struct, frozen=True, kw_only=True):
    """One request, understood.

    Args:
        width: tasks it makes in the runtime at the same time.
        inputs: the pieces of an embedding request.
    """

    kind: JobKind
    body: Body
    target: Target
    channels: Channels
    client: str
    affinity: str | None
    stream: bool = False
    wants_progress: bool = False
    width: int = 1
    needs: frozenset[Capability] = frozenset()
    inputs: EmbeddingInputs | None = None

    def upstream_body(self, model: str, slots: tuple[int, ...]) -> tuple[memoryview, bytes]:
        """Return the client's body with what GridCore decides added at its end."""
        added: dict[str, Any] = {"model": model, "stream": True, "return_progress": True}
        if self.width == 1:
            # One slot for one task. Several prompts with the same id_slot would run in turn.
            added["id_slot"] = slots[0]
        if not self.stream:
            added["stream_options"] = {"include_usage": True}
        return self.body.with_fields(added)


class _Message(Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Part(Struct):
    type: str = ""


_MESSAGES = msgspec.json.Decoder(list[_Message])
_PARTS = msgspec.json.Decoder(list[_Part])


def client_name(headers: dict[bytes, bytes], address: str) -> str:
    """Name the client whose requests share its turn: its key, else where it comes from.

    Only a digest leaves the gateway; keys are written nowhere.
    """
    key = headers.get(b"authorization", b"")
    agent = headers.get(b"user-agent", b"")
    identity = b"key " + key if key else b"from " + address.encode() + b" " + agent
    return hashlib.blake2b(identity, digest_size=6).hexdigest()


def read_ask(
    kind: JobKind,
    raw: bytes,
    headers: dict[bytes, bytes],
    *,
    address: str,
    names: Names,
    default_class: Workload,
) -> Ask:
    """Understand one request.

    Raises:
        ApiError: it cannot be served, whatever happens; 4xx.
    """
    body = scan(raw)
    target = names.resolve(_model_name(body))
    channels = read_channels(headers, body, suffix=target.suffix, default=default_class)
    client = client_name(headers, address)
    if kind is JobKind.EMBEDDING:
        return _embedding(body, target, channels, client)
    if not target.has(Capability.CHAT):
        raise _lacks(target, Capability.CHAT, "model")
    stream = body.get("stream", bool, default=False)
    progress = body.get("return_progress", bool, default=False)
    needs: frozenset[Capability] = frozenset()
    if kind is JobKind.CHAT:
        messages = _messages(body)
        needs = _needs(messages)
        for capability in sorted(needs):
            if not target.has(capability):
                raise _lacks(target, capability, "messages")
        affinity = _chat_affinity(client, messages)
        width = _answers(body, target)
    else:
        width = _completion_width(body, target)
        affinity = _prompt_affinity(client, body)
    return Ask(
        kind=kind,
        body=body,
        target=target,
        channels=channels,
        client=client,
        affinity=affinity,
        stream=stream,
        wants_progress=progress,
        width=width,
        needs=needs,
    )


def _embedding(body: Body, target: Target, channels: Channels, client: str) -> Ask:
    if not target.has(Capability.EMBEDDING):
        raise _lacks(target, Capability.EMBEDDING, "model")
    return Ask(
        kind=JobKind.EMBEDDING,
        body=body,
        target=target,
        channels=channels,
        client=client,
        affinity=None,
        inputs=EmbeddingInputs(body),
    )


def _model_name(body: Body) -> str:
    name = body.get("model", str, default="")
    if not name:
        raise bad_request(
            "missing_model", "model is required: the id of a model, see /v1/models", param="model"
        )
    return name


def _lacks(target: Target, capability: Capability, param: str) -> ApiError:
    what = "family" if target.is_family else "model"
    has = sorted({known for model in target.variants for known in model.capabilities})
    return bad_request(
        "model_lacks_capability",
        f"the {what} {target.name!r} cannot do {capability.value}; it has {', '.join(has)}",
        param=param,
    )


def _messages(body: Body) -> list[_Message]:
    """Read roles and raw contents; a form that we do not know is the runtime's to judge."""
    if not body.has("messages"):
        raise bad_request("missing_messages", "messages is required: a list", param="messages")
    try:
        return _MESSAGES.decode(body.fields["messages"])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise bad_request("invalid_type", f"messages: {error}", param="messages") from None


def _needs(messages: list[_Message]) -> frozenset[Capability]:
    found: set[Capability] = set()
    for message in messages:
        if bytes(memoryview(message.content)[:1]) != b"[":
            continue
        try:
            parts = _PARTS.decode(message.content)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise bad_request("invalid_type", f"messages: {error}", param="messages") from None
        found.update(
            _CAPABILITY_BY_PART[part.type] for part in parts if part.type in _CAPABILITY_BY_PART
        )
    return frozenset(found)


def _answers(body: Body, target: Target) -> int:
    n = body.get("n", int, default=1)
    if n < 1:
        raise bad_request("invalid_n", f"n is {n}; it must be 1 or more", param="n")
    if n > target.slots_max:
        raise bad_request(
            "n_exceeds_slots",
            f"n is {n}, but {target.name} has {target.slots_max} slots; "
            f"ask for fewer answers or raise models.{target.name}.parallel",
            param="n",
        )
    return n


def _completion_width(body: Body, target: Target) -> int:
    """Count prompts times answers, up to the slots: the rest queues behind its own siblings."""
    n = _answers(body, target)
    if not body.has("prompt"):
        raise bad_request("missing_prompt", "prompt is required", param="prompt")
    prompt = body.fields["prompt"]
    n_prompts = 1
    if bytes(memoryview(prompt)[:1]) == b"[":
        items = body.get("prompt", list[msgspec.Raw], default=[])
        if not items:
            raise bad_request("empty_prompt", "prompt is an empty list", param="prompt")
        if not any(bytes(memoryview(item)[:1]) in b"-0123456789" for item in items):
            n_prompts = len(items)
    return min(n_prompts * n, max(n, target.slots_min))


def _chat_affinity(client: str, messages: list[_Message]) -> str:
    """Digest what a conversation keeps from turn to turn: up to its first user message."""
    digest = hashlib.blake2b(client.encode(), digest_size=8)
    for message in messages:
        digest.update(memoryview(message.content)[:_AFFINITY_BYTES_MAX])
        if message.role == "user":
            break
    return digest.hexdigest()


def _prompt_affinity(client: str, body: Body) -> str:
    digest = hashlib.blake2b(client.encode(), digest_size=8)
    digest.update(memoryview(body.fields["prompt"])[:_PROMPT_AFFINITY_BYTES])
    return digest.hexdigest()
