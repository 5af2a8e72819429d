"""What a request means: its model, its class, its width, what it needs."""

import json
from typing import Any

import pytest

from gridcore.config.schema import Capability, Tier, Workload
from gridcore.core.events import JobKind
from gridcore.http.ask import Ask, client_name, read_ask
from gridcore.http.names import Names
from gridcore.http.openai import ApiError
from tests.support.builders import model, settings
from tests.support.gateway import CHAT, EMBED, EYES, FAMILY

ODD = model("org/name@v2", slots=1)
NAMES = Names(settings(CHAT, EYES, EMBED, ODD, families=[FAMILY]))
HELLO = [{"role": "user", "content": "hello"}]


def ask(kind: JobKind = JobKind.CHAT, headers: dict[str, str] | None = None, **body: Any) -> Ask:
    if kind is JobKind.CHAT:
        body.setdefault("messages", HELLO)
    return read_ask(
        kind,
        json.dumps(body).encode(),
        {k.lower().encode(): v.encode() for k, v in (headers or {}).items()},
        address="127.0.0.1",
        names=NAMES,
        default_class=Workload.INTERACTIVE,
    )


def refusal(
    kind: JobKind = JobKind.CHAT, headers: dict[str, str] | None = None, **body: Any
) -> ApiError:
    with pytest.raises(ApiError) as refused:
        ask(kind, headers, **body)
    return refused.value


@pytest.mark.parametrize(
    ("name", "target", "suffix"),
    [
        ("chat", "chat", None),
        ("gpt-4o", "chat", None),
        ("pair", "pair", None),
        ("both@batch", "pair", Workload.BATCH),
        ("chat@background", "chat", Workload.BACKGROUND),
        ("org/name@v2", "org/name@v2", None),
        ("org/name@v2@batch", "org/name@v2", Workload.BATCH),
    ],
)
def test_exact_names_win_over_the_suffix_rule(
    name: str, target: str, suffix: Workload | None
) -> None:
    found = NAMES.resolve(name)
    assert (found.name, found.suffix) == (target, suffix)


def test_an_unknown_suffix_lists_the_classes() -> None:
    error = refusal(model="chat@urgent")
    assert (error.status, error.code, error.param) == (404, "unknown_class_suffix", "model")
    assert "chat@interactive, chat@background, chat@batch" in error.message


def test_an_unknown_model_names_those_there_are() -> None:
    for name in ("nope", "nope@background", "@background", "org/name"):
        error = refusal(model=name)
        assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
        assert "embed" in error.message


def test_a_family_cannot_be_loaded_but_its_members_are_named() -> None:
    with pytest.raises(ApiError) as refused:
        NAMES.model("pair")
    assert refused.value.code == "not_a_model"
    assert "eyes, chat" in refused.value.message


@pytest.mark.parametrize(
    ("headers", "body", "workload", "class_from"),
    [
        ({}, {}, Workload.INTERACTIVE, "default"),
        ({}, {"model": "chat@batch"}, Workload.BATCH, "suffix"),
        ({}, {"model": "chat@batch", "service_tier": "flex"}, Workload.BACKGROUND, "service_tier"),
        ({}, {"model": "chat@batch", "service_tier": "auto"}, Workload.BATCH, "suffix"),
        (
            {},
            {"model": "chat@batch", "service_tier": "priority"},
            Workload.INTERACTIVE,
            "service_tier",
        ),
        ({}, {"service_tier": "flex", "gridcore": {"class": "batch"}}, Workload.BATCH, "body"),
        (
            {"X-GridCore-Class": "Interactive"},
            {"model": "chat@batch", "gridcore": {"class": "batch"}},
            Workload.INTERACTIVE,
            "header",
        ),
    ],
)
def test_the_strongest_channel_says_the_class(
    headers: dict[str, str], body: dict[str, Any], workload: Workload, class_from: str
) -> None:
    channels = ask(headers=headers, **{"model": "chat", **body}).channels
    assert (channels.workload, channels.class_from) == (workload, class_from)


def test_header_over_body_for_wait_and_quality() -> None:
    options = {"max_wait_ms": 7, "quality": "compact"}
    body = ask(model="chat", gridcore=options).channels
    assert (body.max_wait_ns, body.quality) == (7_000_000, Tier.COMPACT)
    headers = {"X-GridCore-Max-Wait-Ms": "3000", "X-GridCore-Quality": "balanced"}
    both = ask(headers=headers, model="chat", gridcore=options).channels
    assert (both.max_wait_ns, both.quality) == (3_000_000_000, Tier.BALANCED)


@pytest.mark.parametrize(
    ("headers", "gridcore", "code", "param"),
    [
        ({"X-GridCore-Class": "urgent"}, {}, "invalid_class", "X-GridCore-Class"),
        ({}, {"class": "urgent"}, "invalid_class", "gridcore.class"),
        ({}, {"class": 1}, "invalid_type", "gridcore"),
        ({}, {"klass": "batch"}, "invalid_type", "gridcore"),
        ({}, "batch", "invalid_type", "gridcore"),
        ({"X-GridCore-Max-Wait-Ms": "3s"}, {}, "invalid_max_wait", "X-GridCore-Max-Wait-Ms"),
        ({"X-GridCore-Max-Wait-Ms": "-1"}, {}, "invalid_max_wait", "X-GridCore-Max-Wait-Ms"),
        ({}, {"max_wait_ms": -1}, "invalid_max_wait", "gridcore.max_wait_ms"),
        ({}, {"max_wait_ms": 10**15}, "invalid_max_wait", "gridcore.max_wait_ms"),
        ({"X-GridCore-Quality": "best"}, {}, "invalid_quality", "X-GridCore-Quality"),
        ({}, {"quality": "best"}, "invalid_quality", "gridcore.quality"),
    ],
)
def test_a_typo_in_a_channel_is_an_error(
    headers: dict[str, str], gridcore: Any, code: str, param: str
) -> None:
    error = refusal(headers=headers, model="chat", gridcore=gridcore)
    assert (error.status, error.code, error.param) == (400, code, param)


def parts(*kinds: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": kind, kind: {"url": "data:"}} for kind in kinds]}]


def test_images_and_sound_are_recognised() -> None:
    assert ask(model="eyes", messages=parts("text", "image_url")).needs == {Capability.VISION}
    assert ask(model="pair", messages=parts("image_url")).needs == {Capability.VISION}
    assert ask(model="chat", messages=parts("text")).needs == frozenset()
    for name, kind in (("chat", "image_url"), ("eyes", "input_audio"), ("pair", "input_audio")):
        error = refusal(model=name, messages=parts(kind))
        assert (error.status, error.code, error.param) == (
            400,
            "model_lacks_capability",
            "messages",
        )


def test_models_are_not_asked_for_what_they_do_not_do() -> None:
    assert refusal(model="embed").code == "model_lacks_capability"
    error = refusal(JobKind.EMBEDDING, model="chat", input="x")
    assert (error.code, error.param) == ("model_lacks_capability", "model")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"messages": HELLO}, "missing_model", "model"),
        ({"model": "", "messages": HELLO}, "missing_model", "model"),
        ({"model": 1, "messages": HELLO}, "invalid_type", "model"),
        ({"model": "chat", "messages": None}, "missing_messages", "messages"),
        ({"model": "chat", "messages": "hi"}, "invalid_type", "messages"),
        ({"model": "chat", "messages": [1]}, "invalid_type", "messages"),
        (
            {"model": "chat", "messages": [{"role": "user", "content": [1]}]},
            "invalid_type",
            "messages",
        ),
        ({"model": "chat", "stream": "yes"}, "invalid_type", "stream"),
        ({"model": "chat", "n": 3}, "n_exceeds_slots", "n"),
        ({"model": "chat", "n": 0}, "invalid_n", "n"),
    ],
)
def test_chat_requests_nothing_could_serve(body: dict[str, Any], code: str, param: str) -> None:
    error = refusal(**body)
    assert (error.status, error.code, error.param) == (400, code, param)


@pytest.mark.parametrize(
    ("body", "width"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [[1], [2]]}, 2),
        ({"prompt": ["a", "b", "c", "d"]}, 2),
        ({"prompt": "a", "n": 2}, 2),
        ({"prompt": ["a", "b"], "n": 2}, 2),
    ],
)
def test_the_width_of_a_completion_never_exceeds_the_slots(
    body: dict[str, Any], width: int
) -> None:
    asked = ask(JobKind.COMPLETION, model="chat", **body)
    assert asked.width == width
    sent = json.loads(b"".join(asked.upstream_body("chat", tuple(range(width)))))
    assert ("id_slot" in sent) == (width == 1)


def test_a_streaming_clients_usage_option_is_left_alone() -> None:
    streaming = b"".join(ask(model="chat", stream=True).upstream_body("chat", (1,)))
    assert json.loads(streaming).get("stream_options") is None
    whole = json.loads(b"".join(ask(model="chat").upstream_body("chat", (1,))))
    assert whole["stream_options"] == {"include_usage": True}
    assert (whole["stream"], whole["return_progress"], whole["id_slot"]) == (True, True, 1)


def test_a_client_is_its_key_and_the_key_stays_here() -> None:
    key = {b"authorization": b"Bearer secret", b"user-agent": b"a"}
    assert client_name(key, "1.1.1.1") == client_name({**key, b"user-agent": b"b"}, "2.2.2.2")
    assert client_name({b"user-agent": b"a"}, "1.1.1.1") != client_name(
        {b"user-agent": b"b"}, "1.1.1.1"
    )
    assert "secret" not in client_name(key, "")


def test_a_conversation_keeps_its_affinity() -> None:
    first = ask(model="chat")
    later = ask(model="chat", messages=[*HELLO, {"role": "assistant", "content": "x"}, *HELLO])
    other = ask(model="chat", messages=[{"role": "user", "content": "other"}])
    assert first.affinity == later.affinity != other.affinity
