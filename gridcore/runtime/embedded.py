"""llama.cpp from the xllamacpp wheel, in a process of its own.

``python -P -m gridcore.runtime.embedded --spec FILE.json``. The spec holds the command line a
llama-server would get; here it becomes the wheel's parameters. What cannot be translated is an
error and exit status 2, never ignored. It imports nothing else of GridCore: the process belongs
to the model.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

Setter = Callable[[Any, str], None]
"""Sets one parameter of a CommonParams from the text of a value."""


class UntranslatableError(Exception):
    """An argument that the wheel has no parameter for."""


def _number(*path: str) -> Setter:
    return lambda params, text: _assign(params, path, int(text))


def _real(*path: str) -> Setter:
    return lambda params, text: _assign(params, path, float(text))


def _text(*path: str) -> Setter:
    return lambda params, text: _assign(params, path, text)


def _flag(name: str, value: bool) -> Setter:
    return lambda params, _: setattr(params, name, value)


def _switch(*path: str) -> Setter:
    return lambda params, text: _assign(params, path, _yes(text))


def _choice(attribute: str, enum: str, prefix: str, **names: str) -> Setter:
    """A member of one of the wheel's enums, by llama-server's word for it."""

    def set_choice(params: Any, text: str) -> None:
        import xllamacpp  # noqa: PLC0415 - a third of a second

        word = names.get(text, text).upper()
        try:
            member = getattr(getattr(xllamacpp, enum), prefix + word)
        except AttributeError:
            raise UntranslatableError(f"{text!r} is not a choice") from None
        setattr(params, attribute, member)

    return set_choice


def _batch_threads(params: Any, text: str) -> None:
    params.cpuparams_batch.n_threads = int(text)


def _threads(params: Any, text: str) -> None:
    params.cpuparams.n_threads = int(text)
    if params.cpuparams_batch.n_threads <= 0:
        params.cpuparams_batch.n_threads = int(text)


def _gpu_layers(params: Any, text: str) -> None:
    params.n_gpu_layers = {"auto": -1, "all": -2}.get(text) or int(text)


def _unix_or_host(params: Any, text: str) -> None:
    params.hostnames = [text]


def _alias(params: Any, text: str) -> None:
    params.model_alias = {text}


def _rerank(params: Any, _: str) -> None:
    params.embedding = True
    _POOLING(params, "rank")


_POOLING = _choice("pooling_type", "llama_pooling_type", "LLAMA_POOLING_TYPE_")
_CACHE_K = _choice("cache_type_k", "ggml_type", "GGML_TYPE_")
_CACHE_V = _choice("cache_type_v", "ggml_type", "GGML_TYPE_")
_LOAD_MODE = _choice(
    "load_mode",
    "llama_load_mode",
    "LLAMA_LOAD_MODE_",
    **{"mmap+mlock": "MMAP_MLOCK", "dio": "DIRECT_IO"},
)
_FLASH = _choice(
    "flash_attn_type",
    "llama_flash_attn_type",
    "LLAMA_FLASH_ATTN_TYPE_",
    on="ENABLED",
    off="DISABLED",
)
_ROPE = _choice("rope_scaling_type", "llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_")

_WITH_VALUE: dict[tuple[str, ...], Setter] = {
    ("--model",): _text("model", "path"),
    ("--alias",): _alias,
    ("--host",): _unix_or_host,
    ("--port",): _number("port"),
    ("-c", "--ctx-size"): _number("n_ctx"),
    ("-np", "--parallel"): _number("n_parallel"),
    ("-b", "--batch-size"): _number("n_batch"),
    ("-ub", "--ubatch-size"): _number("n_ubatch"),
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): _gpu_layers,
    ("-t", "--threads"): _threads,
    ("-tb", "--threads-batch"): _batch_threads,
    ("--threads-http",): _number("n_threads_http"),
    ("-n", "--predict", "--n-predict"): _number("n_predict"),
    ("--keep",): _number("n_keep"),
    ("-fit", "--fit"): _switch("fit_params"),
    ("-cram", "--cache-ram"): _number("cache_ram_mib"),
    ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"): _number("n_ctx_checkpoints"),
    ("-lm", "--load-mode"): _LOAD_MODE,
    ("-lv", "--verbosity", "--log-verbosity"): _number("verbosity"),
    ("--sse-ping-interval",): _number("sse_ping_interval"),
    ("-mm", "--mmproj"): _text("mmproj", "path"),
    ("--pooling",): _POOLING,
    ("--embd-normalize",): _number("embd_normalize"),
    ("-ctk", "--cache-type-k"): _CACHE_K,
    ("-ctv", "--cache-type-v"): _CACHE_V,
    ("-fa", "--flash-attn"): _FLASH,
    ("--kv-unified-per-slot",): _number("kv_unified_per_slot"),
    ("--cache-reuse",): _number("n_cache_reuse"),
    ("-sps", "--slot-prompt-similarity"): _real("slot_prompt_similarity"),
    ("--slot-save-path",): _text("slot_save_path"),
    ("--chat-template",): _text("chat_template"),
    ("--rope-scaling",): _ROPE,
    ("--rope-freq-base",): _real("rope_freq_base"),
    ("--rope-freq-scale",): _real("rope_freq_scale"),
    ("--yarn-orig-ctx",): _number("yarn_orig_ctx"),
    ("--yarn-ext-factor",): _real("yarn_ext_factor"),
    ("--yarn-attn-factor",): _real("yarn_attn_factor"),
    ("--yarn-beta-slow",): _real("yarn_beta_slow"),
    ("--yarn-beta-fast",): _real("yarn_beta_fast"),
    ("--temp", "--temperature"): _real("sampling", "temp"),
    ("--top-k",): _number("sampling", "top_k"),
    ("--top-p",): _real("sampling", "top_p"),
    ("--min-p",): _real("sampling", "min_p"),
    ("--repeat-penalty",): _real("sampling", "penalty_repeat"),
    ("-s", "--seed"): _number("sampling", "seed"),
}
_WITHOUT_VALUE: dict[tuple[str, ...], Setter] = {
    ("--embedding", "--embeddings"): _flag("embedding", True),
    ("--rerank", "--reranking"): _rerank,
    ("--no-ui", "--no-webui"): _flag("ui", False),
    ("--metrics",): _flag("endpoint_metrics", True),
    ("--slots",): _flag("endpoint_slots", True),
    ("--props",): _flag("endpoint_props", True),
    ("--warmup",): _flag("warmup", True),
    ("--no-warmup",): _flag("warmup", False),
    ("--jinja",): _flag("use_jinja", True),
    ("--no-jinja",): _flag("use_jinja", False),
    ("-kvu", "--kv-unified"): _flag("kv_unified", True),
    ("-no-kvu", "--no-kv-unified"): _flag("kv_unified", False),
    ("-nkvo", "--no-kv-offload"): _flag("no_kv_offload", True),
    ("--no-op-offload",): _flag("no_op_offload", True),
    ("--no-mmproj-offload",): _flag("mmproj_use_gpu", False),
    ("-nr", "--no-repack"): _flag("no_extra_bufts", True),
    ("--no-host",): _flag("no_host", True),
    ("--swa-full",): _flag("swa_full", True),
    ("--context-shift",): _flag("ctx_shift", True),
    ("--no-context-shift",): _flag("ctx_shift", False),
    ("--cache-prompt",): _flag("cache_prompt", True),
    ("--no-cache-prompt",): _flag("cache_prompt", False),
    ("--no-cache-idle-slots",): _flag("cache_idle_slots", False),
    ("-sp", "--special"): _flag("special", True),
    ("--check-tensors",): _flag("check_tensors", True),
}
_VALUE_SETTERS = {name: setter for names, setter in _WITH_VALUE.items() for name in names}
_PLAIN_SETTERS = {name: setter for names, setter in _WITHOUT_VALUE.items() for name in names}


def apply_args(params: Any, args: Sequence[str]) -> None:
    """Set a CommonParams from llama-server arguments; the last of two equal ones wins.

    Raises:
        UntranslatableError: an argument or value the wheel cannot take; the text names it.
    """
    words: Iterator[str] = iter(args)
    for word in words:
        name = word
        if word.startswith("--"):
            name = word.replace("_", "-")
        if name in _PLAIN_SETTERS:
            _PLAIN_SETTERS[name](params, "")
        elif name in _VALUE_SETTERS:
            value = next(words, None)
            if value is None:
                raise UntranslatableError(f"{word}: a value must follow")
            try:
                _VALUE_SETTERS[name](params, value)
            except (UntranslatableError, ValueError, OverflowError) as error:
                raise UntranslatableError(f"{word} {value}: {error}") from None
        else:
            raise UntranslatableError(
                f"{word}: the embedded runtime has no such setting; "
                "use a llama-server binary (runtimes.llamacpp.binary) for it"
            )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gridcore.runtime.embedded")
    parser.add_argument("--spec", type=Path, required=True)
    spec = json.loads(parser.parse_args(argv).spec.read_bytes())
    try:
        import xllamacpp  # noqa: PLC0415 - the error below is for people
    except ImportError as error:
        complain(f"the embedded runtime needs xllamacpp (pip install gridcore[embedded]): {error}")
        return 2
    params = xllamacpp.CommonParams()
    params.port = 0
    try:
        apply_args(params, spec["args"])
    except UntranslatableError as error:
        complain(str(error))
        return 2
    try:
        server = xllamacpp.Server(params)  # returns when it is ready
    except Exception as error:
        complain_of_load(error)
        return 1
    return wait_for_signal(server)


def wait_for_signal(server: Any) -> NoReturn:
    """Let the server serve, which lives as long as its name, until a signal ends the process.

    No handler: the wheel's own shutdown waits for every stream in flight, and its threads may
    be handed the signal. The kernel gives the memory back at once either way.
    """
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    while True:
        signal.pause()


def complain(text: str) -> None:
    sys.stderr.write(f"gridcore: {text}\n")
    sys.stderr.flush()


def complain_of_load(error: Exception) -> None:
    # llama.cpp's own lines above it say why; this is only the end.
    sys.stderr.write(f"exiting due to model loading error: {error}\n")
    sys.stderr.flush()


def _assign(params: Any, path: Sequence[str], value: object) -> None:
    for name in path[:-1]:
        params = getattr(params, name)
    setattr(params, path[-1], value)


def _yes(text: str) -> bool:
    words = {"on": True, "enabled": True, "true": True, "1": True}
    words |= {"off": False, "disabled": False, "false": False, "0": False}
    try:
        return words[text.lower()]
    except KeyError:
        raise UntranslatableError(f"{text!r} is neither on nor off") from None


if __name__ == "__main__":
    raise SystemExit(main())
