"""What exists: one file per runtime, written before and after its spawn.

A supervisor that starts finds the runtimes of its daemon here and takes them over; those of an
earlier daemon are orphans and are ended. Never by name and never by pid alone: the start time,
the boot and the marks in the environment must all agree.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from gridcore.ids import LoadId, ModelId
from gridcore.runtime import identity
from gridcore.runtime.argv import INSTANCE_VARIABLE, LOAD_VARIABLE

log = logging.getLogger(__name__)


class RuntimeRecord(Struct, frozen=True, kw_only=True):
    """
    Args:
        pid: None between the two writes: the process may exist or not.
        kernel_boot: pids and ticks mean nothing after another boot.
    """

    load_id: LoadId
    model_id: ModelId
    instance_id: str
    kernel_boot: str
    argv_digest: str
    address: str
    slots: int
    reserved_bytes: int
    pid: int | None = None
    start_ticks: int | None = None
    ready: bool = False
    footprint_bytes: int | None = None


class Registry:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, record: RuntimeRecord) -> None:
        path = self._path(record.load_id)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(record))
        temporary.replace(path)

    def remove(self, load_id: LoadId) -> None:
        self._path(load_id).unlink(missing_ok=True)

    def records(self) -> list[RuntimeRecord]:
        """Read all records; a file that is none is set aside."""
        records = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                records.append(msgspec.json.decode(path.read_bytes(), type=RuntimeRecord))
            except FileNotFoundError:
                continue
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("%s is not a registry entry and is set aside: %s", path, error)
                with suppress(OSError):
                    path.replace(path.with_suffix(".bad"))
        return records

    def pids(self) -> set[int]:
        """Return the runtimes that are alive, for those who ask what is ours."""
        return {
            record.pid
            for record in self.records()
            if record.pid is not None and identity.is_alive(record.pid, record.start_ticks)
        }

    def _path(self, load_id: LoadId) -> Path:
        assert load_id
        assert "/" not in load_id
        return self._directory / f"{load_id}.json"


def process_of(record: RuntimeRecord) -> tuple[int, int] | None:
    """Return pid and start of the record's process if it is alive, whoever's parent died.

    A record without a pid was written just before a spawn: the marks in the environment are
    then looked for in all processes, because they name this one attempt.
    """
    if record.kernel_boot != identity.kernel_boot_id():
        return None
    candidates = identity.all_pids() if record.pid is None else iter((record.pid,))
    for pid in candidates:
        ticks = identity.start_ticks(pid)
        if ticks is None or record.start_ticks not in (None, ticks):
            continue
        # A helper inherits the marks; the runtime leads its own group.
        if _bears_marks(pid, record) and _leads_group(pid):
            return pid, ticks
    return None


def argv_digest(argv: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(argv).encode()).hexdigest()[:16]


def _bears_marks(pid: int, record: RuntimeRecord) -> bool:
    environment = identity.environment_of(pid)
    return (
        environment.get(INSTANCE_VARIABLE) == record.instance_id
        and environment.get(LOAD_VARIABLE) == record.load_id
    )


def _leads_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False
