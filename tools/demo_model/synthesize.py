"""Generates the synthetic conversations, on all cores.

  synthesize.py --data DIR --template FILE [--tools N] [--chats N] [--hard SHARE] [--workers N] [--seed N] [--out DIR]

DIR is what prepare.py wrote. Adds tools.bin and chats.bin, tools.heldout.bin and chats.heldout.bin (held-out names,
places, words and sentences only), and their counts in synthetic.json. The result depends on the seed and the counts only,
not on the number of workers.
"""

import argparse
import json
import multiprocessing
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are processes

import numpy as np  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from chat import conversations, render, words  # noqa: E402
from prepare import code_chats, write_chats  # noqa: E402
from codes import CALL, ID_BITS, REPLY, TOOLS  # noqa: E402
from config import TOKEN_ID  # noqa: E402

BATCH = 1000  # conversations of one seed


def start_worker(data, template_path):
    global template, tokenizer
    words.load(json.loads((Path(data) / "words.json").read_text()))
    template = render.compile_template(template_path)
    tokenizer = Tokenizer.from_file(str(Path(data) / "tokenizer.json"))


def mark_calls(codes):
    """Sets CALL on the calls, from <tool_call> to </tool_call>."""
    ids = codes & ID_BITS
    inside = np.cumsum(ids == TOKEN_ID["<tool_call>"]) > np.cumsum(ids == TOKEN_ID["</tool_call>"])
    codes[(inside | (ids == TOKEN_ID["</tool_call>"])) & (codes & REPLY > 0)] |= CALL


def make_batch(job):
    seed, held, hard, kind, count = job
    source = words.Source(seed, held, hard=hard)
    make = conversations.tool_chat if kind == "tools" else conversations.plain_chat
    texts = []
    for _ in range(count):
        messages, tools, _ = make(source)
        # The template drops the thoughts of earlier turns; half of the conversations keep them, to learn from them all.
        texts.append(template(messages, tools, preserve_thinking=source.chance(0.5)))
    coded = list(code_chats(tokenizer, texts))
    if kind == "tools":
        for codes in coded:
            codes[codes & REPLY > 0] |= TOOLS
            mark_calls(codes)
    return coded


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--template", required=True)
    parser.add_argument("--out", help="where to write (default: --data)")
    parser.add_argument("--tools", type=int, default=300_000, help="conversations with tools")
    parser.add_argument("--chats", type=int, default=200_000, help="conversations without")
    parser.add_argument("--hard", type=float, default=0.0, help="share of those with tools that have more odd names and more requests for two tools")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    out = Path(args.out or args.data)
    out.mkdir(parents=True, exist_ok=True)
    report = {}
    with multiprocessing.get_context("spawn").Pool(args.workers, start_worker, (args.data, args.template)) as pool:
        for kind, total in (("chats", args.chats), ("tools", args.tools)):
            held = [(f"{args.seed} {kind} held out", True, False, kind, max(20, total // 400))]
            easy = total if kind == "chats" else round(total * (1 - args.hard))
            train = [(f"{args.seed} {kind} {i}", False, i >= easy, kind, min(BATCH, total - i)) for i in range(0, total, BATCH)]
            for name, jobs in ((f"{kind}.heldout", held), (kind, train)):
                parts = [p for batch in pool.imap(make_batch, jobs) for p in batch]
                report[name] = write_chats(out, name, parts)
    (out / "synthetic.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
