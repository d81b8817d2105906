"""The `openai` package against `lily serve` with the demo model."""

import json
import time
import urllib.request

import openai
import pytest

from conftest import KEY

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def running(server):
    """Sequences that the engine runs, by its own account."""
    request = urllib.request.Request(f"{server.url}/status", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["engine"]["running"]


def test_models(client, model):
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_chat(client, model):
    reply = client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=40, temperature=0)
    choice = reply.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert choice.message.content or choice.message.reasoning_content
    usage = reply.usage
    assert 0 < usage.completion_tokens <= 40
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    assert usage.completion_tokens_details.reasoning_tokens <= usage.completion_tokens


def test_streamed_chat_equals_the_unstreamed_one(client, model):
    for thinking in (True, False):
        arguments = dict(
            model=model,
            messages=QUESTION,
            max_tokens=60,
            temperature=0,
            extra_body={"chat_template_kwargs": {"enable_thinking": thinking}},
        )
        whole = client.chat.completions.create(**arguments)
        content, reasoning, finish, usage = "", "", None, None
        stream = client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True})
        for number, chunk in enumerate(stream):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                if number == 0:
                    assert choice.delta.role == "assistant"
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                finish = choice.finish_reason or finish
        message = whole.choices[0].message
        assert content == message.content
        assert reasoning == (getattr(message, "reasoning_content", None) or "")
        assert finish == whole.choices[0].finish_reason
        assert usage.completion_tokens == whole.usage.completion_tokens
        if not thinking:
            assert reasoning == ""


def test_errors(client, model, server):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=7)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[{"role": "robot", "content": "hi"}])
    assert caught.value.param == "messages[0].role"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_a_client_that_goes_away_stops_its_generation(client, model, server):
    stream = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=4000, stream=True)
    for _, chunk in zip(range(3), stream):
        assert chunk.choices
    stream.close()
    deadline = time.monotonic() + 10
    while running(server) > 0:
        assert time.monotonic() < deadline, "the generation goes on"
        time.sleep(0.05)
    # The server is as before.
    assert client.chat.completions.create(model=model, messages=QUESTION, max_tokens=3).usage.completion_tokens <= 3
