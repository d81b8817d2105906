"""Weights on disk: one file, or pieces of at most 15 MB (the GPU machine returns no larger file)."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import reference

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
    """The f32 weights of a checkpoint of train.py, or of a converted MLX one (then exactly what its codes stand for)."""
    folder = Path(folder)
    config = folder / "config.json"
    if config.exists() and "quantization" in json.loads(config.read_text()):
        return load_mlx(folder)
    weights = {}
    for file in sorted(folder.glob("model*.safetensors")):
        weights.update({k: v.float() for k, v in load_file(file).items()})
    return weights


def load_mlx(folder):
    """Undoes what mlx_lm.convert does to names and shapes."""
    model = reference.Reference(folder)
    weights = {}

    def put(name, value):
        name = name.replace("language_model.lm_head", "lm_head").replace("language_model.model.", "model.language_model.")
        weights[name] = torch.from_numpy(np.ascontiguousarray(value)).float()

    for name in model.tensors:
        stem, _, last = name.rpartition(".")
        if f"{stem}.scales" in model.tensors:
            if last != "weight" or stem.endswith("switch_mlp.up_proj"):
                continue
            if stem.endswith("switch_mlp.gate_proj"):
                both = [model.matrix(stem), model.matrix(stem.replace("gate_proj", "up_proj"))]
                put(stem.replace("switch_mlp.gate_proj", "experts.gate_up_proj"), np.concatenate(both, 1))
            elif stem.endswith("switch_mlp.down_proj"):
                put(stem.replace("switch_mlp", "experts"), model.matrix(stem))
            else:
                put(name, model.matrix(stem))
        elif name.endswith("conv1d.weight"):
            put(name, np.moveaxis(model.vector(name), 2, 1))
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            put(name, model.vector(name) - 1)
        else:
            put(name, model.vector(name))
    return weights
