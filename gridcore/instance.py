"""One daemon, resolved: what ``serve`` worked out once and hands to every process of the group.

The launcher writes it into the runtime directory; a service that is restarted reads the same
one, so that an edited config file never splits the group.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from gridcore.config.schema import Config
from gridcore.core.settings import Settings
from gridcore.errors import GridcoreError
from gridcore.paths import RuntimePaths, StatePaths


class Instance(Struct, frozen=True, kw_only=True):
    """
    Args:
        instance_id: random; marks the runtimes this daemon started.
        device: the device the config's ``auto`` resolved to, such as ``cpu``.
        llama_server: the binary that ``llamacpp`` runtimes use, if there is one.
        listen: ``host:port`` of the API as bound (a port 0 is resolved).
    """

    instance_id: str
    config_path: str | None
    state_dir: str
    runtime_dir: str
    device: str
    llama_server: str | None
    listen: str
    config: Config
    settings: Settings

    @property
    def state(self) -> StatePaths:
        return StatePaths(Path(self.state_dir))

    @property
    def runtime(self) -> RuntimePaths:
        return RuntimePaths(Path(self.runtime_dir))


def write_instance(instance: Instance) -> Path:
    """Write the instance where its services find it; the path is what they are given."""
    path = instance.runtime.instance
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(instance))
    temporary.replace(path)
    return path


def read_instance(path: Path) -> Instance:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Instance)
    except (OSError, msgspec.MsgspecError) as error:
        raise GridcoreError(f"{path} is not a running daemon's instance: {error}") from error
