"""Does a model fit a card, and what would make it fit.

Each suggestion changes one thing that a user can set, as little as is needed, and is checked by
a full estimate.
"""

from collections.abc import Callable

import msgspec

from gridcore.gguf.estimate import Backend, Estimate, estimate, largest_context
from gridcore.gguf.flags import parse_flags
from gridcore.gguf.header import Header
from gridcore.gguf.hparams import hyper_parameters

# Backends whose device memory is the host's: everything must fit into one.
_UNIFIED = frozenset({Backend.METAL, Backend.CPU})


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Flags to add, and what the model would take with them."""

    flags: tuple[str, ...]
    device_total_bytes: int
    host_total_bytes: int
    effect: str


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one card."""

    card_bytes: int
    needed_bytes: int
    largest_context: int | None
    suggestions: tuple[Suggestion, ...]

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.card_bytes


def needed_bytes(found: Estimate, backend: Backend) -> int:
    """Bytes the card must have free: the device's, or all where memory is one."""
    return found.unified_total_bytes if backend in _UNIFIED else found.device.total_bytes


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A model, its arguments and the files that go with it."""

    header: Header
    args: tuple[str, ...]
    backend: Backend
    mmproj: Header | None = None
    draft: Header | None = None
    env: dict[str, str] = {}
    in_wheel: bool = False

    @property
    def file_bytes(self) -> int:
        return self.header.file_bytes + (self.mmproj.file_bytes if self.mmproj is not None else 0)

    def estimate(self, *more: str) -> Estimate:
        return estimate(
            self.header,
            [*self.args, *more],
            env=self.env,
            mmproj=self.mmproj,
            draft=self.draft,
            backend=self.backend,
            in_wheel=self.in_wheel,
        )

    def largest_context(self, card_bytes: int, *more: str) -> int | None:
        return largest_context(
            self.header,
            [*self.args, *more],
            card_bytes,
            env=self.env,
            mmproj=self.mmproj,
            draft=self.draft,
            backend=self.backend,
            unified=self.backend in _UNIFIED,
        )


def fit_card(question: Question, card_bytes: int, found: Estimate | None = None) -> Fit:
    """Judge one card and look for flags that would help.

    Args:
        found: an answer that is better than the rules', if there is one; what other flags
            would change is told by the rules all the same.
    """
    needed = needed_bytes(found or question.estimate(), question.backend)
    largest = question.largest_context(card_bytes)
    suggestions = () if needed <= card_bytes else _suggestions(question, card_bytes, largest)
    return Fit(
        card_bytes=card_bytes,
        needed_bytes=needed,
        largest_context=largest,
        suggestions=tuple(suggestions),
    )


def _suggestions(question: Question, card_bytes: int, largest: int | None) -> list[Suggestion]:
    found: list[Suggestion] = []

    def fits(*more: str) -> bool:
        return needed_bytes(question.estimate(*more), question.backend) <= card_bytes

    def suggest(effect: str, *more: str) -> None:
        tried = question.estimate(*more)
        found.append(
            Suggestion(
                flags=more,
                device_total_bytes=tried.device.total_bytes,
                host_total_bytes=tried.host.total_bytes,
                effect=effect,
            )
        )

    hparams = hyper_parameters(question.header)
    if largest is not None:
        suggest(f"a context of {largest} tokens", "-c", str(largest))
    if hparams.has_memory:
        halved = ("-ctk", "q8_0", "-ctv", "q8_0")
        if fits(*halved):
            suggest("half the cache", *halved)
        else:
            context = question.largest_context(card_bytes, *halved)
            if context is not None and context > (largest or 0):
                suggest(f"half the cache and {context} tokens", *halved, "-c", str(context))
    if question.backend in _UNIFIED or not parse_flags(question.args).has_device:
        return found
    if any("_exps" in tensor.name for tensor in question.header.tensors):
        n_moved = _first(range(1, hparams.n_layer + 1), lambda n: fits("--n-cpu-moe", str(n)))
        if n_moved is not None:
            effect = f"experts of {n_moved} layers in host memory"
            suggest(effect, "--n-cpu-moe", str(n_moved))
    n_kept = _first(range(hparams.n_layer, -1, -1), lambda n: fits("-ngl", str(n)))
    if n_kept is not None:
        suggest(f"{n_kept} of {hparams.n_layer + 1} layers on the device", "-ngl", str(n_kept))
    return found


def _first(values: range, fits: Callable[[int], bool]) -> int | None:
    """Return the first value that fits, where all after it do too; None if not the last."""
    if not fits(values[-1]):
        return None
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(values[middle]):
            high = middle
        else:
            low = middle + 1
    return values[low]
