"""From what the config says to what this machine will do: one ``Instance`` for the group.

``examine`` answers ``auto``, looks at files and binaries and estimates every model; it collects
all problems with their keys. ``resolve`` is what ``serve`` does with the answer: an instance, or
one error that lists everything.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from gridcore.config.footprint import DryRun, Footprint, footprint, has_unified_memory
from gridcore.config.keys import KeyPath
from gridcore.config.load import raise_located
from gridcore.config.report import Problem
from gridcore.config.schema import Config, RuntimeKind, Tier
from gridcore.core.settings import CardSettings, FamilySettings, ModelSettings, Settings
from gridcore.errors import GridcoreError
from gridcore.ids import CardId, ModelId, new_boot_id
from gridcore.instance import Instance
from gridcore.paths import default_state_dir, runtime_dir_for
from gridcore.runtime.argv import runtime_kind
from gridcore.units import MB, format_mb

HEADROOM_MB = 512
HEADROOM_UNIFIED_MB = 1024
"""The rest of the system allocates from the same memory."""

_PAUSABLE = frozenset({RuntimeKind.LLAMACPP, RuntimeKind.EMBEDDED, RuntimeKind.SIMULATED})
"""Runtimes that are a process group of ours and may be stopped and continued."""


class ResolvedModel(Struct, frozen=True, kw_only=True):
    kind: RuntimeKind
    footprint: Footprint


class Resolution(Struct, frozen=True, kw_only=True):
    """What the machine makes of a config.

    Args:
        models: those that can be run; the others stand in ``problems``.
    """

    config: Config
    device: str
    llama_server: str | None
    card: CardSettings
    models: dict[str, ResolvedModel]
    problems: tuple[Problem, ...]


def resolve(
    config: Config,
    *,
    config_path: Path | None = None,
    state_dir: Path | None = None,
    runtime_dir: Path | None = None,
    listen: str | None = None,
    device_total_bytes: int | None = None,
    dry_run: DryRun | None = None,
) -> Instance:
    """Work out an instance, or raise everything that stands against it.

    Args:
        listen: ``host:port`` as bound; None takes the config's.
        device_total_bytes: the card's memory; None asks the device.
        dry_run: see ``footprint``.

    Raises:
        ConfigError: a file, a binary, a device or a setting cannot be used.
    """
    found = examine(config, dry_run)
    instance = assemble(
        found,
        config_path=config_path,
        state_dir=state_dir,
        runtime_dir=runtime_dir,
        listen=listen,
    )
    problems = [*found.problems, *card_problems(instance, device_total_bytes)]
    raise_located(config_path, problems)
    return instance


def assemble(
    found: Resolution,
    *,
    config_path: Path | None = None,
    state_dir: Path | None = None,
    runtime_dir: Path | None = None,
    listen: str | None = None,
) -> Instance:
    """The instance of what can be run, whatever the problems of the rest are."""
    return Instance(
        instance_id=new_boot_id(),
        config_path=str(config_path.absolute()) if config_path is not None else None,
        state_dir=str((state_dir or default_state_dir()).expanduser().absolute()),
        runtime_dir=str((runtime_dir or runtime_dir_for(state_dir)).absolute()),
        device=found.device,
        llama_server=found.llama_server,
        listen=listen or found.config.server.listen,
        config=_with_kinds(found),
        settings=_settings(found),
    )


def examine(config: Config, dry_run: DryRun | None = None) -> Resolution:
    """Answer ``auto``, look at the files, estimate; problems are collected, not raised."""
    problems: list[Problem] = []
    device = resolve_device(config)
    llama_server = _find_llama_server(config, problems)
    models: dict[str, ResolvedModel] = {}
    for model_id in config.models:
        kind = _resolve_kind(config, model_id, llama_server, problems)
        if kind is None:
            continue
        try:
            estimated = footprint(
                config,
                model_id,
                kind=kind,
                device=device,
                llama_server=llama_server,
                dry_run=dry_run,
            )
        except GridcoreError as error:
            problems.append(Problem(_key_at_fault(config, model_id, error), str(error)))
            continue
        models[model_id] = ResolvedModel(kind=kind, footprint=estimated)
    return Resolution(
        config=config,
        device=device,
        llama_server=llama_server,
        card=_card(config, device),
        models=models,
        problems=tuple(problems),
    )


def _key_at_fault(config: Config, model_id: str, error: GridcoreError) -> KeyPath:
    """The key that an error about a file or an argument leads back to."""
    model, at = config.models[model_id], ("models", model_id)
    text = str(error)
    for name, path in (("path", model.path), ("mmproj", model.mmproj)):
        if path is not None and text.startswith(path):
            return (*at, name)
    return (*at, "args") if text.startswith("-") and model.args else at


def resolve_device(config: Config) -> str:
    return "cpu" if config.gpu.device == "auto" else config.gpu.device


def card_problems(instance: Instance, total_bytes: int | None = None) -> list[Problem]:
    """A device that this version cannot drive, or a headroom that leaves no room on it."""
    from gridcore.devices import open_device  # noqa: PLC0415 - after examine, which may fail

    card = instance.settings.cards[0]
    if total_bytes is None:
        try:
            total_bytes = open_device(instance).sample().total_bytes
        except GridcoreError as error:
            return [Problem(("gpu", "device"), str(error).removeprefix("gpu.device: "))]
    usable_bytes = min(total_bytes, card.limit_bytes or total_bytes)
    if usable_bytes > card.headroom_bytes:
        return []
    text = (
        f"{format_mb(card.headroom_bytes)} leave nothing of the {format_mb(usable_bytes)} that "
        f"{card.name} may use; lower headroom_mb"
    )
    return [Problem(("gpu", "headroom_mb"), text)]


def _find_llama_server(config: Config, problems: list[Problem]) -> str | None:
    binary = config.runtimes.llamacpp.binary
    if binary is None:
        return shutil.which("llama-server")
    path: tuple[str, ...] = ("runtimes", "llamacpp", "binary")
    if not Path(binary).is_file():
        text = f"there is no file {binary}; null takes llama-server from PATH"
        problems.append(Problem(path, text))
    elif shutil.which(binary) is None:
        problems.append(Problem(path, f"{binary} is not executable: chmod +x {binary}"))
    return binary


def _resolve_kind(
    config: Config, model_id: str, llama_server: str | None, problems: list[Problem]
) -> RuntimeKind | None:
    model = config.models[model_id]
    kind = runtime_kind(model, llama_server)
    has_wheel = importlib.util.find_spec("xllamacpp") is not None
    text = None
    if kind is RuntimeKind.LLAMACPP and llama_server is None:
        text = "llamacpp needs llama-server, which is not on PATH: set runtimes.llamacpp.binary"
    elif kind is RuntimeKind.EMBEDDED and not has_wheel:
        text = "embedded needs the xllamacpp wheel: pip install 'gridcore[embedded]'"
        if model.runtime is RuntimeKind.AUTO:
            text = (
                "auto found no llama-server on PATH and no xllamacpp wheel: set "
                "runtimes.llamacpp.binary, or pip install 'gridcore[embedded]'"
            )
    if text is None:
        return kind
    problems.append(Problem(("models", model_id, "runtime"), text))
    return None


def _card(config: Config, device: str) -> CardSettings:
    gpu = config.gpu
    unified = has_unified_memory(device)
    is_simulation = device == "simulation"
    headroom_mb = gpu.headroom_mb
    if headroom_mb is None:
        headroom_mb = HEADROOM_UNIFIED_MB if unified else HEADROOM_MB
    return CardSettings(
        card_id=CardId(device),
        name=gpu.simulation.name if is_simulation else device.upper(),
        headroom_bytes=headroom_mb * MB,
        limit_bytes=gpu.vram_limit_mb * MB if gpu.vram_limit_mb is not None else None,
        unified=unified,
        frees_on_exit=device == "cpu" or (is_simulation and gpu.simulation.release_delay_ns == 0),
    )


def _with_kinds(found: Resolution) -> Config:
    """The config with every ``auto`` answered, so that no process answers it again."""
    models = {
        model_id: msgspec.structs.replace(found.config.models[model_id], runtime=resolved.kind)
        for model_id, resolved in found.models.items()
    }
    return msgspec.structs.replace(found.config, models=models)


def _settings(found: Resolution) -> Settings:
    return Settings(
        cards=(found.card,),
        models=tuple(_model_settings(found, model_id) for model_id in found.models),
        families=tuple(_families(found)),
        policy=found.config.policy,
    )


def _families(found: Resolution) -> Iterator[FamilySettings]:
    for name, family in found.config.families.items():
        members = [(tier, getattr(family, tier.value)) for tier in Tier]
        variants = [(tier, ModelId(member)) for tier, member in members if member in found.models]
        yield FamilySettings(name=name, variants=tuple(variants), aliases=family.aliases)


def _model_settings(found: Resolution, model_id: str) -> ModelSettings:
    model = found.config.models[model_id]
    resolved = found.models[model_id]
    return ModelSettings(
        model_id=ModelId(model_id),
        card_id=found.card.card_id,
        slots=model.parallel,
        estimated_bytes=resolved.footprint.total_bytes,
        load_ns_estimate=resolved.footprint.load_ns,
        capabilities=frozenset(model.capabilities),
        pinned=model.pinned,
        ttl_ns=model.ttl_ns,
        aliases=model.aliases,
        can_pause=resolved.kind in _PAUSABLE,
    )
