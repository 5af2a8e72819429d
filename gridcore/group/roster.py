"""The living children of a launcher, on file: what the next launcher must not meet.

A launcher that is killed leaves children that end in order, as long as a drain may take. Until
then they hold the port and the names of the bus, so a new group waits for them, and not for ever.
A pid is believed only with the start time of its process and the boot of the machine.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from gridcore.core.snapshot import ServiceView
from gridcore.runtime.identity import is_alive, kernel_boot_id, start_ticks

PATIENCE_S = 10.0
"""For children that are ending by themselves; then they are told, and then they are killed."""
TERM_S = 3.0

_log = logging.getLogger("gridcore.launcher")


class Member(Struct, frozen=True, kw_only=True):
    name: str
    pid: int
    ticks: int


class Roster(Struct, frozen=True, kw_only=True):
    boot: str
    members: tuple[Member, ...]


def write_roster(path: Path, services: Iterable[ServiceView]) -> None:
    members = [
        Member(name=service.name, pid=service.pid, ticks=ticks)
        for service in services
        if service.pid is not None and (ticks := start_ticks(service.pid)) is not None
    ]
    temporary = path.with_suffix(".tmp")
    roster = Roster(boot=kernel_boot_id(), members=tuple(members))
    temporary.write_bytes(msgspec.json.encode(roster))
    temporary.replace(path)


def end_remains(path: Path, *, patience_s: float = PATIENCE_S) -> list[str]:
    """See to it that nothing of an earlier group lives; return the names that had to be killed.

    Call it with the daemon's locks held: they prove that the earlier launcher is dead.
    """
    remains = _living(path)
    if remains:
        names = ", ".join(f"{member.name} (pid {member.pid})" for member in remains)
        _log.warning("an earlier daemon was killed; waiting for what is left of it: %s", names)
    remains = _wait(remains, patience_s)
    for member in remains:
        _signal(member, signal.SIGTERM)
    remains = _wait(remains, TERM_S)
    for member in remains:
        _log.warning("%s (pid %d) of the earlier daemon is killed", member.name, member.pid)
        _signal(member, signal.SIGKILL)
    _wait(remains, TERM_S)
    path.unlink(missing_ok=True)
    return [member.name for member in remains]


def _living(path: Path) -> list[Member]:
    try:
        roster = msgspec.json.decode(path.read_bytes(), type=Roster)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s cannot be read (%s): processes of an earlier daemon may live", path, error)
        return []
    if roster.boot != kernel_boot_id():
        return []
    return [member for member in roster.members if is_alive(member.pid, member.ticks)]


def _wait(members: list[Member], timeout_s: float) -> list[Member]:
    """Return those that still live when the time is over."""
    pause = threading.Event()
    for _ in range(round(timeout_s / 0.05)):
        members = [member for member in members if is_alive(member.pid, member.ticks)]
        if not members:
            break
        pause.wait(0.05)
    return members


def _signal(member: Member, number: signal.Signals) -> None:
    if is_alive(member.pid, member.ticks):
        with suppress(ProcessLookupError):
            os.kill(member.pid, number)
