"""What was measured of a model: footprint, load time, and where memory ran out.

A measurement holds for one runtime build, card, file and set of memory-relevant arguments; its
key is made of these, so that a changed setting never finds an old number. The file is replaced
as a whole, merged with what another process wrote, and never trusted blindly.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

log = logging.getLogger(__name__)

PROFILES_KEPT_MAX = 500
"""Some 200 bytes each; the oldest go first."""


class Profile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_id: str = ""
    """For people who read the file."""
    footprint_bytes: int | None = None
    load_ns: int | None = None
    out_of_memory_at_bytes: int | None = None
    """Free memory of the card at which the last load ran out of it."""


class _File(Struct, frozen=True, kw_only=True):
    version: int = 1
    profiles: dict[str, Profile] = {}


def profile_key(build: str, card: str, file_identity: str, args: Sequence[str]) -> str:
    """Return the name under which a measurement is kept."""
    text = "\0".join((build, card, file_identity, *args))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


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
    """Reads once; every change is written at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._profiles = self._read()

    def get(self, key: str) -> Profile:
        return self._profiles.get(key, Profile())

    def loaded(
        self,
        key: str,
        model_id: str,
        *,
        load_ns: int,
        footprint_bytes: int | None,
        free_bytes: int | None,
    ) -> None:
        """Record a load that succeeded with ``free_bytes`` free on the card before it."""
        old = self.get(key)
        floor = old.out_of_memory_at_bytes
        if floor is not None and free_bytes is not None and free_bytes <= floor:
            floor = None  # it fits where it once did not: something else was in the way
        new = Profile(
            model_id=model_id,
            footprint_bytes=_larger(old.footprint_bytes, footprint_bytes),
            load_ns=load_ns,
            out_of_memory_at_bytes=floor,
        )
        self._write(key, new)

    def grew(self, key: str, footprint_bytes: int) -> None:
        """Record a larger footprint of a runtime that has been at work."""
        old = self.get(key)
        if old.footprint_bytes is None or footprint_bytes > old.footprint_bytes:
            self._write(key, msgspec.structs.replace(old, footprint_bytes=footprint_bytes))

    def ran_out_of_memory(self, key: str, model_id: str, free_bytes: int | None) -> None:
        """Drop the measurement, which was too small, and remember where it did not fit."""
        floor = _larger(self.get(key).out_of_memory_at_bytes, free_bytes)
        self._write(key, Profile(model_id=model_id, out_of_memory_at_bytes=floor))

    def _write(self, key: str, profile: Profile) -> None:
        if self.get(key) == profile:
            return
        try:
            with self._locked():
                merged = {**self._profiles, **self._read()}
                merged.pop(key, None)
                merged[key] = profile  # newest last
                self._profiles = dict(list(merged.items())[-PROFILES_KEPT_MAX:])
                self._replace_file()
        except OSError as error:
            self._profiles[key] = profile
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


def _larger(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
