"""Builds a runtime's arguments and environment from the config; pure.

``resolved_args`` is what decides about memory: the estimator reads the same list that the
launch passes on. Later arguments win in llama.cpp, so the order is ours, the runtime's defaults,
the model's own.
"""

import re
from collections.abc import Mapping, Sequence

from gridcore.config.schema import Capability, Config, ModelConfig, RuntimeKind

GPU_BATCH = 512
CPU_BATCH = 128
"""About a quarter of a second of prompt on either: it bounds how late a cancel takes effect."""
CONTEXT_ROUNDING = 256  # llama.cpp rounds a slot's context up to this
PING_INTERVAL_S = 5
"""Comment lines of a silent stream; also bounds how long SIGTERM waits for a stream."""

INSTANCE_VARIABLE = "GRIDCORE_INSTANCE"
LOAD_VARIABLE = "GRIDCORE_LOAD"

LEAKING_PREFIXES = ("LLAMA_", "GGML_", "MTMD_", "HF_", "AIP_", "LISTEN_", "WATCHDOG_", "GRIDCORE_")
"""Variables of ours that would configure a runtime behind our back, or pass on a socket."""
LEAKING_NAMES = frozenset({"NOTIFY_SOCKET", "HUGGING_FACE_HUB_TOKEN"})

_REFUSED = {
    "--host": "GridCore chooses the address; applications talk to server.listen",
    "--port": "GridCore chooses the address; applications talk to server.listen",
    "--reuse-port": "GridCore chooses the address; applications talk to server.listen",
    "--api-key": "runtimes listen on a private socket; keys belong to the server section",
    "--api-key-file": "runtimes listen on a private socket; keys belong to the server section",
    "--api-prefix": "GridCore must know the runtime's paths",
    "--alias": "the model's id is its name; more names go under aliases",
    "--model": "write the file under path",
    "--model-url": "download the file and write it under path",
    "--hf-repo": "download the file and write it under path",
    "--hf-file": "download the file and write it under path",
    "--docker-repo": "download the file and write it under path",
    "--models-dir": "GridCore runs one process per model",
    "--models-preset": "GridCore runs one process per model",
    "--ctx-size": "write it as ctx: the slots are planned from it",
    "--parallel": "write it as parallel: the slots are planned from it",
    "--sleep-idle-seconds": "GridCore decides residency; use ttl",
    "--log-file": "GridCore keeps one log file per model",
    "--log-disable": "GridCore reads the log to tell why a load failed",
    "--log-jsonl": "GridCore reads the log to tell why a load failed",
}
_OPTION = re.compile(r"(?<![\w-])-{1,2}[a-z][a-z-]*")
_SHORT_NAMES = {
    "-a": "--alias",
    "-m": "--model",
    "-mu": "--model-url",
    "-hf": "--hf-repo",
    "-hfr": "--hf-repo",
    "-hff": "--hf-file",
    "-dr": "--docker-repo",
    "-c": "--ctx-size",
    "-np": "--parallel",
}


def runtime_kind(model: ModelConfig, llama_server: str | None) -> RuntimeKind:
    """Resolve ``auto``: simulated if so described, llama-server if there is one, else the wheel."""
    if model.runtime is not RuntimeKind.AUTO:
        return model.runtime
    if model.simulated is not None:
        return RuntimeKind.SIMULATED
    return RuntimeKind.LLAMACPP if llama_server is not None else RuntimeKind.EMBEDDED


def resolved_args(
    config: Config,
    model_id: str,
    *,
    device: str,
    llama_server: str | None,
    pooling: str | None = None,
) -> list[str]:
    """Return a model's arguments as this config and device give them.

    Args:
        device: the resolved device, such as ``cpu``.
        pooling: what an embedder uses when neither its file nor its arguments name one.
    """
    model = config.models[model_id]
    embedded = runtime_kind(model, llama_server) is RuntimeKind.EMBEDDED
    return model_args(
        model_id,
        model,
        unified=device in ("cpu", "apple"),
        on_cpu=embedded or device == "cpu",
        default_args=() if embedded else config.runtimes.llamacpp.default_args,
        threads=config.runtimes.embedded.threads if embedded else None,
        pooling=pooling,
    )


def model_args(
    model_id: str,
    model: ModelConfig,
    *,
    unified: bool,
    on_cpu: bool = False,
    default_args: Sequence[str] = (),
    threads: int | None = None,
    pooling: str | None = None,
) -> list[str]:
    """Return llama-server's memory-relevant arguments for one model.

    Args:
        unified: device memory is host memory.
        on_cpu: nothing is offloaded.
        pooling: see ``resolved_args``; its place is before the user's arguments.
    """
    assert model_id
    batch = str(batch_tokens(model, on_cpu=on_cpu))
    args = ["-c", str(model.ctx), "-np", str(model.parallel), "-b", batch, "-ub", batch]
    args += ["-ngl", "0" if on_cpu else "all"]
    # GridCore decides about memory: no fitting to what is free now, no cache that grows later.
    args += ["--fit", "off", "--cache-ram", "0"]
    if unified:
        # Checkpoints and the file's cached pages would come out of the card's own memory.
        args += ["-ctxcp", "0", "-lm", "none"]
    if threads is not None:
        args += ["-t", str(threads)]
    if Capability.RERANK in model.capabilities:
        args.append("--rerank")
    elif Capability.EMBEDDING in model.capabilities:
        args.append("--embeddings")
        if pooling is not None:
            args += ["--pooling", pooling]
    if model.mmproj is not None:
        args += ["--mmproj", model.mmproj]
    return [*args, *default_args, *model.args]


def batch_tokens(model: ModelConfig, *, on_cpu: bool) -> int:
    """Return the prompt batch: an embedding input longer than it would be an error 500."""
    if model.batch is not None:
        return model.batch
    if {Capability.EMBEDDING, Capability.RERANK} & set(model.capabilities):
        return slot_context_tokens(model)
    return CPU_BATCH if on_cpu else GPU_BATCH


def slot_context_tokens(model: ModelConfig) -> int:
    """Return the context of one slot when the slots share ``ctx`` evenly."""
    share = -(-model.ctx // model.parallel)
    return -(-share // CONTEXT_ROUNDING) * CONTEXT_ROUNDING


def launch_argv(
    binary: str, model_id: str, path: str, address: str, args: Sequence[str]
) -> list[str]:
    """Return the command line of a llama-server process.

    Args:
        address: ``unix:/path/x.sock`` or ``http://host:port``.
        args: what ``model_args`` returned.
    """
    argv = [binary, "--model", path, "--alias", model_id]
    if address.startswith("unix:"):
        socket = address.removeprefix("unix:")
        assert socket.endswith(".sock"), "llama-server takes any other name for a host"
        argv += ["--host", socket]
    else:
        host, _, port = address.removeprefix("http://").rpartition(":")
        argv += ["--host", host, "--port", port]
    # -lv 4: buffer sizes and most out-of-memory lines are silent below it.
    argv += ["--no-ui", "--metrics", "--sse-ping-interval", str(PING_INTERVAL_S), "-lv", "4"]
    return [*argv, *args]


def child_env(
    parent: Mapping[str, str],
    *,
    instance_id: str,
    load_id: str,
    config_home: str,
    user_env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return a runtime's environment: ours without what would configure it, then the user's.

    Args:
        config_home: an empty directory; llama.cpp reads a config.ini from there.
    """
    env = {
        name: value
        for name, value in parent.items()
        if not name.startswith(LEAKING_PREFIXES) and name not in LEAKING_NAMES
    }
    env["XDG_CONFIG_HOME"] = config_home
    # Otherwise a crash attaches a debugger, which takes seconds and holds the memory.
    env["GGML_NO_BACKTRACE"] = "1"
    env.update(user_env or {})
    # Last, because they identify the process to a later supervisor.
    env[INSTANCE_VARIABLE] = instance_id
    env[LOAD_VARIABLE] = load_id
    return env


_OLDER_FORMS: dict[str, tuple[int, dict[str, tuple[str, ...]]]] = {
    # Option of ours: how many values it has, and what stands for it in a build without it.
    "-lm": (1, {"--no-mmap": ("--no-mmap",)}),
    "--fit": (1, {}),
    "--cache-ram": (1, {}),
    "-ctxcp": (1, {}),
    "--no-ui": (0, {"--no-webui": ("--no-webui",)}),
    "--sse-ping-interval": (1, {}),
    "-lv": (1, {}),
}


def adapt_to_build(argv: Sequence[str], help_text: str) -> list[str]:
    """Replace or drop what GridCore added and an older llama-server does not know.

    Args:
        help_text: what ``llama-server --help`` printed; without one nothing is changed.
    """
    known = set(_OPTION.findall(help_text))
    if not known:
        return list(argv)
    adapted: list[str] = []
    words = iter(argv)
    for word in words:
        n_values, forms = _OLDER_FORMS.get(word, (0, {}))
        if word not in _OLDER_FORMS or word in known:
            adapted.append(word)
            continue
        for _ in range(n_values):
            next(words, None)
        adapted += next((form for name, form in forms.items() if name in known), ())
    return adapted


def refused_args(args: Sequence[str]) -> list[str]:
    """Return one line for each argument that a model may not set, with what to do instead."""
    problems = []
    for word in args:
        name = word.partition("=")[0]
        name = _SHORT_NAMES.get(name, name)
        if name.startswith("--"):
            name = name.replace("_", "-")
        hint = _REFUSED.get(name)
        if hint is not None:
            problems.append(f"{word} may not be set here: {hint}")
    return problems


_NOT_OF_MEMORY = frozenset(
    (
        *("--temp", "--temperature", "--top-k", "--top-p", "--min-p", "--repeat-penalty"),
        *("-s", "--seed", "--chat-template", "--chat-template-file", "--sse-ping-interval"),
        *("-n", "--predict", "--n-predict", "--reasoning-format", "--reasoning-budget"),
    )
)
"""Options with a value that changes answers, not memory."""


def memory_args(args: Sequence[str]) -> list[str]:
    """Drop what is known not to decide about memory; a measurement outlives a new temperature."""
    kept: list[str] = []
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in _NOT_OF_MEMORY:
            kept.append(word)
        elif not equals:
            next(words, None)
    return kept


def gpu_layers(args: Sequence[str]) -> int | None:
    """Return how many layers the arguments put on the device; None is all of them."""
    found: int | None = None
    for word, after in zip(args, [*args[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in ("-ngl", "--gpu-layers", "--n-gpu-layers"):
            text = value if equals else after
            found = int(text) if text.isdigit() else None
    return found


def has_pooling(args: Sequence[str]) -> bool:
    """Do the arguments name a pooling of their own?"""
    return any(word.partition("=")[0] in ("--pooling", "--rerank", "--reranking") for word in args)
