"""Writes golden.safetensors and golden_tools.safetensors into a converted MLX checkpoint, and checks them.

  goldens.py --model DIR

Both references run on the 4-bit weights: reference.py in float64, and MLX-LM in f32. `token_ids` [N + 1] holds the
inputs (the first N) and the target of each; `positions` says which inputs have logits.
"""

import argparse
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

import golden_texts
from chat import render
from reference import Reference


def mlx_logits(folder, ids):
    from mlx_lm import load

    model, _ = load(str(folder))
    model.set_dtype(mx.float32)  # bf16 on the CPU accumulates in bf16 and is no reference
    logits = model(mx.array([ids]))[0]
    mx.eval(logits)
    return np.array(logits)


def nats(logits, targets):
    top = logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
    return float((log_sum - logits[np.arange(len(targets)), targets]).mean())


def write(folder, name, ids, positions, note):
    ids = np.array(ids, dtype=np.int32)
    exact = Reference(folder).logits(ids[:-1])
    other = mlx_logits(folder, ids[:-1].tolist()).astype(np.float64)
    difference = np.abs(exact - other).max(-1)
    # A token that ties in one reference may win in the other; no such tie may be in a golden file.
    same = bool((exact.argmax(-1) == other.argmax(-1)).all())
    report = {
        "tokens": len(ids) - 1,
        "positions with logits": len(positions),
        "largest difference, MLX-LM f32 to float64": float(difference.max()),
        "same top token everywhere": same,
        "nats a token": nats(exact, ids[1:]),
    }
    assert same and report["largest difference, MLX-LM f32 to float64"] < 1e-3, report
    save_file(
        {
            "token_ids": ids,
            "positions": np.array(positions, dtype=np.int32),
            "logits.numpy_f64": exact[positions].astype(np.float32),
            "mlx_fp32.largest_difference": difference.astype(np.float32),
            "mlx_fp32.top_token": other.argmax(-1).astype(np.int32),
        },
        folder / name,
        metadata={"note": note},
    )
    print(name, json.dumps(report, indent=1))
    return report


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    folder = Path(parser.parse_args().model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(golden_texts.STORY, add_special_tokens=False).ids
    assert len(ids) > 192, f"the text has {len(ids)} tokens only"
    reports = {}
    reports["golden"] = write(folder, "golden.safetensors", ids[:193], list(range(192)), "English prose")
    template = render.compile_template(folder / "chat_template.jinja")
    text = template(golden_texts.MESSAGES, golden_texts.TOOLS)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    last = list(range(len(ids) - 1 - 64, len(ids) - 1))
    reports["golden_tools"] = write(folder, "golden_tools.safetensors", ids, last, "a chat with a tool call")
    return reports


if __name__ == "__main__":
    main()
