"""Golden values of a checkpoint from the float64 reference.

    logits.py CHECKPOINT TOKENS.safetensors OUT.safetensors [--internals INTERNALS.safetensors]
    logits.py CHECKPOINT GOLDEN.safetensors --check NAME

The first form writes `token_ids`, `logits.numpy_f64`, `hidden` and `routes` for the `token_ids` in TOKENS (the last one is only a
target). The second compares the reference with the logits NAME of an existing file and fails above 1e-3.
"""

import argparse

import numpy as np
from safetensors.numpy import load_file, save_file

from reference import Checkpoint, forward

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("checkpoint")
parser.add_argument("tokens")
parser.add_argument("out", nargs="?")
parser.add_argument("--internals")
parser.add_argument("--check", metavar="NAME")
arguments = parser.parse_args()

given = load_file(arguments.tokens)
token_ids = given["token_ids"].astype(np.int32)
trace = {}
logits, states = forward(Checkpoint(arguments.checkpoint), token_ids[:-1], trace)

if arguments.check:
    expected = given[arguments.check].astype(np.float64)
    difference = np.abs(logits[: len(expected)] - expected).max()
    print(f"{arguments.checkpoint} {arguments.check}: max |difference| {difference:.2e} over {len(expected)} positions")
    if not difference < 1e-3:
        raise SystemExit(1)
if arguments.out:
    golden = {"logits.numpy_f64": logits, "hidden": trace["hidden"]}
    golden = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in golden.items()}
    golden |= {"token_ids": token_ids, "routes": np.ascontiguousarray(trace["routes"], dtype=np.int32)}
    save_file(golden, arguments.out)
if arguments.internals:
    internals = {f"gdn0.{name}": values for name, values in trace["gdn0"].items()}
    for layer, state in enumerate(states):
        internals |= {f"state.layer{layer}.{name}": values for name, values in state.items()}
    internals = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in internals.items()}
    save_file(internals, arguments.internals)
