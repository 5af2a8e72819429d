"""Talks to a running daemon over HTTP: the admin calls and the state, for a user's own tooling.

The OpenAI endpoints are for the OpenAI clients; this adds what those do not know::

    with Client("http://127.0.0.1:8080") as client:
        client.load("qwen3-14b")
        print(client.state()["cards"][0]["reserved_bytes"])
"""

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from gridcore.errors import GridcoreError

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 600.0
"""An admin load waits for room as a chat does, and for the load itself."""


class ClientError(GridcoreError):
    """The daemon refused, or cannot be reached.

    Args:
        status: of the answer; None when there was none.
        code: the error's machine-readable name, such as ``model_not_found``.
    """

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Client:
    def __init__(self, base_url: str = DEFAULT_URL, *, timeout_s: float = TIMEOUT_S) -> None:
        self._http = httpx.Client(
            base_url=base_url, timeout=timeout_s, trust_env=False, follow_redirects=False
        )

    def state(self) -> dict[str, Any]:
        """Cards, models, jobs and services, as /admin/state documents them."""
        answer = self._call("GET", "/admin/state")
        assert isinstance(answer, dict)
        return answer

    def models(self) -> list[dict[str, Any]]:
        """The models and families that requests may name."""
        answer = self._call("GET", "/v1/models")
        assert isinstance(answer, dict)
        return list(answer["data"])

    def load(self, model_id: str) -> dict[str, Any]:
        """Load a model now; it may evict cold and idle hot ones."""
        return self._admin(model_id, "load", timeout_s=LOAD_TIMEOUT_S)

    def unload(self, model_id: str) -> dict[str, Any]:
        """Let a model finish what it runs, then unload it."""
        return self._admin(model_id, "unload", timeout_s=LOAD_TIMEOUT_S)

    def enable(self, model_id: str) -> dict[str, Any]:
        """Try a model again that failed to load repeatedly."""
        return self._admin(model_id, "enable")

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.close()

    def _admin(self, model_id: str, verb: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        path = f"/admin/models/{quote(model_id, safe='')}/{verb}"
        answer = self._call("POST", path, timeout_s=timeout_s)
        assert isinstance(answer, dict)
        return answer

    def _call(self, method: str, path: str, *, timeout_s: float | None = None) -> object:
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        # Admin routes take JSON only, so that no web page's form can reach them.
        body: dict[str, str] | None = {} if method == "POST" else None
        try:
            answer = self._http.request(method, path, json=body, timeout=timeout)
        except httpx.TimeoutException as error:
            raise ClientError(f"{self._http.base_url} did not answer in time") from error
        except httpx.HTTPError as error:
            raise ClientError(
                f"no daemon answers at {self._http.base_url} ({error}); start one with gridcore "
                "serve"
            ) from error
        if answer.is_success:
            return answer.json() if answer.content else {}
        raise _refusal(answer)


def _refusal(answer: httpx.Response) -> ClientError:
    message, code = f"{answer.status_code} {answer.reason_phrase}", None
    try:
        problem = answer.json()["error"]
        message, code = str(problem["message"]), problem.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # not from GridCore: a proxy in between
    return ClientError(message, status=answer.status_code, code=code)
