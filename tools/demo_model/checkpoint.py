"""Weights on disk: one file, or pieces of at most 15 MB (the GPU machine returns no larger file)."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PIECE = 15_000_000


def stored_dtype(name):
    """The dtypes of the published checkpoint: A_log and the gated norm in F32, everything else in BF16."""
    return torch.float32 if name.endswith(("linear_attn.A_log", "linear_attn.norm.weight")) else torch.bfloat16


def save(weights, folder, piece=PIECE):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pieces, size = [{}], 0
    for name, w in weights.items():
        w = w.detach().to("cpu", stored_dtype(name)).contiguous()
        if size + w.nbytes > piece and pieces[-1]:
            pieces.append({})
            size = 0
        pieces[-1][name] = w
        size += w.nbytes
    if len(pieces) == 1:
        save_file(pieces[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    where = {}
    for i, part in enumerate(pieces):
        file = f"model-{i + 1:05d}-of-{len(pieces):05d}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}, indent=1))


def load(folder):
    weights = {}
    for file in sorted(Path(folder).glob("model*.safetensors")):
        weights.update({k: v.float() for k, v in load_file(file).items()})
    return weights
