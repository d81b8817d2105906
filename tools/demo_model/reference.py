"""The model in NumPy float64, straight from a converted MLX checkpoint: the reference behind the golden files.

Independent of the training code and of every engine: it uses NumPy, and `json` for the files' headers. Weights are
dequantized exactly, as scale * code + bias. One token after another in the recurrence; no caches, no batches.
"""

import json
from pathlib import Path

import numpy as np

LAYER = "language_model.model.layers.{}."


def read_tensors(folder):
    """Name -> array of every tensor; bf16 becomes f32, packed codes stay u32."""
    tensors = {}
    kinds = {"F32": np.float32, "F16": np.float16, "U32": np.uint32, "U16": np.uint16, "I32": np.int32, "I64": np.int64}
    for path in sorted(Path(folder).glob("model*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            start, stop = (8 + length + o for o in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                half = np.frombuffer(data[start:stop], "<u2").astype(np.uint32)
                tensor = (half << 16).view(np.float32)
            else:
                tensor = np.frombuffer(data[start:stop], kinds[entry["dtype"]])
            tensors[name] = tensor.reshape(entry["shape"])
    return tensors


def dequantize(codes, scales, biases, bits):
    """Packed rows [.., n * bits / 32] -> f64 [.., n]: code i sits at bits [i * bits, (i + 1) * bits) of its row."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    unpacked = (codes[..., None] >> shifts) & np.uint32(2**bits - 1)
    unpacked = unpacked.reshape(*codes.shape[:-1], -1).astype(np.float64)
    group = unpacked.shape[-1] // scales.shape[-1]
    return unpacked * np.repeat(scales.astype(np.float64), group, -1) + np.repeat(biases.astype(np.float64), group, -1)


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def l2(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


class Reference:
    def __init__(self, folder):
        whole = json.loads((Path(folder) / "config.json").read_text())
        self.config, self.quantization = whole["text_config"], whole["quantization"]
        self.tensors = read_tensors(folder)
        self.matrices = {}

    def matrix(self, name):
        if name not in self.matrices:
            default = self.quantization["bits"]
            bits = self.quantization.get(name, {}).get("bits", default)
            self.matrices[name] = dequantize(*(self.tensors[f"{name}.{part}"] for part in ("weight", "scales", "biases")), bits)
        return self.matrices[name]

    def vector(self, name):
        return self.tensors[name].astype(np.float64)

    def rms(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.vector(name)

    def rotate(self, x):
        """x [T, heads, D]: rotates pairs (i, i + half) of the first dimensions by the position."""
        rope = self.config["rope_parameters"]
        dim = int(self.config["head_dim"] * rope["partial_rotary_factor"])
        half = dim // 2
        angle = np.arange(len(x))[:, None] * float(rope["rope_theta"]) ** (-np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:dim]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., dim:]], -1)

    def attention(self, p, x):
        c = self.config
        heads, groups, dim, t = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], len(x)
        both = (x @ self.matrix(p + "q_proj").T).reshape(t, heads, 2 * dim)
        q, gate = both[..., :dim], both[..., dim:].reshape(t, heads * dim)
        k = (x @ self.matrix(p + "k_proj").T).reshape(t, groups, dim)
        v = (x @ self.matrix(p + "v_proj").T).reshape(t, groups, dim)
        q, k = self.rotate(self.rms(q, p + "q_norm.weight")), self.rotate(self.rms(k, p + "k_norm.weight"))
        future = np.triu(np.full((t, t), -np.inf), 1)
        out = np.empty_like(q)
        for h in range(heads):
            g = h // (heads // groups)
            out[:, h] = softmax(q[:, h] @ k[:, g].T * dim**-0.5 + future) @ v[:, g]
        return (out.reshape(t, heads * dim) * sigmoid(gate)) @ self.matrix(p + "o_proj").T

    def delta_net(self, p, x):
        c = self.config
        key_heads, heads, dim = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"]
        kernel, t = c["linear_conv_kernel_dim"], len(x)
        qkv = x @ self.matrix(p + "in_proj_qkv").T
        z = (x @ self.matrix(p + "in_proj_z").T).reshape(t, heads, -1)
        beta = sigmoid(x @ self.matrix(p + "in_proj_b").T)
        step = np.logaddexp(0, x @ self.matrix(p + "in_proj_a").T + self.vector(p + "dt_bias"))
        decay = np.exp(-np.exp(self.vector(p + "A_log")) * step)
        taps = self.vector(p + "conv1d.weight").reshape(-1, kernel)
        rows = np.concatenate([np.zeros((kernel - 1, qkv.shape[1])), qkv])
        y = silu(sum(rows[j : j + t] * taps[:, j] for j in range(kernel)))
        keys = key_heads * dim
        share = heads // key_heads
        q = np.repeat(l2(y[:, :keys].reshape(t, key_heads, dim)) * dim**-0.5, share, 1)
        k = np.repeat(l2(y[:, keys : 2 * keys].reshape(t, key_heads, dim)), share, 1)
        v = y[:, 2 * keys :].reshape(t, heads, -1)
        state = np.zeros((heads, v.shape[-1], dim))
        out = np.empty_like(v)
        for i in range(t):
            state = state * decay[i][:, None, None]
            d = (v[i] - np.einsum("hvk,hk->hv", state, k[i])) * beta[i][:, None]
            state = state + d[:, :, None] * k[i][:, None, :]
            out[i] = np.einsum("hvk,hk->hv", state, q[i])
        out = self.rms(out, p + "norm.weight") * silu(z)
        return out.reshape(t, -1) @ self.matrix(p + "out_proj").T

    def moe(self, p, x):
        chosen = self.config["num_experts_per_tok"]
        probability = softmax(x @ self.matrix(p + "gate").T)
        index = np.argsort(-probability, -1, kind="stable")[:, :chosen]
        weight = np.take_along_axis(probability, index, -1)
        weight = weight / weight.sum(-1, keepdims=True)
        gate, up, down = (self.matrix(f"{p}switch_mlp.{n}_proj") for n in ("gate", "up", "down"))
        y = np.zeros_like(x)
        for expert in range(len(gate)):
            rows, slots = np.nonzero(index == expert)
            hidden = silu(x[rows] @ gate[expert].T) * (x[rows] @ up[expert].T)
            y[rows] += weight[rows, slots][:, None] * (hidden @ down[expert].T)
        gate, up, down = (self.matrix(f"{p}shared_expert.{n}_proj") for n in ("gate", "up", "down"))
        shared = (silu(x @ gate.T) * (x @ up.T)) @ down.T
        return y + sigmoid(x @ self.matrix(p + "shared_expert_gate").T) * shared

    def logits(self, ids):
        """f64 [T, vocab] for token ids [T]."""
        x = self.matrix("language_model.model.embed_tokens")[np.asarray(ids)]
        for i, kind in enumerate(self.config["layer_types"]):
            p = LAYER.format(i)
            n = self.rms(x, p + "input_layernorm.weight")
            x = x + (self.attention(p + "self_attn.", n) if kind == "full_attention" else self.delta_net(p + "linear_attn.", n))
            x = x + self.moe(p + "mlp.", self.rms(x, p + "post_attention_layernorm.weight"))
        return self.rms(x, "language_model.model.norm.weight") @ self.matrix("language_model.lm_head").T
