"""Everything that is not inference: models, health, metrics, state, admin verbs, the page."""

import ipaddress
import socket
from collections.abc import Iterable
from importlib import resources
from urllib.parse import urlsplit

import msgspec

from gridcore.core.events import AdminVerb
from gridcore.core.settings import ModelSettings
from gridcore.http.answer import Answer
from gridcore.http.gateway import Gateway, new_request_id
from gridcore.http.openai import ApiError
from gridcore.http.upstream import UPSTREAM_ERRORS
from gridcore.ipc.messages import AdminReply, AdminRequest, StateReply, StateRequest

METRICS_TIMEOUT_S = 5.0


async def health(gateway: Gateway, answer: Answer) -> None:
    await answer.json(b'{"status":"ok"}')


async def list_models(gateway: Gateway, answer: Answer) -> None:
    names = gateway.names
    entries = [_model_entry(gateway, model) for model in names.models.values()]
    entries += [_family_entry(gateway, name) for name in names.families]
    await answer.json(msgspec.json.encode({"object": "list", "data": entries}))


async def show_model(gateway: Gateway, answer: Answer, name: str) -> None:
    target = gateway.names.resolve(name)
    entry = (
        _family_entry(gateway, target.name)
        if target.is_family
        else _model_entry(gateway, target.variants[0])
    )
    await answer.json(msgspec.json.encode(entry))


def _model_entry(gateway: Gateway, model: ModelSettings) -> dict[str, object]:
    return _entry(gateway, model.model_id, model.aliases, model.capabilities)


def _family_entry(gateway: Gateway, name: str) -> dict[str, object]:
    family = gateway.names.families[name]
    variants = [gateway.names.models[model_id] for _, model_id in family.variants]
    capabilities = {known for model in variants for known in model.capabilities}
    entry = _entry(gateway, name, family.aliases, capabilities)
    return {**entry, "variants": [model.model_id for model in variants]}


def _entry(
    gateway: Gateway, name: str, aliases: Iterable[str], capabilities: Iterable[str]
) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": gateway.started_s,
        "owned_by": "gridcore",
        "aliases": list(aliases),
        "capabilities": sorted(capabilities),
    }


async def metrics(gateway: Gateway, answer: Answer) -> None:
    try:
        async with gateway.upstream.request(
            "GET", gateway.metrics_address, "/metrics", timeout_s=METRICS_TIMEOUT_S
        ) as response:
            body = await response.read()
            content_type = response.headers.get("content-type", "text/plain")
            status = response.status
    except UPSTREAM_ERRORS:
        raise ApiError(
            503,
            "metrics_unavailable",
            "the metrics exporter does not answer; it is being restarted",
            retry_after_s=2,
        ) from None
    await answer.whole(status, content_type.encode("latin-1"), body)


async def state(gateway: Gateway, answer: Answer) -> None:
    reply = await gateway.ask(StateRequest(request_id=new_request_id()))
    assert isinstance(reply, StateReply)
    await answer.json(msgspec.json.encode(reply.snapshot))


async def act(gateway: Gateway, answer: Answer, verb: AdminVerb, name: str) -> None:
    """Pass an admin's wish on; the scheduler says at once whether it will be done."""
    model_id = gateway.names.model(name)
    request = AdminRequest(request_id=new_request_id(), verb=verb, target=model_id)
    reply = await gateway.ask(request)
    assert isinstance(reply, AdminReply)
    if reply.status >= 400:
        raise ApiError(reply.status, f"{verb}_refused", reply.message, param="model")
    body = msgspec.json.encode({"model": model_id, "message": reply.message})
    await answer.json(body, reply.status)


async def page(gateway: Gateway, answer: Answer) -> None:
    html = resources.files("gridcore.http").joinpath("ui", "index.html").read_bytes()
    await answer.whole(
        200,
        b"text/html; charset=utf-8",
        html,
        [
            (b"cache-control", b"no-cache"),
            (
                b"content-security-policy",
                b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                b"connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
            ),
        ],
    )


async def to_page(gateway: Gateway, answer: Answer) -> None:
    await answer.whole(307, b"text/plain", b"", [(b"location", b"/admin/ui")])


def check_admin_post(headers: dict[bytes, bytes]) -> None:
    """Refuse what a foreign web page could make a browser send.

    Raises:
        ApiError: 403 for a foreign page, 415 for a body that is not JSON.
    """
    origin = headers.get(b"origin")
    if origin is not None and not _is_own_origin(origin, headers.get(b"host", b"")):
        raise ApiError(
            403,
            "foreign_origin",
            f"a page of {origin.decode('latin-1')[:200]} may not command this daemon",
        )
    length = headers.get(b"content-length", b"0")
    has_body = length != b"0" or b"transfer-encoding" in headers
    content_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if has_body and content_type != b"application/json":
        raise ApiError(
            415,
            "unsupported_content_type",
            "send no body, or one with Content-Type: application/json",
        )


def _is_own_origin(origin: bytes, host: bytes) -> bool:
    """Is it our own page, reached by an address and not by a name somebody else controls?"""
    page_url = urlsplit(origin.decode("latin-1"))
    if page_url.netloc.encode("latin-1") != host:
        return False
    name = (page_url.hostname or "").rstrip(".")
    if name in ("localhost", socket.gethostname().lower()) or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
