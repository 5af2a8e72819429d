"""logtail.py: what a line proves, following a file, rotation under a writer."""

from pathlib import Path

import pytest

from gridcore.runtime.lifecycle import Sign
from gridcore.runtime.logtail import LogTail, rotate, sign_of

OUT_OF_MEMORY = [
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1234.56 MiB on device 0: "
    "cudaMalloc failed: out of memory",
    "ggml_backend_buft_alloc_buffer_n_default: failed to allocate CUDA0 buffer of size 46082949120",
    "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 1",
    "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
    "failed to initialize the context: failed to allocate buffer for kv cache",
    "failed to initialize the context: failed to allocate compute pp buffers",
    "CUDA error: out of memory",
    "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
    "ggml_vulkan: Device memory allocation of size 123 failed.",
    "error: failed to allocate buffer, size = 1234.56 MiB",
    "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "ggml_aligned_malloc: insufficient memory (attempted to allocate 43948.12 MB)",
]
BAD_CONFIG = [
    "error: invalid argument: --no-mmap",
    "gguf_init_from_file: failed to open GGUF file '/x' (No such file or directory)",
    "gguf_init_from_reader: invalid magic characters: 'root', expected 'GGUF'",
    "llama_model_load: error loading model: unknown model architecture: 'x'",
    "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
    "gridcore: --nonsense: the embedded runtime has no such setting",
]
HARMLESS = [
    "ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory",
    "Vulkan WARNING: failed to allocate 1 MB of pinned memory",
    "failed to allocate memory for prompt cache state",
    "srv  load_model: loading model '/models/out of memory.gguf'",
    "slot release: id 0 | stop processing",
]


@pytest.mark.parametrize("line", OUT_OF_MEMORY)
def test_out_of_memory_is_recognised(line: str) -> None:
    assert sign_of(f"0.00.303.912 E {line}") is Sign.OUT_OF_MEMORY


@pytest.mark.parametrize("line", BAD_CONFIG)
def test_bad_config_is_recognised(line: str) -> None:
    assert sign_of(line) is Sign.BAD_CONFIG


@pytest.mark.parametrize("line", HARMLESS)
def test_what_llama_cpp_survives_is_no_sign(line: str) -> None:
    assert sign_of(line) is None


def test_a_broken_metal_backend() -> None:
    line = "backend is in error state from a previous command buffer failure - recreate the backend"
    assert sign_of(line) is Sign.BACKEND_BROKEN


def test_only_what_this_runtime_wrote_counts(tmp_path: Path) -> None:
    """The file holds the runs before: an old out-of-memory line is not this load's."""
    path = tmp_path / "m.log"
    path.write_text(f"{OUT_OF_MEMORY[0]}\n")
    tail = LogTail(path)
    assert tail.read_new() == []
    with path.open("a") as file:
        file.write("fine\n" + BAD_CONFIG[0][:10])
        file.flush()
        assert tail.read_new() == []
        file.write(BAD_CONFIG[0][10:] + "\n")
    assert tail.read_new() == [(Sign.BAD_CONFIG, BAD_CONFIG[0])]
    assert tail.last_lines() == (BAD_CONFIG[0],)


def test_without_complaints_the_last_lines_are_the_last(tmp_path: Path) -> None:
    path = tmp_path / "m.log"
    tail = LogTail(path)
    path.write_text("".join(f"line {n}\n" for n in range(10)) + "half")
    tail.read_new()
    assert tail.last_lines() == ("line 8", "line 9", "half")


def test_a_sign_behind_megabytes_of_noise_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.log"
    tail = LogTail(path)
    path.write_text("some noise of the loader\n" * 200_000 + BAD_CONFIG[1] + "\n")
    assert [sign for sign, _ in tail.read_new()] == [Sign.BAD_CONFIG]


def test_rotation_keeps_the_writer_and_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "m.log"
    tail = LogTail(path)
    with path.open("ab", buffering=0) as writer:
        for n in range(4):
            writer.write(b"%d" % n * 100 + b"\n")
            tail.read_new()
            assert rotate(path, limit_bytes=50, keep=2)
        writer.write(BAD_CONFIG[0].encode() + b"\n")
    assert tail.read_new() == [(Sign.BAD_CONFIG, BAD_CONFIG[0])]
    assert path.read_text() == BAD_CONFIG[0] + "\n"
    assert (tmp_path / "m.log.1").read_text() == "3" * 100 + "\n"
    assert (tmp_path / "m.log.2").read_text() == "2" * 100 + "\n"
    assert not (tmp_path / "m.log.3").exists()
    assert not rotate(path, limit_bytes=1000, keep=2)


def test_without_a_file_there_is_nothing_to_read(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "none.log")
    assert tail.read_new() == []
    assert tail.last_lines() == ()
