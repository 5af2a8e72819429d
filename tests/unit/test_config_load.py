"""The config room: every mistake is named with its line, its path and the likely key."""

from pathlib import Path

import pytest

from gridcore.config.load import CONFIG_BYTES_MAX, load_config, parse_config
from gridcore.config.schema import Capability, Config, Preempt, RuntimeKind
from gridcore.errors import ConfigError
from gridcore.units import NS_PER_MS, NS_PER_S

ROOT = Path(__file__).parents[2]


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


UNKNOWN_KEYS = [
    ("sever: {}", "1: sever: unknown key; did you mean server?"),
    ("gpu:\n  headrom_mb: 1", "2: gpu.headrom_mb: unknown key; did you mean headroom_mb?"),
    (
        "models:\n  m:\n    path: /m\n    pined: true",
        "4: models.m.pined: unknown key; did you mean pinned?",
    ),
    (
        "models:\n  m: { path: /m, parralel: 2 }",
        "2: models.m.parralel: unknown key; did you mean parallel?",
    ),
    (
        "policy:\n  classes:\n    interactive:\n      hot_tll: 5m",
        "4: policy.classes.interactive.hot_tll: unknown key; did you mean hot_ttl?",
    ),
    ("headroom_mb: 1", "1: headroom_mb: unknown key; did you mean gpu.headroom_mb?"),
    (
        "policy: { hot_ttl: 5m }",
        "1: policy.hot_ttl: unknown key; did you mean policy.classes.interactive.hot_ttl?",
    ),
    (
        "logs: { colour: red }",
        "1: logs.colour: unknown key; known here: level, rotate_mb, keep",
    ),
    (
        "gpu:\n  device: simulation\nmodels:\n  m:\n    runtime: simulated\n    simulated:\n"
        "      vram_mb: 1\n      loadtime: 1s",
        "8: models.m.simulated.loadtime: unknown key; did you mean load_time?",
    ),
]

WRONG_VALUES = [
    ("models:\n  m: { path: /m, ctx: '5' }", "2: models.m.ctx: must be a whole number without"),
    ("models:\n  m: { path: /m, ctx: 16k }", "2: models.m.ctx: must be a whole number, got text"),
    ("models: { m: { path: /m, ctx: 1.5 } }", "must be a whole number, got the number 1.5"),
    ("models: { m: { path: /m, ctx: true } }", "1: models.m.ctx: must be a whole number, got true"),
    ("models: { m: { path: /m, ctx: 1:30 } }", "1: models.m.ctx: must be a whole number"),
    ("models: { m: { path: /m, ctx: [1] } }", "1: models.m.ctx: must be a whole number, got a li"),
    ("models: { m: { path: /m, ctx: } }", "1: models.m.ctx: has no value; leave the key out"),
    ("models: { m: { path: /m, ctx: 0 } }", "1: models.m.ctx: must be at least 1, got 0"),
    ("models: { m: { path: /m, ctx: 9999999999 } }", "must be at most 2147483647, got 9999999999"),
    ("gpu: { headroom_mb: -512 }", "1: gpu.headroom_mb: must not be negative, got -512"),
    ("models: { m: { path: /m, parallel: -1 } }", "1: models.m.parallel: must be at least 1"),
    ("models: { m: { path: /m, pinned: !!bool x } }", "1: models.m.pinned: must be true or false"),
    ("models: { m: { path: /m, pinned: 'true' } }", "1: models.m.pinned: must be true or false"),
    ("models: { m: { path: 7 } }", '1: models.m.path: must be text: write "7", got the number 7'),
    ("models: { m: { path: '' } }", "1: models.m.path: is empty"),
    ("models: { m: { path: !secret x } }", "1: models.m.path: must be text, got 'x' (YAML type"),
    ("models: { m: { path: /m, args: --x } }", "must be a list: [--x], got text '--x'"),
    ("models: { m: { path: /m, args: [[a]] } }", "1: models.m.args[0]: must be text, got a list"),
    ("models: { m: { path: /m, env: { A: } } }", "1: models.m.env.A: has no value"),
    ("models: { m: 5 }", "1: models.m: must be a mapping (key: value), got the number 5"),
    ("models: [a]", "1: models: must be a mapping (key: value), got a list"),
    ("policy: { background_share: 1.5 }", "1: policy.background_share: must be at most 1, got 1.5"),
    ("policy: { background_share: 0 }", "1: policy.background_share: must be above 0, got 0"),
    ("policy: { background_share: .nan }", "policy.background_share: must be a finite number"),
    ("policy: { background_share: 50% }", "policy.background_share: must be a number, got text"),
    ("policy: { eviction: cots }", "must be cost or lru, got text 'cots'; did you mean cost?"),
    (
        "models: { m: { path: /m, capabilities: [chat, vison] } }",
        "1: models.m.capabilities[1]: must be chat, vision, audio, embedding or rerank, got text "
        "'vison'; did you mean vision?",
    ),
    ("gpu: { device: nvidia }", "1: gpu.device: 'nvidia' is not possible: auto, cpu or"),
    ('gpu: { device: "cpu\\n" }', "1: gpu.device: 'cpu\\n' is not possible"),
    (
        "runtimes: { llamacpp: { port_range: [1] } }",
        "1: runtimes.llamacpp.port_range: must have 2 items, not 1",
    ),
    (
        "runtimes: { llamacpp: { port_range: [41999, 41000] } }",
        "must be two ports in ascending order, 1 to 65535, got [41999, 41000]",
    ),
    ("7: x", '1: a key must be text, not the number 7: write "7"'),
    ("models:\n  on: { path: /m }", '2: models: a key must be text, not on: write "on"'),
]

DURATIONS = [
    ("policy: { min_residency: 30 }", "policy.min_residency: 30 has no unit: write 30s, or"),
    ("policy: { min_residency: 0 }", "policy.min_residency: 0 has no unit: write 0s, or"),
    ("policy: { min_residency: 1.5 }", "policy.min_residency: 1.5 has no unit: write 3s, or"),
    ("policy: { min_residency: 3 s }", "'3 s' is not a duration: write a number and a unit"),
    ("policy: { min_residency: 3sec }", "'3sec' is not a duration: write a number and a unit"),
    ("policy: { min_residency: 5us }", "'5us' is not a duration"),
    ("policy: { min_residency: -3s }", "policy.min_residency: must not be negative, got '-3s'"),
    ("policy: { min_residency: yes }", "policy.min_residency: must be a duration"),
    ("policy: { min_residency: [1s] }", "policy.min_residency: must be a duration"),
    ("policy: { min_residency: 99999d }", "policy.min_residency: is longer than 3650d"),
    (f"policy: {{ min_residency: {'9' * 400}s }}", "policy.min_residency: is longer than 3650d"),
]

DUPLICATES = [
    (
        "gpu:\n  headroom_mb: 1\n  headroom_mb: 2",
        "3: gpu.headroom_mb: is given twice; the first one is in line 2",
    ),
    (
        "models:\n  m: { path: /m }\n  m: { path: /n }",
        "3: models.m: is given twice; the first one is in line 2",
    ),
    ("gpu: {}\ngpu: {}", "2: gpu: is given twice; the first one is in line 1"),
]

NAMES = [
    (
        "models:\n  a: { path: /a }\n  b:\n    path: /b\n    aliases: [x, a]",
        "5: models.b.aliases[1]: a is the id of models.a already; a name leads to one",
    ),
    (
        "models:\n  a: { path: /a, aliases: [x] }\n  b: { path: /b, aliases: [x] }",
        "3: models.b.aliases[0]: x is an alias of models.a already",
    ),
    ("models: { a: { path: /a, aliases: [a] } }", "aliases[0]: a is the id of models.a already"),
    ("models: { a: { path: /a, aliases: [x, x] } }", "aliases[1]: x is an alias of models.a alr"),
    (
        "models:\n  a: { path: /a, aliases: [f] }\nfamilies:\n  f: { preferred: a }",
        "2: models.a.aliases[0]: f is the name of families.f already",
    ),
    (
        "models:\n  a: { path: /a }\nfamilies:\n  a: { preferred: a }",
        "4: families.a: is the id of models.a too; rename one of them",
    ),
    (
        "models:\n  a: { path: /a }\nfamilies:\n  f: { preferred: a, aliases: [a] }",
        "4: families.f.aliases[0]: a is the id of models.a already",
    ),
    ("models: { 'a b': { path: /a } }", "1: models.a b: is no id: at most 128 characters"),
    ("models: { 'a/b': { path: /a } }", "1: models.a/b: is no id"),
    ("models: { '': { path: /a } }", "is no id"),
    ("models: { ..: { path: /a } }", "1: models...: is no id"),
    ("models: { a: { path: /a, aliases: ['x y'] } }", "1: models.a.aliases[0]: 'x y' is no name"),
]

FAMILIES = [
    (
        "models: { gemma: { path: /a } }\nfamilies:\n  f: { preferred: gema }",
        "3: families.f.preferred: there is no model gema; did you mean gemma?",
    ),
    (
        "models:\n  e: { path: /e, capabilities: [embedding] }\nfamilies:\n  f:\n    compact: e",
        "5: families.f.compact: e makes vectors or scores, which differ between models",
    ),
    ("families:\n  f: { aliases: [x] }", "2: families.f: has no member: name a model as"),
    ("families:\n  f:", "2: families.f: has no member"),
    (
        "models: { a: { path: /a } }\nfamilies: { f: { preferred: a, compact: a } }",
        "2: families.f.compact: a is the preferred variant already",
    ),
]

MODELS = [
    ("models:\n  m: { ctx: 8 }", "2: models.m.path: is missing: name the GGUF file"),
    ("models:\n  m:", "2: models.m.path: is missing"),
    ("models: { m: { runtime: embedded } }", "1: models.m.path: is missing"),
    (
        "gpu: { device: simulation }\nmodels:\n  m:\n    runtime: simulated",
        "4: models.m.runtime: simulated needs a section simulated: { vram_mb: ... }",
    ),
    (
        "gpu: { device: simulation }\nmodels:\n  m:\n    runtime: simulated\n    simulated: {}",
        "5: models.m.simulated.vram_mb: is missing and has no default",
    ),
    (
        "models:\n  m:\n    runtime: simulated\n    simulated: { vram_mb: 1 }",
        "3: models.m.runtime: simulated runs only on a simulated card: set gpu.device: simulation",
    ),
    (
        "models: { m: { path: /m, runtime: llamacpp, simulated: { vram_mb: 1 } } }",
        "models.m.simulated: is used only with runtime: simulated, which is llamacpp",
    ),
    (
        "models: { m: { path: /m, mmproj: /p } }",
        "1: models.m.mmproj: is of no use without vision or audio in capabilities",
    ),
    (
        "models: { m: { path: /m, capabilities: [chat, vision] } }",
        "1: models.m.capabilities: vision needs a projector file: set mmproj",
    ),
    ("models: { m: { path: /m, capabilities: [] } }", "1: models.m.capabilities: is empty"),
    (
        "models: { m: { path: /m, args: [-ngl 20] } }",
        '1: models.m.args[0]: write two items: "-ngl", "20"',
    ),
    (
        "models: { m: { path: /m, args: [--jinja, --port, 1] } }",
        "1: models.m.args[1]: --port may not be set here",
    ),
    (
        "runtimes: { llamacpp: { default_args: [-c, 4096] } }",
        "1: runtimes.llamacpp.default_args[0]: -c may not be set here: write it as ctx",
    ),
    ("models: { m: { path: $GRIDCORE_NO_SUCH/x } }", "$GRIDCORE_NO_SUCH is not set in the env"),
    ("models: { m: { path: '${GRIDCORE_NO_SUCH}/x' } }", "${GRIDCORE_NO_SUCH} is not set in"),
    ("models: { m: { path: ~gridcore-nobody/x } }", "~gridcore-nobody has no home directory"),
]

ADDRESSES = [
    ("server: { listen: localhost }", "1: server.listen: 'localhost' has no port: write host:port"),
    ("server: { listen: ':8080' }", "1: server.listen: ':8080' has no host: write 127.0.0.1:8080"),
    ("server: { listen: '127.0.0.1:99999' }", "1: server.listen: port 99999 is above 65535"),
    ("server: { listen: '127.0.0.1:http' }", "1: server.listen: '127.0.0.1:http' has no port"),
    ("server: { listen: '300.0.0.1:80' }", "'300.0.0.1' is neither an IPv4 address nor a host"),
    ("server: { listen: '::1:80' }", "an IPv6 address stands in brackets: [::1]:80"),
    ("server: { listen: '[::g]:80' }", "[::g] is not an IPv6 address"),
    ("server: { listen: 'a b:80' }", "'a b' is neither"),
    ("server: { listen: 8080 }", '1: server.listen: must be text: write "8080"'),
    (
        "server: { listen: '127.0.0.1:9464' }",
        "metrics.listen: 127.0.0.1:9464 is the address of server.listen too",
    ),
]

POLICY = [
    (
        "policy:\n  breaker:\n    backoff: 20m",
        "3: policy.breaker.backoff: is longer than backoff_max",
    ),
    ("gpu: { poll_interval: 0s }", "1: gpu.poll_interval: must not be 0s"),
]

DOCUMENTS = [
    ("", "config.yaml: is empty; config.example.yaml shows every key"),
    ("# only a comment\n", "config.yaml: is empty"),
    ("- a\n- b", "config.yaml:1: is not a config: it must begin with a key"),
    ("hello", "config.yaml:1: is not a config"),
    ("a: [1\nb: 2", "config.yaml:2: is not YAML"),
    ("gpu:\n\tdevice: cpu", "config.yaml:2: is not YAML: found character '\\t'"),
    ("gpu:\n\tdevice: cpu", "indent with spaces, not tabs"),
    ("gpu: *nowhere", "config.yaml:1: is not YAML: found undefined alias"),
    ("gpu: {}\n---\ngpu: {}", "config.yaml:2: is not YAML"),
    ("a\x00b: 1", "config.yaml:1: is not YAML: it holds the character '\\x00'"),
    ("[" * 1500, "config.yaml: is nested too deeply"),
    ("models: &m\n  a: *m", "2: models.a.a: unknown key"),
    ("models:\n  a: &a\n    <<: *a\n    path: /a", "2: models.a: merges itself (<<)"),
    ("gpu:\n  <<: 5", "2: gpu: must be a mapping (key: value), got the number 5"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *UNKNOWN_KEYS,
        *WRONG_VALUES,
        *DURATIONS,
        *DUPLICATES,
        *NAMES,
        *FAMILIES,
        *MODELS,
        *ADDRESSES,
        *POLICY,
        *DOCUMENTS,
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, expected: str) -> None:
    problems = problems_of(text)
    assert any(expected in problem for problem in problems), problems
    assert len(problems) == 1, f"one mistake, one line: {problems}"
    assert problems[0].startswith("config.yaml:")


def test_all_problems_are_listed_in_the_order_of_the_file() -> None:
    text = """\
gpu:
  headrom_mb: 1
models:
  a: { path: /a, pined: true }
  b: { path: /b, ctx: many, aliases: [a] }
families:
  f: { preferred: c }
policy: { min_residency: 30 }
"""
    assert problems_of(text) == [
        "config.yaml:2: gpu.headrom_mb: unknown key; did you mean headroom_mb?",
        "config.yaml:4: models.a.pined: unknown key; did you mean pinned?",
        "config.yaml:5: models.b.ctx: must be a whole number, got text 'many'",
        "config.yaml:5: models.b.aliases[0]: a is the id of models.a already; a name leads to one",
        "config.yaml:7: families.f.preferred: there is no model c; did you mean a or b?",
        "config.yaml:8: policy.min_residency: 30 has no unit: write 30s, or another of ms, s, m, "
        "h, d",
    ]


def test_a_mistake_causes_no_second_problem() -> None:
    """The path of a model whose key is misspelt is not missing, and its family is not at fault."""
    text = "models:\n  a: { pth: /a }\n  b: 5\nfamilies:\n  f: { preferred: b, compact: a }"
    assert len(problems_of(text)) == 2
    assert len(problems_of("models: [a]\nfamilies: { f: { preferred: a } }")) == 1


def test_a_file_full_of_mistakes_is_cut_short() -> None:
    problems = problems_of("\n".join(f"key{n}: 1" for n in range(500)))
    assert len(problems) == 101
    assert problems[-1] == "config.yaml: 400 more problems are not shown"


def test_a_config_without_models_is_a_config() -> None:
    assert parse_config("models: {}") == Config()
    assert parse_config("{}") == Config()
    assert parse_config("gpu:\nmodels:\npolicy:\n") == Config()


def test_values_are_read_in_their_units() -> None:
    config = parse_config(
        """\
gpu: { device: simulation, poll_interval: 250ms }
policy:
  background_max_starvation: 0s
  min_residency: 1m30s
  background_share: 1
  preempt: off
models:
  m: { runtime: simulated, simulated: { vram_mb: 400, load_time: 1.5s }, ttl: 2h }
"""
    )
    assert config.gpu.poll_interval_ns == 250 * NS_PER_MS
    assert config.policy.background_max_starvation_ns == 0
    assert config.policy.min_residency_ns == 90 * NS_PER_S
    assert config.policy.background_share == 1.0
    assert config.policy.preempt is Preempt.OFF
    model = config.models["m"]
    assert model.ttl_ns == 7200 * NS_PER_S
    assert model.simulated is not None
    assert model.simulated.load_time_ns == 1500 * NS_PER_MS


def test_arguments_and_environment_are_taken_as_written() -> None:
    """YAML would make a number of 0099 and a truth value of on."""
    config = parse_config(
        "runtimes: { llamacpp: { default_args: [--flash-attn, on, -t, 0099] } }\n"
        "models: { m: { path: /m, args: [-ngl, 20, --top-p, 0.90], env: { A: 1_0, B: '' } } }"
    )
    assert config.runtimes.llamacpp.default_args == ("--flash-attn", "on", "-t", "0099")
    assert config.models["m"].args == ("-ngl", "20", "--top-p", "0.90")
    assert config.models["m"].env == {"A": "1_0", "B": ""}


def test_paths_are_expanded_and_start_at_the_config_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/person")
    monkeypatch.setenv("MODELS", "/data")
    path = tmp_path / "config.yaml"
    path.write_text(
        "models:\n  a: { path: ~/a.gguf }\n  b: { path: $MODELS/b.gguf }\n"
        "  c: { path: c.gguf }\n  d: { path: '${MODELS}/d.gguf' }\n"
    )
    models = load_config(path).models
    assert models["a"].path == "/home/person/a.gguf"
    assert models["b"].path == "/data/b.gguf"
    assert models["c"].path == str(tmp_path / "c.gguf")
    assert models["d"].path == "/data/d.gguf"


def test_anchors_and_merge_keys_work() -> None:
    config = parse_config(
        """\
models:
  a: &base
    path: /a
    ctx: 8192
    parallel: 2
  b:
    <<: *base
    path: /b
  c:
    <<: [{ ctx: 1024 }, *base]
    aliases: &names [x]
"""
    )
    assert config.models["b"].path == "/b"
    assert config.models["b"].ctx == 8192
    assert (config.models["c"].ctx, config.models["c"].parallel) == (1024, 2)


def test_merges_of_merges_are_read_in_time() -> None:
    """Each level names the one before twice: 2^40 mappings if they were copied."""
    levels = ["  l0: &l0 { path: /m }"]
    levels += [f"  l{n}: &l{n} {{ <<: [*l{n - 1}, *l{n - 1}] }}" for n in range(1, 41)]
    assert parse_config("models:\n" + "\n".join(levels)).models["l40"].path == "/m"


def test_an_id_may_look_like_a_name_with_a_class() -> None:
    assert "m@batch" in parse_config("models: { m: { path: /a }, m@batch: { path: /b } }").models


def test_a_model_described_as_simulated_need_not_say_so() -> None:
    text = "gpu: { device: simulation }\nmodels: { m: { simulated: { vram_mb: 1 } } }"
    assert parse_config(text).models["m"].runtime is RuntimeKind.AUTO


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:8080", "0.0.0.0:1", "localhost:0", "[::1]:8080", "my-box.local:80"]
)
def test_listen_addresses(listen: str) -> None:
    assert parse_config(f"server: {{ listen: '{listen}' }}").server.listen == listen


@pytest.mark.parametrize("device", ["auto", "cpu", "simulation", "apple", "nvidia:0", "amd:12"])
def test_devices(device: str) -> None:
    assert parse_config(f"gpu: {{ device: '{device}' }}").gpu.device == device


class TestFiles:
    def fails(self, path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert len(caught.value.problems) == 1
        return caught.value.problems[0]

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "config.yaml"
        assert self.fails(path).startswith(f"{path}: there is no such file; write one")

    def test_a_directory(self, tmp_path: Path) -> None:
        assert self.fails(tmp_path) == f"{tmp_path}: is a directory; name the file in it"

    def test_not_a_directory_on_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        path = tmp_path / "file" / "config.yaml"
        assert self.fails(path) == f"{path}: cannot be read: Not a directory"

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "config.yaml"
        path.write_bytes(b"gpu:\n  simulation:\n    name: caf\xe9\n")
        assert self.fails(path) == f"{path}:3: is not UTF-8 text (byte 0xe9)"

    def test_utf16(self, tmp_path: Path) -> None:
        path = tmp_path / "config.yaml"
        path.write_bytes("gpu: {}".encode("utf-16"))
        assert "is not UTF-8 text" in self.fails(path)

    def test_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "config.yaml"
        path.write_bytes(b"#" * (CONFIG_BYTES_MAX + 1))
        assert self.fails(path) == f"{path}: is larger than 1024 KB: not a config file"

    def test_a_byte_order_mark_is_harmless(self, tmp_path: Path) -> None:
        path = tmp_path / "config.yaml"
        path.write_bytes(b"\xef\xbb\xbfgpu: { device: cpu }\n")
        assert load_config(path).gpu.device == "cpu"


def test_the_example_config_loads() -> None:
    config = load_config(ROOT / "config.example.yaml")
    assert config.models["gemma4-12b"].aliases == ("gpt-4o",)
    assert config.models["ornith-35b"].args == ("--cpu-moe",)
    assert config.models["nomic-embed"].capabilities == (Capability.EMBEDDING,)
    assert config.families["gemma4"].balanced == "gemma4-e4b"


def test_the_simulation_has_the_sizes_its_scenarios_need() -> None:
    config = load_config(ROOT / "examples" / "simulation.yaml")
    sizes = {name: m.simulated.vram_mb for name, m in config.models.items() if m.simulated}
    assert set(sizes) == set(config.models)
    budget = config.gpu.simulation.total_mb - 512
    residents = sizes["gemma4-12b"] + sizes["nomic-embed"]
    assert residents + sizes["qwen3-14b"] > budget, "the 12B must leave for the 14B"
    assert residents + sizes["gemma4-e4b"] + sizes["ornith-35b"] <= budget, "four share the card"
    assert config.models["nomic-embed"].pinned
