"""The tool prompts of evaluate.py asked of a running server: quicker on a CPU, and through the whole engine.

  evaluate_served.py --url http://127.0.0.1:8080 --data DIR --out FILE [--count N] [--strict]

--strict sets `strict` in every tool, which has the server hold the calls to the tools' schemas.
"""

import argparse
import json
import urllib.request
from pathlib import Path

import config as C
import prompts

LONGEST = 320  # tokens of a reply


class Server:
    def __init__(self, url, strict):
        self.url, self.strict = url, strict
        with urllib.request.urlopen(f"{url}/v1/models") as reply:
            self.model = json.load(reply)["data"][0]["id"]

    def reply(self, messages, tools, thinking, **sampling):
        """The calls as [(name, arguments)], the text, and whether the model ended its turn."""
        if self.strict:
            tools = [{**t, "function": {**t["function"], "strict": True}} for t in tools]
        body = {"model": self.model, "messages": messages, "tools": tools, "max_tokens": LONGEST}
        body |= {"chat_template_kwargs": {"enable_thinking": thinking}, "temperature": 0, **sampling}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            choice = json.load(reply)["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
        return calls, choice["message"].get("content"), choice["finish_reason"] in ("stop", "tool_calls")


def score(server, cases, **sampling):
    """Cases are (messages, tools, thinking, expected calls)."""
    wrong, ended = [], 0
    for number, (messages, tools, thinking, expected) in enumerate(cases):
        calls, text, whole = server.reply(messages, tools, thinking, **{k: v + (number if k == "seed" else 0) for k, v in sampling.items()})
        ended += whole
        if calls != expected:
            wrong.append([messages[-1]["content"], expected, calls, text, thinking])
    return {"right": 1 - len(wrong) / len(cases), "ended its turn": ended / len(cases), "wrong": wrong}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=200, help="prompts with calls; half as many without")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    server = Server(args.url, args.strict)
    settings = {k: C.generation_config()[k] for k in ("temperature", "top_k", "top_p")} | {"seed": 1000}
    known = prompts.tool_prompts("known", args.data, args.count)
    absent, talk = ([(*c, []) for c in prompts.no_tool_prompts("known", args.data, a, args.count // 2)] for a in (True, False))
    unseen = prompts.tool_prompts("unseen", args.data, args.count)
    report = {}
    for name, cases, sampling in (
        ("known tools", known, {}), ("requests for an absent tool", absent, {}), ("small talk beside tools", talk, {}),
        ("unseen tools", unseen, {}), ("known tools, sampled", known, settings), ("requests for an absent tool, sampled", absent, settings),
    ):  # fmt: skip
        report[name] = score(server, cases, **sampling)
        print(name, {k: v for k, v in report[name].items() if k != "wrong"}, flush=True)
        Path(args.out).write_text(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
