"""Bits a byte of simple compressors on the held-out text, to compare the model with.

  yardstick.py --data DIR

`xz -9` on the held-out text alone, and a 5-gram model with Witten-Bell smoothing over the same tokens, counted on the
training books.
"""

import argparse
import json
import lzma
from pathlib import Path

import numpy as np

import config as C
from codes import ID_BITS
from rows import read_tokens

ORDER = 5


def keys_of(ids, n):
    """One integer for each n-gram of token ids, by its first position. 12 bits a token: 5 tokens fit in 64 bits."""
    count = len(ids) - n + 1
    keys = np.zeros(count, dtype=np.int64)
    for i in range(n):
        keys = (keys << 12) | ids[i : i + count]
    return keys


def look_up(table, counts, keys):
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return np.where(table[at] == keys, counts[at], 0)


def ngram_bits(train, held):
    """Mean bits a token: p_n = (count + kinds * p_(n-1)) / (total + kinds), from the unigram up."""
    probability = np.full(len(held), 1.0 / C.VOCAB)
    for n in range(1, ORDER + 1):
        table, counts = np.unique(keys_of(train, n), return_counts=True)
        context, first = np.unique(table >> 12, return_index=True)
        kinds = np.diff(np.append(first, len(table)))
        totals = np.add.reduceat(counts, first)
        keys = keys_of(held, n)
        seen, total, kind = (look_up(*pair, k) for pair, k in (((table, counts), keys), ((context, totals), keys >> 12), ((context, kinds), keys >> 12)))
        lower = probability[n - 1 :]
        probability[n - 1 :] = np.where(total > 0, (seen + kind * lower) / np.maximum(total + kind, 1), lower)
    return -np.log2(probability).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    data = Path(parser.parse_args().data)
    train, held = ((read_tokens(data / f"{n}.bin") & ID_BITS).astype(np.int64) for n in ("books", "books.heldout"))
    text = (data / "books.heldout.txt").read_bytes()
    size = json.loads((data / "report.json").read_text())["books.heldout"]["bytes"]
    xz = 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text)
    print(f"held-out text {size:,} bytes; xz -9e {xz:.3f} bits a byte")
    print(f"5-gram model {ngram_bits(train, held) * len(held) / size:.3f} bits a byte")


if __name__ == "__main__":
    main()
