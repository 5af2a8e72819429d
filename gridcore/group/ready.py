"""When the daemon answers, and what a person is told then."""

import asyncio
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from gridcore.config.schema import Capability
from gridcore.group.listen import reachable_address
from gridcore.instance import Instance
from gridcore.paths import runtime_dir_for
from gridcore.units import format_mb

PROBE_PAUSE_S = 0.05
PROBE_TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 20


async def wait_until_healthy(listen: str) -> None:
    """Return once ``/health`` is 200.

    One connection waits in the backlog until a gateway takes it, so this hardly polls.
    """
    while True:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                status, _ = await http_get(listen, "/health")
        except (OSError, ValueError, TimeoutError):
            status = 0
        if status == 200:
            return
        await asyncio.sleep(PROBE_PAUSE_S)


async def read_card(listen: str) -> dict[str, Any] | None:
    """The first card as ``/admin/state`` shows it; None if it cannot be had at once."""
    try:
        async with asyncio.timeout(1.0):
            status, body = await http_get(listen, "/admin/state")
        card = json.loads(body)["cards"][0] if status == 200 else None
    except (OSError, ValueError, LookupError, TypeError, TimeoutError):
        return None
    return card if isinstance(card, dict) else None


async def http_get(listen: str, path: str) -> tuple[int, bytes]:
    """One GET on a connection of its own; the status and the body."""
    host, port = reachable_address(listen)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        host_header = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        writer.write(
            f"GET {path} HTTP/1.0\r\nHost: {host_header}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read(ANSWER_BYTES_MAX)
        while chunk := await reader.read(ANSWER_BYTES_MAX):
            if len(answer) > ANSWER_BYTES_MAX:
                raise ValueError(f"{path} answers more than {ANSWER_BYTES_MAX} bytes")
            answer += chunk
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    return (int(words[1]) if len(words) > 1 else 0), body


def ready_block(instance: Instance, card: dict[str, Any] | None) -> str:
    """What to do next, for the person who started it."""
    host, port = reachable_address(instance.listen)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    models = instance.config.models
    name = instance.settings.cards[0].name if instance.settings.cards else instance.device
    budget_bytes = card.get("budget_bytes") if card else None
    budget = f", {format_mb(budget_bytes)} for models" if isinstance(budget_bytes, int) else ""
    lines = [
        "",
        f"  GridCore is ready at {url}/v1",
        f"  device   {instance.device} ({name}{budget})",
        f"  models   {len(models)}{_names(list(models))}",
        f"  status   {_status_command(instance)}",
        f"  try      {_curl(instance, url)}",
        "",
    ]
    return "\n".join(lines) + "\n"


def _status_command(instance: Instance) -> str:
    """The line to paste, whatever name this daemon was started by and wherever it keeps state."""
    command = sys.argv[0] if Path(sys.argv[0]).name == "gridcore" else "gridcore"
    if command == shutil.which("gridcore"):
        command = "gridcore"
    words = [command, "status", "--watch"]
    if Path(instance.runtime_dir) != runtime_dir_for(None):
        words += ["--state-dir", instance.state_dir]
    return shlex.join(words)


def _names(names: list[str]) -> str:
    if not names:
        return ": add some to the config file"
    shown = ", ".join(names[:4])
    return f": {shown}" + (", ..." if len(names) > 4 else "")


def _curl(instance: Instance, url: str) -> str:
    for model_id, model in instance.config.models.items():
        if Capability.CHAT in model.capabilities:
            body = {"model": model_id, "messages": [{"role": "user", "content": "Hello!"}]}
            return f"curl {url}/v1/chat/completions -d '{json.dumps(body)}'"
    return f"curl {url}/v1/models"
