#!/usr/bin/env python3
"""Runs EleutherAI's lm-evaluation-harness through `/v1/completions` with log-probabilities, on a task of twelve small questions, and checks that its
accuracy is what the server's own log-probabilities give.

    python3 -m venv venv && venv/bin/pip install 'lm-eval[api]==0.4.13' transformers
    venv/bin/python tests/clients/lm_eval_task.py

Not part of the tests: it takes minutes to install.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from conftest import KEY, ROOT, start, stop

QUESTIONS = [
    ("Once upon a", [" time", " table", " seven"], 0),
    ("The bird can", [" fly", " cup", " slow"], 0),
    ("The sun is in the", [" sky", " run", " sad"], 0),
    ("She was very", [" happy", " house", " the"], 0),
    ("They went to the", [" park", " is", " said"], 0),
    ("He ate a big", [" cake", " was", " sing"], 0),
    ("The dog wanted to", [" play", " red", " moon"], 0),
    ("It was a sunny", [" day", " ran", " her"], 0),
    ("The little girl said", [" hello", " of", " tree the"], 0),
    ("The cat sat on the", [" mat", " ate", " happily ran"], 0),
    ("They lived happily ever", [" after", " under", " blue"], 0),
    ("Mom gave him a", [" hug", " went", " very"], 0),
]
TASK = """
task: lily_small
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def accuracy(url):
    """The share of questions whose first choice is the likeliest, by the server's own log-probabilities."""
    right = 0
    for text, choices, label in QUESTIONS:
        sums = []
        for choice in choices:
            body = {"prompt": text + choice, "max_tokens": 0, "echo": True, "logprobs": 1}
            request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"authorization": "Bearer " + KEY})
            logprobs = json.load(urllib.request.urlopen(request))["choices"][0]["logprobs"]
            of_choice = [p for p, at in zip(logprobs["token_logprobs"], logprobs["text_offset"]) if at >= len(text)]
            sums.append(sum(of_choice))
        right += sums.index(max(sums)) == label
    return right / len(QUESTIONS)


def main():
    server = start()
    try:
        with tempfile.TemporaryDirectory() as directory:
            data = Path(directory, "questions.jsonl")
            rows = [json.dumps({"text": text, "choices": choices, "label": label}) for text, choices, label in QUESTIONS]
            data.write_text("\n".join(rows))
            Path(directory, "lily_small.yaml").write_text(TASK.format(data=data))
            arguments = f"model=demo,base_url={server.url}/v1/completions,tokenizer_backend=huggingface,tokenizer={ROOT}/demo,num_concurrent=2"
            command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments]
            command += ["--tasks", "lily_small", "--include_path", directory, "--output_path", directory]
            environment = {**os.environ, "OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1", "HF_HOME": directory}
            subprocess.run(command, env=environment, check=True)
            [results] = Path(directory).glob("**/results*.json")
            found = json.loads(results.read_text())["results"]["lily_small"]["acc,none"]
        expected = accuracy(server.url)
        print(f"accuracy: {found:.4f} by the harness, {expected:.4f} by the server's own log-probabilities")
        sys.exit(0 if abs(found - expected) < 1e-9 else 1)
    finally:
        stop(server)


if __name__ == "__main__":
    main()
