"""memory_log.py: what llama.cpp b11434 says of its memory, and what it made smaller."""

from pathlib import Path

import pytest

from gridcore.runtime.logtail import LogTail
from gridcore.runtime.memory_log import MemoryLog
from gridcore.store.profiles import Reported
from gridcore.units import MB

GPU_LOAD = """\
0.00.303.912 I load_tensors: offloaded 17/17 layers to GPU
0.00.303.912 I load_tensors:   CPU_Mapped model buffer size =   205.50 MiB
0.00.303.912 I load_tensors: RPC0[127.0.0.1:50052] model buffer size =   762.00 MiB
0.00.310.000 I llama_context: n_ctx                 = 16384
0.00.310.000 I llama_context: n_ctx_seq             = 8192
0.00.311.000 I llama_context:        CPU  output buffer size =     0.50 MiB
0.00.312.000 I llama_kv_cache:      CUDA0 KV buffer size =   320.00 MiB
0.00.312.000 I llama_kv_cache:      CUDA0 KV buffer size =    30.00 MiB
0.00.312.000 I llama_memory_recurrent:      CUDA0 RS buffer size =    55.00 MiB
0.00.313.000 I sched_reserve:      CUDA0 compute buffer size =    97.50 MiB
0.00.313.000 I sched_reserve:  CUDA_Host compute buffer size =    37.50 MiB
"""
FIT_PASS = """\
0.00.100.000 I load_tensors:      CUDA0 model buffer size =     0.00 MiB
0.00.100.000 I llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB
0.00.100.000 I sched_reserve:      CUDA0 compute buffer size =    97.50 MiB
"""


def read(text: str) -> MemoryLog:
    log = MemoryLog()
    for line in text.splitlines():
        log.take(line)
    return log


@pytest.mark.parametrize("text", [GPU_LOAD, FIT_PASS + GPU_LOAD])
def test_buffers_are_summed_by_what_they_hold(text: str) -> None:
    log = read(text)
    assert log.reported == Reported(
        weights_bytes=round(967.5 * MB),
        context_bytes=405 * MB,
        compute_bytes=135 * MB,
        output_bytes=MB // 2,
    )
    assert (log.n_ctx, log.layers) == (16384, (17, 17))


def test_a_fit_pass_alone_reports_nothing() -> None:
    assert read(FIT_PASS).reported is None


@pytest.mark.parametrize(
    ("ctx", "gpu_layers", "words"),
    [
        (16384, None, ""),
        (16000, 99, ""),  # rounded up
        (32768, None, "a context of 16384 instead of 32768"),
    ],
)
def test_a_smaller_context_is_noticed(ctx: int, gpu_layers: int | None, words: str) -> None:
    assert read(GPU_LOAD).shrunk(ctx=ctx, gpu_layers=gpu_layers) == words


@pytest.mark.parametrize(
    ("configured", "words"),
    [
        (None, "20 of 40 layers on the device instead of 40"),
        (99, "20 of 40 layers on the device instead of 40"),
        (30, "20 of 40 layers on the device instead of 30"),
        (20, ""),
        (0, ""),
    ],
)
def test_fewer_layers_are_noticed(configured: int | None, words: str) -> None:
    log = read("load_tensors: offloaded 20/40 layers to GPU")
    assert log.shrunk(ctx=4096, gpu_layers=configured) == words


def test_a_drafts_layers_are_not_the_models() -> None:
    log = read(
        "load_tensors: offloaded 40/40 layers to GPU\nload_tensors: offloaded 0/6 layers to GPU"
    )
    assert log.shrunk(ctx=1, gpu_layers=None) == ""


def test_a_log_file_is_read_for_it(tmp_path: Path) -> None:
    path = tmp_path / "m.log"
    tail = LogTail(path)
    with path.open("w") as file:
        for line in GPU_LOAD.splitlines(keepends=True):
            file.write(line[:30])
            file.flush()
            tail.read_new()
            file.write(line[30:])
            file.flush()
            tail.read_new()
    assert tail.memory.reported is not None
    assert tail.memory.reported.context_bytes == 405 * MB
