"""Trains the demo model for a given number of seconds and writes a bf16 checkpoint and a log.

  train.py --data DIR --out DIR --seconds N [--from CHECKPOINT] [--peak-lr X] ...

DIR holds books, borrowed (conversations of the corpora) and synthetic (generated ones), each with a held-out part, as
.bin or .bin.xz: see prepare.py and synthesize.py. The schedule is a function of elapsed time, so a run of any length
ends with the learning rate at zero and its files written.
"""

import argparse
import json
import lzma
import time
from pathlib import Path

import numpy as np
import torch

import checkpoint
from config import ENDOFTEXT
from model import Model, initial_weights
from optim import Optimizer
from quantize import EffectiveWeights

ID_BITS = 0x0FFF
REPLY = 0x8000  # set on tokens that the assistant writes (and on all of a book)
PADDING = 0x4000
PROMPT_WEIGHT = 0.03  # weight in the loss of what the user or the template writes


def read_tokens(path, wait=0):
    """The codes of one file; `wait` seconds at most for a file that is still being made."""
    path, packed = Path(path), Path(f"{path}.xz")
    for _ in range(wait * 10):
        if path.exists() or packed.exists():
            break
        time.sleep(0.1)
    if path.exists():
        return np.fromfile(path, dtype=np.uint16)
    return np.frombuffer(lzma.open(packed).read(), dtype=np.uint16)


def read_kind(data, kind, part="", wait=0):
    names = ("books",) if kind == "books" else ("borrowed", "synthetic")
    return np.concatenate([read_tokens(data / f"{n}{part}.bin", wait) for n in names])


def pack(codes, row, seed):
    """Whole conversations, in random order, in rows of `row` + 1 tokens; short ones fill what long ones leave."""
    ends = np.flatnonzero((codes & ID_BITS) == ENDOFTEXT) + 1
    starts = np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    order = np.random.default_rng(seed).permutation(len(ends))
    order = order[lengths[order] <= row + 1]
    long = [i for i in order if lengths[i] > row // 8]
    short = [i for i in order if lengths[i] <= row // 8]
    rows = []
    while long or short:
        current = np.full(row + 1, ENDOFTEXT | PADDING, dtype=np.uint16)
        used = 0
        for queue in (long, short):
            while queue and used + lengths[queue[-1]] <= row + 1:
                i = queue.pop()
                current[used : used + lengths[i]] = codes[starts[i] : ends[i]]
                used += lengths[i]
        rows.append(current)
    return np.concatenate(rows)


class Rows:
    """Rows of `row` + 1 coded tokens on the device: whole packed conversations, or slices of the books at any offset."""

    def __init__(self, codes, packed, row, device, seed=0):
        if packed:
            codes = pack(codes, row, seed)
        self.codes = torch.from_numpy(codes.astype(np.int32)).to(device)
        self.packed, self.device, self.length = packed, device, row + 1
        self.order, self.used = None, 0
        self.offset = torch.arange(row + 1, device=device)

    def starts(self, count, generator):
        if not self.packed:
            return torch.randint(0, len(self.codes) - self.length, (count,), generator=generator, device=self.device)
        rows = len(self.codes) // self.length
        if self.order is None or self.used + count > rows:
            self.order, self.used = torch.randperm(rows, generator=generator, device=self.device), 0
        self.used += count
        return self.order[self.used - count : self.used] * self.length

    def at(self, starts):
        return self.codes[starts[:, None] + self.offset]


def split(codes):
    """Coded rows [B, T + 1] -> inputs, targets, loss weights [B, T]."""
    ids = (codes & ID_BITS).long()
    weight = torch.where((codes & REPLY) > 0, 1.0, PROMPT_WEIGHT)
    weight = torch.where((codes & PADDING) > 0, 0.0, weight)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weight[:, 1:].contiguous()


def learning_rate(x, args):
    """Warm up, hold, then fall linearly to zero; x is the fraction of the time that has passed."""
    if x < args.warmup:
        return args.peak_lr * x / args.warmup
    return args.peak_lr * min(1.0, max(0.0, (1 - x) / args.decay))


@torch.no_grad()
def evaluate(model, weights, rows, limit=32):
    """Mean loss over the held-out rows' weighted tokens, in nats a token."""
    count = min(limit, len(rows.codes) // rows.length)
    total = tokens = 0.0
    for start in range(0, count, 16):
        starts = torch.arange(start, min(start + 16, count), device=rows.device) * rows.length
        ids, targets, weight = split(rows.at(starts))
        if rows.packed:
            weight = (weight == 1.0).float()
        loss, _ = model.loss(weights, ids, targets)
        total += (loss * weight).sum().item()
        tokens += weight.sum().item()
    return total / max(tokens, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--from", dest="start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--row", type=int, default=1024, help="tokens in a row")
    parser.add_argument("--batch", type=int, default=128, help="rows a step")
    parser.add_argument("--peak-lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=float, default=0.02)
    parser.add_argument("--decay", type=float, default=0.5, help="fraction of the time over which the rate falls")
    parser.add_argument("--quantized", type=float, default=0.25, help="last fraction of the time with rounded weights")
    parser.add_argument("--chat-first", type=float, default=0.5, help="share of chat rows at the start")
    parser.add_argument("--chat-last", type=float, default=0.75, help="share of chat rows once weights are rounded")
    parser.add_argument("--wait", type=int, default=0, help="seconds to wait for data that is still being made")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    args = parser.parse_args()
    started = time.time()
    device = "cuda"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    generator = torch.Generator(device).manual_seed(args.seed)
    data = Path(args.data)
    weights = checkpoint.load(args.start) if args.start else initial_weights(args.seed)
    params = {n: w.to(device).requires_grad_() for n, w in weights.items()}
    print(f"{sum(p.numel() for p in params.values()):,} parameters")
    model, effective = Model(not args.eager), EffectiveWeights(params, torch.bfloat16, not args.eager)
    optimizer = Optimizer(params)
    log = {"args": vars(args), "parameters": sum(p.numel() for p in params.values()), "steps": [], "heldout": []}

    def measure(step, tokens):
        for quantized in (False, True):
            w = {n: v.detach() for n, v in effective(quantized).items()}
            entry = {"step": step, "tokens": tokens, "quantized": quantized}
            # The uncompiled model: other shapes would be compiled anew.
            entry.update({n: round(evaluate(Model(), w, rows), 4) for n, rows in held.items()})
            log["heldout"].append(entry)
            print(entry, f"at {time.time() - started:.0f} s", flush=True)

    # Compile for both kinds of weights before the clock of the schedule starts.
    for quantized in (True, False):
        codes = torch.randint(0, ENDOFTEXT, (args.batch, args.row + 1), generator=generator, device=device)
        ids, targets, _ = split(codes)
        loss, balance = model.loss(effective(quantized), ids, targets)
        (loss.mean() + balance).backward()
        for p in params.values():
            p.grad = None
    torch.cuda.synchronize()
    print(f"compiled after {time.time() - started:.1f} s", flush=True)
    books, chat = (
        Rows(read_kind(data, n, wait=args.wait), n == "chat", args.row, device, args.seed) for n in ("books", "chat")
    )
    held = {n: Rows(read_kind(data, n, ".heldout"), n == "chat", args.row, device) for n in ("books", "chat")}
    print(f"books {len(books.codes):,} tokens, chat {len(chat.codes):,} with padding", flush=True)
    clock = time.time()
    budget = max(1.0, args.seconds - (clock - started))
    print(f"ready after {clock - started:.1f} s; training for {budget:.0f} s", flush=True)
    step = tokens = 0
    next_measure = 0.5
    while (x := (time.time() - clock) / budget) < 1:
        quantized = x >= 1 - args.quantized
        share = args.chat_last if quantized else args.chat_first
        n_chat = round(args.batch * share)
        codes = torch.cat(
            [chat.at(chat.starts(n_chat, generator)), books.at(books.starts(args.batch - n_chat, generator))]
        )
        ids, targets, weight = split(codes)
        loss, balance = model.loss(effective(quantized), ids, targets)
        loss = (loss * weight).sum() / weight.sum()
        (loss + 0.01 * balance).backward()
        lr = learning_rate(x, args)
        norm = optimizer.step(lr)
        step += 1
        tokens += ids.numel()
        if step % 20 == 0:
            record = [step, tokens, round(loss.item(), 4), round(balance.item(), 3), round(norm.item(), 3), lr, share]
            log["steps"].append(record)
            if step % 100 == 0:
                print(record, f"{time.time() - clock:.0f} s {tokens / (time.time() - clock):,.0f} tok/s", flush=True)
        if x > next_measure:
            measure(step, tokens)
            next_measure += 0.5
    measure(step, tokens)
    log.update(tokens=tokens, seconds=time.time() - clock, memory_gib=torch.cuda.max_memory_allocated() / 2**30)
    checkpoint.save(params, args.out)
    Path(args.out, "log.json").write_text(json.dumps(log))
    print(f"{step} steps, {tokens:,} tokens, {log['memory_gib']:.0f} GiB, all in {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
