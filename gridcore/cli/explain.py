"""What ``models --explain`` says of a model: its parts, what changes would cost, measurements."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from gridcore.cli.profiles import age, speed
from gridcore.cli.table import table
from gridcore.config.footprint import question, reserved_bytes
from gridcore.config.schema import ModelConfig, RuntimeKind
from gridcore.errors import GridcoreError
from gridcore.ids import ModelId
from gridcore.runtime.launch import Launches
from gridcore.store.profiles import Profile, ProfileStore
from gridcore.units import format_duration, format_mb

if TYPE_CHECKING:
    from gridcore.cli.survey import Survey, SurveyedModel

_QUANTIZED = ("-ctk", "q8_0", "-ctv", "q8_0")


def explanation(found: "Survey", only: str | None = None) -> Iterator[str]:
    """All that is known of each model's memory, or of one's."""
    store, launches = ProfileStore(found.instance.state.profiles), Launches(found.instance)
    for model in found.models:
        if only not in (None, model.model_id):
            continue
        yield f"{model.model_id}: {format_mb(model.footprint.total_bytes)}, {_source(model)}"
        yield from _indented(_parts(model))
        yield from _indented(_changes(found, model))
        profile = store.get(launches.conditions(ModelId(model.model_id)))
        yield from _indented(_measured(model, profile))
        yield from (f"  note: {note}" for note in model.footprint.notes)
        yield ""
    yield f"budget {format_mb(found.budget_bytes)} on {found.card.name}"


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"  {line}".rstrip() for line in lines)


def _source(model: "SurveyedModel") -> str:
    if model.kind == RuntimeKind.SIMULATED and model.footprint.source == "simulated":
        return "simulated: vram_mb in the config, no file is read"
    return model.footprint.source


def _parts(model: "SurveyedModel") -> list[str]:
    """What takes memory where, by which rule."""
    estimate = model.footprint.estimate
    if estimate is None:
        return []
    rows = [[part.what, part.where, format_mb(part.bytes), part.rule] for part in estimate.parts]
    return table(["PART", "WHERE", "SIZE", "RULE"], rows)


def _changes(found: "Survey", model: "SurveyedModel") -> list[str]:
    """What the same model would take with other settings, by the rules."""
    if model.footprint.estimate is None:
        return []
    as_it_is = found.instance.config.models[model.model_id]
    now = _total_bytes(found, model, as_it_is)
    rows = []
    for what, changed in _variations(as_it_is):
        try:
            total = _total_bytes(found, model, changed)
        except GridcoreError:
            continue  # not possible with the model's other arguments
        if total is not None and now is not None:
            sign = "+" if total >= now else "-"
            rows.append([what, format_mb(total), f"{sign} {format_mb(abs(total - now))}"])
    return ["", *table(["WITH", "WOULD TAKE", "DIFFERENCE"], rows), ""] if rows else []


def _variations(model: ModelConfig) -> Iterator[tuple[str, ModelConfig]]:
    replace = msgspec.structs.replace
    for ctx in (model.ctx // 2, model.ctx * 2):
        if ctx:
            yield f"ctx: {ctx}", replace(model, ctx=ctx)
    if model.parallel > 1:
        yield "parallel: 1", replace(model, parallel=1)
    yield f"parallel: {model.parallel + 1}", replace(model, parallel=model.parallel + 1)
    more = _QUANTIZED if "-fa" in model.args else (*_QUANTIZED, "-fa", "on")
    yield f"args: {' '.join(_QUANTIZED)}", replace(model, args=(*model.args, *more))


def _total_bytes(found: "Survey", model: "SurveyedModel", changed: ModelConfig) -> int | None:
    config = found.instance.config
    asked = question(
        msgspec.structs.replace(config, models={**config.models, model.model_id: changed}),
        model.model_id,
        kind=RuntimeKind(model.kind),
        device=found.device,
        llama_server=found.llama_server,
    )
    return reserved_bytes(asked.estimate(), found.device)


def _measured(model: "SurveyedModel", profile: Profile) -> list[str]:
    """What was seen of it, beside what was estimated."""
    lines = []
    if profile.footprint_bytes is not None:
        off = 100 * (model.footprint.total_bytes / profile.footprint_bytes - 1)
        lines.append(
            f"measured: {format_mb(profile.footprint_bytes)} {age(profile)} ago, the estimate is "
            f"{off:+.1f} %; loads reserve what was measured"
        )
    elif not profile.shrunk:
        lines.append("measured: nothing yet with these settings")
    if profile.shrunk:
        lines.append(f"the last load was not measured: it had {profile.shrunk}")
    if profile.out_of_memory_at_bytes is not None:
        lines.append(f"it ran out of memory with {format_mb(profile.out_of_memory_at_bytes)} free")
    lines += _reported(model, profile)
    if profile.load_ns is not None:
        lines.append(f"load: {format_duration(profile.load_ns)}")
    if profile.speeds is not None:
        speeds = profile.speeds
        together = ""
        if speeds.together is not None:
            together = f", {speed(speeds.together)} by {speeds.streams} streams together"
        lines.append(
            f"tokens/s: {speed(speeds.prompt)} of a prompt, {speed(speeds.generation)} "
            f"generated{together}"
        )
    return lines


def _reported(model: "SurveyedModel", profile: Profile) -> list[str]:
    """llama.cpp's own buffers beside the same parts of the estimate."""
    reported, estimate = profile.reported, model.footprint.estimate
    if reported is None or estimate is None:
        return []
    sums = dict.fromkeys(("weights", "context", "compute"), 0)
    for part in estimate.parts:
        if part.kind in sums:
            sums[part.kind] += part.bytes
    rows = [
        [kind, format_mb(estimated), format_mb(getattr(reported, f"{kind}_bytes"))]
        for kind, estimated in sums.items()
    ]
    return ["", *table(["BUFFERS", "ESTIMATED", "LLAMA.CPP"], rows), ""]
