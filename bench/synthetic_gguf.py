#!/usr/bin/env python3
"""Writes a GGUF file of the shape of Qwen3.6-35B-A3B with random weights: to measure llama.cpp next to Lily without a download.

    bench/synthetic_gguf.py OUT [--layers N] [--mix q4_0|q4_k_m]

Needs nothing but Python. Random blocks are made once and written over and over, from a random place each time; what a processor computes
does not depend on that. A matrix keeps the size of its input: its elements have variance 1 / columns. The mixes are those of
llama-quantize: `--pure` Q4_0 (what is no matrix, the router and the convolution stay f32), or Q4_K_M. 40 layers: 19.6 GB in Q4_0.
"""
import argparse
import array
import math
import multiprocessing
import os
import random
import struct

ARCHITECTURE = "qwen35moe"
HIDDEN, VOCABULARY, EXPERTS, INTERMEDIATE, CONV = 2048, 248_320, 256, 512, 8192
ALIGNMENT, WRITE = 32, 32 << 20

# ggml's number of a type, weights in a block, bytes of a block, places of its f16 scale (and offset), and the standard deviation of a weight
# from random bytes with a scale of 1. In Q4_K and Q5_K the offset's factor is the mean code times the scale's, so that weights have mean 0.
F32, Q4_0, Q4_K, Q5_K, Q6_K = "f32", "q4_0", "q4_k", "q5_k", "q6_k"
BLOCKS = {
    F32: (0, 1, 4, None, None, 1),
    Q4_0: (2, 32, 18, 0, None, 4.6),
    Q4_K: (12, 256, 144, 0, (2, 7.5), 258),
    Q5_K: (13, 256, 176, 0, (2, 15.5), 527),
    Q6_K: (14, 256, 210, 208, None, 1370),
}
FILE_TYPES = {Q4_0: 2, "q4_k_m": 15}
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9


def more_bits(layer, layers):
    """Which layers Q4_K_M gives more bits: the first and last eighth, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensors(layers, mix):
    """Name, type, shape (columns first) and, of what is no matrix, the value of every element."""

    def matrix(name, columns, rows, count=None, more=None):
        kind = Q4_0 if mix == Q4_0 else more or Q4_K
        return f"{name}.weight", kind, [columns, rows] + ([count] if count else []), None

    yield matrix("token_embd", HIDDEN, VOCABULARY)
    yield matrix("output", HIDDEN, VOCABULARY, more=Q6_K)
    yield "output_norm.weight", F32, [HIDDEN], 1.0
    attention_layers = 0
    for layer in range(layers):
        part = f"blk.{layer}"
        yield f"{part}.attn_norm.weight", F32, [HIDDEN], 1.0
        yield f"{part}.post_attention_norm.weight", F32, [HIDDEN], 1.0
        if layer % 4 == 3:
            more = Q6_K if more_bits(attention_layers, layers // 4) else None
            attention_layers += 1
            yield matrix(f"{part}.attn_q", HIDDEN, 8192)
            yield matrix(f"{part}.attn_k", HIDDEN, 512)
            yield matrix(f"{part}.attn_v", HIDDEN, 512, more=more)
            yield matrix(f"{part}.attn_output", 4096, HIDDEN)
            yield f"{part}.attn_q_norm.weight", F32, [256], 1.0
            yield f"{part}.attn_k_norm.weight", F32, [256], 1.0
        else:
            yield matrix(f"{part}.attn_qkv", HIDDEN, CONV, more=Q5_K)
            yield matrix(f"{part}.attn_gate", HIDDEN, 4096)
            yield f"{part}.ssm_conv1d.weight", F32, [4, CONV], 0.5
            yield f"{part}.ssm_dt.bias", F32, [32], -4.0
            yield f"{part}.ssm_a", F32, [32], -4.0
            yield matrix(f"{part}.ssm_beta", HIDDEN, 32)
            yield matrix(f"{part}.ssm_alpha", HIDDEN, 32)
            yield f"{part}.ssm_norm.weight", F32, [128], 1.0
            yield matrix(f"{part}.ssm_out", 4096, HIDDEN)
        more = Q6_K if more_bits(layer, layers) else None
        yield f"{part}.ffn_gate_inp.weight", F32, [HIDDEN, EXPERTS], None
        yield matrix(f"{part}.ffn_gate_exps", HIDDEN, INTERMEDIATE, EXPERTS)
        yield matrix(f"{part}.ffn_up_exps", HIDDEN, INTERMEDIATE, EXPERTS)
        yield matrix(f"{part}.ffn_down_exps", INTERMEDIATE, HIDDEN, EXPERTS, more)
        yield f"{part}.ffn_gate_inp_shexp.weight", F32, [HIDDEN], 0.02
        yield matrix(f"{part}.ffn_gate_shexp", HIDDEN, INTERMEDIATE)
        yield matrix(f"{part}.ffn_up_shexp", HIDDEN, INTERMEDIATE)
        yield matrix(f"{part}.ffn_down_shexp", INTERMEDIATE, HIDDEN, more=more)


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def metadata(layers, mix):
    def entry(key, kind, value):
        return string(key) + struct.pack("<I", kind) + value

    def architecture(key, value):
        kind, form = (FLOAT32, "<f") if isinstance(value, float) else (UINT32, "<I")
        return entry(f"{ARCHITECTURE}.{key}", kind, struct.pack(form, value))

    numbers = {
        "block_count": layers,
        "context_length": 262_144,
        "embedding_length": HIDDEN,
        "vocab_size": VOCABULARY,
        "feed_forward_length": INTERMEDIATE,
        "expert_count": EXPERTS,
        "expert_used_count": 8,
        "expert_feed_forward_length": INTERMEDIATE,
        "expert_shared_feed_forward_length": INTERMEDIATE,
        "attention.head_count": 16,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": 64,
        "rope.freq_base": 1e7,
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 4096,
        "ssm.state_size": 128,
        "ssm.time_step_rank": 32,
        "ssm.group_count": 16,
    }
    sections = struct.pack("<IQ4I", UINT32, 4, 11, 11, 10, 0)
    return [
        entry("general.architecture", STRING, string(ARCHITECTURE)),
        entry("general.name", STRING, string(f"Qwen3.6-35B-A3B shape, {layers} layers, random")),
        entry("general.alignment", UINT32, struct.pack("<I", ALIGNMENT)),
        entry("general.file_type", UINT32, struct.pack("<I", FILE_TYPES[mix])),
        entry("general.quantization_version", UINT32, struct.pack("<I", 2)),
        entry("tokenizer.ggml.model", STRING, string("none")),
        entry(f"{ARCHITECTURE}.rope.dimension_sections", ARRAY, sections),
        *(architecture(key, value) for key, value in numbers.items()),
    ]


def random_blocks(kind, columns):
    """About WRITE bytes of random blocks of a matrix with so many columns."""
    _, weights, size, scale, offset, deviation = BLOCKS[kind]
    if kind == F32:
        values = array.array("f", (random.gauss(0, columns**-0.5) for _ in range(1 << 16)))
        return values.tobytes() * (WRITE // (4 << 16))
    count = WRITE // size
    data = bytearray(random.randbytes(count * size))

    def fill(place, value):
        for index, byte in enumerate(struct.pack("<e", value)):
            data[place + index :: size] = bytes([byte]) * count

    fill(scale, 1 / (deviation * math.sqrt(columns)))
    if offset:
        place, mean_code = offset
        fill(place, mean_code / (deviation * math.sqrt(columns)))
    return bytes(data)


def write(job):
    """Fills one tensor: with one value, or with random blocks from a random one on."""
    place, size, kind, columns, value = job
    if value is not None:
        os.pwrite(output, struct.pack("<f", value) * (size // 4), place)
        return
    source, unit = memoryview(blocks[kind, columns]), BLOCKS[kind][2]
    generator = random.Random(place)
    while size > 0:
        start = generator.randrange(len(source) // unit) * unit
        written = os.pwrite(output, source[start : start + size], place)
        place, size = place + written, size - written


def main():
    global output, blocks
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("out", metavar="OUT")
    options.add_argument("--layers", type=int, default=40)
    options.add_argument("--mix", choices=list(FILE_TYPES), default=Q4_0)
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    random.seed(options.seed)

    listed, jobs, offset = [], [], 0
    for name, kind, shape, value in tensors(options.layers, options.mix):
        number, weights, block, *_ = BLOCKS[kind]
        size = math.prod(shape) // weights * block
        listed.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset))
        jobs.append((offset, size, kind, shape[0], value))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    pairs = metadata(options.layers, options.mix)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(pairs)) + b"".join(pairs) + b"".join(listed)
    header += bytes(-len(header) % ALIGNMENT)
    jobs = [(len(header) + place, *rest) for place, *rest in jobs]

    blocks = {key: random_blocks(*key) for key in sorted({(kind, columns) for _, _, kind, columns, value in jobs if value is None})}
    output = os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.ftruncate(output, len(header) + offset)
    os.pwrite(output, header, 0)
    # The processes inherit the blocks and the file.
    with multiprocessing.get_context("fork").Pool() as pool:
        pool.map(write, jobs, chunksize=1)
    os.close(output)
    print(f"{options.out}: {options.layers} layers, {options.mix}, {(len(header) + offset) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
