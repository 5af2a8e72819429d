"""What this machine makes of a config file: for ``check`` and ``models``. No output here."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from gridcore.config.footprint import Footprint
from gridcore.config.keys import KeyPath
from gridcore.config.load import load_config, raise_located
from gridcore.config.report import Problem
from gridcore.config.resolve import Resolution, assemble, card_problems, examine
from gridcore.config.schema import RuntimeKind
from gridcore.core.settings import CardSettings
from gridcore.devices import open_device
from gridcore.errors import ConfigError, GridcoreError
from gridcore.instance import Instance
from gridcore.runtime import dry_run
from gridcore.runtime.argv import batch_tokens
from gridcore.units import format_mb


class SurveyedModel(Struct, frozen=True, kw_only=True):
    model_id: str
    kind: str
    capabilities: tuple[str, ...]
    aliases: tuple[str, ...]
    ctx: int
    slots: int
    pinned: bool
    footprint: Footprint
    fits: bool
    """Alone on the card; two models that fit may not fit together."""


class Survey(Struct, frozen=True, kw_only=True):
    device: str
    llama_server: str | None
    card: CardSettings
    total_bytes: int
    budget_bytes: int
    models: tuple[SurveyedModel, ...]
    families: dict[str, tuple[str, ...]]
    problems: list[str]
    notes: list[str]
    configured: frozenset[str]
    """All names, also of models that cannot be run."""
    instance: Instance


def survey(path: Path, state_dir: Path | None = None) -> Survey:
    """Look at everything a config names.

    Raises:
        ConfigError: the file itself is wrong; later problems are in the survey.
    """
    config = load_config(path)
    found = examine(config, dry_run.ask)
    instance = assemble(found, config_path=path, state_dir=state_dir)
    card = found.card
    problems = list(found.problems)
    total_bytes = budget_bytes = 0
    try:
        total_bytes = open_device(instance).sample().total_bytes
    except GridcoreError:
        problems += card_problems(instance)
    else:
        problems += card_problems(instance, total_bytes)
        usable_bytes = min(total_bytes, card.limit_bytes or total_bytes)
        budget_bytes = max(0, usable_bytes - card.headroom_bytes)
    models = [_surveyed(found, model_id, budget_bytes) for model_id in found.models]
    if budget_bytes:
        problems += _too_big(models, budget_bytes)
    return Survey(
        device=found.device,
        llama_server=found.llama_server,
        card=card,
        total_bytes=total_bytes,
        budget_bytes=budget_bytes,
        models=tuple(models),
        families={
            family.name: tuple(model_id for _, model_id in family.variants)
            for family in instance.settings.families
        },
        problems=_located(path, problems),
        configured=frozenset(config.models),
        instance=instance,
        notes=[note for model_id in found.models for note in _notes(found, model_id)],
    )


def _surveyed(found: Resolution, model_id: str, budget_bytes: int) -> SurveyedModel:
    model, resolved = found.config.models[model_id], found.models[model_id]
    return SurveyedModel(
        model_id=model_id,
        kind=resolved.kind.value,
        capabilities=tuple(each.value for each in model.capabilities),
        aliases=model.aliases,
        ctx=model.ctx,
        slots=model.parallel,
        pinned=model.pinned,
        footprint=resolved.footprint,
        fits=resolved.footprint.total_bytes <= budget_bytes,
    )


def _notes(found: Resolution, model_id: str) -> Iterator[str]:
    """What is allowed and has a price."""
    model, resolved = found.config.models[model_id], found.models[model_id]
    for note in resolved.footprint.notes:
        yield f"models.{model_id}: {note}"
    if model.batch is None or resolved.kind is RuntimeKind.SIMULATED:
        return
    on_cpu = found.device == "cpu" or resolved.kind is RuntimeKind.EMBEDDED
    usual = batch_tokens(msgspec.structs.replace(model, batch=None), on_cpu=on_cpu)
    if model.batch > usual:
        yield (
            f"models.{model_id}.batch: {model.batch} tokens instead of {usual}: a chat may wait "
            "for that much of another prompt, and so may a cancel"
        )


def _too_big(models: list[SurveyedModel], budget_bytes: int) -> list[Problem]:
    problems = []
    for model in models:
        if not model.fits:
            text = (
                f"needs {format_mb(model.footprint.total_bytes)}, the budget is "
                f"{format_mb(budget_bytes)}: it can never be loaded; lower ctx or parallel, or "
                "keep layers on the CPU (args)"
            )
            problems.append(Problem(("models", model.model_id), text))
    pinned = [model for model in models if model.pinned and model.fits]
    pinned_bytes = sum(model.footprint.total_bytes for model in pinned)
    if pinned_bytes > budget_bytes:
        text = (
            f"pinned models need {format_mb(pinned_bytes)} together, the budget is "
            f"{format_mb(budget_bytes)}: unpin one"
        )
        path: KeyPath = ("models", pinned[-1].model_id, "pinned")
        problems.append(Problem(path, text))
    return problems


def _located(path: Path, problems: list[Problem]) -> list[str]:
    try:
        raise_located(path, problems)
    except ConfigError as error:
        return error.problems
    return []
