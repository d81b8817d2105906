"""From the corpora to tokenizer and training data.

  prepare.py --corpus DIR --template FILE --out DIR [--tools N] [--chats N] [--seed N]

writes tokenizer.json, tokenizer_config.json, books.bin, chat.bin, their held-out parts, and report.json. Each .bin file
holds uint16 codes: a token id in the low 12 bits, bit 15 for tokens that the model should learn to write. Conversations
end with <|endoftext|>.
"""

import argparse
import collections
import json
import random
import re
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import config as C
import corpus
import tokenizer as bpe
from chat import conversations, render, words

REPLY = 0x8000


def common_words(texts, count=6000):
    """Frequent plain words of the books, to vary free text."""
    counts = collections.Counter()
    for text in texts:
        counts.update(re.findall(r"(?<![A-Za-z'])[a-z]{3,10}(?![A-Za-z'])", text[:300_000]))
    return [w for w, _ in counts.most_common(count) if not corpus.COARSE.search(w)]


def thought_for(rng, kind):
    options = {
        "chat": ["The user is chatting. I will answer in a friendly way.", "A friendly chat. I will keep it short.", "I will answer and keep the talk going."],
        "story": ["The answer is in the story.", "I will look in the story for the answer.", "The story tells this."],
        "fact": ["I know a short answer.", "This is a short question.", "I will answer briefly."],
    }  # fmt: skip
    return rng.choice(options[kind])


def borrowed_chats(folder, rng):
    """Conversations from the corpora as (messages, held out)."""
    user, assistant = conversations.user, conversations.assistant
    for turns in corpus.dialogues(folder):
        thinking = rng.random() < 0.5
        messages = []
        for i in range(0, len(turns) - 1, 2):
            thought = thought_for(rng, "chat") if thinking else None
            messages += [user(turns[i]), assistant(turns[i + 1], thought)]
        yield messages, rng.random() < 0.02
    for _, turns in corpus.short_answers(folder):
        for thinking in (True, False):
            yield [user(turns[0]), assistant(turns[1], thought_for(rng, "fact") if thinking else None)], False
    for context, question, answer, story in corpus.story_questions(folder):
        if len(context) < 1800:
            answer = answer[0].upper() + answer[1:]
            answer += "" if answer[-1] in ".!?\"" else "."
            ask = rng.choice([f"{context}\n\n{question}", f"{question}\n\n{context}", f"Read this story:\n\n{context}\n\n{question}"])
            thought = thought_for(rng, "story") if rng.random() < 0.6 else None
            yield [user(ask), assistant(answer, thought)], len(story) % 40 == 7
    for question, answer in corpus.word_problems(folder):
        steps, _, last = answer.rpartition("\n")
        if rng.random() < 0.5:
            yield [user(question), assistant(last + ".", steps)], rng.random() < 0.02
        else:
            yield [user(question), assistant(answer + ".")], rng.random() < 0.02


def rendered_chats(args, template):
    """(text, held out) of every conversation."""
    for messages, held in borrowed_chats(args.corpus, random.Random(args.seed)):
        yield template(messages, preserve_thinking=False), held
    for held, share in ((False, 1.0), (True, 0.01)):
        source = words.Source(args.seed * 2 + held, held)
        for make, count in ((conversations.tool_chat, args.tools), (conversations.plain_chat, args.chats)):
            for _ in range(round(count * share)):
                messages, tools, _ = make(source)
                yield template(messages, tools), held


def code_chat(ids, opening):
    """Token ids of a rendered conversation -> codes with the assistant's tokens marked, and <|endoftext|> after it."""
    codes = np.array(ids + [C.ENDOFTEXT], dtype=np.uint16)
    n = len(opening)
    for start in np.flatnonzero(codes[:-1] == C.IM_START):
        if ids[start : start + n] == opening:
            stop = ids.index(C.IM_END, start) + 1
            codes[start + n : stop] |= REPLY
    return codes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--template", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokenizer", help="use this tokenizer.json instead of training one")
    parser.add_argument("--tools", type=int, default=60_000, help="synthetic conversations with tools")
    parser.add_argument("--chats", type=int, default=120_000, help="synthetic conversations without")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    template = render.compile_template(args.template)
    train, held, report = corpus.split_texts(args.corpus)
    words.COMMON[:] = common_words(text for _, text in train)
    chats = list(rendered_chats(args, template))
    random.Random(args.seed).shuffle(chats)
    print(report, len(chats), "conversations", flush=True)
    if args.tokenizer:
        made = json.loads(Path(args.tokenizer).read_text())
    else:
        sample = [text[:150_000] for _, text in train] + [text for text, _ in chats[:12_000]]
        made = bpe.train(sample)
    bpe.write(out, made)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))

    def encode(texts, size=2000):
        for i in range(0, len(texts), size):
            yield from (e.ids for e in tokenizer.encode_batch_fast(texts[i : i + size], add_special_tokens=False))

    for name, texts in (("books", train), ("books.heldout", held)):
        parts = [np.array(ids + [C.ENDOFTEXT], dtype=np.uint16) | REPLY for ids in encode([t for _, t in texts], 50)]
        codes = np.concatenate(parts)
        codes.tofile(out / f"{name}.bin")
        size = sum(len(t.encode()) for _, t in texts)
        report[name] = {"works": len(texts), "bytes": size, "tokens": len(codes), "bytes a token": size / len(codes)}
    (out / "books.heldout.txt").write_text("<|endoftext|>".join(t for _, t in held))
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
    for name, wanted in (("chat", False), ("chat.heldout", True)):
        texts = [t for t, h in chats if h == wanted]
        parts = [code_chat(ids, opening) for ids in encode(texts)]
        lengths = np.array([len(p) for p in parts])
        codes = np.concatenate(parts)
        codes.tofile(out / f"{name}.bin")
        report[name] = {
            "conversations": len(texts),
            "tokens": len(codes),
            "learned": int((codes & REPLY > 0).sum()),
            "median length": int(np.median(lengths)),
            "longest": int(lengths.max()),
            "over 1024": int((lengths > 1025).sum()),
        }
    (out / "report.json").write_text(json.dumps(report, indent=1))
    (out / "common_words.json").write_text(json.dumps(words.COMMON))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
