"""A runtime without a model: a real HTTP process that answers as llama-server does.

``python -P -m gridcore.runtime.simulated --spec FILE.json``. It loads, takes memory and computes
at the speeds of its spec; replies are canned. Slots are honest: work occupies one until it ends
or its client leaves. It must stay small (many run side by side): only the standard library and
httptools, nothing of GridCore's config or wire.
"""

import argparse
import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridcore.runtime.claims import SimulatedCard
from gridcore.runtime.http_server import HttpServer, Request, Responder
from gridcore.runtime.simulated_api import Api
from gridcore.runtime.simulated_model import SimulatedModel, Spec


class SimulatedRuntime:
    """A server that is loading, then serves its model's API."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.model = SimulatedModel(spec)
        self.api = Api(self.model)
        self.loading = True
        self.server = HttpServer(self.handle)

    async def handle(self, request: Request, responder: Responder) -> None:
        if self.loading:
            await responder.send(503, LOADING_BODY)
            return
        await self.api.handle(request, responder)

    async def run(self, address: str) -> None:
        """Serve until SIGTERM or SIGINT."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop.set)
        await self.server.listen(address)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.spec.load_s):
                await stop.wait()
        if not stop.is_set():
            self.loading = False
            say(f"srv  llama_server: model loaded: {self.spec.model_id}")
            await stop.wait()
        say("srv  llama_server: cleaning up before exit...")
        self.server.close()


LOADING_BODY = json.dumps(
    {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}},
    separators=(",", ":"),
).encode()


def say(line: str) -> None:
    """Write a log line where llama-server writes its own."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def say_out_of_memory(n_bytes: int) -> None:
    """Write what llama.cpp writes when a CUDA card has no room for the weights."""
    size = f"{n_bytes / (1 << 20):.2f}"
    say(f"allocating {size} MiB on device 0: cudaMalloc failed: out of memory")
    say(f"alloc_tensor_range: failed to allocate CUDA0 buffer of size {n_bytes}")
    say("llama_model_load: error loading model: unable to allocate CUDA0 buffer")
    say("llama_server: exiting due to model loading error")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gridcore.runtime.simulated")
    parser.add_argument("--spec", type=Path, required=True)
    document: dict[str, Any] = json.loads(parser.parse_args(argv).spec.read_bytes())
    spec = Spec(**document["model"])
    card = SimulatedCard(Path(document["claims"]), **document["card"])
    if not card.claim(spec.model_id, spec.footprint_bytes):
        say_out_of_memory(spec.footprint_bytes)
        return 1
    asyncio.run(SimulatedRuntime(spec).run(document["address"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
