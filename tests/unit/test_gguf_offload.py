"""llama-server's arguments as it reads them, and where tensors go."""

import pytest

from gridcore.gguf.flags import GPU_LAYERS_ALL, FlagError, FlashAttention, SplitMode, parse_flags
from gridcore.gguf.hparams import hyper_parameters
from gridcore.gguf.offload import HOST, place_layers, place_tensors
from tests.support.ground_truth import header


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        ("-c 4096", "context", 4096),
        ("--ctx-size 4096", "context", 4096),
        ("--ctx_size 4096", "context", 4096),
        ("--ctx-size=4096", "context", 4096),
        ("-c 1 -c 2", "context", 2),
        ("-np 3", "slots", 3),
        ("-np 3", "is_unified", False),
        ("-np 3 -kvu", "is_unified", True),
        ("-np 3 -kvu -no-kvu", "is_unified", False),
        ("", "is_unified", True),
        ("", "n_slots", 4),
        ("-ngl auto", "gpu_layers", GPU_LAYERS_ALL),
        ("-ngl all", "gpu_layers", GPU_LAYERS_ALL),
        ("--n-gpu-layers 7", "gpu_layers", 7),
        ("-ngl auto", "gpu_layers_auto", True),
        ("-ngl all", "gpu_layers_auto", False),
        ("-nkvo", "kv_offload", False),
        ("--no-kv-offload --kv-offload", "kv_offload", True),
        ("-fa on", "flash_attention", FlashAttention.ON),
        ("-fa 0", "flash_attention", FlashAttention.OFF),
        ("-fa auto", "flash_attention", FlashAttention.AUTO),
        ("-ctk q8_0", "cache_type_k", "q8_0"),
        ("--swa-full", "swa_full", True),
        ("--device none", "has_device", False),
        ("-dev CUDA0,CUDA1", "n_devices", 2),
        ("-ts 3,1", "n_devices", 2),
        ("-ts 3,1 -sm none", "n_devices", 1),
        ("-sm row", "split_mode", SplitMode.ROW),
        ("--rerank", "wants_all_outputs", True),
        ("--pooling last", "wants_all_outputs", True),
        ("-nr", "repack", False),
        ("--no-op-offload", "op_offload", False),
        ("--no-mmproj-offload", "mmproj_offload", False),
        ("-lm none", "load_mode", "none"),
        ("--cache-ram 0 -ctxcp 0", "cache_ram_mb", 0),
        ("--spec-type draft-mtp", "uses_mtp", True),
        ("-md d.gguf -ngld 0", "draft_gpu_layers", 0),
        ("--alias c -t 4 --temp 0.7 -c 512", "context", 512),
    ],
)
def test_arguments_are_read_as_llama_server_reads_them(
    args: str, field: str, value: object
) -> None:
    assert getattr(parse_flags(args.split()), field) == value


def test_the_environment_comes_first_and_arguments_win() -> None:
    env = {"LLAMA_ARG_CTX_SIZE": "1024", "LLAMA_ARG_NO_KV_OFFLOAD": "x", "LLAMA_ARG_SWA_FULL": "on"}
    flags = parse_flags(["-c", "2048"], env)
    assert (flags.context, flags.kv_offload, flags.swa_full) == (2048, False, True)
    assert parse_flags([], env).context == 1024
    with pytest.raises(FlagError, match="LLAMA_ARG_CTX_SIZE"):
        parse_flags([], {"LLAMA_ARG_CTX_SIZE": "many"})


@pytest.mark.parametrize(
    "args",
    [
        "-c",
        "-c many",
        "-fa maybe",
        "-ctk q3_k",
        "-sm diagonal",
        "-ts a,b",
        "-ot ffn",
        "-ot ffn[=CPU",
        "-lm sometimes",
    ],
)
def test_what_llama_server_refuses_is_refused_by_name(args: str) -> None:
    with pytest.raises(FlagError) as caught:
        parse_flags(args.split())
    assert args.split(maxsplit=1)[0] in str(caught.value)


def test_overrides_add_up_in_order() -> None:
    flags = parse_flags(["-ot", "a=CPU,b=CUDA0", "--cpu-moe", "-ncmoe", "2", "-ncffn", "1"])
    assert [o.pattern for o in flags.overrides[:2]] == ["a", "b"]
    assert len(flags.overrides) == 6
    assert [o.on_host for o in flags.overrides] == [True, False, True, True, True, True]


def test_layers_are_counted_from_the_last_the_output_first() -> None:
    hparams = hyper_parameters(header("llama-3.1-8b-q4_k_m"))
    assert set(place_layers(hparams, 0, 1).device_of_layer) == {HOST}
    one = place_layers(hparams, 1, 1)
    assert (set(one.blocks), one.output) == ({HOST}, 0)
    two = place_layers(hparams, 2, 1)
    assert (two.blocks[-1], two.blocks[-2]) == (0, HOST)
    assert place_layers(hparams, 32, 1).blocks[0] == HOST
    assert place_layers(hparams, 33, 1).is_full
    assert place_layers(hparams, GPU_LAYERS_ALL, 0).output == HOST
    split = place_layers(hparams, GPU_LAYERS_ALL, 2, (3.0, 1.0))
    assert split.blocks.count(0) == 25
    assert split.output == 1


def test_nextn_blocks_count_as_layers_though_they_are_not_loaded() -> None:
    model = header("qwen3.5-9b-q4_k_m")
    hparams = hyper_parameters(model)
    assert (hparams.n_layer, hparams.n_layer_main) == (33, 32)
    offload = place_layers(hparams, GPU_LAYERS_ALL, 1)
    without = place_tensors(model, hparams, offload, (), with_nextn=False)
    with_it = place_tensors(model, hparams, offload, (), with_nextn=True)
    assert not any(item.block == 32 for item in without)
    assert any(item.block == 32 for item in with_it)


def test_the_first_matching_override_decides_and_only_the_tensor_moves() -> None:
    model = header("qwen3-30b-a3b-q4_k_m")
    hparams = hyper_parameters(model)
    offload = place_layers(hparams, GPU_LAYERS_ALL, 1)
    flags = parse_flags(["-ot", r"blk\.0\.ffn_down_exps=CUDA0", "--cpu-moe"])
    placed = place_tensors(model, hparams, offload, flags.overrides, with_nextn=False)
    place = {item.name: item.place for item in placed}
    assert place["blk.0.ffn_down_exps.weight"] == 0
    assert place["blk.1.ffn_down_exps.weight"] == HOST
    assert place["blk.0.ffn_gate_exps.weight"] == HOST
    assert place["blk.1.ffn_gate_inp.weight"] == 0
    assert place["token_embd.weight"] == HOST


def test_tied_embeddings_lie_on_both_sides() -> None:
    model = header("gemma-3-12b-q4_0")
    hparams = hyper_parameters(model)
    placed = place_tensors(model, hparams, place_layers(hparams, 1, 1), (), with_nextn=False)
    places = [item.place for item in placed if item.name == "token_embd.weight"]
    assert sorted(places) == [HOST, 0]
    on_host = place_tensors(model, hparams, place_layers(hparams, 0, 1), (), with_nextn=False)
    assert [item.place for item in on_host if item.name == "token_embd.weight"] == [HOST]
