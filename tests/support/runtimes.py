"""Instances, messages and waits for tests of the supervisor and its runtimes."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gridcore.config.schema import Config
from gridcore.core.settings import CardSettings, Settings
from gridcore.ids import CardId
from gridcore.instance import Instance
from gridcore.ipc.messages import ToScheduler

Message = TypeVar("Message")
DEADLINE_S = 20.0


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose sockets stay under the platform's limit, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="gc-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def make_instance(
    directory: Path,
    models: dict[str, Any],
    *,
    device: str = "simulation",
    instance_id: str | None = None,
    llama_server: str | None = None,
    **sections: Any,
) -> Instance:
    """Resolve a config given as YAML would be read, durations in nanoseconds."""
    config = msgspec.convert({"models": models, **sections}, Config)
    for name in ("state", "run"):
        (directory / name).mkdir(mode=0o700, exist_ok=True)
    card = CardSettings(card_id=CardId(device), name="Test card", headroom_bytes=0)
    return Instance(
        instance_id=instance_id or secrets.token_hex(4),
        config_path=None,
        state_dir=str(directory / "state"),
        runtime_dir=str(directory / "run"),
        device=device,
        llama_server=llama_server,
        listen="127.0.0.1:0",
        config=config,
        settings=Settings(cards=(card,), models=()),
    )


def simulated(mb: int = 1000, *, load_s: float = 0.05, **more: Any) -> dict[str, Any]:
    """A simulated model that loads at once and speaks fast."""
    speeds = {"vram_mb": mb, "load_time": round(load_s * 1e9), "tokens_per_second": 200.0}
    keys = {name: more.pop(name) for name in list(more) if name in _SPEEDS}
    return {"runtime": "simulated", "simulated": {**speeds, **keys}, **more}


_SPEEDS = (
    "tokens_per_second",
    "prompt_tokens_per_second",
    "embedding_ms",
    "dimensions",
    "reply",
)


class Inbox:
    """What a supervisor sent; waits for messages of a kind with a deadline."""

    def __init__(self) -> None:
        self.messages: list[ToScheduler] = []

    def put(self, message: ToScheduler) -> bool:
        self.messages.append(message)
        return True

    def of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.messages if isinstance(message, kind)]

    async def next(self, kind: type[Message], count: int = 1) -> Message:
        """Wait until ``count`` messages of a kind have come; return the last of them."""
        await until(lambda: len(self.of(kind)) >= count, f"{count} x {kind.__name__}", self)
        return self.of(kind)[count - 1]

    def __repr__(self) -> str:
        return "\n".join(str(message) for message in self.messages)


async def until(condition: Callable[[], Any], what: str, context: object = "") -> None:
    """Poll until a condition holds, or fail with what was waited for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < end, f"not within {DEADLINE_S:.0f} s: {what}; so far: {context!r}"
        await asyncio.sleep(0.01)
