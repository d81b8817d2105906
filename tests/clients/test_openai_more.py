"""More of the `openai` package: tools, structured output, completions, responses."""

import json

import openai
import pytest

from conftest import KEY

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "cat"]}, "legs": {"type": "integer", "minimum": 2, "maximum": 4}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def no_thinking():
    return {"chat_template_kwargs": {"enable_thinking": False}}


def check_call(name, arguments):
    arguments = json.loads(arguments)
    assert name == "weather"
    assert arguments["city"] in ("Rome", "Oslo")
    assert 1 <= arguments["days"] <= 7


def test_a_required_call_whole_and_streamed(client, model):
    arguments = dict(
        model=model,
        messages=[{"role": "user", "content": "What is the weather in Rome?"}],
        tools=[{"type": "function", "function": WEATHER}],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
        max_tokens=200,
        temperature=0,
        extra_body=no_thinking(),
    )
    whole = client.chat.completions.create(**arguments)
    assert whole.choices[0].finish_reason == "tool_calls"
    call = whole.choices[0].message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)
    streamed = ""
    for chunk in client.chat.completions.create(**arguments, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            streamed += part.function.arguments or ""
    assert streamed == call.function.arguments

    # The result goes back, and the conversation goes on.
    messages = arguments["messages"] + [
        whole.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 25 degrees."},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=20, extra_body=no_thinking())
    assert answer.choices[0].message.content


def test_structured_output(client, model):
    for thinking in (None, "low"):
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Name an animal."}],
            response_format={"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}},
            max_tokens=400,
            temperature=0,
            extra_body={"thinking_budget": 20} if thinking else no_thinking(),
        )
        assert reply.choices[0].finish_reason == "stop"
        answer = json.loads(reply.choices[0].message.content)
        assert answer["animal"] in ("fox", "cat") and 2 <= answer["legs"] <= 4


def test_logprobs_choices_and_stop(client, model):
    reply = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        n=2,
        seed=5,
        logprobs=True,
        top_logprobs=3,
        max_tokens=10,
        extra_body=no_thinking(),
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        entries = choice.logprobs.content
        assert b"".join(bytes(entry.bytes) for entry in entries).decode().strip() == choice.message.content.strip()
        for entry in entries:
            assert len(entry.top_logprobs) == 3
            assert entry.logprob <= 0
    text = reply.choices[0].message.content
    stop = text.split()[2]
    cut = client.chat.completions.create(
        model=model, messages=QUESTION, n=1, seed=5, stop=[stop], max_tokens=10, extra_body=no_thinking()
    )
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_completions(client, model):
    prompt = "Once upon a time, there was"
    whole = client.completions.create(model=model, prompt=prompt, max_tokens=12, temperature=0, logprobs=2, echo=True)
    choice = whole.choices[0]
    assert choice.text.startswith(prompt)
    assert choice.logprobs.token_logprobs[0] is None
    assert "".join(choice.logprobs.tokens).startswith(prompt)
    streamed = client.completions.create(model=model, prompt=prompt, max_tokens=12, temperature=0, stream=True)
    assert prompt + "".join(chunk.choices[0].text for chunk in streamed) == choice.text


def test_responses(client, model):
    whole = client.responses.create(model=model, input="Tell me a story.", max_output_tokens=40, temperature=0, reasoning={"effort": "none"})
    assert whole.status in ("completed", "incomplete")
    assert whole.output_text
    with client.responses.stream(
        model=model, input="Tell me a story.", max_output_tokens=40, temperature=0, reasoning={"effort": "none"}
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response() if whole.status == "completed" else None
    assert text == whole.output_text
    assert final is None or final.output_text == text


def test_responses_with_a_function(client, model):
    reply = client.responses.create(
        model=model,
        input="What is the weather in Oslo?",
        tools=[{"type": "function", **WEATHER, "strict": True}],
        tool_choice={"type": "function", "name": "weather"},
        reasoning={"effort": "none"},
        max_output_tokens=200,
    )
    calls = [item for item in reply.output if item.type == "function_call"]
    check_call(calls[0].name, calls[0].arguments)
    back = [item.model_dump(exclude_none=True) for item in reply.output]
    back += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    answer = client.responses.create(
        model=model,
        input=[{"role": "user", "content": "What is the weather in Oslo?"}, *back],
        reasoning={"effort": "none"},
        max_output_tokens=20,
    )
    assert answer.output_text
