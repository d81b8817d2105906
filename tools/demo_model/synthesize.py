"""Generates the synthetic conversations, on all cores.

  synthesize.py --data DIR --template FILE [--tools N] [--chats N] [--workers N] [--seed N] [--out DIR]

DIR is what prepare.py wrote. Adds synthetic.bin and synthetic.heldout.bin (held-out words and tools only), and their
counts to synthetic.json. The result depends on the seed and the counts only, not on the number of workers.
"""

import argparse
import json
import multiprocessing
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are processes

from tokenizers import Tokenizer  # noqa: E402

from chat import conversations, render, words  # noqa: E402
from prepare import code_chats, write_chats  # noqa: E402

BATCH = 1000  # conversations of one seed


def start_worker(data, template_path):
    global template, tokenizer
    words.COMMON[:] = json.loads((Path(data) / "common_words.json").read_text())
    template = render.compile_template(template_path)
    tokenizer = Tokenizer.from_file(str(Path(data) / "tokenizer.json"))


def make_batch(job):
    seed, held, kind, count = job
    source = words.Source(seed, held)
    make = conversations.tool_chat if kind == "tools" else conversations.plain_chat
    made = (make(source) for _ in range(count))
    return list(code_chats(tokenizer, [template(messages, tools) for messages, tools, _ in made]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--template", required=True)
    parser.add_argument("--out", help="where to write (default: --data)")
    parser.add_argument("--tools", type=int, default=200_000, help="conversations with tools")
    parser.add_argument("--chats", type=int, default=200_000, help="conversations without")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    out = Path(args.out or args.data)
    jobs = {"synthetic": [], "synthetic.heldout": []}
    for kind, total in (("tools", args.tools), ("chats", args.chats)):
        for i in range(0, total, BATCH):
            seed = f"{args.seed} {kind} {i}"
            jobs["synthetic"].append((seed, False, kind, min(BATCH, total - i)))
        jobs["synthetic.heldout"].append((f"{args.seed} {kind} held out", True, kind, max(20, total // 400)))
    report = {}
    with multiprocessing.get_context("spawn").Pool(args.workers, start_worker, (args.data, args.template)) as pool:
        for name in ("synthetic.heldout", "synthetic"):
            parts = [p for batch in pool.map(make_batch, jobs[name], chunksize=1) for p in batch]
            report[name] = write_chats(out, name, parts)
    (out / "synthetic.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
