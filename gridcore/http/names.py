"""Which model or family a request means.

Pure. An exact model id or alias wins over the suffix rule, so that a model may be called
``org/name@v2``; only a name that is not known whole is cut at its last ``@``.
"""

from msgspec import Struct

from gridcore.config.schema import Capability, Workload
from gridcore.core.settings import ModelSettings, Settings
from gridcore.http.openai import ApiError
from gridcore.ids import ModelId

_NAMED_MAX = 20
"""An error message names so many of the known models at most."""


class Target(Struct, frozen=True, kw_only=True):
    """
    Args:
        name: the id of the model, or of the family.
        variants: the model itself, or the members of the family, best first.
        suffix: the class that the request's model name carried.
    """

    name: str
    is_family: bool
    variants: tuple[ModelSettings, ...]
    suffix: Workload | None = None

    def has(self, capability: Capability) -> bool:
        """Can any of the variants do this?"""
        return any(capability in model.capabilities for model in self.variants)

    @property
    def slots_max(self) -> int:
        return max(model.slots for model in self.variants)

    @property
    def slots_min(self) -> int:
        return min(model.slots for model in self.variants)


class Names:
    """All names of the configuration; ids win over aliases, models over families."""

    def __init__(self, settings: Settings) -> None:
        self.models: dict[str, ModelSettings] = {m.model_id: m for m in settings.models}
        self.families = {family.name: family for family in settings.families}
        self._targets: dict[str, Target] = {}
        for family in settings.families:
            target = Target(
                name=family.name,
                is_family=True,
                variants=tuple(self.models[model_id] for _, model_id in family.variants),
            )
            for name in (*family.aliases, family.name):
                self._targets[name] = target
        for model in settings.models:
            target = Target(name=model.model_id, is_family=False, variants=(model,))
            for name in (*model.aliases, model.model_id):
                self._targets[name] = target

    def resolve(self, name: str) -> Target:
        """Find what a request's ``model`` means.

        Raises:
            ApiError: 404, naming the models or the classes there are.
        """
        exact = self._targets.get(name)
        if exact is not None:
            return exact
        base, at, suffix = name.rpartition("@")
        target = self._targets.get(base) if at else None
        if target is None:
            raise self.unknown(name)
        try:
            workload = Workload(suffix)
        except ValueError:
            classes = ", ".join(f"{base}@{known}" for known in Workload)
            raise ApiError(
                404,
                "unknown_class_suffix",
                f"{name!r}: the class {suffix!r} after @ is not known; there are {classes}",
                param="model",
            ) from None
        return Target(
            name=target.name,
            is_family=target.is_family,
            variants=target.variants,
            suffix=workload,
        )

    def model(self, name: str) -> ModelId:
        """Find one model by id or alias; a family has no memory of its own to load.

        Raises:
            ApiError: 404 for an unknown name, 400 for a family.
        """
        target = self._targets.get(name)
        if target is None:
            raise self.unknown(name)
        if target.is_family:
            members = ", ".join(model.model_id for model in target.variants)
            raise ApiError(
                400, "not_a_model", f"{name!r} is a family; name one of {members}", param="model"
            )
        return target.variants[0].model_id

    def unknown(self, name: str) -> ApiError:
        known = [*self.models, *self.families]
        shown = ", ".join(known[:_NAMED_MAX]) or "none (the configuration has no models)"
        more = f" and {len(known) - _NAMED_MAX} more" if len(known) > _NAMED_MAX else ""
        return ApiError(
            404,
            "model_not_found",
            f"the model {name[:200]!r} does not exist; there are {shown}{more}",
            param="model",
        )
