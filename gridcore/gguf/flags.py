"""Reads from llama-server's arguments and environment what decides about memory.

It follows common/arg.cpp: environment first, then arguments; underscores after ``--`` are
dashes; a repeated option takes its last value except the tensor overrides, which add up in
order. Flags that do not touch memory are stepped over, not judged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from gridcore.errors import GridcoreError
from gridcore.gguf.quant import QuantType, quant_type_named

SLOTS_AUTO = 4  # server.cpp: -np -1 means four slots and a unified cache
GPU_LAYERS_ALL = 1 << 30
LAYERS_MAX = 512  # llama-hparams.h LLAMA_MAX_LAYERS; --n-cpu-moe 999 is a common way to say all
DRAFT_TOKENS_DEFAULT = 3  # --spec-draft-n-max


class FlagError(GridcoreError):
    """An argument that llama-server would refuse; the text names it."""


class FlashAttention(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SplitMode(StrEnum):
    NONE = "none"
    LAYER = "layer"
    ROW = "row"
    TENSOR = "tensor"


class Override(msgspec.Struct, frozen=True):
    """Tensors whose name the pattern matches anywhere go to ``buffer``."""

    pattern: str
    buffer: str

    @property
    def on_host(self) -> bool:
        # Names of buffer types in host memory: CPU, CPU_REPACK, CUDA_Host, Vulkan_Host, ...
        return self.buffer.upper().startswith("CPU") or self.buffer.endswith("_Host")


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """llama-server's memory-relevant parameters with its own defaults."""

    context: int = 0  # 0: the training context
    slots: int = -1  # -1: auto
    kv_unified: bool | None = None
    kv_unified_per_slot: int = 0
    batch: int = 2048
    ubatch: int = 512
    flash_attention: FlashAttention = FlashAttention.AUTO
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    swa_full: bool = False
    gpu_layers: int = GPU_LAYERS_ALL
    gpu_layers_auto: bool = True
    overrides: tuple[Override, ...] = ()
    kv_offload: bool = True
    op_offload: bool = True
    repack: bool = True
    load_mode: str = "auto"
    lazy_mode: str = "auto"
    devices: tuple[str, ...] | None = None  # () means none: the CPU alone
    rpc: tuple[str, ...] = ()
    split_mode: SplitMode = SplitMode.LAYER
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    embeddings: bool = False
    rerank: bool = False
    pooling: str | None = None
    mmproj: str | None = None
    mmproj_offload: bool = True
    mmproj_device: str | None = None
    draft_model: str | None = None
    draft_gpu_layers: int = GPU_LAYERS_ALL
    draft_overrides: tuple[Override, ...] = ()
    draft_devices: tuple[str, ...] | None = None
    draft_cache_type_k: str = "f16"
    draft_cache_type_v: str = "f16"
    draft_tokens: int = DRAFT_TOKENS_DEFAULT
    spec_types: tuple[str, ...] = ()
    cache_ram_mb: int = 8192  # -1: no limit
    checkpoints: int = 32
    fit: bool = True
    lora: tuple[str, ...] = ()

    @property
    def n_slots(self) -> int:
        return SLOTS_AUTO if self.slots < 0 else max(1, self.slots)

    @property
    def is_unified(self) -> bool:
        """Auto slots share one pool (server.cpp); explicit ones do so only with -kvu."""
        if self.slots < 0:
            return True
        return bool(self.kv_unified)

    @property
    def has_device(self) -> bool:
        return self.devices != ()

    @property
    def n_devices(self) -> int:
        """Cards that share the layers; unknown without -dev, -ts or --rpc, then one."""
        if self.split_mode is SplitMode.NONE:
            return 1
        named = len(self.devices) if self.devices else 0
        return max(1, named or len(self.tensor_split) or len(self.rpc))

    @property
    def wants_all_outputs(self) -> bool:
        """Embedding servers compute an output for every token, chat servers only the last."""
        return self.embeddings or self.rerank or self.pooling is not None

    @property
    def uses_mtp(self) -> bool:
        return "draft-mtp" in self.spec_types


# Option names with the parameter they set; the environment variable is LLAMA_ARG_ and the
# last name. A leading "!" marks the negative form of a switch.
_VALUE_OPTIONS: dict[str, tuple[str, ...]] = {
    "context": ("-c", "--ctx-size", "CTX_SIZE"),
    "slots": ("-np", "--parallel", "N_PARALLEL"),
    "kv_unified_per_slot": ("--kv-unified-per-slot", "KV_UNIFIED_PER_SLOT"),
    "batch": ("-b", "--batch-size", "BATCH"),
    "ubatch": ("-ub", "--ubatch-size", "UBATCH"),
    "flash_attention": ("-fa", "--flash-attn", "FLASH_ATTN"),
    "cache_type_k": ("-ctk", "--cache-type-k", "CACHE_TYPE_K"),
    "cache_type_v": ("-ctv", "--cache-type-v", "CACHE_TYPE_V"),
    "gpu_layers": ("-ngl", "--gpu-layers", "--n-gpu-layers", "N_GPU_LAYERS"),
    "n_cpu_moe": ("-ncmoe", "--n-cpu-moe", "N_CPU_MOE"),
    "n_cpu_ffn": ("-ncffn", "--n-cpu-ffn", "N_CPU_FFN"),
    "override_tensor": ("-ot", "--override-tensor", "OVERRIDE_TENSOR"),
    "load_mode": ("-lm", "--load-mode", "LOAD_MODE"),
    "lazy_mode": ("-lzm", "--lazy-mode", "LAZY_MODE"),
    "devices": ("-dev", "--device", "DEVICE"),
    "split_mode": ("-sm", "--split-mode", "SPLIT_MODE"),
    "tensor_split": ("-ts", "--tensor-split", "TENSOR_SPLIT"),
    "main_gpu": ("-mg", "--main-gpu", "MAIN_GPU"),
    "pooling": ("--pooling", "POOLING"),
    "mmproj": ("-mm", "--mmproj", "MMPROJ"),
    "mmproj_device": ("-mmdev", "--mmproj-device", "MMPROJ_DEVICE"),
    "draft_model": ("-md", "--model-draft", "--spec-draft-model", "SPEC_DRAFT_MODEL"),
    "draft_gpu_layers": (
        "-ngld",
        "--gpu-layers-draft",
        "--n-gpu-layers-draft",
        "--spec-draft-ngl",
        "N_GPU_LAYERS_DRAFT",
    ),
    "draft_override_tensor": (
        "-otd",
        "--override-tensor-draft",
        "--spec-draft-override-tensor",
        "SPEC_DRAFT_OVERRIDE_TENSOR",
    ),
    "draft_n_cpu_moe": (
        "-ncmoed",
        "--n-cpu-moe-draft",
        "--spec-draft-ncmoe",
        "--spec-draft-n-cpu-moe",
        "SPEC_DRAFT_N_CPU_MOE",
    ),
    "draft_devices": ("-devd", "--device-draft", "--spec-draft-device", "SPEC_DRAFT_DEVICE"),
    "draft_cache_type_k": (
        "-ctkd",
        "--cache-type-k-draft",
        "--spec-draft-type-k",
        "SPEC_DRAFT_CACHE_TYPE_K",
    ),
    "draft_cache_type_v": (
        "-ctvd",
        "--cache-type-v-draft",
        "--spec-draft-type-v",
        "SPEC_DRAFT_CACHE_TYPE_V",
    ),
    "draft_tokens": ("--spec-draft-n-max", "SPEC_DRAFT_N_MAX"),
    "spec_types": ("--spec-type", "SPEC_TYPE"),
    "cache_ram_mb": ("-cram", "--cache-ram", "CACHE_RAM"),
    "checkpoints": ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", "CTX_CHECKPOINTS"),
    "fit": ("-fit", "--fit", "FIT"),
    "rpc": ("--rpc", "RPC"),
    "lora": ("--lora", "LORA"),
}
_SWITCHES: dict[str, tuple[str, ...]] = {
    "kv_unified": ("-kvu", "--kv-unified", "!-no-kvu", "!--no-kv-unified", "KV_UNIFIED"),
    "swa_full": ("--swa-full", "SWA_FULL"),
    "cpu_moe": ("-cmoe", "--cpu-moe", "CPU_MOE"),
    "kv_offload": ("-kvo", "--kv-offload", "!-nkvo", "!--no-kv-offload", "KV_OFFLOAD"),
    "op_offload": ("--op-offload", "!--no-op-offload", "OP_OFFLOAD"),
    "repack": ("--repack", "!-nr", "!--no-repack", "REPACK"),
    "embeddings": ("--embedding", "--embeddings", "EMBEDDINGS"),
    "rerank": ("--rerank", "--reranking", "RERANKING"),
    "mmproj_offload": ("--mmproj-offload", "!--no-mmproj-offload", "MMPROJ_OFFLOAD"),
    "draft_cpu_moe": ("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe", "SPEC_DRAFT_CPU_MOE"),
}

_VALUE_OPTION_BY_NAME = {n: key for key, names in _VALUE_OPTIONS.items() for n in names[:-1]}
_SWITCH_BY_NAME = {
    n.removeprefix("!"): (key, not n.startswith("!"))
    for key, names in _SWITCHES.items()
    for n in names[:-1]
}

# arg.cpp: what counts as yes and no for a switch in the environment.
_YES = frozenset({"on", "enabled", "true", "1"})
_NO = frozenset({"off", "disabled", "false", "0"})

# common.h: the expert tensors that --cpu-moe moves; shared experts (_shexp) stay.
EXPERTS_PATTERN = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
DENSE_FFN_PATTERN = r"\.ffn_(up|down|gate)\."

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def parse_flags(args: Sequence[str], env: Mapping[str, str] | None = None) -> Flags:
    """Resolve arguments and a model's environment into the parameters llama-server would use.

    Raises:
        FlagError: a value that llama-server would refuse.
    """
    collected = _Collected()
    for option, text, origin in _from_environment(env or {}):
        collected.set(option, text, origin)
    for option, text, origin in _from_arguments(args):
        collected.set(option, text, origin)
    return collected.flags()


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for key, names in _VALUE_OPTIONS.items():
        name = f"LLAMA_ARG_{names[-1]}"
        if name in env:
            yield key, env[name], name
    for key, names in _SWITCHES.items():
        name, negative = f"LLAMA_ARG_{names[-1]}", f"LLAMA_ARG_NO_{names[-1]}"
        if name in env:
            yield key, env[name], name
        if negative in env:  # any value means off
            yield key, "0", negative
    if "MTMD_BACKEND_DEVICE" in env:
        yield "mmproj_device", env["MTMD_BACKEND_DEVICE"], "MTMD_BACKEND_DEVICE"


def _from_arguments(args: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    words = iter(args)
    for word in words:
        name, joined = word, None
        if word.startswith("--"):
            head, equals, tail = word.partition("=")
            name = head.replace("_", "-")
            joined = tail if equals else None
        if name in _SWITCH_BY_NAME:
            key, positive = _SWITCH_BY_NAME[name]
            yield key, "1" if positive else "0", name
        elif name in _VALUE_OPTION_BY_NAME:
            value = next(words, None) if joined is None else joined
            if value is None:
                raise FlagError(f"{name}: a value must follow")
            yield _VALUE_OPTION_BY_NAME[name], value, name


class _Collected:
    """Values as they come, the overrides in order."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.overrides: dict[str, list[Override]] = {"": [], "draft_": []}

    def flags(self) -> Flags:
        return msgspec.convert(
            {
                **self.values,
                "overrides": tuple(self.overrides[""]),
                "draft_overrides": tuple(self.overrides["draft_"]),
            },
            Flags,
        )

    def set(self, option: str, text: str, origin: str) -> None:
        draft = "draft_" if option.startswith("draft_") else ""
        moved = self.overrides[draft]
        match option.removeprefix("draft_"):
            case "cpu_moe":
                if _yes(text, origin):
                    moved.append(Override(EXPERTS_PATTERN, "CPU"))
            case "n_cpu_moe":
                for il in range(min(_number(text, origin), LAYERS_MAX)):
                    moved.append(Override(rf"blk\.{il}{EXPERTS_PATTERN}", "CPU"))
            case "n_cpu_ffn":
                for il in range(min(_number(text, origin), LAYERS_MAX)):
                    moved.append(Override(rf"blk\.{il}{DENSE_FFN_PATTERN}", "CPU"))
            case "override_tensor":
                moved.extend(_overrides(text, origin))
            case "gpu_layers":
                layers = _gpu_layers(text, origin)
                self.values[option] = GPU_LAYERS_ALL if layers < 0 else layers
                if not draft:
                    self.values["gpu_layers_auto"] = layers == -1
            case "devices":
                names = tuple(n for n in re.split(r"[,;]", text) if n)
                self.values[option] = () if names == ("none",) else names
            case "cache_type_k" | "cache_type_v":
                cache_type(text, origin)
                self.values[option] = text
            case _:
                self.values[option] = _plain_value(option, text, origin)


def _plain_value(option: str, text: str, origin: str) -> object:
    if option in _SWITCHES:
        return _yes(text, origin)
    match option:
        case "flash_attention":
            if text in _YES | _NO:
                return "on" if text in _YES else "off"
            return _choice(text, origin, tuple(FlashAttention))
        case "split_mode":
            return _choice(text, origin, tuple(SplitMode))
        case "load_mode":
            modes = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
            return _choice(text, origin, modes)
        case "tensor_split":
            return _shares(text, origin)
        case "fit":
            return _yes(text, origin)
        case "spec_types" | "lora" | "rpc":
            return tuple(n for n in text.split(",") if n and n != "none")
        case "lazy_mode" | "pooling" | "mmproj" | "mmproj_device" | "draft_model":
            return text
        case _:
            return _number(text, origin)


def _number(text: str, origin: str) -> int:
    # std::stoi reads leading digits and ignores what follows; that much is an accident to it
    # and a typing error to a person, so it is refused here.
    try:
        return int(text)
    except ValueError:
        raise FlagError(f"{origin}: {text!r} is not a number") from None


def _yes(text: str, origin: str) -> bool:
    if text.lower() in _YES:
        return True
    if text.lower() in _NO:
        return False
    raise FlagError(f"{origin}: {text!r} is neither on nor off")


def _choice(text: str, origin: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise FlagError(f"{origin}: {text!r} is not one of {', '.join(choices)}")
    return text


def _gpu_layers(text: str, origin: str) -> int:
    """Auto is -1 and all is -2; without llama-server's own fitting both mean everything."""
    named = {"auto": -1, "all": -2}
    return named[text] if text in named else _number(text, origin)


def _shares(text: str, origin: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in re.split(r"[,/]+", text) if part)
    except ValueError:
        raise FlagError(f"{origin}: {text!r} is not a list of numbers such as 3,1") from None
    if not all(0 <= share < float("inf") for share in shares):
        raise FlagError(f"{origin}: {text!r} holds a share that is not a positive number")
    return shares


def _overrides(text: str, origin: str) -> Iterator[Override]:
    for entry in text.split(","):
        pattern, equals, buffer = entry.partition("=")
        if not equals:
            raise FlagError(f"{origin}: {entry!r} is not of the form PATTERN=BUFFER")
        try:
            re.compile(pattern)
        except re.error as error:
            raise FlagError(f"{origin}: {pattern!r} is not a regular expression: {error}") from None
        yield Override(pattern, buffer)


def cache_type(text: str, origin: str) -> QuantType:
    """Look up a type of the KV cache by the name llama-server knows it under."""
    kind = quant_type_named(text) if text in CACHE_TYPES else None
    if kind is None:
        raise FlagError(f"{origin}: {text!r} is not one of {', '.join(CACHE_TYPES)}")
    return kind
