"""Evaluates a checkpoint with rounded (4-bit) weights: tool calls, small talk, samples, held-out bits per byte.

  evaluate.py --checkpoint DIR --data DIR --template FILE --out FILE [--device cpu|cuda]

DIR is a bf16 checkpoint of train.py, rounded here exactly as the converter does, or a converted MLX checkpoint.
"""

import argparse
import json
import math
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer

import checkpoint
import config as C
import prompts
from chat import render
from generate import generate
from model import Model
from quantize import EffectiveWeights
from rows import Rows, read_tokens
from train import evaluate as mean_loss


BATCH = 100  # prompts at a time
LONGEST = 320  # tokens of a reply


def parse_calls(text, schemas):
    """The calls in a reply as [(name, arguments)]; values are read by the types in the tools' schemas."""
    types = {
        s["function"]["name"]: {n: p["type"] for n, p in s["function"]["parameters"]["properties"].items()}
        for s in schemas
    }
    calls = []
    for body in re.findall(r"<tool_call>\n(.*?)\n?</tool_call>", text, re.DOTALL):
        function = re.fullmatch(r"<function=([^>\n]+)>\n(.*)</function>", body, re.DOTALL)
        if not function:
            return None
        arguments = {}
        for name, value in re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", function[2], re.DOTALL):
            if types.get(function[1], {}).get(name, "string") != "string":
                try:
                    value = json.loads(value)
                except ValueError:
                    return None
            arguments[name] = value
        calls.append((function[1], arguments))
    return calls


def answer(text):
    """The part of a reply after its thought."""
    return text.rpartition("</think>")[2].strip() if "</think>" in text else text.strip()


def run_prompts(weights, tokenizer, template, cases, **sampling):
    """Replies to (messages, tools, thinking) cases, and whether each ended with <|im_end|>."""
    texts = [template(m, tools, generate=True, enable_thinking=thinking) for m, tools, thinking in cases]
    ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    replies, ended = [], []
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        out, end = generate(weights, [ids[i] for i in part], LONGEST, **sampling)
        replies += [tokenizer.decode(o, skip_special_tokens=False) for o in out]
        ended += end
    back = sorted(range(len(order)), key=lambda j: order[j])
    return [replies[j] for j in back], [ended[j] for j in back]


def call_score(weights, tokenizer, template, kind, data, **sampling):
    """Share of held-out requests whose calls all have the right names and arguments."""
    wanted = prompts.tool_prompts(kind, data)
    replies, ended = run_prompts(weights, tokenizer, template, [c[:3] for c in wanted], **sampling)
    wrong = [
        [messages[-1]["content"], calls, reply]
        for (messages, tools, _, calls), reply in zip(wanted, replies)
        if parse_calls(reply, tools) != calls
    ]
    return {"right calls": 1 - len(wrong) / len(wanted), "ended with <|im_end|>": sum(ended) / len(ended)}, wrong


def silence_score(weights, tokenizer, template, kind, data, absent, **sampling):
    """Share of held-out questions that no tool serves and that get an answer without a call."""
    cases = prompts.no_tool_prompts(kind, data, absent)
    replies, ended = run_prompts(weights, tokenizer, template, cases, **sampling)
    wrong = [[c[0][-1]["content"], None, r] for c, r in zip(cases, replies) if "<tool_call>" in r]
    return {"no call": 1 - len(wrong) / len(cases), "ended with <|im_end|>": sum(ended) / len(ended)}, wrong


def bits_per_byte(weights, data, device):
    """Of the held-out works, in windows of 1,024 tokens that start with no context."""
    codes = read_tokens(Path(data) / "books.heldout.bin")
    rows = Rows(codes, False, 1024, device)
    windows = len(codes) // rows.length
    nats = mean_loss(Model(), weights, rows, limit=windows)
    report = json.loads((Path(data) / "report.json").read_text())["books.heldout"]
    return {"nats a token": nats, "bits a byte": nats / math.log(2) / report["bytes a token"], "windows": windows}


def load_weights(folder, device, rounded):
    params = {k: v.to(device) for k, v in checkpoint.load(folder).items()}
    with torch.no_grad():
        return EffectiveWeights(params, torch.float32)(rounded)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--template", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="only greedy scores of absent and known tools, samples and text")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(Path(args.data) / "tokenizer.json"))
    template = render.compile_template(args.template)
    converted = (Path(args.checkpoint) / "config.json").exists()
    torch.set_float32_matmul_precision("highest")
    weights = load_weights(args.checkpoint, args.device, not converted)
    report = {"checkpoint": "converted" if converted else "rounded as the converter does"}
    common = (weights, tokenizer, template)
    wrong = []

    def note(name, result):
        report[name] = result[0]
        wrong.extend(result[1])
        print(name, result[0], flush=True)

    settings = {k: C.generation_config()[k] for k in ("temperature", "top_k", "top_p")}
    note("requests for an absent tool", silence_score(*common, "known", args.data, True))
    note("known tools", call_score(*common, "known", args.data))
    if not args.quick:
        note("small talk beside tools", silence_score(*common, "known", args.data, False))
        note("requests for an absent tool, sampled", silence_score(*common, "known", args.data, True, seed=2, **settings))
        note("known tools, sampled", call_score(*common, "known", args.data, seed=2, **settings))
        note("unseen tools", call_score(*common, "unseen", args.data))
    report["samples"] = []
    for thinking in (True, False):
        cases = [([{"role": "user", "content": q}], None, thinking) for q in prompts.SAMPLES]
        replies, ended = run_prompts(weights, tokenizer, template, cases, seed=1, **settings)
        report["samples"] += [[q, thinking, r, e] for q, r, e in zip(prompts.SAMPLES, replies, ended)]
    report["held-out, 4-bit"] = bits_per_byte(weights, args.data, args.device)
    if not converted and not args.quick:
        plain = load_weights(args.checkpoint, args.device, False)
        report["held-out, bf16"] = bits_per_byte(plain, args.data, args.device)
    report["wrong"] = wrong
    Path(args.out).write_text(json.dumps(report, indent=1, ensure_ascii=False))
    print(json.dumps({k: v for k, v in report.items() if k != "wrong"}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
