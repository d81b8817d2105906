"""The model in plain numpy, float64, written from its definition: the authority for the golden values of tests/fixtures.

Reads an MLX checkpoint directory. Slow and simple on purpose; nothing here is shared with the engine.
"""

import json
from pathlib import Path

import numpy as np

NUMPY_TYPES = {"F32": np.float32, "F16": np.float16, "U32": np.uint32, "U8": np.uint8, "I32": np.int32}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(codes):
    codes = codes.astype(np.int64)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where(codes & 0x80, -magnitude, magnitude)


def e8m0(codes):
    return 2.0 ** (codes.astype(np.int64) - 127)


def unpack(words, bits):
    """Codes of packed rows: code i of a row is bits [i * bits, (i + 1) * bits) of the row's little-endian bit string."""
    count = words.shape[-1] * 32 // bits
    rows = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    rows = rows[..., : count * bits].reshape(*words.shape[:-1], count, bits).astype(np.uint32)
    return (rows << np.arange(bits, dtype=np.uint32)).sum(-1)


class Checkpoint:
    """Config and tensors of a checkpoint; matrices come out dequantized, in float64."""

    def __init__(self, directory):
        directory = Path(directory)
        self.outer = json.loads((directory / "config.json").read_text())
        self.config = self.outer.get("text_config", self.outer)
        self.quantization = self.outer.get("quantization", {})
        self.tensors = {}
        self.matrices = {}
        for path in sorted(directory.glob("*.safetensors")):
            data = np.memmap(path, dtype=np.uint8, mode="r")
            header_length = int(data[:8].view("<u8")[0])
            header = json.loads(bytes(data[8 : 8 + header_length]))
            for name, info in header.items():
                if name != "__metadata__":
                    start, end = (8 + header_length + offset for offset in info["data_offsets"])
                    self.tensors[name] = (data[start:end], info["dtype"], info["shape"])

    def tensor(self, name):
        data, dtype, shape = self.tensors[name]
        data = np.ascontiguousarray(data)
        if dtype == "BF16":
            return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
        return data.view(NUMPY_TYPES[dtype]).reshape(shape)

    def vector(self, name):
        return self.tensor(name).astype(np.float64)

    def matrix(self, name):
        """The matrix of a module, given without `.weight`."""
        if name not in self.matrices:
            self.matrices[name] = self._dequantize(name)
        return self.matrices[name]

    def _dequantize(self, name):
        weight = self.tensor(f"{name}.weight")
        if f"{name}.scales" not in self.tensors:
            return weight.astype(np.float64)
        override = self.quantization.get(name)
        scheme = override if isinstance(override, dict) else self.quantization
        scales = self.tensor(f"{name}.scales")
        mode = scheme.get("mode", "affine")
        bits = scheme.get("bits", 8 if mode == "mxfp8" else 4)
        codes = unpack(weight, bits)
        group_size = codes.shape[-1] // scales.shape[-1]
        spread = lambda values: np.repeat(values.astype(np.float64), group_size, -1)
        if mode == "affine":
            return spread(scales) * codes + spread(self.tensor(f"{name}.biases"))
        if mode == "nvfp4":
            factor = self.vector(f"{name}.global_scale") if f"{name}.global_scale" in self.tensors else 1.0
            return factor * spread(e4m3(scales)) * E2M1[codes]
        return spread(e8m0(scales)) * (e4m3(codes) if mode == "mxfp8" else E2M1[codes])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, positions, dims, theta):
    """Rotary embedding of the first `dims` dimensions of x [tokens, heads, head_dim], in pairs (i, i + dims / 2)."""
    angles = positions[:, None] * theta ** (-np.arange(0, dims, 2) / dims)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)


def delta_net(checkpoint, prefix, x, state, trace=None):
    """Gated DeltaNet, one token after the other. `state` has `conv` [taps - 1, channels] and `S` [value heads, value, key]."""
    config, tokens = checkpoint.config, len(x)
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
    taps = config["linear_conv_kernel_dim"]
    project = lambda name: x @ checkpoint.matrix(prefix + name).T

    qkv = project("in_proj_qkv")
    inputs = np.concatenate([state.get("conv", np.zeros((taps - 1, qkv.shape[1]))), qkv])
    state["conv"] = inputs[-(taps - 1) :]
    kernel = checkpoint.vector(prefix + "conv1d.weight").reshape(-1, taps)
    mixed = silu(sum(inputs[tap : tap + tokens] * kernel[:, tap] for tap in range(taps)))

    split = key_heads * key_dim
    q = mixed[:, :split].reshape(tokens, key_heads, key_dim)
    k = mixed[:, split : 2 * split].reshape(tokens, key_heads, key_dim)
    v = mixed[:, 2 * split :].reshape(tokens, value_heads, value_dim)
    unit = lambda vectors: vectors / np.sqrt((vectors * vectors).sum(-1, keepdims=True) + 1e-6)
    q, k = unit(q) * key_dim**-0.5, unit(k)
    beta = sigmoid(project("in_proj_b"))
    rate = np.exp(checkpoint.vector(prefix + "A_log"))
    decay = np.exp(-rate * np.logaddexp(0, project("in_proj_a") + checkpoint.vector(prefix + "dt_bias")))

    share = value_heads // key_heads
    S = state.get("S", np.zeros((value_heads, value_dim, key_dim)))
    out = np.empty((tokens, value_heads, value_dim))
    for t in range(tokens):
        query, key = np.repeat(q[t], share, 0), np.repeat(k[t], share, 0)
        S = S * decay[t][:, None, None]
        change = beta[t][:, None] * (v[t] - np.einsum("hvk,hk->hv", S, key))
        S = S + change[:, :, None] * key[:, None, :]
        out[t] = np.einsum("hvk,hk->hv", S, query)
    state["S"] = S
    if trace is not None:
        trace.update(q=q, k=k, v=v, beta=beta, g=decay, o=out)
    gate = silu(project("in_proj_z")).reshape(tokens, value_heads, value_dim)
    normed = rms_norm(out, checkpoint.vector(prefix + "norm.weight"), config["rms_norm_eps"]) * gate
    return normed.reshape(tokens, -1) @ checkpoint.matrix(prefix + "out_proj").T


def attention(checkpoint, prefix, x, state, positions):
    """Full attention with an output gate. `state` has `k` and `v` [tokens, KV heads, head_dim]."""
    config, tokens = checkpoint.config, len(x)
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    rope, eps = config["rope_parameters"], config["rms_norm_eps"]
    rotary = int(dim * rope["partial_rotary_factor"])
    project = lambda name: x @ checkpoint.matrix(prefix + name).T

    query_and_gate = project("q_proj").reshape(tokens, heads, 2 * dim)
    q, gate = query_and_gate[..., :dim], query_and_gate[..., dim:]
    k, v = (project(name).reshape(tokens, kv_heads, dim) for name in ("k_proj", "v_proj"))
    q = rotate(rms_norm(q, checkpoint.vector(prefix + "q_norm.weight"), eps), positions, rotary, rope["rope_theta"])
    k = rotate(rms_norm(k, checkpoint.vector(prefix + "k_norm.weight"), eps), positions, rotary, rope["rope_theta"])
    if "k" in state:
        k, v = np.concatenate([state["k"], k]), np.concatenate([state["v"], v])
    state["k"], state["v"] = k, v

    visible = np.arange(len(k))[None] <= (len(k) - tokens + np.arange(tokens))[:, None]
    out = np.empty((tokens, heads, dim))
    for head in range(heads):
        shared = head // (heads // kv_heads)
        scores = np.where(visible, q[:, head] @ k[:, shared].T * dim**-0.5, -np.inf)
        out[:, head] = softmax(scores) @ v[:, shared]
    return (out * sigmoid(gate)).reshape(tokens, -1) @ checkpoint.matrix(prefix + "o_proj").T


def gated_mlp(gate, up, down, x):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def mlp(checkpoint, prefix, x):
    """The feed-forward part; also the chosen experts in order of probability (none for a dense model)."""
    config = checkpoint.config
    parts = lambda name: [checkpoint.matrix(f"{prefix}{name}{part}_proj") for part in ("gate", "up", "down")]
    if not config.get("num_experts"):
        return gated_mlp(*parts(""), x), np.zeros((len(x), 0), np.int32)
    probabilities = softmax(x @ checkpoint.matrix(prefix + "gate").T)
    chosen = np.argsort(-probabilities, -1, kind="stable")[:, : config["num_experts_per_tok"]]
    weights = np.take_along_axis(probabilities, chosen, -1)
    weights = weights / weights.sum(-1, keepdims=True)
    gate, up, down = parts("switch_mlp.")
    routed = np.zeros_like(x)
    for t in range(len(x)):
        for weight, expert in zip(weights[t], chosen[t]):
            routed[t] += weight * gated_mlp(gate[expert], up[expert], down[expert], x[t])
    shared_gate = sigmoid(x @ checkpoint.matrix(prefix + "shared_expert_gate").T)
    return routed + shared_gate * gated_mlp(*parts("shared_expert."), x), chosen


def forward(checkpoint, token_ids, trace=None):
    """Logits [tokens, vocabulary] and the final states of the layers. `trace` is filled with `hidden`, `routes` and layer 0's `gdn0`."""
    config = checkpoint.config
    flat = "model.embed_tokens.weight" in checkpoint.tensors
    model, head = ("model.", "lm_head") if flat else ("language_model.model.", "language_model.lm_head")
    eps, layers = config["rms_norm_eps"], config["num_hidden_layers"]
    kinds = config.get("layer_types") or [
        "full_attention" if (layer + 1) % config["full_attention_interval"] == 0 else "linear_attention"
        for layer in range(layers)
    ]
    positions = np.arange(len(token_ids), dtype=np.float64)
    x = checkpoint.matrix(model + "embed_tokens")[np.asarray(token_ids)]
    hidden, routes, states, inner = [x], [], [{} for _ in range(layers)], {}
    for layer, kind in enumerate(kinds):
        prefix = f"{model}layers.{layer}."
        normed = rms_norm(x, checkpoint.vector(prefix + "input_layernorm.weight"), eps)
        if kind == "full_attention":
            x = x + attention(checkpoint, prefix + "self_attn.", normed, states[layer], positions)
        else:
            x = x + delta_net(checkpoint, prefix + "linear_attn.", normed, states[layer], inner if layer == 0 else None)
        normed = rms_norm(x, checkpoint.vector(prefix + "post_attention_layernorm.weight"), eps)
        change, chosen = mlp(checkpoint, prefix + "mlp.", normed)
        x = x + change
        hidden.append(x)
        routes.append(chosen)
    if trace is not None:
        trace.update(hidden=np.stack(hidden), routes=np.stack(routes), gdn0=inner)
    tied = config.get("tie_word_embeddings", checkpoint.outer.get("tie_word_embeddings", False))
    output = checkpoint.matrix(model + "embed_tokens" if tied else head)
    return rms_norm(x, checkpoint.vector(model + "norm.weight"), eps) @ output.T, states
