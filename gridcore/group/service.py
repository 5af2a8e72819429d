"""What every service of the group does alike: its arguments, its log, its signals, its end."""

import argparse
import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from gridcore.errors import GridcoreError
from gridcore.group.parent import watch_parent
from gridcore.instance import Instance, read_instance
from gridcore.logs import setup_logging

Runner = Callable[[Coroutine[Any, Any, None]], None]


def service_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The command line of a service; ``name`` is its name on the link unless it is given one."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--instance", type=Path, required=True)
    parser.add_argument("--name", default=name)
    parser.add_argument("--parent-fd", type=int)
    return parser


def run_service(
    arguments: argparse.Namespace,
    serve: Callable[[Instance], Coroutine[Any, Any, None]],
    *,
    runner: Runner = asyncio.run,
) -> int:
    """Read the instance, serve it, and return the exit code; a known problem is one log line."""
    log = setup_logging(arguments.name)
    try:
        instance = read_instance(arguments.instance)
        log = setup_logging(arguments.name, instance.config.logs.level)
        runner(serve(instance))
    except GridcoreError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


def watch_for_stop(parent_fd: int | None) -> asyncio.Event:
    """An event that is set by SIGTERM, SIGINT, or the launcher's end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopping.set)
    watch_parent(parent_fd)
    return stopping


async def work_until(stopping: asyncio.Event, work: "asyncio.Future[None]") -> None:
    """Return when the service is to stop; raise what ended its work before that."""
    either: list[asyncio.Future[Any]] = [work, asyncio.ensure_future(stopping.wait())]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.is_set():
        await work


async def end_work(work: "asyncio.Future[None]") -> None:
    work.cancel()
    await asyncio.wait([work])
