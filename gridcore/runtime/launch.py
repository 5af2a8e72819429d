"""Works out what a load starts: command line, environment, address, limits, profile key.

It reads files (a model's header, a binary's help), never decides and never spawns a runtime.
"""

import asyncio
import hashlib
import os
import shutil
import socket
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from gridcore.config.schema import Capability, ModelConfig, RuntimeKind
from gridcore.errors import GridcoreError
from gridcore.ids import LoadId, ModelId
from gridcore.instance import Instance
from gridcore.runtime.argv import (
    adapt_to_build,
    batch_tokens,
    child_env,
    gpu_layers,
    has_pooling,
    launch_argv,
    memory_args,
    resolved_args,
    runtime_kind,
    slot_context_tokens,
)
from gridcore.runtime.lifecycle import Limits
from gridcore.runtime.process import output_of, own_command
from gridcore.store.profiles import Conditions, file_identity
from gridcore.units import MB, NS_PER_S

HELP_TIMEOUT_S = 10.0
"""A CUDA build loads its libraries before it answers."""
SPECIAL = 8
"""Tokens that a model puts around a text, or between a query and a document."""
CPU_SPEED = 2e10
GPU_SPEED = 5e12
"""Prompt tokens a second times bytes of the file, cautiously: two cores with AVX2 were seen at
5e10 (135 million parameters, 500 tokens/s); mid-range cards are reported at twice this."""


class LaunchError(GridcoreError):
    """The load cannot even be tried; trying again cannot help."""


class Launch(Struct, frozen=True, kw_only=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    address: str


class Launches:
    """All launches of one daemon."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._config = instance.config
        self._card_id = str(instance.settings.cards[0].card_id)
        self._help: dict[str, str] = {}
        self._taken_ports: set[int] = set()

    def model(self, model_id: ModelId) -> ModelConfig:
        """Look a model up.

        Raises:
            LaunchError: there is none of this name.
        """
        try:
            return self._config.models[model_id]
        except KeyError:
            raise LaunchError(f"{model_id} is not in the config") from None

    def limits(self, model_id: ModelId) -> Limits:
        if self.kind(model_id) is RuntimeKind.EMBEDDED:
            section = self._config.runtimes.embedded
            return Limits(
                load_timeout_ns=section.load_timeout_ns, stop_timeout_ns=section.stop_timeout_ns
            )
        server = self._config.runtimes.llamacpp
        return Limits(
            load_timeout_ns=server.load_timeout_ns, stop_timeout_ns=server.stop_timeout_ns
        )

    def kind(self, model_id: ModelId) -> RuntimeKind:
        return runtime_kind(self.model(model_id), self._instance.llama_server)

    def log_path(self, model_id: ModelId) -> Path:
        # A model id may hold a slash; two ids never share a file.
        return self._instance.state.logs / f"{quote(model_id, safe=':@+')}.log"

    def conditions(self, model_id: ModelId) -> Conditions:
        """Name what a measurement of this model, as it is configured now, depends on."""
        model, kind = self.model(model_id), self.kind(model_id)
        if kind is RuntimeKind.SIMULATED:
            assert model.simulated is not None
            return Conditions(
                build="simulated",
                card=self._card_id,
                file=model_id,
                args=(f"vram_mb={model.simulated.vram_mb}",),
            )
        files = [file_identity(path) for path in (model.path, model.mmproj) if path is not None]
        settings = [f"{name}={value}" for name, value in sorted(self._user_env(model_id).items())]
        return Conditions(
            build=self._build(kind),
            card=self._card_id,
            file="+".join(files),
            args=(*memory_args(self._args(model_id)), *settings),
        )

    def gpu_layers(self, model_id: ModelId) -> int | None:
        """Return how many layers are configured to be on the device; None is all."""
        return gpu_layers(self._args(model_id))

    def probe_tokens(self, model_id: ModelId, prompt_per_s: float | None) -> int:
        """Return how long the first prompt may be: a full batch, if that takes under a second.

        A longer one would hold the model back; what it takes then is seen while it serves.

        Args:
            prompt_per_s: the prompt speed, if it has been measured.
        """
        model, kind = self.model(model_id), self.kind(model_id)
        if kind is RuntimeKind.SIMULATED or model.path is None:
            return 1
        on_cpu = kind is RuntimeKind.EMBEDDED or self._instance.device == "cpu"
        n_tokens = min(batch_tokens(model, on_cpu=on_cpu), slot_context_tokens(model)) - SPECIAL
        if prompt_per_s is None:
            try:
                file_bytes = Path(model.path).stat().st_size
            except OSError:
                return 1
            prompt_per_s = (CPU_SPEED if on_cpu else GPU_SPEED) / max(1, file_bytes)
        return max(1, n_tokens) if n_tokens < prompt_per_s else 1

    async def prepare(self, load_id: LoadId, model_id: ModelId) -> Launch:
        """Work out one attempt, and write the spec file if its runtime takes one.

        Raises:
            LaunchError: a file is missing or unreadable; the text says which.
        """
        model, kind = self.model(model_id), self.kind(model_id)
        sockets = self._instance.runtime.runtimes
        sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        address = f"unix:{sockets / load_id}.sock"
        spec_path = sockets / f"{load_id}.json"
        env = self._env(load_id, model_id)
        if kind is RuntimeKind.SIMULATED:
            _write_private(spec_path, self._simulated_spec(model_id, address))
            argv = own_command("gridcore.runtime.simulated", spec_path)
            return Launch(argv=tuple(argv), env=env, address=address)
        if model.path is None or not Path(model.path).is_file():
            raise LaunchError(f"{model_id}: {model.path or 'no path'} is not a file (models.path)")
        args = self._args(model_id, await self._pooling(model_id))
        if kind is RuntimeKind.EMBEDDED:
            self._refuse_argument_variables(model_id)
            arguments = launch_argv("", model_id, model.path, address, args)[1:]
            _write_private(spec_path, {"args": arguments})
            argv = own_command("gridcore.runtime.embedded", spec_path)
            return Launch(argv=tuple(argv), env=env, address=address)
        binary = self._binary()
        text = await self._help_of(binary, env)
        if text and ".sock" not in text:
            address = f"http://127.0.0.1:{self._free_port()}"
        argv = adapt_to_build(launch_argv(binary, model_id, model.path, address, args), text)
        return Launch(argv=tuple(argv), env=env, address=address)

    def clean_up(self, load_id: LoadId, address: str) -> None:
        """Remove what an attempt left in the runtime directory."""
        for suffix in (".sock", ".json"):
            path = self._instance.runtime.runtimes / f"{load_id}{suffix}"
            path.unlink(missing_ok=True)
        if address.startswith("http:"):
            self._taken_ports.discard(int(address.rpartition(":")[2]))

    # --- parts ---------------------------------------------------------------------------

    def _args(self, model_id: ModelId, pooling: str | None = None) -> list[str]:
        return resolved_args(
            self._config,
            model_id,
            device=self._instance.device,
            llama_server=self._instance.llama_server,
            pooling=pooling,
        )

    def _user_env(self, model_id: ModelId) -> dict[str, str]:
        model = self.model(model_id)
        if self.kind(model_id) is not RuntimeKind.LLAMACPP:
            return model.env
        return {**self._config.runtimes.llamacpp.env, **model.env}

    def _env(self, load_id: LoadId, model_id: ModelId) -> dict[str, str]:
        config_home = self._instance.runtime.directory / "no-config"
        config_home.mkdir(mode=0o700, exist_ok=True)
        return child_env(
            os.environ,
            instance_id=self._instance.instance_id,
            load_id=load_id,
            config_home=str(config_home),
            user_env=self._user_env(model_id),
        )

    def _refuse_argument_variables(self, model_id: ModelId) -> None:
        """The wheel does not read them; a setting that is ignored must not look like one."""
        for name in self._user_env(model_id):
            if name.startswith("LLAMA_ARG_"):
                raise LaunchError(
                    f"{model_id}: the embedded runtime does not read {name}; write it under args"
                )

    async def _pooling(self, model_id: ModelId) -> str | None:
        """Return ``mean`` for an embedder whose file and arguments name no pooling."""
        model = self.model(model_id)
        args = [*self._config.runtimes.llamacpp.default_args, *model.args]
        if Capability.EMBEDDING not in model.capabilities or has_pooling(args):
            return None
        from gridcore.gguf.header import read_header  # noqa: PLC0415 - embedders only

        assert model.path is not None
        try:
            header = await asyncio.to_thread(read_header, model.path)
        except GridcoreError as error:
            raise LaunchError(f"{model_id}: {error}") from error
        named = f"{header.architecture}.pooling_type" in header.metadata
        return None if named else "mean"

    def _simulated_spec(self, model_id: ModelId, address: str) -> dict[str, object]:
        model, card = self.model(model_id), self._config.gpu.simulation
        simulated = model.simulated
        if simulated is None:
            raise LaunchError(f"{model_id}: runtime simulated needs a simulated section")
        return {
            "address": address,
            "claims": str(self._instance.runtime.simulation),
            "card": {
                "total_bytes": card.total_mb * MB,
                "foreign_bytes": card.foreign_mb * MB,
                "release_delay_s": card.release_delay_ns / NS_PER_S,
            },
            "model": {
                "model_id": model_id,
                "footprint_bytes": simulated.vram_mb * MB,
                "slots": model.parallel,
                "context": model.ctx,
                "batch": batch_tokens(model, on_cpu=False),
                "load_s": simulated.load_time_ns / NS_PER_S,
                "tokens_per_second": simulated.tokens_per_second,
                "prompt_tokens_per_second": simulated.prompt_tokens_per_second,
                "embedding_ms": simulated.embedding_ms,
                "dimensions": simulated.dimensions,
                "reply": simulated.reply,
                "embeddings": Capability.EMBEDDING in model.capabilities,
                "rerank": Capability.RERANK in model.capabilities,
                "mmproj": Capability.VISION in model.capabilities,
            },
        }

    def _binary(self) -> str:
        binary = self._instance.llama_server
        if binary is None:
            raise LaunchError("no llama-server: set runtimes.llamacpp.binary or put it on PATH")
        return binary

    def _build(self, kind: RuntimeKind) -> str:
        """Name the runtime's build by what changes with it, without reading gigabytes."""
        if kind is RuntimeKind.EMBEDDED:
            try:
                return f"xllamacpp {metadata.version('xllamacpp')}"
            except metadata.PackageNotFoundError:
                return "xllamacpp"
        binary = shutil.which(self._instance.llama_server or "llama-server")
        if binary is None:
            return "llama-server"
        real = Path(binary).resolve()
        libraries = [p for p in real.parent.glob("lib*") if "ggml" in p.name or "llama" in p.name]
        parts = [real, *sorted(libraries)]
        identity = "|".join(file_identity(str(part)) for part in parts)
        return f"{real} {hashlib.sha256(identity.encode()).hexdigest()[:12]}"

    async def _help_of(self, binary: str, env: dict[str, str]) -> str:
        key = file_identity(binary)
        if key not in self._help:
            self._help[key] = await output_of([binary, "--help"], env, HELP_TIMEOUT_S)
        return self._help[key]

    def _free_port(self) -> int:
        first, last = self._config.runtimes.llamacpp.port_range
        for port in range(first, last + 1):
            if port in self._taken_ports:
                continue
            with socket.socket() as candidate:
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    candidate.bind(("127.0.0.1", port))
                except OSError:
                    continue
            self._taken_ports.add(port)
            return port
        raise LaunchError(f"no free port in runtimes.llamacpp.port_range {first}-{last}")


def _write_private(path: Path, content: object) -> None:
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(content))
    temporary.replace(path)
