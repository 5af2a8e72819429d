"""argv.py: what decides about memory, what a child may not inherit, what a user may not set."""

import pytest

from gridcore.config.schema import Capability, Config, ModelConfig, RuntimeKind
from gridcore.gguf.flags import parse_flags
from gridcore.runtime.argv import (
    adapt_to_build,
    batch_tokens,
    child_env,
    has_pooling,
    launch_argv,
    model_args,
    refused_args,
    resolved_args,
    runtime_kind,
)

EMBEDDER = ModelConfig(path="/e.gguf", capabilities=(Capability.EMBEDDING,), ctx=8192, parallel=4)


def value_of(args: list[str], option: str) -> str:
    """The value that wins: the last."""
    return args[len(args) - 1 - args[::-1].index(option) + 1]


def test_llama_server_is_left_no_decision_about_memory() -> None:
    args = model_args("m", ModelConfig(path="/m.gguf", ctx=8192, parallel=2), unified=False)
    flags = parse_flags(args)
    assert (flags.context, flags.slots, flags.n_slots) == (8192, 2, 2)
    assert not flags.fit
    assert not flags.gpu_layers_auto
    assert flags.cache_ram_mb == 0
    assert (flags.batch, flags.ubatch) == (512, 512)


def test_unified_memory_gets_no_mapping_and_no_checkpoints() -> None:
    flags = parse_flags(model_args("m", ModelConfig(), unified=True, on_cpu=True))
    assert flags.load_mode == "none"
    assert flags.checkpoints == 0
    assert (flags.batch, flags.ubatch) == (128, 128)
    discrete = model_args("m", ModelConfig(), unified=False)
    assert "-lm" not in discrete
    assert "-ctxcp" not in discrete


def test_the_users_arguments_come_last_and_win() -> None:
    model = ModelConfig(args=("-fa", "off", "-ngl", "12"), batch=64)
    args = model_args("m", model, unified=False, default_args=("-fa", "on"), threads=3)
    assert value_of(args, "-fa") == "off"
    assert parse_flags(args).gpu_layers == 12
    assert value_of(args, "-t") == "3"
    assert value_of(args, "-b") == "64"


def test_an_embedders_batch_holds_its_longest_input() -> None:
    """A longer input than -ub is an error 500 of llama-server."""
    args = model_args("e", EMBEDDER, unified=False, pooling="mean")
    assert parse_flags(args).ubatch == 2048 == batch_tokens(EMBEDDER, on_cpu=True)
    assert "--embeddings" in args
    assert value_of(args, "--pooling") == "mean"
    own = ModelConfig(capabilities=(Capability.EMBEDDING,), args=("--pooling", "cls"))
    assert value_of(model_args("e", own, unified=False, pooling="mean"), "--pooling") == "cls"
    assert has_pooling(own.args)


def test_a_reranker_is_started_as_one() -> None:
    args = model_args("r", ModelConfig(capabilities=(Capability.RERANK,)), unified=False)
    assert "--rerank" in args
    assert "--embeddings" not in args


def test_projector_and_chat_model() -> None:
    args = model_args("v", ModelConfig(mmproj="/p.gguf"), unified=False)
    assert parse_flags(args).mmproj == "/p.gguf"
    assert "--embeddings" not in args


def test_the_estimate_and_the_launch_read_one_list() -> None:
    config = Config(models={"m": ModelConfig(path="/m.gguf", runtime=RuntimeKind.LLAMACPP)})
    args = resolved_args(config, "m", device="cpu", llama_server="/bin/llama-server")
    argv = launch_argv("/bin/llama-server", "m", "/m.gguf", "unix:/run/r/l1.sock", args)
    assert argv[-len(args) :] == args
    assert parse_flags(args).gpu_layers == 0


def test_auto_takes_what_there_is() -> None:
    assert runtime_kind(ModelConfig(), None) is RuntimeKind.EMBEDDED
    assert runtime_kind(ModelConfig(), "/bin/llama-server") is RuntimeKind.LLAMACPP
    named = ModelConfig(runtime=RuntimeKind.EMBEDDED)
    assert runtime_kind(named, "/bin/llama-server") is RuntimeKind.EMBEDDED


def test_every_launch_has_a_name_a_socket_and_a_readable_log() -> None:
    argv = launch_argv("/b", "gemma", "/m.gguf", "unix:/run/r/l1.sock", [])
    assert value_of(argv, "--alias") == "gemma"
    assert value_of(argv, "--host") == "/run/r/l1.sock"
    assert value_of(argv, "-lv") == "4"
    assert value_of(argv, "--sse-ping-interval") == "5"
    assert {"--no-ui", "--metrics"} <= set(argv)
    tcp = launch_argv("/b", "gemma", "/m.gguf", "http://127.0.0.1:41000", [])
    assert (value_of(tcp, "--host"), value_of(tcp, "--port")) == ("127.0.0.1", "41000")


def test_an_older_build_gets_its_own_words() -> None:
    argv = launch_argv("/b", "m", "/m.gguf", "unix:/x.sock", ["-lm", "none", "--fit", "off"])
    old = "--host H  --alias A  --model M  --no-mmap  --no-webui  --metrics  -lv, --verbosity"
    adapted = adapt_to_build(argv, old)
    assert adapted[-1] == "--no-mmap"
    assert "--no-webui" in adapted
    assert not {"--fit", "off", "-lm", "none", "--no-ui", "--sse-ping-interval"} & set(adapted)
    assert value_of(adapted, "-lv") == "4"
    assert adapt_to_build(argv, "") == argv


def test_nothing_of_ours_configures_the_child() -> None:
    parent = {
        "PATH": "/bin",
        "HOME": "/home/u",
        "CUDA_VISIBLE_DEVICES": "0",
        "LLAMA_ARG_CTX_SIZE": "1",
        "LLAMA_API_KEY": "x",
        "GGML_CUDA_NO_PINNED": "1",
        "MTMD_BACKEND_DEVICE": "x",
        "HF_TOKEN": "x",
        "AIP_MODE": "PREDICTION",
        "NOTIFY_SOCKET": "/n",
        "LISTEN_FDS": "1",
        "WATCHDOG_USEC": "1",
        "GRIDCORE_CONFIG": "/c",
        "XDG_CONFIG_HOME": "/home/u/.config",
    }
    env = child_env(
        parent,
        instance_id="i1",
        load_id="l1",
        config_home="/empty",
        user_env={"GGML_CUDA_NO_PINNED": "2", "GRIDCORE_INSTANCE": "forged"},
    )
    assert env == {
        "PATH": "/bin",
        "HOME": "/home/u",
        "CUDA_VISIBLE_DEVICES": "0",
        "XDG_CONFIG_HOME": "/empty",
        "GGML_NO_BACKTRACE": "1",
        "GGML_CUDA_NO_PINNED": "2",
        "GRIDCORE_INSTANCE": "i1",
        "GRIDCORE_LOAD": "l1",
    }


@pytest.mark.parametrize(
    "word", ["--port", "--host", "--api-key", "--alias", "-a", "-m", "--model", "-np", "--api_key"]
)
def test_what_gridcore_sets_is_refused_with_a_hint(word: str) -> None:
    (problem,) = refused_args(["-fa", "on", word, "x"])
    assert word in problem
    assert ": " in problem


def test_what_users_may_set_is_not_refused() -> None:
    assert refused_args(["--jinja", "-ot", r"blk\.1=CPU", "--cache-ram", "512", "-ngl", "3"]) == []
