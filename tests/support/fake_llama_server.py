"""A llama-server that misbehaves on request; it takes the real one's flags.

Configs point ``binary`` at a wrapper (``write_wrapper``). The environment says what goes wrong,
so that a model's ``env`` can:

FAKE_LOAD_S, FAKE_RATE (tokens a second), FAKE_PROMPT_RATE, FAKE_TOKENS (length of the reply),
FAKE_EMBEDDING_MS, FAKE_STOP_S (time from SIGTERM to exit), FAKE_RECORD (a JSON-lines file: start,
end and "client gone" of every request with headers, sha256 and length),
FAKE_CRASH (``load``, or ``request:N``: at the Nth POST; ``token:N``: after N tokens of any),
FAKE_EXIT (status or -signal of that crash), FAKE_HANG (``health``, ``stream``),
FAKE_MEMORY (an llama.cpp log of its buffers, with FAKE_N_CTX and FAKE_LAYERS, as "20/40"),
FAKE_IMAGE_MB (memory it takes at the first image), FAKE_DRY_RUN (rows of a fit pass, as JSON),
FAKE_OLD (a build without unix sockets and newer flags), FAKE_IGNORE_SIGTERM, FAKE_LOG_MB,
FAKE_OOM, FAKE_BAD_FILE, FAKE_GRANDCHILD (a file for its pid).
"""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gridcore.runtime.http_server import Request, Responder
from gridcore.runtime.simulated import LOADING_BODY, SimulatedRuntime, say, say_out_of_memory
from gridcore.runtime.simulated_model import Spec

HELP = """usage: llama-server
-m, --model FNAME       model path
-a, --alias STRING      model name
--host HOST             ip address to listen, or a UNIX socket if it ends with .sock
--port PORT             port to listen
-c, --ctx-size N        -np, --parallel N     -b, --batch-size N    -ub, --ubatch-size N
-ngl, --gpu-layers N    -fit, --fit on|off    -cram, --cache-ram N  -ctxcp, --ctx-checkpoints N
-lm, --load-mode MODE   -t, --threads N       --embeddings          --rerank
--pooling TYPE          --mmproj FILE         --no-ui               --metrics
--sse-ping-interval N   -lv, --verbosity N
"""
OLD_HELP = """usage: llama-server
-m, --model FNAME  -a, --alias STRING  --host HOST  --port PORT  --no-mmap  --no-webui  --metrics
-c, --ctx-size N   -np, --parallel N   -b, --batch-size N  -ub, --ubatch-size N  -ngl N  -lv N
"""
REPO = Path(__file__).parents[2]


def write_wrapper(directory: Path, **env: str) -> Path:
    """Write an executable that runs the fake; ``env`` is set for every model."""
    path = directory / "llama-server"
    settings = "".join(f"export {name}={value!r}\n" for name, value in env.items())
    path.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={str(REPO)!r}\n{settings}"
        f'exec {sys.executable!r} -P {str(Path(__file__))!r} "$@"\n'
    )
    path.chmod(0o755)
    return path


def number(name: str, default: float) -> float:
    return float(os.environ.get(f"FAKE_{name}", default))


class Recorder:
    """Appends one line per event of a request; every line is whole."""

    def __init__(self, path: str | None) -> None:
        self._file = None if path is None else Path(path).open("a", buffering=1)  # noqa: SIM115
        self._count = 0

    def start(self, request: Request) -> int:
        self._count += 1
        self._write(
            event="start",
            request=self._count,
            method=request.method,
            path=request.path,
            headers=request.headers,
            bytes=len(request.body),
            sha256=hashlib.sha256(request.body).hexdigest(),
            body=request.body[:65536].decode("utf-8", "replace"),
        )
        return self._count

    def finish(self, n: int, event: str, status: int) -> None:
        self._write(event=event, request=n, status=status)

    def _write(self, **fields: object) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **fields}) + "\n")


class FakeServer(SimulatedRuntime):
    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._recorder = Recorder(os.environ.get("FAKE_RECORD"))
        self._posts = 0
        self._held = b""
        self._hang = os.environ.get("FAKE_HANG", "")
        crash, _, at = os.environ.get("FAKE_CRASH", "").partition(":")
        self._crash_post = int(at) if crash == "request" else None
        self._crash_token = int(at) if crash == "token" else None

    async def handle(self, request: Request, responder: Responder) -> None:
        if request.path == "/v1/models":
            await self.api.models(request, responder)
        elif request.path == "/health" and self._hang == "health":
            await asyncio.Event().wait()
        elif self.loading:
            await responder.send(503, LOADING_BODY)
        elif request.method == "GET":
            await self.api.handle(request, responder)
        else:
            await self._post(request, responder)

    async def _post(self, request: Request, responder: Responder) -> None:
        n = self._recorder.start(request)
        self._posts += 1
        if self._posts == self._crash_post:
            crash()
        if b"image_url" in request.body and not self._held:
            # As clip.cpp's encoder, which takes its buffer with the first image.
            self._held = os.urandom(1 << 20) * int(number("IMAGE_MB", 0))
        watching = asyncio.create_task(self._watch_tokens())
        try:
            # The load's own probe must get through, or nothing ever hangs in a stream.
            if self._hang == "stream" and self._posts > 1:
                await responder.begin(200, "text/event-stream")
                await asyncio.Event().wait()
            await self.api.handle(request, responder)
        except asyncio.CancelledError:
            self._recorder.finish(n, "client gone", responder.status)
            raise
        else:
            self._recorder.finish(n, "end", responder.status)
        finally:
            watching.cancel()

    async def _watch_tokens(self) -> None:
        while self._crash_token is not None:
            if self.model.predicted_tokens_total > self._crash_token:
                crash()
            await asyncio.sleep(0.002)


def crash() -> None:
    status = int(os.environ.get("FAKE_EXIT", "-6"))
    say("ggml-cuda.cu:101: CUDA error")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


VALUES = {
    "-m": "model",
    "--model": "model",
    "-a": "alias",
    "--alias": "alias",
    "--host": "host",
    "--port": "port",
    "-c": "ctx",
    "--ctx-size": "ctx",
    "-np": "parallel",
    "--parallel": "parallel",
    "-ub": "batch",
    "--ubatch-size": "batch",
    "--mmproj": "mmproj",
}
"""The flags whose values matter here; argparse would read -ctxcp as -c txcp."""


def parse(argv: list[str]) -> dict[str, str]:
    settings = {"host": "127.0.0.1", "port": "8080", "ctx": "4096", "parallel": "1"}
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        if word in VALUES:
            settings[VALUES[word]] = after
        elif word in ("--embeddings", "--rerank"):
            settings[word.lstrip("-")] = "on"
    return settings


def log_memory(settings: dict[str, str]) -> None:
    say(f"load_tensors: offloaded {os.environ.get('FAKE_LAYERS', '40/40')} layers to GPU")
    say("load_tensors:        CUDA0 model buffer size =  7000.50 MiB")
    say("load_tensors:   CPU_Mapped model buffer size =   100.00 MiB")
    say(f"llama_context: n_ctx                 = {os.environ.get('FAKE_N_CTX', settings['ctx'])}")
    say("llama_context:  CUDA_Host  output buffer size =     0.50 MiB")
    say("llama_kv_cache:      CUDA0 KV buffer size =   320.00 MiB")
    say("sched_reserve:      CUDA0 compute buffer size =    97.50 MiB")


def tell(line: dict[str, object]) -> None:
    """One line of ``--log-jsonl``, which goes to stdout."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def fit_and_wait() -> None:
    """What ``--fit on --log-jsonl`` prints before it loads; then it would load."""
    tell({"type": "log", "time": 1, "level": "info", "msg": "initializing"})
    rows = json.loads(os.environ.get("FAKE_DRY_RUN", "[]"))
    if rows:
        data = {"unit": "MiB", "rows": rows}
        tell({"type": "fit_memory_breakdown", "data": data})
    else:
        raise SystemExit(1)
    time.sleep(600)


def misbehave_before_loading(settings: dict[str, str]) -> None:
    grandchild = os.environ.get("FAKE_GRANDCHILD")
    if grandchild:
        child = subprocess.Popen(["sleep", "600"])
        Path(grandchild).write_text(str(child.pid))
    for _ in range(int(number("LOG_MB", 0))):
        sys.stderr.write(("srv  load_model: some noise of the loader\n" * 25000)[: 1 << 20])
    if os.environ.get("FAKE_BAD_FILE"):
        say(f"gguf_init_from_file: failed to open GGUF file '{settings['model']}' (No such file)")
        say("llama_server: exiting due to model loading error")
        raise SystemExit(1)
    if os.environ.get("FAKE_OOM"):
        say_out_of_memory(8 << 30)
        raise SystemExit(1)
    if os.environ.get("FAKE_CRASH") == "load":
        crash()


def main(argv: list[str]) -> int:
    if "--version" in argv:
        say("version: 11434 (fake)")
        return 0
    if "--help" in argv:
        sys.stdout.write(OLD_HELP if os.environ.get("FAKE_OLD") else HELP)
        return 0
    settings = parse(argv)
    if "--log-jsonl" in argv:
        fit_and_wait()
    if os.environ.get("FAKE_MEMORY"):
        log_memory(settings)
    misbehave_before_loading(settings)
    spec = Spec(
        model_id=settings.get("alias", settings.get("model", "")),
        slots=int(settings["parallel"]),
        context=int(settings["ctx"]),
        batch=int(settings.get("batch", "512")),
        load_s=number("LOAD_S", 0.0),
        tokens_per_second=number("RATE", 200.0),
        prompt_tokens_per_second=number("PROMPT_RATE", 100_000.0),
        embedding_ms=number("EMBEDDING_MS", 1.0),
        reply=" ".join(f"w{n}" for n in range(int(number("TOKENS", 8)))),
        embeddings="embeddings" in settings,
        rerank="rerank" in settings,
        mmproj="mmproj" in settings,
    )
    host = settings["host"]
    address = f"unix:{host}" if host.endswith(".sock") else f"http://{host}:{settings['port']}"
    asyncio.run(run(FakeServer(spec), address))
    return 0


async def run(server: FakeServer, address: str) -> None:
    if os.environ.get("FAKE_IGNORE_SIGTERM"):
        asyncio.get_running_loop().call_soon(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    await server.run(address)
    await asyncio.sleep(number("STOP_S", 0.0))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
