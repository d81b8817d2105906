#!/usr/bin/env python3
"""Greedy text of the demo model on two devices.

    greedy.py record LILY FILE          writes what the emulator says
    greedy.py compare LILY FILE DEVICE  compares a device with it: a difference must be a near tie of the two devices' first choices
"""
import json
import subprocess
import sys

PROMPTS = [
    "Once upon a time",
    "The little dog said to the",
    "One day, a girl named Lily went",
    "Question: How many apples are left?",
    "In the middle of the forest there was",
]
TOKENS = 96
NEAR = 0.05  # nats between the first two choices


def generate(lily, device, prompt):
    command = [lily, "generate", "--device", device, "--temperature", "0", "--ignore-eos", "--max-tokens", str(TOKENS)]
    command += ["--logprobs", "2", "--json", prompt]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    what, lily, path = sys.argv[1:4]
    if what == "record":
        replies = [generate(lily, "emulator", prompt) for prompt in PROMPTS]
        kept = [{key: reply[key] for key in ("token_ids", "logprobs", "text") if key in reply} for reply in replies]
        with open(path, "w") as out:
            json.dump(kept, out)
        return 0
    bad = 0
    with open(path) as file:
        recorded = json.load(file)
    for prompt, wanted in zip(PROMPTS, recorded):
        found = generate(lily, sys.argv[4], prompt)
        pairs = list(zip(wanted["token_ids"], found["token_ids"]))
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            print(f"same {len(pairs)} tokens: {prompt!r}")
            continue
        (_, first), (_, second) = wanted["logprobs"][at]["top"][:2]
        near = first - second <= NEAR
        bad += not near
        print(f"{'near tie' if near else 'DIFFERENT'} at token {at} ({first - second:.4f} nats): {prompt!r}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
