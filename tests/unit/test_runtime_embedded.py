"""embedded.py: llama-server's arguments become the wheel's parameters, or a clear error."""

from types import SimpleNamespace

import pytest

from gridcore.config.schema import ModelConfig
from gridcore.runtime.argv import launch_argv, model_args
from gridcore.runtime.embedded import UntranslatableError, apply_args


def parameters() -> SimpleNamespace:
    """Attributes as CommonParams has them; the real ones are in tests/e2e."""
    return SimpleNamespace(
        model=SimpleNamespace(path=""),
        mmproj=SimpleNamespace(path=""),
        cpuparams=SimpleNamespace(n_threads=-1),
        cpuparams_batch=SimpleNamespace(n_threads=-1),
        sampling=SimpleNamespace(temp=0.8),
    )


def test_numbers_switches_and_nested_parameters() -> None:
    params = parameters()
    text = "--model /m.gguf -c 4096 -np 2 --fit off -t 2 --no-ui --temp 0.5 --cache-ram 0"
    apply_args(params, f"{text} -ngl all --host /x.sock -kvu".split())
    assert params.model.path == "/m.gguf"
    assert (params.n_ctx, params.n_parallel, params.cache_ram_mib) == (4096, 2, 0)
    assert params.fit_params is False
    assert params.ui is False
    assert params.kv_unified is True
    assert params.cpuparams.n_threads == 2 == params.cpuparams_batch.n_threads
    assert params.sampling.temp == 0.5
    assert params.n_gpu_layers == -2
    assert params.hostnames == ["/x.sock"]


def test_the_last_of_two_equal_arguments_wins() -> None:
    params = parameters()
    apply_args(params, ["-b", "128", "--batch_size", "64"])
    assert params.n_batch == 64


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--draft-max", "4"], "--draft-max"),
        (["-c"], "a value must follow"),
        (["-c", "many"], "-c many"),
        (["--fit", "perhaps"], "neither on nor off"),
    ],
)
def test_what_the_wheel_cannot_do_is_named(args: list[str], words: str) -> None:
    with pytest.raises(UntranslatableError, match=words):
        apply_args(parameters(), args)


def test_all_that_gridcore_sets_can_be_translated() -> None:
    xllamacpp = pytest.importorskip("xllamacpp", reason="scripts/test.sh installs it")
    args = model_args("m", ModelConfig(), unified=True, on_cpu=True, threads=2, pooling="mean")
    params = xllamacpp.CommonParams()
    apply_args(params, launch_argv("", "m", "/m.gguf", "unix:/x.sock", args)[1:])
    assert params.n_ctx_checkpoints == 0
    assert params.load_mode == xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    assert params.model_alias == {"m"}
    apply_args(params, ["-fa", "on", "-ctk", "q8_0", "-lm", "mmap+mlock", "--pooling", "last"])
    assert params.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0
