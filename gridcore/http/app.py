"""The ASGI application: which route a request takes, and how its body and its client are watched.

Plain ASGI: there are a dozen routes, model ids contain slashes, and every answer, a 405 as well,
has to be in the OpenAI form; a framework would have to be talked out of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from gridcore.core.events import AdminVerb, JobKind
from gridcore.http import admin
from gridcore.http.answer import Answer, Receive, Scope, Send
from gridcore.http.ask import Ask, read_ask
from gridcore.http.failures import INTERNAL_ERROR, log_failure
from gridcore.http.gateway import Gateway
from gridcore.http.limits import read_body
from gridcore.http.openai import ApiError
from gridcore.http.serve import Embedding, Generation, describe_job, submission

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JOBS = {
    "/v1/chat/completions": JobKind.CHAT,
    "/v1/completions": JobKind.COMPLETION,
    "/v1/embeddings": JobKind.EMBEDDING,
}
_PAGES: dict[str, Callable[[Gateway, Answer], Awaitable[None]]] = {
    "/": admin.to_page,
    "/health": admin.health,
    "/v1/health": admin.health,
    "/v1/models": admin.list_models,
    "/metrics": admin.metrics,
    "/admin/state": admin.state,
    "/admin/ui": admin.page,
}
_MODEL = "/v1/models/"
_ADMIN_MODEL = "/admin/models/"


class ClientGoneError(Exception):
    """The client closed its connection; nobody is left to be told anything."""


def create_app(gateway: Gateway) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        answer = Answer(send)
        try:
            await _route(gateway, scope, receive, answer)
        except ApiError as error:
            await answer.error(error)
        except ClientGoneError:
            pass
        except Exception as error:
            log_failure(f"{scope['method']} {scope['path'][:100]} failed", error)
            await answer.error(INTERNAL_ERROR)

    return app


async def _route(gateway: Gateway, scope: Scope, receive: Receive, answer: Answer) -> None:
    path: str = scope["path"]
    method: str = scope["method"]
    kind = _JOBS.get(path)
    if kind is not None:
        _require(method, "POST")
        await _serve_job(gateway, kind, scope, receive, answer)
        return
    page = _PAGES.get(path)
    if page is not None:
        _require(method, "GET", "HEAD")
        await page(gateway, answer)
        return
    if path.startswith(_MODEL) and len(path) > len(_MODEL):
        _require(method, "GET", "HEAD")
        await admin.show_model(gateway, answer, path.removeprefix(_MODEL))
        return
    name, slash, verb = path.removeprefix(_ADMIN_MODEL).rpartition("/")
    if path.startswith(_ADMIN_MODEL) and slash and name and verb in list(AdminVerb):
        _require(method, "POST")
        admin.check_admin_post(dict(scope["headers"]))
        await admin.act(gateway, answer, AdminVerb(verb), name)
        return
    raise ApiError(
        404,
        "unknown_route",
        f"{method} {unquote(path)[:200]} is not a route of GridCore; see docs/api.md",
    )


def _require(method: str, *allowed: str) -> None:
    if method not in allowed:
        names = ", ".join(allowed)
        raise ApiError(
            405,
            "method_not_allowed",
            f"the method {method} is not possible here; use {names}",
            headers=((b"allow", names.encode()),),
        )


async def _serve_job(
    gateway: Gateway, kind: JobKind, scope: Scope, receive: Receive, answer: Answer
) -> None:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    n_bytes_max = gateway.server.max_body_mb << 20
    raw = await read_body(receive, headers, gateway, n_bytes_max=n_bytes_max)
    if raw is None:
        raise ClientGoneError
    try:
        client = scope.get("client")
        ask = read_ask(
            kind,
            raw,
            headers,
            address=client[0] if client else "",
            names=gateway.names,
            default_class=gateway.settings.policy.default_class,
        )
        watch = asyncio.get_running_loop().create_task(_client_gone(receive))
        try:
            await _run_job(gateway, ask, answer, watch)
        finally:
            watch.cancel()
    finally:
        gateway.held_body_bytes -= len(raw)


async def _run_job(gateway: Gateway, ask: Ask, answer: Answer, watch: asyncio.Task[None]) -> None:
    """Serve a job for as long as its client is there."""
    job = gateway.jobs.open(submission(ask, gateway.jobs.name))
    describe_job(answer, ask, job)
    served: Embedding | Generation
    if ask.kind is JobKind.EMBEDDING:
        served = Embedding(ask=ask, job=job, answer=answer, upstream=gateway.upstream)
    else:
        served = Generation(
            ask=ask,
            job=job,
            answer=answer,
            upstream=gateway.upstream,
            comments_after_ns=gateway.server.wait_comments_after_ns,
        )
    request = asyncio.current_task()
    assert request is not None
    gone = False

    def on_gone(task: asyncio.Task[None]) -> None:
        nonlocal gone
        if not task.cancelled():
            gone = True
            request.cancel()

    watch.add_done_callback(on_gone)
    try:
        await served.serve()
    except asyncio.CancelledError:
        if not gone:
            raise
        request.uncancel()
        raise ClientGoneError from None
    finally:
        watch.remove_done_callback(on_gone)
        job.close()


async def _client_gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
