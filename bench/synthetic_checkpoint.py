#!/usr/bin/env python3
"""Writes a checkpoint of the shape of Qwen3.6-35B-A3B with random weights, 4-bit as published ones are: to measure loading without a download.

    bench/synthetic_checkpoint.py OUT [--layers N]

Needs nothing but Python. The tokenizer is that of the test fixture `tiny`, which is enough to load. A matrix keeps the size of its input: its
elements have variance 1 / columns. About 19.5 GB.
"""
import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import struct
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
HIDDEN, VOCABULARY = 2048, 248_320
LAYERS_A_SHARD = 4
BLOCK = 64 << 20


def bf16(value):
    return struct.pack("<f", value)[2:]


def matrix(name, bits, shape):
    """Name, type, shape and bytes of a quantized matrix's three tensors; bytes as (pattern, count), or None for random ones."""
    columns, spread = shape[-1], math.sqrt((4**bits - 1) / 12)
    scale = 1 / (spread * math.sqrt(columns))
    groups = shape[:-1] + [columns // 64]
    yield f"{name}.weight", "U32", shape[:-1] + [columns * bits // 32], None
    yield f"{name}.scales", "BF16", groups, bf16(scale)
    yield f"{name}.biases", "BF16", groups, bf16(-scale * (2**bits - 1) / 2)


def layer(index):
    prefix = f"language_model.model.layers.{index}"
    yield f"{prefix}.input_layernorm.weight", "BF16", [HIDDEN], bf16(1)
    yield f"{prefix}.post_attention_layernorm.weight", "BF16", [HIDDEN], bf16(1)
    if (index + 1) % 4 == 0:
        part = f"{prefix}.self_attn"
        yield f"{part}.q_norm.weight", "BF16", [256], bf16(1)
        yield f"{part}.k_norm.weight", "BF16", [256], bf16(1)
        yield from matrix(f"{part}.q_proj", 4, [8192, HIDDEN])
        yield from matrix(f"{part}.k_proj", 4, [512, HIDDEN])
        yield from matrix(f"{part}.v_proj", 4, [512, HIDDEN])
        yield from matrix(f"{part}.o_proj", 4, [HIDDEN, 4096])
    else:
        part = f"{prefix}.linear_attn"
        yield f"{part}.A_log", "F32", [32], struct.pack("<f", math.log(4))
        yield f"{part}.dt_bias", "BF16", [32], bf16(-4)
        yield f"{part}.norm.weight", "BF16", [128], bf16(1)
        yield f"{part}.conv1d.weight", "BF16", [8192, 4, 1], bf16(0.5)
        yield from matrix(f"{part}.in_proj_qkv", 4, [8192, HIDDEN])
        yield from matrix(f"{part}.in_proj_z", 4, [4096, HIDDEN])
        yield from matrix(f"{part}.in_proj_b", 4, [32, HIDDEN])
        yield from matrix(f"{part}.in_proj_a", 4, [32, HIDDEN])
        yield from matrix(f"{part}.out_proj", 4, [HIDDEN, 4096])
    part = f"{prefix}.mlp"
    yield from matrix(f"{part}.gate", 8, [256, HIDDEN])
    yield from matrix(f"{part}.shared_expert_gate", 8, [1, HIDDEN])
    for expert, stack in ((f"{part}.shared_expert", []), (f"{part}.switch_mlp", [256])):
        yield from matrix(f"{expert}.gate_proj", 4, stack + [512, HIDDEN])
        yield from matrix(f"{expert}.up_proj", 4, stack + [512, HIDDEN])
        yield from matrix(f"{expert}.down_proj", 4, stack + [HIDDEN, 512])


def ends():
    yield from matrix("language_model.model.embed_tokens", 4, [VOCABULARY, HIDDEN])
    yield from matrix("language_model.lm_head", 4, [VOCABULARY, HIDDEN])
    yield "language_model.model.norm.weight", "BF16", [HIDDEN], bf16(1)


def tensors(shard):
    return list(ends()) if not shard else [tensor for index in shard for tensor in layer(index)]


def write(job):
    path, shard = job
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, kind, shape, _ in tensors(shard):
        size = math.prod(shape) * (2 if kind == "BF16" else 4)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise = random.Random(str(path.name)).randbytes(BLOCK)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, kind, shape, pattern in tensors(shard):
            left = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            block = noise if pattern is None else pattern * (min(left, BLOCK) // len(pattern))
            while left > 0:
                left -= out.write(block[:left])
    return path.name, list(header)[1:], offset


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--layers", type=int, default=40)
    arguments = arguments.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    indices = range(arguments.layers)
    shards = [[]] + [indices[start : start + LAYERS_A_SHARD] for start in range(0, arguments.layers, LAYERS_A_SHARD)]
    names = [arguments.out / f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    with multiprocessing.Pool(min(os.cpu_count() or 1, len(shards))) as pool:
        written = pool.map(write, zip(names, shards), chunksize=1)
    places = {tensor: name for name, found, _ in written for tensor in found}
    total = sum(size for *_, size in written)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (arguments.out / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((FIXTURES / "qwen3.6" / "config.mlx-4bit.reconstructed.json").read_text())
    text = config.get("text_config", config)
    text["num_hidden_layers"] = arguments.layers
    if "layer_types" in text:
        text["layer_types"] = text["layer_types"][: arguments.layers]
    (arguments.out / "config.json").write_text(json.dumps(config))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(FIXTURES / "tiny" / "mlx-4bit" / name, arguments.out)
    print(f"{arguments.out}: {total / 1e9:.2f} GB in {len(shards)} files")


if __name__ == "__main__":
    main()
