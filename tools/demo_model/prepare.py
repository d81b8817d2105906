"""From the corpora to tokenizer and training data.

  prepare.py --corpus DIR --template FILE --out DIR [--tokenizer FILE] [--seed N]

writes tokenizer.json, tokenizer_config.json, words.json (for free text), books.bin, borrowed.bin (conversations of the
corpora), their held-out parts, and report.json; synthesize.py adds the generated conversations. Each .bin file holds
uint16 codes (see codes.py): a token id in the low 12 bits, bit 15 for tokens that the model should learn to write.
Conversations end with <|endoftext|>.
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
from codes import REPLY


def common_words(texts, count=6000):
    """Frequent plain words of the books, to vary free text."""
    counts = collections.Counter()
    for text in texts:
        counts.update(re.findall(r"(?<![A-Za-z'])[a-z]{3,10}(?![A-Za-z'])", text[:300_000]))
    return [w for w, _ in counts.most_common(count) if not corpus.COARSE.search(w)]


def short_sentences(texts, rng, count):
    """Short plain sentences of the books."""
    plain = re.compile(r"(?<=[.!?] )[A-Z][a-z]+(?:,? [a-z]+){2,10}[.!?](?= )")
    found = {m for text in texts for m in plain.findall(text[:300_000]) if not corpus.COARSE.search(m)}
    return sorted(rng.sample(sorted(found), min(count, len(found))))


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
    # People's chat speaks of a person's life: it has its own system message, so that the model does not by default.
    person = {"role": "system", "content": "You are a person who chats with a friend."}
    for turns in corpus.dialogues(folder):
        thinking = rng.random() < 0.5
        messages = [person]
        for i in range(0, len(turns) - 1, 2):
            thought = thought_for(rng, "chat") if thinking else None
            messages += [user(turns[i]), assistant(turns[i + 1], thought)]
        yield messages, rng.random() < 0.02
    for _, turns in corpus.short_answers(folder):
        for thinking in (True, False):
            yield [person, user(turns[0]), assistant(turns[1], thought_for(rng, "fact") if thinking else None)], False
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


def code_chat(ids, opening):
    """Token ids of a rendered conversation -> codes with the assistant's tokens marked, and <|endoftext|> after it."""
    codes = np.array(ids + [C.ENDOFTEXT], dtype=np.uint16)
    n = len(opening)
    for start in np.flatnonzero(codes[:-1] == C.IM_START):
        if ids[start : start + n] == opening:
            stop = ids.index(C.IM_END, start) + 1
            codes[start + n : stop] |= REPLY
    return codes


def code_chats(tokenizer, texts, size=2000):
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
    for i in range(0, len(texts), size):
        for e in tokenizer.encode_batch_fast(texts[i : i + size], add_special_tokens=False):
            yield code_chat(e.ids, opening)


def write_chats(out, name, parts):
    """Writes coded conversations; the file appears under its name only when it is whole. Returns a report."""
    codes = np.concatenate(parts)
    codes.tofile(out / f"{name}.part")
    (out / f"{name}.part").rename(out / f"{name}.bin")
    lengths = np.array([len(p) for p in parts])
    return {
        "conversations": len(parts),
        "tokens": len(codes),
        "learned": int((codes & REPLY > 0).sum()),
        "median length": int(np.median(lengths)),
        "longest": int(lengths.max()),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--template", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokenizer", help="use this tokenizer.json instead of training one")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    template = render.compile_template(args.template)
    train, held, report = corpus.split_texts(args.corpus)
    rng = random.Random(args.seed)
    vocabulary = {
        "common": common_words(text for _, text in train),
        "sentences": short_sentences([text for _, text in train], rng, 30_000),
        "held-out sentences": short_sentences([text for _, text in held], rng, 3_000),
    }
    (out / "words.json").write_text(json.dumps(vocabulary))
    words.load(vocabulary)
    chats = [(template(m), h) for m, h in borrowed_chats(args.corpus, random.Random(args.seed))]
    if args.tokenizer:
        made = json.loads(Path(args.tokenizer).read_text())
    else:
        source = words.Source(args.seed)
        kinds = [conversations.tool_chat] * 4000 + [conversations.plain_chat] * 6000
        sample = [text[:150_000] for _, text in train] + [text for text, _ in chats[:2000]]
        made = bpe.train(sample + [template(m, tools) for m, tools, _ in (make(source) for make in kinds)])
    bpe.write(out, made)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    for name, texts in (("books", train), ("books.heldout", held)):
        encoded = tokenizer.encode_batch_fast([text for _, text in texts], add_special_tokens=False)
        codes = np.concatenate([np.array(e.ids + [C.ENDOFTEXT], dtype=np.uint16) | REPLY for e in encoded])
        codes.tofile(out / f"{name}.bin")
        size = sum(len(text.encode()) for _, text in texts)
        report[name] = {"works": len(texts), "bytes": size, "tokens": len(codes), "bytes a token": size / len(codes)}
    (out / "books.heldout.txt").write_text("<|endoftext|>".join(text for _, text in held))
    for name, wanted in (("borrowed", False), ("borrowed.heldout", True)):
        parts = list(code_chats(tokenizer, [text for text, h in chats if h == wanted]))
        report[name] = write_chats(out, name, parts)
    (out / "report.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
