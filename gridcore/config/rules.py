"""Rules between keys: names that must differ, references that must lead somewhere.

Judges a config that is already well-typed, without looking at the machine: no file, no PATH, no
card (``resolve.py`` does that).
"""

import re

from gridcore.config.address import parse_listen
from gridcore.config.keys import KeyPath
from gridcore.config.report import Report
from gridcore.config.schema import (
    Capability,
    Config,
    FamilyConfig,
    ModelConfig,
    RuntimeKind,
    Tier,
)
from gridcore.config.suggest import did_you_mean
from gridcore.runtime.argv import refused_args

ID_LENGTH_MAX = 128
"""An id names a log file and a path of the admin API."""
_ID = re.compile(r"[^\s/\x00-\x1f\x7f.][^\s/\x00-\x1f\x7f]*")
_ALIAS = re.compile(r"[^\s\x00-\x1f\x7f]+")

_SEES = frozenset({Capability.VISION, Capability.AUDIO})
_NOT_COMPARABLE = frozenset({Capability.EMBEDDING, Capability.RERANK})


def is_simulated(model: ModelConfig) -> bool:
    """Whether a model is a simulated one: it says so, or is described as one."""
    if model.runtime is RuntimeKind.AUTO:
        return model.simulated is not None
    return model.runtime is RuntimeKind.SIMULATED


def check_rules(config: Config, report: Report) -> None:
    _check_addresses(config, report)
    _check_names(config, report)
    for model_id, model in config.models.items():
        if report.is_sound(("models", model_id)):
            _check_model(config, model_id, model, report)
    for name, family in config.families.items():
        if report.is_sound(("families", name)):
            _check_family(config, name, family, report)
    _check_policy(config, report)


def _check_addresses(config: Config, report: Report) -> None:
    seen: dict[tuple[str, int], str] = {}
    for path, listen in (
        (("server", "listen"), config.server.listen),
        (("metrics", "listen"), config.metrics.listen),
    ):
        if listen is None or not report.is_sound(path):
            continue
        try:
            address = parse_listen(listen)
        except ValueError as error:
            report.add(path, str(error))
            continue
        if address in seen and address[1] != 0:
            report.add(path, f"{listen} is the address of {seen[address]} too; choose another")
        seen.setdefault(address, ".".join(path))
    low, high = config.runtimes.llamacpp.port_range
    if not 1 <= low <= high <= 65535:
        text = f"must be two ports in ascending order, 1 to 65535, got [{low}, {high}]"
        report.add(("runtimes", "llamacpp", "port_range"), text)


def _check_names(config: Config, report: Report) -> None:
    """Every name a client may ask for leads to one model or family."""
    owners: dict[str, str] = {}
    for model_id in config.models:
        if not _ID.fullmatch(model_id) or len(model_id) > ID_LENGTH_MAX:
            text = (
                "is no id: at most 128 characters without blank or slash, not starting with a "
                "dot (other names can be aliases)"
            )
            report.add(("models", model_id), text)
        owners[model_id] = f"the id of models.{model_id}"
    for name in config.families:
        path: KeyPath = ("families", name)
        if not _ID.fullmatch(name) or len(name) > ID_LENGTH_MAX:
            report.add(path, "is no name: at most 128 characters without blank or slash")
        elif name in owners:
            report.add(path, f"is {owners[name]} too; rename one of them")
        owners.setdefault(name, f"the name of families.{name}")
    for kind, entries in (("models", config.models), ("families", config.families)):
        for name, entry in entries.items():
            for index, alias in enumerate(entry.aliases):
                path = (kind, name, "aliases", index)
                if not _ALIAS.fullmatch(alias) or len(alias) > ID_LENGTH_MAX:
                    report.add(path, f"{alias!r} is no name: 1 to 128 characters without blank")
                elif alias in owners:
                    report.add(path, f"{alias} is {owners[alias]} already; a name leads to one")
                owners.setdefault(alias, f"an alias of {kind}.{name}")


def _check_model(config: Config, model_id: str, model: ModelConfig, report: Report) -> None:
    at: KeyPath = ("models", model_id)
    if is_simulated(model):
        if model.simulated is None:
            text = "simulated needs a section simulated: { vram_mb: ... }"
            report.add((*at, "runtime"), text)
        if config.gpu.device != "simulation":
            text = (
                "simulated runs only on a simulated card: set gpu.device: simulation, "
                f"which is {config.gpu.device} now"
            )
            report.add((*at, "runtime"), text)
    else:
        if model.simulated is not None:
            text = f"is used only with runtime: simulated, which is {model.runtime.value}"
            report.add((*at, "simulated"), text)
        if model.path is None:
            report.add((*at, "path"), "is missing: name the GGUF file of the model")
    if not model.capabilities:
        report.add((*at, "capabilities"), "is empty: name what the model can do, such as [chat]")
    _check_projector(model, at, report)
    _check_arguments(model.args, (*at, "args"), report)


def _check_projector(model: ModelConfig, at: KeyPath, report: Report) -> None:
    sees = _SEES.intersection(model.capabilities)
    if model.mmproj is not None and not sees:
        report.add((*at, "mmproj"), "is of no use without vision or audio in capabilities")
    if sees and model.mmproj is None and not is_simulated(model):
        names = " and ".join(sorted(sees))
        report.add((*at, "capabilities"), f"{names} needs a projector file: set mmproj")


def _check_arguments(arguments: tuple[str, ...], at: KeyPath, report: Report) -> None:
    for index, argument in enumerate(arguments):
        if argument.startswith("-") and len(argument.split(maxsplit=1)) == 2:
            flag, value = argument.split(maxsplit=1)
            report.add((*at, index), f'write two items: "{flag}", "{value}"')
            continue
        for refusal in refused_args([argument]):
            report.add((*at, index), refusal)


def _check_family(config: Config, name: str, family: FamilyConfig, report: Report) -> None:
    at: KeyPath = ("families", name)
    tier_by_member: dict[str, Tier] = {}
    for tier in Tier:
        member: str | None = getattr(family, tier.value)
        if member is None:
            continue
        path = (*at, tier.value)
        model = config.models.get(member)
        if member in tier_by_member:
            report.add(path, f"{member} is the {tier_by_member[member]} variant already")
        elif model is None and _is_known_to_be_absent(config, member, report):
            hint = did_you_mean(member, config.models) or "; models: names none like it"
            report.add(path, f"there is no model {member}{hint}")
        elif model is not None and _NOT_COMPARABLE.intersection(model.capabilities):
            text = f"{member} makes vectors or scores, which differ between models: no family"
            report.add(path, text)
        tier_by_member.setdefault(member, tier)
    if not tier_by_member:
        report.add(at, "has no member: name a model as preferred, balanced or compact")


def _is_known_to_be_absent(config: Config, member: str, report: Report) -> bool:
    """A model that could not be read is no reason for one more problem."""
    unread = not report.is_sound(("models",)) and not config.models
    return report.is_sound(("models", member)) and not unread


def _check_policy(config: Config, report: Report) -> None:
    _check_arguments(
        config.runtimes.llamacpp.default_args, ("runtimes", "llamacpp", "default_args"), report
    )
    breaker = config.policy.breaker
    if breaker.backoff_ns > breaker.backoff_max_ns:
        report.add(("policy", "breaker", "backoff"), "is longer than backoff_max")
    if config.gpu.poll_interval_ns == 0:
        report.add(("gpu", "poll_interval"), "must not be 0s: the card would be read in a loop")
