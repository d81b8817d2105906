"""Trains the byte-level BPE and writes tokenizer.json and tokenizer_config.json.

Normaliser, pre-tokenizer and added tokens are Qwen3.6's. The merges are learned so that a word is cut in the same way
whatever stands before it: first merges inside runs of letters and inside runs of punctuation, then, last in the list
(so with the lowest priority), merges of a space with a piece. " London" and "London" then differ in the first token
only, which makes copying a word from a sentence into a tool call easy to learn for a small model.
"""

import heapq
import json
from collections import Counter, defaultdict

import regex

import config as C

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_letters():
    """The printable character that stands for each byte in a byte-level vocabulary."""
    kept = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    letters = {b: chr(b) for b in kept}
    for i, b in enumerate(b for b in range(256) if b not in letters):
        letters[b] = chr(256 + i)
    return letters


LETTERS = byte_letters()
SPACE = LETTERS[32]


def spell(text):
    return tuple(LETTERS[b] for b in text.encode())


def count_units(texts):
    """Counts of the units that merges may not leave, and of whole pre-tokens that start with a space."""
    units, spaced = Counter(), Counter()
    pattern = regex.compile(PATTERN)
    added = regex.compile("|".join(regex.escape(t) for t in C.ADDED_TOKENS))
    words = Counter()
    for text in texts:
        for part in added.split(text):
            words.update(pattern.findall(part))
    letter = regex.compile(r"[\p{L}\p{M}]")
    for word, count in words.items():
        body = word
        if word[0] == " " and len(word) > 1:
            body = word[1:]
            if not body.isspace():
                spaced[spell(body)] += count
        elif len(word) > 1 and not letter.match(word[0]) and letter.match(word[1]) and word[0] != "'":
            body = word[1:]
        units[spell(body)] += count
    return units, spaced


def learn_merges(units, limit):
    """Plain BPE over counted units: the most frequent pair first, ties by the pair itself."""
    words = [list(u) for u in units]
    counts = list(units.values())
    pairs, where = Counter(), defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += counts[i]
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    merges = []
    while heap and len(merges) < limit:
        n, pair = heapq.heappop(heap)
        if pairs[pair] != -n or n == 0:
            continue
        merges.append(pair)
        changed = set()
        for i in where.pop(pair):
            word, j = words[i], 0
            for p in zip(word, word[1:]):
                pairs[p] -= counts[i]
                changed.add(p)
            new = []
            while j < len(word):
                if j + 1 < len(word) and (word[j], word[j + 1]) == pair:
                    new.append(word[j] + word[j + 1])
                    j += 2
                else:
                    new.append(word[j])
                    j += 1
            words[i] = new
            for p in zip(new, new[1:]):
                pairs[p] += counts[i]
                where[p].add(i)
                changed.add(p)
        for p in changed:
            if pairs[p] > 0:
                heapq.heappush(heap, (-pairs[p], p))
    return merges


def cut(unit, rank):
    parts = list(unit)
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda i: rank.get((parts[i], parts[i + 1]), 1 << 30))
        if (parts[best], parts[best + 1]) not in rank:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def train(texts, spaced_share=0.42):
    """tokenizer.json as a dictionary. `spaced_share` of the merges join a space with a piece."""
    units, spaced = count_units(texts)
    total = C.BASE_TOKENS - 256
    merges = learn_merges(units, total - round(total * spaced_share))
    rank = {pair: i for i, pair in enumerate(merges)}
    first = Counter()
    for unit, count in spaced.items():
        first[cut(unit, rank)[0]] += count
    for piece, _ in sorted(first.items(), key=lambda item: (-item[1], item[0]))[: total - len(merges)]:
        merges.append((SPACE, piece))
    assert len(merges) == total, f"{len(merges)} merges, {total} wanted: too little text"
    vocab = {LETTERS[b]: b for b in range(256)}
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    assert len(vocab) == C.BASE_TOKENS, f"{len(vocab)} tokens: a merge gave a token twice"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": C.TOKEN_ID[t],
                "content": t,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": t not in C.NOT_SPECIAL,
            }
            for t in C.ADDED_TOKENS
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [list(pair) for pair in merges],
        },
    }


def tokenizer_config():
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "pretokenize_regex": PATTERN,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def write(folder, tokenizer):
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=1))
