"""What was measured of a model: footprint, load time, speeds, and where memory ran out.

A measurement holds for one runtime build, card, file and set of memory-relevant arguments; its
key is made of these, so that a changed setting never finds an old number. The file belongs to
nobody: the daemon and ``bench`` write it at the same time, each change is made to what is there
at that moment, under a lock, and the file is replaced as a whole.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from gridcore.clock import wall_time_s

log = logging.getLogger(__name__)

PROFILES_KEPT_MAX = 500
"""Some 1000 bytes each; the oldest go first."""


class Conditions(Struct, frozen=True, kw_only=True):
    """What a measurement depends on.

    Args:
        build: the runtime's version, or its binary's path and digest.
        file: path, size and time of change of the model's files.
        args: the arguments and settings that decide about memory.
    """

    build: str
    card: str
    file: str
    args: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        text = "\0".join((self.build, self.card, self.file, *self.args))
        return hashlib.sha256(text.encode()).hexdigest()[:24]


class Reported(Struct, frozen=True, kw_only=True):
    """The sums of llama.cpp's own "buffer size" lines, over all places."""

    weights_bytes: int = 0
    context_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0


class Speeds(Struct, frozen=True, kw_only=True):
    """Tokens a second, as ``bench`` found them; None where a model does no such work."""

    prompt: float | None = None
    generation: float | None = None
    """Of one stream alone."""
    streams: int = 1
    together: float | None = None
    """Of all streams at the same time."""


class Profile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str = ""
    conditions: Conditions | None = None
    measured_at_s: int = 0
    footprint_bytes: int | None = None
    load_ns: int | None = None
    out_of_memory_at_bytes: int | None = None
    """Free memory of the card at which the model last ran out of it."""
    reported: Reported | None = None
    speeds: Speeds | None = None
    shrunk: str = ""
    """What the runtime made smaller by itself at the last load; its footprint is not kept."""


class _File(Struct, frozen=True, kw_only=True):
    version: int = 1
    profiles: dict[str, Profile] = {}


def file_identity(path: str | None) -> str:
    """Name a file's content without reading gigabytes: path, size and time of change."""
    if path is None:
        return "-"
    try:
        info = Path(path).stat()
    except OSError:
        return f"{path}:missing"
    return f"{path}:{info.st_size}:{info.st_mtime_ns}"


class ProfileStore:
    """Reads once; every change is made to the file as it is then, and written at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unsaved: dict[str, Profile] = {}
        """All and only what could not be written."""
        self._profiles = self._read()

    def get(self, conditions: Conditions) -> Profile:
        return self._profiles.get(conditions.key, Profile())

    def all(self) -> dict[str, Profile]:
        return dict(self._profiles)

    def loaded(
        self,
        conditions: Conditions,
        model_id: str,
        *,
        load_ns: int,
        footprint_bytes: int | None,
        free_bytes: int | None,
        reported: Reported | None = None,
    ) -> None:
        """Record a load that succeeded with ``free_bytes`` free on the card before it."""

        def change(old: Profile) -> Profile:
            floor = old.out_of_memory_at_bytes
            if floor is not None and free_bytes is not None and free_bytes <= floor:
                floor = None  # it fits where it once did not: something else was in the way
            return msgspec.structs.replace(
                old,
                footprint_bytes=_larger(old.footprint_bytes, footprint_bytes),
                load_ns=load_ns,
                out_of_memory_at_bytes=floor,
                reported=reported or old.reported,
                shrunk="",
            )

        self._change(conditions, model_id, change)

    def loaded_smaller(self, conditions: Conditions, model_id: str, shrunk: str) -> None:
        """Remember that the last load was not what was asked for; its size means nothing."""
        self._change(conditions, model_id, lambda old: msgspec.structs.replace(old, shrunk=shrunk))

    def grew(self, conditions: Conditions, model_id: str, footprint_bytes: int) -> None:
        """Record a larger footprint of a runtime that has been at work."""

        def change(old: Profile) -> Profile:
            larger = _larger(old.footprint_bytes, footprint_bytes)
            return msgspec.structs.replace(old, footprint_bytes=larger)

        self._change(conditions, model_id, change)

    def ran_out_of_memory(
        self, conditions: Conditions, model_id: str, free_bytes: int | None
    ) -> None:
        """Drop the measurement, which was too small, and remember where it did not fit."""

        def change(old: Profile) -> Profile:
            floor = _larger(old.out_of_memory_at_bytes, free_bytes)
            return Profile(out_of_memory_at_bytes=floor, speeds=old.speeds)

        self._change(conditions, model_id, change)

    def timed(self, conditions: Conditions, model_id: str, speeds: Speeds) -> None:
        self._change(conditions, model_id, lambda old: msgspec.structs.replace(old, speeds=speeds))

    def remove(self, keys: Collection[str]) -> None:
        """Forget measurements.

        Raises:
            OSError: the file cannot be written.
        """
        with self._locked():
            kept = self._read()
            self._profiles = {key: kept[key] for key in kept if key not in keys}
            self._replace_file()

    def _change(
        self, conditions: Conditions, model_id: str, change: Callable[[Profile], Profile]
    ) -> None:
        key = conditions.key
        try:
            with self._locked():
                merged = {**self._read(), **self._unsaved}
                old = merged.pop(key, Profile())
                new = change(old)
                self._profiles = {**merged, key: _stamped(new, old, conditions, model_id)}
                if new == old and not self._unsaved:
                    return
                # Newest last.
                self._profiles = dict(list(self._profiles.items())[-PROFILES_KEPT_MAX:])
                self._replace_file()
                self._unsaved.clear()
        except OSError as error:
            old = self._profiles.get(key, Profile())
            self._unsaved[key] = _stamped(change(old), old, conditions, model_id)
            self._profiles[key] = self._unsaved[key]
            log.warning("%s cannot be written, measurements will be lost: %s", self._path, error)

    def _replace_file(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            content = msgspec.json.encode(_File(profiles=self._profiles))
            file.write(msgspec.json.format(content, indent=1))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def _read(self) -> dict[str, Profile]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_File).profiles
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            aside = self._path.with_suffix(".bad")
            log.warning("%s is unreadable and set aside as %s: %s", self._path, aside.name, error)
            try:
                self._path.replace(aside)
            except OSError as failed:
                log.warning("%s cannot be set aside: %s", self._path, failed)
            return {}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _stamped(new: Profile, old: Profile, conditions: Conditions, model_id: str) -> Profile:
    if new == old:
        return old
    return msgspec.structs.replace(
        new, model_id=model_id, conditions=conditions, measured_at_s=int(wall_time_s())
    )


def _larger(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
