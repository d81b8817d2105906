#!/usr/bin/env python3
"""Many mixed requests from several clients at once, a fifth of them aborted, against a running `lily serve`.

    target/release/lily serve --port 8080 --cache-memory 200MB --cache-dir /tmp/states --cache-dir-size 300MB &
    tests/clients/soak.py http://127.0.0.1:8080 --requests 2000 --clients 8 --minutes 10

The requests are spread over the minutes. Beside the clients, one reads its reply at a byte a second all the time. Every finished reply is checked;
greedy requests are made again and again, and each reply must be the first one's. At the end nothing may run or wait any more, and the memory of the
last minute (its median) may not be more than 2 % above that of the second one; the caches, which grow until they are full, have to be small enough
to be full by then. Exits with 1 where anything is wrong.
"""

import argparse
import http.client
import json
import random
import socket
import statistics
import sys
import threading
import time
import urllib.parse

WORDS = "fox bear river moon house friend night story little happy old tree song".split()
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "properties": {"what": {"enum": WORDS}}, "required": ["what"]},
    },
}


class Soak:
    def __init__(self, url, requests, key, minutes):
        self.place = urllib.parse.urlparse(url).netloc
        self.headers = {"content-type": "application/json"}
        if key:
            self.headers["authorization"] = f"Bearer {key}"
        self.left = requests
        self.pace = minutes * 60 / requests
        self.began = time.monotonic()
        self.sent = 0
        self.ended = False
        self.lock = threading.Lock()
        self.faults = []
        self.counts = {"finished": 0, "aborted": 0, "refused": 0, "slow_bytes": 0}
        self.greedy = {}

    def post(self, path, body):
        connection = http.client.HTTPConnection(self.place, timeout=300)
        connection.request("POST", path, json.dumps(body), self.headers)
        return connection, connection.getresponse()

    def get(self, path):
        connection = http.client.HTTPConnection(self.place, timeout=60)
        connection.request("GET", path, headers=self.headers)
        with connection.getresponse() as response:
            return json.load(response)

    def client(self, seed):
        rng = random.Random(seed)
        history = []
        while True:
            with self.lock:
                if self.left == 0:
                    return
                self.left -= 1
                due = self.began + self.sent * self.pace
                self.sent += 1
            time.sleep(max(0, due - time.monotonic()))
            try:
                history = self.one(rng, history)
            except Exception as error:  # noqa: BLE001: whatever it is, it is a fault to report
                self.faults.append(f"{type(error).__name__}: {error}")

    def one(self, rng, history):
        kind = rng.choice(["chat", "chat", "chat", "greedy", "tool", "json", "raw"])
        text = " ".join(rng.choices(WORDS, k=rng.randint(2, 60)))
        stream = rng.random() < 0.5
        if kind == "raw":
            self.raw(rng, text)
            return history
        history = history if rng.random() < 0.7 and len(history) < 12 else []
        messages = [*history, {"role": "user", "content": text}]
        body = {"messages": messages, "max_tokens": rng.randint(1, 60), "stream": stream, "stream_options": {"include_usage": True}}
        body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.3}
        if kind == "greedy":
            body.update(temperature=0, messages=[{"role": "user", "content": rng.choice(WORDS)}], max_tokens=24)
            body["chat_template_kwargs"] = {"enable_thinking": False}
        if kind == "tool":
            body.update(tools=[TOOL], tool_choice="required", max_tokens=120, parallel_tool_calls=False)
            body["chat_template_kwargs"] = {"enable_thinking": False}
        if kind == "json":
            schema = {"type": "object", "properties": {"word": {"enum": WORDS}}, "required": ["word"], "additionalProperties": False}
            body.update(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, max_tokens=80)
            body["chat_template_kwargs"] = {"enable_thinking": False}
        connection, response = self.post("/v1/chat/completions", body)
        if response.status == 503:
            self.count("refused")
            time.sleep(0.2)
            return history
        if rng.random() < 0.2:
            # In the midst of the reply, or before it.
            for _ in range(rng.randint(1, 8) if stream else 0):
                response.read1(400)
            connection.close()
            self.count("aborted")
            return history
        assert response.status == 200, response.read()
        message, finish, usage = (read_stream if stream else read_whole)(response)
        connection.close()
        self.check(kind, body, message, finish, usage)
        self.count("finished")
        return [*messages, message] if kind == "chat" else history

    def slow_reader(self):
        """Reads a long reply at a byte a second, and starts over when it is through or the server is."""
        host, port = self.place.split(":")
        body = json.dumps({"messages": [{"role": "user", "content": "Tell me everything."}], "stream": True, "max_tokens": 400}).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        while not self.ended:
            with socket.create_connection((host, int(port))) as connection:
                # A small window, so that the server has to hold what is not read.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                request = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self.place}\r\n{head}content-length: {len(body)}\r\n\r\n"
                connection.sendall(request.encode() + body)
                while not self.ended and connection.recv(1):
                    self.counts["slow_bytes"] += 1
                    time.sleep(1)

    def raw(self, rng, text):
        body = {"prompt": text, "max_tokens": rng.randint(0, 20), "echo": True, "logprobs": 1}
        connection, response = self.post("/v1/completions", body)
        reply = json.load(response)
        connection.close()
        if response.status == 503:
            return self.count("refused")
        assert response.status == 200, reply
        choice = reply["choices"][0]
        assert choice["text"].startswith(text)
        assert len(choice["logprobs"]["tokens"]) >= reply["usage"]["prompt_tokens"]
        self.count("finished")

    def check(self, kind, body, message, finish, usage):
        assert finish in ("stop", "length", "tool_calls"), finish
        assert 0 < usage["completion_tokens"] <= body["max_tokens"], usage
        assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
        if kind == "greedy":
            word = body["messages"][0]["content"]
            first = self.greedy.setdefault(word, message["content"])
            assert message["content"] == first, f"{word}: {message['content']!r} after {first!r}"
        if kind == "tool" and finish != "length":
            [call] = message["tool_calls"]
            assert json.loads(call["function"]["arguments"])["what"] in WORDS
        if kind == "json" and finish != "length":
            assert json.loads(message["content"])["word"] in WORDS

    def count(self, what):
        with self.lock:
            self.counts[what] += 1


def read_whole(response):
    reply = json.load(response)
    choice = reply["choices"][0]
    return choice["message"], choice["finish_reason"], reply["usage"]


def read_stream(response):
    message, finish, usage, done = {"role": "assistant", "content": ""}, None, None, False
    for line in response:
        line = line.decode().strip()
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                finish = choice["finish_reason"] or finish
                delta = choice["delta"]
                message["content"] += delta.get("content") or ""
                if delta.get("reasoning_content"):
                    message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
                for part in delta.get("tool_calls") or []:
                    calls = message.setdefault("tool_calls", [])
                    if "id" in part:
                        calls.append({"id": part["id"], "type": "function", "function": {"name": part["function"]["name"], "arguments": ""}})
                    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    assert done, "the stream broke off"
    return message, finish, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--key")
    arguments = parser.parse_args()
    soak = Soak(arguments.url, arguments.requests, arguments.key, arguments.minutes)
    threads = [threading.Thread(target=soak.client, args=(seed,), daemon=True) for seed in range(arguments.clients)]
    slow = threading.Thread(target=soak.slow_reader, daemon=True)
    for thread in [*threads, slow]:
        thread.start()
    memory = []
    while any(thread.is_alive() for thread in threads):
        time.sleep(1)
        memory.append((time.monotonic() - soak.began, soak.get("/status")["resident_memory_bytes"]))
    seconds = time.monotonic() - soak.began
    soak.ended = True
    slow.join(timeout=5)
    deadline = time.monotonic() + 30
    while (status := soak.get("/status"))["engine"]["running"] + status["engine"]["waiting"] > 0:
        if time.monotonic() > deadline:
            soak.faults.append(f"still running: {status['engine']}")
            break
        time.sleep(0.1)
    early = [bytes for at, bytes in memory if 60 <= at < 120]
    late = [bytes for at, bytes in memory if at >= seconds - 60]
    grown = statistics.median(late) / statistics.median(early) - 1 if early else None
    if grown is None:
        soak.faults.append("too short to tell how memory grows")
    elif grown > 0.02:
        soak.faults.append(f"memory grew by {grown:.1%}")
    print(json.dumps({**soak.counts, "seconds": round(seconds, 1), "memory_growth": grown and round(grown, 4), "engine": status["engine"]}))
    for fault in soak.faults[:20]:
        print("fault:", fault)
    sys.exit(1 if soak.faults else 0)


if __name__ == "__main__":
    main()
