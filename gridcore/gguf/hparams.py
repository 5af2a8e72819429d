"""What a model is made of, layer by layer, as llama.cpp reads it from the metadata.

The per-architecture knowledge of the estimator stands here and nowhere else: which layers have
a sliding window, a recurrent state, a cache, and what a missing key means.
"""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from gridcore.gguf.header import ArrayInfo, GgufError, Header, Value


class LayerKind(StrEnum):
    """What a layer remembers between tokens."""

    ATTENTION = "attention"
    RECURRENT = "recurrent"
    BOTH = "both"  # falcon-h1 runs attention and Mamba2 side by side
    NEITHER = "neither"  # a feed-forward layer, or one that reuses another layer's cache


class SwaRule(msgspec.Struct, frozen=True):
    """Which layers slide when the file does not say; ``window`` if the file is not asked."""

    period: int
    dense_first: bool = False
    window: int | None = None


class Layer(msgspec.Struct, frozen=True):
    """One block; head sizes are those of this layer's kind of attention."""

    kind: LayerKind
    is_swa: bool
    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    n_ff: int

    @property
    def has_attention(self) -> bool:
        return self.kind in (LayerKind.ATTENTION, LayerKind.BOTH)

    @property
    def has_state(self) -> bool:
        return self.kind in (LayerKind.RECURRENT, LayerKind.BOTH)

    @property
    def k_width(self) -> int:
        return self.n_head_kv * self.head_k

    @property
    def v_width(self) -> int:
        return self.n_head_kv * self.head_v


class HyperParameters(msgspec.Struct, frozen=True, kw_only=True):
    """A model's shape. ``layers`` holds all blocks, the NextN ones last."""

    architecture: str
    is_known: bool
    layers: tuple[Layer, ...]
    n_nextn: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_swa: int
    is_mla: bool
    is_causal: bool
    has_memory: bool
    is_v_width_variable: bool
    v_width_max: int
    state_r: int  # floats of convolution state a slot and recurrent layer
    state_s: int
    n_expert: int
    n_expert_used: int
    n_ff_expert: int
    n_embd_per_layer: int
    kv_lora: int
    rope_dims: int
    head_k_mla: int
    head_v_mla: int
    ssm_inner: int
    ssm_state: int

    @property
    def n_layer(self) -> int:
        return len(self.layers)

    @property
    def n_layer_main(self) -> int:
        """Blocks that run for every token; the others only draft."""
        return self.n_layer - self.n_nextn

    @property
    def has_swa(self) -> bool:
        return any(layer.is_swa for layer in self.layers)


# llama-model.cpp create_memory: encoders and diffusion models keep nothing between batches.
_NO_MEMORY = frozenset(
    {
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "jina-bert-v2",
        "jina-bert-v3",
        "neo-bert",
        "modern-bert",
        "eurobert",
        "gemma-embedding",
        "wavtokenizer-dec",
        "dream",
        "llada",
        "llada-moe",
        "rnd1",
        "diffusion-gemma",
    }
)

# llama-arch.cpp llm_arch_is_recurrent.
_ALL_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})

# Hybrids whose recurrent layers are those without key-value heads.
_RECURRENT_WITHOUT_HEADS = frozenset(
    {"jamba", "granitehybrid", "lfm2", "lfm2moe", "plamo2", "kimi-linear"}
)
_NEMOTRON = frozenset({"nemotron_h", "nemotron_h_moe"})
_GATED_DELTA = frozenset({"qwen3next", "qwen35", "qwen35moe"})
FULL_ATTENTION_INTERVAL_DEFAULT = 4

# set_swa_pattern in each architecture's load_hparams; a window of 0 in the file means none.
_SWA_RULES: dict[str, SwaRule] = {
    "gemma2": SwaRule(2),
    "gemma3": SwaRule(6),
    "gemma3n": SwaRule(5),
    "gemma4": SwaRule(6),
    "gemma-embedding": SwaRule(6),
    "gpt-oss": SwaRule(2),
    "cohere2": SwaRule(4),
    "cohere2moe": SwaRule(4),
    "llama4": SwaRule(4, window=8192),
    "exaone4": SwaRule(4),
    "exaone-moe": SwaRule(4, window=128),
    "olmo2": SwaRule(4),
    "afmoe": SwaRule(4),
    "smallthinker": SwaRule(4, dense_first=True, window=4096),
    "modern-bert": SwaRule(3, dense_first=True),
    "plamo3": SwaRule(8),
}
# phi3 files carry a window that llama.cpp disabled; the others never read one.
_SWA_IGNORED = frozenset({"phi3", "phimoe", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "llama"})
EXAONE4_LAYERS_WITH_SWA = 64  # exaone4.cpp: only the 32B slides
GEMMA3N_LAYERS_WITH_KV = 20  # gemma3n.cpp n_layer_kv_from_start, a constant there

# Architectures whose rules were compared with llama.cpp's own figures.
_COMPARED = frozenset(
    {
        "llama",
        "qwen2",
        "qwen3",
        "qwen3moe",
        "qwen3next",
        "qwen35",
        "qwen35moe",
        "gemma2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma-embedding",
        "gpt-oss",
        "deepseek2",
        "mamba",
        "mamba2",
        "falcon-h1",
        "granitehybrid",
        "jamba",
        "lfm2",
        "lfm2moe",
        "nemotron_h_moe",
        "phi3",
        "bert",
        "nomic-bert",
        "glm4moe",
        "cohere2",
        "mistral3",
        "smollm3",
        "exaone4",
        "llama4",
    }
)


LAYERS_MAX = 512  # llama-hparams.h LLAMA_MAX_LAYERS


def hyper_parameters(header: Header) -> HyperParameters:
    """Read a model's shape from its header; absent keys take llama.cpp's defaults.

    Raises:
        GgufError: the file describes no model that llama.cpp could load.
    """
    architecture = header.architecture
    if not architecture:
        raise GgufError(f"{header.path}: general.architecture is missing: not a model")
    if architecture == "clip":
        raise GgufError(
            f"{header.path}: a multimodal projector, not a model; it goes with a model as --mmproj"
        )
    n_layer = _Reader(header).n_layer
    if not 0 < n_layer <= LAYERS_MAX:
        raise GgufError(
            f"{header.path}: {architecture}.block_count is {n_layer}, not 1 to {LAYERS_MAX}"
        )
    return _Reader(header).read()


class _Reader:
    def __init__(self, header: Header) -> None:
        self.header = header
        self.arch = header.architecture
        self.n_layer = self.number("block_count")
        self.n_nextn = min(self.number("nextn_predict_layers"), self.n_layer)

    def value(self, key: str) -> Value | None:
        return self.header.metadata.get(f"{self.arch}.{key}")

    def number(self, key: str, default: int = 0) -> int:
        value = self.value(key)
        if isinstance(value, tuple) and value:
            value = value[0]
        return _natural(value) if isinstance(value, int | float) else default

    def numbers(self, key: str, default: int) -> list[int]:
        """A value per layer; one number stands for all of them (get_key_or_arr)."""
        value = self.value(key)
        if isinstance(value, tuple):
            found = [_natural(v) for v in value if isinstance(v, int | float)][: self.n_layer]
            return found + [found[-1] if found else default] * (self.n_layer - len(found))
        return [self.number(key, default)] * self.n_layer

    def read(self) -> HyperParameters:
        n_embd = self.number("embedding_length")
        heads = self.numbers("attention.head_count", 0)
        n_head_first = next((n for n in heads if n), 0)
        head_default = n_embd // n_head_first if n_head_first else 0
        head_k = self.number("attention.key_length", head_default)
        head_v = self.number("attention.value_length", head_default)
        head_k_swa = self.number("attention.key_length_swa", head_k)
        head_v_swa = self.number("attention.value_length_swa", head_v)
        window, slides = self.sliding_window()
        heads_kv = self.heads_kv(heads)
        n_ff = self.numbers("feed_forward_length", 0)
        kinds = self.kinds(heads_kv, n_ff)
        layers = tuple(
            Layer(
                kind=kinds[il],
                is_swa=slides[il],
                n_head=heads[il],
                n_head_kv=heads_kv[il],
                head_k=head_k_swa if slides[il] else head_k,
                head_v=head_v_swa if slides[il] else head_v,
                n_ff=n_ff[il],
            )
            for il in range(self.n_layer)
        )
        v_widths = {layer.v_width for layer in layers}
        state_r, state_s = self.state_widths(n_embd, n_head_first)
        head_k_mla = self.number("attention.key_length_mla")
        n_ff_first = n_ff[0] if n_ff else 0
        return HyperParameters(
            architecture=self.arch,
            is_known=self.arch in _COMPARED,
            layers=layers,
            n_nextn=self.n_nextn,
            n_embd=n_embd,
            n_vocab=self.n_vocab(n_embd),
            n_ctx_train=self.number("context_length"),
            n_swa=window,
            is_mla=head_k_mla > 0,
            is_causal=self.value("attention.causal") is not False and self.arch not in _NO_MEMORY,
            has_memory=self.arch not in _NO_MEMORY,
            is_v_width_variable=len(v_widths) > 1,
            v_width_max=max(v_widths, default=0),
            state_r=state_r,
            state_s=state_s,
            n_expert=self.number("expert_count"),
            n_expert_used=self.number("expert_used_count"),
            n_ff_expert=self.number("expert_feed_forward_length", n_ff_first),
            n_embd_per_layer=self.number("embedding_length_per_layer_input"),
            kv_lora=self.number("attention.kv_lora_rank"),
            rope_dims=self.number("rope.dimension_count", head_k),
            head_k_mla=head_k_mla,
            head_v_mla=self.number("attention.value_length_mla"),
            ssm_inner=self.number("ssm.inner_size"),
            ssm_state=self.number("ssm.state_size"),
        )

    def n_vocab(self, n_embd: int) -> int:
        """The token list's length, else what the file says, else the embedding's rows."""
        tokens = self.header.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, ArrayInfo):
            return tokens.length
        if declared := self.number("vocab_size"):
            return declared
        for tensor in self.header.tensors:
            if tensor.name == "token_embd.weight" and len(tensor.shape) > 1:
                return tensor.shape[1]
        return 0

    def heads_kv(self, heads: list[int]) -> list[int]:
        if self.value("attention.head_count_kv") is None:
            return heads
        return self.numbers("attention.head_count_kv", 0)

    def sliding_window(self) -> tuple[int, list[bool]]:
        none = [False] * self.n_layer
        declared = self.value("attention.sliding_window")
        window = self.number("attention.sliding_window")
        rule = _SWA_RULES.get(self.arch)
        if self.arch in _SWA_IGNORED or (declared is not None and window <= 0):
            return 0, none
        if self.arch == "exaone4" and self.n_layer_main() != EXAONE4_LAYERS_WITH_SWA:
            return 0, none
        if rule is not None and rule.window is not None:
            window = rule.window
        if window <= 0:
            return 0, none
        pattern = self.value("attention.sliding_window_pattern")
        if isinstance(pattern, tuple):
            slides = [bool(v) for v in pattern][: self.n_layer]
            return window, slides + [False] * (self.n_layer - len(slides))
        if rule is None and pattern is None:
            return 0, none
        period = self.number("attention.sliding_window_pattern", rule.period if rule else 0)
        dense_first = rule is not None and rule.dense_first
        return window, [_slides(il, period, dense_first) for il in range(self.n_layer)]

    def n_layer_main(self) -> int:
        return self.n_layer - self.n_nextn

    def kinds(self, heads_kv: list[int], n_ff: list[int]) -> list[LayerKind]:
        """What each layer remembers, as create_memory's filters decide."""
        kind = self.kind_rule(heads_kv, n_ff)
        return [kind(il) for il in range(self.n_layer)]

    def kind_rule(self, heads_kv: list[int], n_ff: list[int]) -> Callable[[int], LayerKind]:
        attention, recurrent = LayerKind.ATTENTION, LayerKind.RECURRENT
        arch = self.arch
        if arch in _NO_MEMORY:
            return lambda il: LayerKind.NEITHER
        if arch in _ALL_RECURRENT:
            return lambda il: recurrent
        if arch == "falcon-h1":
            return lambda il: LayerKind.BOTH
        if arch in _RECURRENT_WITHOUT_HEADS:
            return lambda il: attention if heads_kv[il] else recurrent
        if arch in _NEMOTRON:
            # A layer with neither heads nor feed-forward is Mamba2.
            without_heads = [LayerKind.NEITHER if ff else recurrent for ff in n_ff]
            return lambda il: attention if heads_kv[il] else without_heads[il]
        if arch in _GATED_DELTA:
            every = self.number("full_attention_interval", FULL_ATTENTION_INTERVAL_DEFAULT)
            main = self.n_layer_main()
            return lambda il: attention if il >= main or (il + 1) % every == 0 else recurrent
        if arch not in _COMPARED and (found := self.kinds_by_tensors()):
            return lambda il: found.get(il, LayerKind.NEITHER)
        n_own = self.n_layer - self.number("attention.shared_kv_layers")
        if arch == "gemma3n":
            n_own = GEMMA3N_LAYERS_WITH_KV
        return lambda il: attention if il < n_own and heads_kv[il] else LayerKind.NEITHER

    def kinds_by_tensors(self) -> dict[int, LayerKind]:
        """Tell the layers of an unknown hybrid apart by the matrices they have."""
        marks: dict[int, set[LayerKind]] = {}
        for tensor in self.header.tensors:
            parts = tensor.name.split(".")
            if len(parts) < 3 or parts[0] != "blk" or not parts[1].isdecimal():
                continue
            if parts[2].startswith(("ssm_", "shortconv", "time_mix_")):
                marks.setdefault(int(parts[1]), set()).add(LayerKind.RECURRENT)
            elif parts[2] in ("attn_k", "attn_kv_a_mqa") or parts[2] == "attn_qkv":
                marks.setdefault(int(parts[1]), set()).add(LayerKind.ATTENTION)
        if not any(LayerKind.RECURRENT in kinds for kinds in marks.values()):
            return {}
        return {
            il: LayerKind.BOTH if len(kinds) > 1 else next(iter(kinds))
            for il, kinds in marks.items()
        }

    def state_widths(self, n_embd: int, n_head: int) -> tuple[int, int]:
        """Floats of convolution and of recurrent state (llama-hparams.cpp n_embd_r, n_embd_s)."""
        if wkv := self.number("wkv.head_size"):
            return self.number("token_shift_count", 2) * n_embd, n_embd * wkv
        if l_cache := self.number("shortconv.l_cache"):
            return n_embd * (l_cache - 1), 0
        inner, state = self.number("ssm.inner_size"), self.number("ssm.state_size")
        groups = self.number("ssm.group_count")
        convolved = max(0, self.number("ssm.conv_kernel") - 1)
        if kda := self.number("kda.head_dim"):
            return 3 * convolved * n_head * kda, kda * kda * n_head
        return convolved * (inner + 2 * groups * state), state * inner


def _natural(value: float) -> int:
    """A count from a file; what is no number or below zero counts as absent."""
    return max(0, int(value)) if abs(value) < float("inf") else 0


def _slides(il: int, period: int, dense_first: bool) -> bool:
    """llama-hparams.cpp set_swa_pattern."""
    if period <= 0:
        return True
    if dense_first:
        return il % period != 0
    return il % period < period - 1
