"""Every key of config.yaml: its name, default, unit and one sentence.

This file is the single source: the loader, config.example.yaml and docs/config.md follow from
it. It must not read files or know how YAML spells a value; ``load.py`` turns durations into
nanoseconds and expands ``~`` before these types see them.

A field whose YAML name has no unit carries it in its attribute name (``hot_ttl`` is
``hot_ttl_ns`` here).
"""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

Duration = Annotated[int, Meta(ge=0, extra_json_schema={"kind": "duration"})]
"""Nanoseconds here; in YAML a number with a unit: 500ms, 3s, 2m."""
FilePath = Annotated[str, Meta(extra_json_schema={"kind": "path"})]
"""A path; ``~`` and ``$VAR`` are expanded, relative ones start at the config file."""
Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]

MS, S, MIN = 10**6, 10**9, 60 * 10**9


class Workload(StrEnum):
    """The three classes, strongest first."""

    INTERACTIVE = "interactive"
    BACKGROUND = "background"
    BATCH = "batch"


class Capability(StrEnum):
    CHAT = "chat"
    VISION = "vision"
    AUDIO = "audio"
    EMBEDDING = "embedding"
    RERANK = "rerank"


class Tier(StrEnum):
    """Quality of a family member, best first."""

    PREFERRED = "preferred"
    BALANCED = "balanced"
    COMPACT = "compact"


class RuntimeKind(StrEnum):
    AUTO = "auto"
    LLAMACPP = "llamacpp"
    EMBEDDED = "embedded"
    SIMULATED = "simulated"


class EvictionPolicy(StrEnum):
    COST = "cost"
    LRU = "lru"


class Fairness(StrEnum):
    CLIENT = "client"
    FIFO = "fifo"


class Preempt(StrEnum):
    PAUSE = "pause"
    OFF = "off"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the config file; unknown keys are errors."""


class ServerConfig(Section, frozen=True):
    listen: Annotated[str, Meta(description="Address and port of the HTTP API.")] = "127.0.0.1:8080"
    max_body_mb: Annotated[
        Positive, Meta(description="Largest request body in MB; larger is a 413.")
    ] = 100
    hold_timeout_ns: Annotated[
        Duration,
        Meta(description="How long a request is held while the scheduler restarts (then 503)."),
    ] = field(default=30 * S, name="hold_timeout")
    drain_timeout_ns: Annotated[
        Duration, Meta(description="How long running answers may go on after SIGTERM.")
    ] = field(default=30 * S, name="drain_timeout")
    wait_comments_after_ns: Annotated[
        Duration,
        Meta(description="A streaming request that waits longer gets SSE comment lines."),
    ] = field(default=20 * S, name="wait_comments_after")


class MetricsConfig(Section, frozen=True):
    listen: Annotated[
        str | None,
        Meta(description="Port of the metrics exporter itself; /metrics of the API works without."),
    ] = "127.0.0.1:9464"


class SimulatedCardConfig(Section, frozen=True):
    name: Annotated[str, Meta(description="Name shown for the simulated card.")] = "Simulated GPU"
    total_mb: Annotated[Positive, Meta(description="Memory of the simulated card in MB.")] = 16384
    foreign_mb: Annotated[
        Natural, Meta(description="Memory held by programs that are not GridCore's, in MB.")
    ] = 0
    release_delay_ns: Annotated[
        Duration, Meta(description="How long after a runtime's exit its memory comes back.")
    ] = field(default=0, name="release_delay")


class GpuConfig(Section, frozen=True):
    device: Annotated[
        str,
        Meta(
            description="auto, cpu or simulation; nvidia:<index> and apple once the machine has "
            "one.",
            pattern=r"^(auto|cpu|simulation|apple|(nvidia|amd|intel):\d+)$",
        ),
    ] = "auto"
    headroom_mb: Annotated[
        Natural | None,
        Meta(description="MB kept free on the card; null is 512, and 1024 on unified memory."),
    ] = None
    vram_limit_mb: Annotated[
        Positive | None, Meta(description="Cap in MB below the card's total; null is no cap.")
    ] = None
    poll_interval_ns: Annotated[Duration, Meta(description="How often the card is sampled.")] = (
        field(default=500 * MS, name="poll_interval")
    )
    simulation: Annotated[
        SimulatedCardConfig, Meta(description="The simulated card (device: simulation).")
    ] = SimulatedCardConfig()


class LlamacppConfig(Section, frozen=True):
    binary: Annotated[
        FilePath | None,
        Meta(description="llama-server to run; null looks on PATH."),
    ] = None
    default_args: Annotated[
        tuple[str, ...], Meta(description="llama-server arguments for every model.")
    ] = ()
    env: Annotated[
        dict[str, str], Meta(description="Environment variables for every llama-server.")
    ] = {}
    load_timeout_ns: Annotated[
        Duration, Meta(description="A load that takes longer has failed.")
    ] = field(default=180 * S, name="load_timeout")
    stop_timeout_ns: Annotated[
        Duration, Meta(description="SIGKILL follows SIGTERM after this long.")
    ] = field(default=5 * S, name="stop_timeout")
    port_range: Annotated[
        tuple[int, int],
        Meta(description="TCP ports for builds that cannot listen on a unix socket."),
    ] = (41000, 41999)


class EmbeddedConfig(Section, frozen=True):
    threads: Annotated[
        Positive | None, Meta(description="CPU threads of a runtime; null is all cores.")
    ] = None
    load_timeout_ns: Annotated[
        Duration, Meta(description="A load that takes longer has failed.")
    ] = field(default=180 * S, name="load_timeout")
    stop_timeout_ns: Annotated[
        Duration, Meta(description="SIGKILL follows SIGTERM after this long.")
    ] = field(default=5 * S, name="stop_timeout")


class RuntimesConfig(Section, frozen=True):
    llamacpp: Annotated[LlamacppConfig, Meta(description="Any llama-server binary.")] = (
        LlamacppConfig()
    )
    embedded: Annotated[
        EmbeddedConfig, Meta(description="llama.cpp from the xllamacpp wheel, on the CPU.")
    ] = EmbeddedConfig()


class SimulatedModelConfig(Section, frozen=True):
    """How a simulated runtime behaves; speeds are per stream."""

    vram_mb: Annotated[Positive, Meta(description="Memory the model takes on the card, in MB.")]
    load_time_ns: Annotated[Duration, Meta(description="Time a load takes.")] = field(
        default=1 * S, name="load_time"
    )
    tokens_per_second: Annotated[
        float, Meta(description="Generation speed of one stream.", gt=0)
    ] = 40.0
    prompt_tokens_per_second: Annotated[float, Meta(description="Prompt speed.", gt=0)] = 2000.0
    embedding_ms: Annotated[
        float, Meta(description="Milliseconds one embedding input takes.", ge=0)
    ] = 4.0
    dimensions: Annotated[Positive, Meta(description="Length of an embedding vector.")] = 16
    reply: Annotated[str, Meta(description="The canned reply.")] = (
        "A GPU scheduler decides which model runs now, which waits and which leaves the card."
    )


class ModelConfig(Section, frozen=True):
    runtime: Annotated[
        RuntimeKind,
        Meta(
            description="llamacpp, embedded or simulated; auto takes llama-server if there is one."
        ),
    ] = RuntimeKind.AUTO
    path: Annotated[FilePath | None, Meta(description="The GGUF file.")] = None
    mmproj: Annotated[FilePath | None, Meta(description="The projector for images or audio.")] = (
        None
    )
    capabilities: Annotated[
        tuple[Capability, ...],
        Meta(description="Any of chat, vision, audio, embedding, rerank."),
    ] = (Capability.CHAT,)
    ctx: Annotated[
        Positive, Meta(description="Context tokens in all, shared by the slots (--ctx-size).")
    ] = 4096
    parallel: Annotated[Positive, Meta(description="Slots: requests served at the same time.")] = 1
    batch: Annotated[
        Positive | None,
        Meta(
            description="Prompt batch in tokens (-b and -ub); null is 512 on a GPU, 128 on a CPU."
        ),
    ] = None
    aliases: Annotated[tuple[str, ...], Meta(description="Other names for this model.")] = ()
    pinned: Annotated[bool, Meta(description="Loaded at start and never evicted.")] = False
    ttl_ns: Annotated[
        Duration | None, Meta(description="Unload after this long without use; null is never.")
    ] = field(default=None, name="ttl")
    args: Annotated[tuple[str, ...], Meta(description="More llama-server arguments.")] = ()
    env: Annotated[dict[str, str], Meta(description="Environment variables of this model.")] = {}
    footprint_mb: Annotated[
        Positive | None,
        Meta(description="Memory in MB to reserve instead of the estimate; null estimates."),
    ] = None
    simulated: Annotated[
        SimulatedModelConfig | None,
        Meta(description="Behaviour of a simulated runtime (runtime: simulated)."),
    ] = None


class FamilyConfig(Section, frozen=True):
    preferred: Annotated[str | None, Meta(description="The best variant.")] = None
    balanced: Annotated[str | None, Meta(description="The middle variant.")] = None
    compact: Annotated[str | None, Meta(description="The smallest variant.")] = None
    aliases: Annotated[tuple[str, ...], Meta(description="Other names for the family.")] = ()


class ClassConfig(Section, frozen=True):
    priority: Annotated[
        Positive | None,
        Meta(
            description="Weight of the class in a model's demand; null is 100, 30 or 10 by class."
        ),
    ] = None
    queue_limit: Annotated[
        Positive, Meta(description="Most requests that may wait; more get 503 queue_full.")
    ] = 10_000


class InteractiveClassConfig(ClassConfig, frozen=True):
    hot_ttl_ns: Annotated[
        Duration, Meta(description="How long a model stays protected after interactive use.")
    ] = field(default=5 * MIN, name="hot_ttl")


class ClassesConfig(Section, frozen=True):
    interactive: Annotated[
        InteractiveClassConfig, Meta(description="Requests a person waits for.")
    ] = InteractiveClassConfig()
    background: Annotated[ClassConfig, Meta(description="Work that runs while nobody waits.")] = (
        ClassConfig()
    )
    batch: Annotated[ClassConfig, Meta(description="Work that waits behind background.")] = (
        ClassConfig()
    )


class BreakerConfig(Section, frozen=True):
    failures: Annotated[
        Positive, Meta(description="Failed loads in a row after which a model is not tried.")
    ] = 3
    backoff_ns: Annotated[
        Duration, Meta(description="First pause before one more try; it doubles each time.")
    ] = field(default=30 * S, name="backoff")
    backoff_max_ns: Annotated[Duration, Meta(description="Longest such pause.")] = field(
        default=10 * MIN, name="backoff_max"
    )


class PolicyConfig(Section, frozen=True):
    default_class: Annotated[Workload, Meta(description="Class of a request that names none.")] = (
        Workload.INTERACTIVE
    )
    classes: Annotated[ClassesConfig, Meta(description="Settings of each class.")] = ClassesConfig()
    interactive_idle_before_background_ns: Annotated[
        Duration, Meta(description="Quiet period before background may start.")
    ] = field(default=2 * S, name="interactive_idle_before_background")
    background_max_starvation_ns: Annotated[
        Duration,
        Meta(
            description="Under constant chat, background waits at most this for a step; "
            "0s is strict exclusivity."
        ),
    ] = field(default=3 * S, name="background_max_starvation")
    background_share: Annotated[
        Share, Meta(description="...and runs alongside chat at most this share of the time.")
    ] = 0.5
    batch_max_starvation_ns: Annotated[
        Duration,
        Meta(description="Longest wait of batch behind background; 0s is no such bound."),
    ] = field(default=2 * MIN, name="batch_max_starvation")
    interactive_turn_ns: Annotated[
        Duration,
        Meta(description="Interactive models that do not fit together change places after this."),
    ] = field(default=10 * S, name="interactive_turn")
    eviction: Annotated[
        EvictionPolicy,
        Meta(description="cost: evict what is cheapest to lose; lru: the longest unused."),
    ] = EvictionPolicy.COST
    min_residency_ns: Annotated[
        Duration,
        Meta(description="Models that do not fit together take turns of at least this; 0s is off."),
    ] = field(default=30 * S, name="min_residency")
    embedding_chunk_size: Annotated[
        Positive, Meta(description="Most embedding inputs in one step.")
    ] = 32
    embedding_chunk_time_ns: Annotated[
        Duration, Meta(description="A step of embeddings is cut to about this long.")
    ] = field(default=250 * MS, name="embedding_chunk_time")
    fairness: Annotated[
        Fairness,
        Meta(description="client: clients of a class share; fifo: strictly by arrival."),
    ] = Fairness.CLIENT
    preempt: Annotated[
        Preempt,
        Meta(description="pause: background steps are paused while a person waits; off."),
    ] = Preempt.PAUSE
    restart: Annotated[
        bool,
        Meta(
            description="A background step nobody has seen a byte of may be cancelled and redone."
        ),
    ] = True
    breaker: Annotated[BreakerConfig, Meta(description="Pause after repeated failures.")] = (
        BreakerConfig()
    )


class LogsConfig(Section, frozen=True):
    level: Annotated[LogLevel, Meta(description="debug, info, warning or error.")] = LogLevel.INFO
    rotate_mb: Annotated[
        Positive, Meta(description="A model's log file is rotated beyond this many MB.")
    ] = 16
    keep: Annotated[Natural, Meta(description="Rotated log files kept per model.")] = 2


class Config(Section, frozen=True):
    server: Annotated[ServerConfig, Meta(description="The HTTP API.")] = ServerConfig()
    metrics: Annotated[MetricsConfig, Meta(description="Prometheus metrics.")] = MetricsConfig()
    gpu: Annotated[GpuConfig, Meta(description="The card.")] = GpuConfig()
    runtimes: Annotated[RuntimesConfig, Meta(description="The inference servers.")] = (
        RuntimesConfig()
    )
    models: Annotated[
        dict[str, ModelConfig], Meta(description="Models by id; the id is the public name.")
    ] = {}
    families: Annotated[
        dict[str, FamilyConfig], Meta(description="One name for several sizes of a model.")
    ] = {}
    policy: Annotated[PolicyConfig, Meta(description="Who runs, waits, stays.")] = PolicyConfig()
    logs: Annotated[LogsConfig, Meta(description="Logging.")] = LogsConfig()


Raw = dict[str, Any]
"""A mapping as YAML gave it, before it is checked."""
