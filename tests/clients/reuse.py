#!/usr/bin/env python3
"""Measures what `lily serve` reuses of earlier prompts, in each of the ways in which conversations go on, against a server without a cache.

    cargo build --release && tests/clients/reuse.py

For each scenario: tokens of the prompt and those of them that came from the cache, and the time to the first token with the cache and cold, medians
over the rounds. The two replies have to be equal to the last bit of their log-probabilities. The time to the first token of a prompt that is cached
whole has to be at most that of two decode steps. Exits with 1 where that does not hold.
"""

import argparse
import json
import statistics
import sys
import time
import urllib.request

from conftest import KEY, start, stop

SYSTEM = "You are a kind helper who tells little stories. " + "The fox and the bear live in the old house by the river. " * 60
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}}}


def chat(url, messages, max_tokens=24, tools=None):
    """A streamed greedy reply: its message, its log-probabilities, its usage, the time to the first token and between tokens."""
    body = {"messages": messages, "temperature": 0, "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    body.update(logprobs=True, top_logprobs=5, chat_template_kwargs={"enable_thinking": False})
    if tools:
        body["tools"] = tools
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"authorization": "Bearer " + KEY})
    text, logprobs, usage, times = "", [], None, []
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                found = (choice.get("logprobs") or {}).get("content") or []
                logprobs += found
                times += [time.perf_counter()] * len(found)
    steps = [later - earlier for earlier, later in zip(times, times[1:])]
    return {
        "message": {"role": "assistant", "content": text},
        "logprobs": logprobs,
        "prompt": usage["prompt_tokens"],
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "first": times[0] - began,
        "step": statistics.median(steps) if steps else None,
    }


def user(text):
    return {"role": "user", "content": text}


def conversation(name, turns=2, url=None):
    """The messages of a conversation after some turns, whose replies the server with the cache gave."""
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(turns):
        messages.append(user(f"Tell me about {name}, part {turn}. " + "Please tell it slowly. " * 20))
        messages.append(chat(url, messages)["message"])
    return messages


def next_turn(url, name):
    return conversation(name, 2, url) + [user("And then?")]


def regenerated(url, name):
    messages = conversation(name, 2, url)[:-1]
    chat(url, messages)
    return messages


def edited(url, name):
    messages = conversation(name, 2, url) + [user("What did the fox say?")]
    chat(url, messages)
    return messages[:-1] + [user("What did the bear say?")]


def tool_results(url, name):
    messages = conversation(name, 1, url) + [user("Look for the moon.")]
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"what": "moon"}'}}
    messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    chat(url, messages + [{"role": "tool", "tool_call_id": "c1", "content": "It is behind the house."}], tools=[TOOL])
    again = {"id": "c2", "type": "function", "function": {"name": "find", "arguments": '{"what": "house"}'}}
    results = [{"role": "tool", "tool_call_id": "c1", "content": "It is behind the house."}]
    return messages + results + [{"role": "assistant", "content": "", "tool_calls": [again]}, {"role": "tool", "tool_call_id": "c2", "content": "By the river."}]


def interleaved(url, name):
    one, other = conversation(name + " the fox", 1, url), conversation(name + " the bear", 1, url)
    one.append(user("And then?"))
    one.append(chat(url, one)["message"])
    other.append(user("And then?"))
    chat(url, other)
    return one + [user("How does it end?")]


def title(url, name):
    messages = conversation(name, 2, url)
    return [messages[0], user("Give this a title: " + messages[1]["content"])]


# What is measured, how it is prepared on the server with the cache, and the share of the prompt that has to come from it.
SCENARIOS = [
    ("next turn", next_turn, 0.9, None),
    ("regenerated reply", regenerated, 1.0, None),
    ("edited last message", edited, 0.9, None),
    ("appended tool results", tool_results, 0.8, [TOOL]),
    ("two interleaved conversations", interleaved, 0.9, None),
    ("side request for a title", title, 0.6, None),
]


def measure(rounds, arguments=()):
    """A row for each scenario, and what was wrong."""
    rows, faults = [], []
    warm, cold = start(*arguments), start("--cache-memory", "0", *arguments)
    try:
        for label, prepare, least, tools in SCENARIOS:
            firsts, colds, steps, reply = [], [], [], None
            for number in range(rounds):
                messages = prepare(warm.url, f"day {number}")
                reply, fresh = chat(warm.url, messages, tools=tools), chat(cold.url, messages, tools=tools)
                if reply["logprobs"] != fresh["logprobs"]:
                    faults.append(f"{label}: differs from a cold run")
                if fresh["cached"] != 0 or reply["cached"] < least * reply["prompt"]:
                    faults.append(f"{label}: {reply['cached']} of {reply['prompt']} tokens cached, {fresh['cached']} without a cache")
                firsts.append(reply["first"])
                colds.append(fresh["first"])
                steps.append(reply["step"])
            step = statistics.median(step for step in steps if step)
            row = {"scenario": label, "prompt_tokens": reply["prompt"], "cached_tokens": reply["cached"]}
            row.update(first_ms=statistics.median(firsts) * 1e3, cold_first_ms=statistics.median(colds) * 1e3, decode_step_ms=step * 1e3)
            rows.append(row)
            if least == 1.0 and row["first_ms"] > 2 * row["decode_step_ms"]:
                faults.append(f"{label}: {row['first_ms']:.1f} ms to the first token, a decode step takes {row['decode_step_ms']:.1f} ms")
    finally:
        stop(warm)
        stop(cold)
    return rows, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rows, faults = measure(parser.parse_args().rounds)
    print("| scenario | prompt, tokens | cached | first token, ms | cold, ms | a decode step, ms |\n|---|---:|---:|---:|---:|---:|")
    for row in rows:
        numbers = f"{row['prompt_tokens']} | {row['cached_tokens']} | {row['first_ms']:.1f} | {row['cold_first_ms']:.1f} | {row['decode_step_ms']:.2f}"
        print(f"| {row['scenario']} | {numbers} |")
    for fault in faults:
        print("fault:", fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
