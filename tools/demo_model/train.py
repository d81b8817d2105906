"""Trains the demo model for a given number of seconds and writes bf16 checkpoints and a log.

  train.py --data DIR --out DIR --seconds N [--resume] [--first SHARES] [--last SHARES] ...

DIR holds books, borrowed (conversations of the corpora), chats and tools (generated ones), each with a held-out part, as
.bin or .bin.xz: see prepare.py and synthesize.py. The schedule is a function of elapsed training time, so a run of any
length ends with the learning rate at zero and its files written. Every few minutes a checkpoint and the whole state go to
--out; --resume goes on from there, perhaps with other shares of the data.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import checkpoint
from config import ENDOFTEXT
from model import Model, initial_weights
from optim import Optimizer
from quantize import EffectiveWeights
from rows import Mixture, Rows, read_tokens, split

KINDS = ("books", "borrowed", "chats", "tools")


def learning_rate(x, args):
    """Warm up, hold, then fall linearly to zero; x is the fraction of the time that has passed."""
    if x < args.warmup:
        return args.peak_lr * x / args.warmup
    return args.peak_lr * min(1.0, max(0.0, (1 - x) / args.decay))


def shares(text):
    """'books=0.4,tools=0.6' -> the share of each kind in a batch."""
    out = {kind: float(share) for kind, share in (part.split("=") for part in text.split(","))}
    if set(out) - set(KINDS) or abs(sum(out.values()) - 1) > 1e-6:
        raise argparse.ArgumentTypeError(f"expected shares of {', '.join(KINDS)} that add up to 1, found {text}")
    return out


@torch.no_grad()
def evaluate(model, weights, rows, limit=24):
    """Mean loss over the held-out rows' learned tokens, in nats a token."""
    count = min(limit, len(rows.codes) // rows.length)
    total = tokens = 0.0
    for start in range(0, count, 8):
        starts = torch.arange(start, min(start + 8, count), device=rows.device) * rows.length
        ids, targets, weight = split(rows.at(starts))
        weight = (weight >= 1.0).float()
        loss, _ = model.loss(weights, ids, targets)
        total += (loss * weight).sum().item()
        tokens += weight.sum().item()
    return total / max(tokens, 1)


class Step:
    """One step of training on a fixed batch buffer; on a GPU recorded once as a graph and then replayed, because the
    thousands of small operations of a step take longer to launch than to run."""

    def __init__(self, model, effective, optimizer, codes, graphs):
        self.model, self.effective, self.optimizer, self.codes = model, effective, optimizer, codes
        self.graphs, self.pool = graphs, None
        self.recorded = {}

    def work(self, quantized):
        ids, targets, weight = split(self.codes)
        loss, balance = self.model.loss(self.effective(quantized), ids, targets)
        loss = (loss * weight).sum() / weight.sum()
        (loss + 0.01 * balance).backward()
        return loss.detach(), balance.detach(), self.optimizer.step()

    def prepare(self):
        """Compiles and records, on any batch and with a learning rate of zero."""
        self.optimizer.rate.fill_(0.0)
        for quantized in (True, False):
            if not self.graphs:
                self.work(quantized)
                continue
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.work(quantized)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                out = self.work(quantized)
            self.pool = graph.pool()
            self.recorded[quantized] = (graph, out)

    def __call__(self, codes, lr, quantized):
        """Loss, load-balance loss and gradient norm, as tensors that the next step may overwrite."""
        self.codes.copy_(codes)
        self.optimizer.rate.fill_(lr)
        if not self.graphs:
            return self.work(quantized)
        graph, out = self.recorded[quantized]
        graph.replay()
        return out


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of training, in all runs together")
    parser.add_argument("--resume", action="store_true", help="go on from the state in --out")
    parser.add_argument("--from", dest="start", help="a checkpoint to begin from, without its optimizer's state")
    parser.add_argument("--save-every", type=float, default=150, help="seconds between checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--row", type=int, default=1536, help="tokens in a row")
    parser.add_argument("--batch", type=int, default=54, help="rows a step")
    parser.add_argument("--peak-lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=float, default=0.02)
    parser.add_argument("--decay", type=float, default=0.6, help="fraction of the time over which the rate falls")
    parser.add_argument("--quantized", type=float, default=0.25, help="last fraction of the time with rounded weights")
    parser.add_argument("--first", type=shares, default="books=0.5,borrowed=0.04,chats=0.11,tools=0.35")
    parser.add_argument("--last", type=shares, default="books=0.25,borrowed=0.05,chats=0.15,tools=0.55")
    parser.add_argument("--change", type=float, default=0.4, help="fraction of the time after which --last holds")
    parser.add_argument("--wait", type=int, default=0, help="seconds to wait for data that is still being made")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--no-graphs", action="store_true", help="do not record the step as a CUDA graph")
    return parser.parse_args()


def main():
    args = arguments()
    started = time.time()
    device, out, data = args.device, Path(args.out), Path(args.data)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    generator = torch.Generator(device).manual_seed(args.seed)
    start = checkpoint.load(args.start) if args.start else initial_weights(args.seed)
    params = {n: w.to(device).requires_grad_() for n, w in start.items()}
    count = sum(p.numel() for p in params.values())
    print(f"{count:,} parameters", flush=True)
    model, effective = Model(not args.eager), EffectiveWeights(params, torch.bfloat16 if device == "cuda" else torch.float32, not args.eager)
    optimizer = Optimizer(params)
    log = {"args": [], "parameters": count, "steps": [], "heldout": [], "tokens": 0, "seconds": 0.0}
    if args.resume:
        state = torch.load(out / "state.pt", map_location=device)
        with torch.no_grad():
            for n, p in params.items():
                p.copy_(state["params"][n])
        optimizer.load(state["optimizer"])
        log = state["log"]
        generator.manual_seed(args.seed + len(log["args"]))
    log["args"].append(vars(args))
    step, tokens, passed = (log["steps"][-1][0] if log["steps"] else 0), log["tokens"], log["seconds"]

    def measure():
        w = {n: v.detach() for n, v in effective(True).items()}
        entry = {"step": step, "tokens": tokens}
        # The uncompiled model: other shapes would be compiled anew.
        entry.update({n: round(evaluate(Model(), w, rows), 4) for n, rows in held.items()})
        log["heldout"].append(entry)
        print(entry, flush=True)

    def save():
        log.update(tokens=tokens, seconds=time.time() - clock)
        checkpoint.save(params, out)
        (out / "log.json").write_text(json.dumps(log))
        torch.save({"params": params, "optimizer": optimizer.state(), "log": log}, out / "state.part")
        (out / "state.part").rename(out / "state.pt")

    codes = torch.randint(0, ENDOFTEXT, (args.batch, args.row + 1), generator=generator, device=device, dtype=torch.int32)
    take = Step(model, effective, optimizer, codes, device == "cuda" and not args.no_graphs)
    kept = optimizer.state(copy=True)
    take.prepare()
    optimizer.load(kept)
    print(f"compiled after {time.time() - started:.1f} s", flush=True)
    kinds = {n: Rows(read_tokens(data / f"{n}.bin", args.wait), n != "books", args.row, device, args.seed) for n in KINDS}
    held = {n: Rows(read_tokens(data / f"{n}.heldout.bin"), n != "books", args.row, device) for n in KINDS}
    print({n: f"{len(r.codes):,}" for n, r in kinds.items()}, f"tokens with padding; ready after {time.time() - started:.1f} s", flush=True)
    mixture = Mixture(kinds, args.batch)
    clock = time.time() - passed
    saved, first, last_line = time.time(), time.time(), tokens
    while (x := (time.time() - clock) / args.seconds) < 1:
        quantized = x >= 1 - args.quantized
        lr = learning_rate(x, args)
        loss, balance, norm = take(mixture.draw(args.first if x < args.change else args.last, generator), lr, quantized)
        step += 1
        tokens += args.batch * args.row
        if step % 20 == 0:
            record = [step, tokens, round(loss.item(), 4), round(balance.item(), 3), round(norm.item(), 3), lr]
            log["steps"].append(record)
            if step % 100 == 0:
                speed = (tokens - last_line) / (time.time() - first)
                print(record, f"{time.time() - clock:.0f} s {speed:,.0f} tok/s", flush=True)
        if time.time() - saved > args.save_every:
            measure()
            save()
            saved = time.time()
    measure()
    save()
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB, " if device == "cuda" else ""
    print(f"finished: {step} steps, {tokens:,} tokens, {memory}all in {time.time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
