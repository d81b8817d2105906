"""Reads the text corpora, cleans them, removes duplicates and holds some works out.

The corpora are not part of the repository; README.md beside this file lists them. Each function takes the folder that
holds the decompressed files.
"""

import json
import re
import unicodedata
from pathlib import Path

# Works held out whole, by title; also every 20th story of the two story collections.
HELD_OUT_BOOKS = {"The Happy Prince & Other Tales", "A Kidnapped Santa Claus", "Old Christmas"}
# Verse, plays, treatises, and books whose language does not suit a small general chat model.
LEFT_OUT_BOOKS = {
    "Leaves of Grass", "The Faerie Queene", "Thus Spoke Zarathustra", "Beyond Good and Evil", "On War", "Macbeth",
    "The Taming of the Shrew", "An Enemy of the People", "Paradise Lost", "Why Is the Negro Lynched?",
    "The Night of Temptation", "1001 Afternoons in Chicago", "Twelve Years a Slave", "Adventures of Huckleberry Finn",
    "The Report on Unidentified Flying Objects", "Tales of a Wayside Inn", "My Disillusionment in Russia",
    "A Portrait of the Artist as a Young Man", "The Enormous Room", "Confessions of St. Augustine",
    "The Kingdom of God Is Within You", "Enchiridion of Epictetus", "The Pursuit of God", "Tao Te Ching",
    "Nature", "A Vindication of the Rights of Woman", "Dangerous Liaisons", "The Man in the Moone", "Nostromo",
}  # fmt: skip
COARSE = re.compile(
    r"\b(fuck\w*|shit\w*|bitch\w*|bastard\w*|asshole\w*|cunt\w*|dick|cock|pussy|nigg\w*|niggah|whore\w*|slut\w*|porn\w*"
    r"|rape\w*|rapist|faggot\w*|retard\w*|sex\w*|damn\w*|crap\w*|suicid\w*|kill yourself|testicle\w*|penis|vagina|boob\w*"
    r"|nude\w*|naked|drunk|weed|cocaine|heroin|hitler|nazi\w*|negro\w*|ass|hell|pissed|wtf)\b",
    re.IGNORECASE,
)
REPLACED = str.maketrans(
    {"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "--", "…": "...", "\u00a0": " ", "\t": " ", "\ufeff": ""}
)


def clean(text):
    """Plain paragraphs separated by a blank line: no mark-up, straight quotes, hard-wrapped lines joined."""
    text = unicodedata.normalize("NFC", text).translate(REPLACED).replace("\r\n", "\n")
    paragraphs = []
    for block in re.split(r"\n\s*\n", text):
        lines = [re.sub(r"[*_#>|\\]+", "", line).strip() for line in block.split("\n")]
        lines = [line for line in lines if line and not re.fullmatch(r"[-=~ .]+", line)]
        if not lines:
            continue
        # Verse keeps its lines; prose that was wrapped does not.
        wrapped = sum(map(len, lines)) / len(lines) > 45 or any(line[-1:].isalpha() for line in lines[:-1])
        paragraph = re.sub(r" {2,}", " ", " ".join(lines) if wrapped else "\n".join(lines))
        odd = sum(ord(c) > 0x17F for c in paragraph)
        if odd <= len(paragraph) // 100 and not COARSE.search(paragraph):
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def shingles(text, n=8):
    words = re.findall(r"[a-z]+", text.lower())
    return {hash(tuple(words[i : i + n])) for i in range(0, len(words) - n)}


def books(folder):
    """(title, text) of each book kept."""
    for file in ("classic_books_children.txt", "classic_books_more.txt"):
        for document in (Path(folder) / file).read_text().split("<|endoftext|>"):
            title = re.search(r"^# Title: (.*)$", document, re.MULTILINE)
            title = title.group(1).strip() if title else ""
            if title not in LEFT_OUT_BOOKS:
                body = document.split("-------", 1)[-1]
                yield title, clean(body)


def stories(folder):
    """(source, text) of each short story."""
    for source in ("fairytaleqa_stories.txt", "african_storybook_en.txt"):
        for document in (Path(folder) / source).read_text().split("<|endoftext|>"):
            text = clean(document)
            if len(text) > 200:
                yield source, text


def split_texts(folder):
    """Training texts, held-out texts, and counts for the report. A story that is largely in a book is dropped."""
    train, held, seen, counts = [], [], set(), {}
    for title, text in books(folder):
        (held if title in HELD_OUT_BOOKS else train).append((title, text))
        seen |= shingles(text)
    kept = dropped = 0
    for source, text in stories(folder):
        own = shingles(text)
        if len(own & seen) > 0.2 * len(own):
            dropped += 1
            continue
        (held if kept % 20 == 7 else train).append((source, text))
        kept += 1
        seen |= own
    counts = {"stories kept": kept, "stories dropped as duplicates": dropped}
    known = set().union(*(shingles(t) for _, t in train))
    clean_held = []
    for source, text in held:
        overlap = len(shingles(text) & known) / max(1, len(shingles(text)))
        if overlap < 0.05:
            clean_held.append((source, text))
    counts["held-out works"] = len(clean_held)
    return train, clean_held, counts


def story_questions(folder):
    """FairytaleQA: (context, question, answer, story name)."""
    for line in (Path(folder) / "fairytaleqa_qa.jsonl").open():
        item = json.loads(line)
        yield clean(item["context"]), item["question"].strip(), item["answer"].strip(), item["story"]


def word_problems(folder):
    for line in (Path(folder) / "gsm8k_qa.jsonl").open():
        item = json.loads(line)
        yield item["question"].strip(), item["answer"].strip()


def tidy_turn(text):
    """A turn of informal chat with its first letter raised and an end mark."""
    text = re.sub(r"\s+", " ", text.translate(REPLACED)).strip()
    text = re.sub(r"\bi\b", "I", text)
    text = re.sub(r"\b(haha\w*|lol|lmao|omg)\b[,!. ]*", "", text, flags=re.IGNORECASE).strip()
    if not text:
        return text
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?\"')" else text + "."


def dialogues(folder):
    """Human-human chat as lists of alternating turns, the first by the user."""
    for line in (Path(folder) / "chitchat_dialogues.jsonl").open():
        turns = [tidy_turn(m["content"]) for m in json.loads(line)["messages"]]
        if any(not t or len(t) > 300 or COARSE.search(t) for t in turns[:8]) or len(turns) < 2:
            continue
        yield turns[:8]


def short_answers(folder):
    """ChatterBot's corpus: (topic, turns) without repeated pairs."""
    seen = set()
    for line in (Path(folder) / "chatterbot_en.jsonl").open():
        item = json.loads(line)
        turns = [tidy_turn(m["content"]) for m in item["messages"]]
        if item["topic"] not in ("greetings", "conversations", "food", "emotion", "health") or tuple(turns) in seen:
            continue
        seen.add(tuple(turns))
        if not any(not t or len(t) > 300 or COARSE.search(t) for t in turns) and len(turns) >= 2:
            yield item["topic"], turns
