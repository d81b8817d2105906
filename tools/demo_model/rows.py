"""The rows of tokens that training draws from the token files."""

import bisect
import lzma
import time
from pathlib import Path

import numpy as np
import torch

from codes import CALL, ID_BITS, PADDING, REPLY, TOOLS
from config import ENDOFTEXT

TOOLS_WEIGHT = 2.0  # weight of that in the loss: few tokens of such a conversation are to be learned
CALL_WEIGHT = 4.0  # a call is right only if all of its names and values are
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


def pack(codes, row, seed, pool=2000):
    """Whole conversations, in random order, in rows of `row` + 1 tokens: each row is filled with the longest that fits
    of `pool` waiting ones."""
    ends = np.flatnonzero((codes & ID_BITS) == ENDOFTEXT) + 1
    starts = np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    order = np.random.default_rng(seed).permutation(np.flatnonzero(lengths <= row + 1)).tolist()
    waiting = []  # (length, conversation), sorted
    rows = []
    while order or waiting:
        while order and len(waiting) < pool:
            i = order.pop()
            bisect.insort(waiting, (int(lengths[i]), i))
        current = np.full(row + 1, ENDOFTEXT | PADDING, dtype=np.uint16)
        used, at = 0, len(rows) * 7919 % len(waiting)  # any one first
        while at >= 0:
            length, i = waiting.pop(at)
            current[used : used + length] = codes[starts[i] : ends[i]]
            used += length
            at = bisect.bisect(waiting, (row + 1 - used, 1 << 60)) - 1
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
    weight = torch.where((codes & TOOLS) > 0, TOOLS_WEIGHT, weight)
    weight = torch.where((codes & CALL) > 0, CALL_WEIGHT, weight)
    weight = torch.where((codes & PADDING) > 0, 0.0, weight)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weight[:, 1:].contiguous()


class Mixture:
    """Draws a batch of rows from several kinds of data in given shares."""

    def __init__(self, kinds, batch):
        self.kinds, self.batch = kinds, batch

    def draw(self, shares, generator):
        """Codes [batch, row + 1]; the last kind of `shares` takes what rounding leaves."""
        counts = {kind: round(self.batch * share) for kind, share in shares.items()}
        last = list(shares)[-1]
        counts[last] += self.batch - sum(counts.values())
        return torch.cat([self.kinds[k].at(self.kinds[k].starts(n, generator)) for k, n in counts.items() if n])
