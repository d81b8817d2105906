"""The `anthropic` package against `lily serve` with the demo model."""

import anthropic
import pytest

from conftest import KEY

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
GREEDY = {"temperature": 0}
WEATHER = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city", "days"],
    },
}


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=120)


def test_messages_whole_and_streamed(client):
    arguments = dict(model="demo", max_tokens=40, messages=QUESTION, system="You tell short stories.", extra_body=GREEDY)
    whole = client.messages.create(**arguments)
    assert whole.content[0].type == "text"
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = client.messages.count_tokens(model="demo", messages=QUESTION, system="You tell short stories.")
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_thinking_is_a_block_of_its_own(client):
    reply = client.messages.create(
        model="demo", max_tokens=300, messages=QUESTION, thinking={"type": "enabled", "budget_tokens": 20}, extra_body=GREEDY
    )
    assert reply.content[0].type == "thinking"
    assert reply.content[0].thinking


def test_a_tool_is_called_and_its_result_goes_back(client):
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    arguments = dict(model="demo", max_tokens=200, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    with client.messages.stream(messages=messages, **arguments) as stream:
        reply = stream.get_final_message()
    assert reply.stop_reason == "tool_use"
    call = next(block for block in reply.content if block.type == "tool_use")
    assert call.name == "weather" and call.input["city"] in ("Rome", "Oslo") and 1 <= call.input["days"] <= 7
    messages += [
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]},
    ]
    answer = client.messages.create(model="demo", max_tokens=20, tools=[WEATHER], messages=messages)
    assert answer.content


def test_errors(client, server):
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="demo", max_tokens=10, messages=[])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-3", max_tokens=10, messages=QUESTION)
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model="demo", max_tokens=10, messages=QUESTION)
