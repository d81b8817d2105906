"""The qwen3_5_moe text model as functions of a dictionary of weights under their Hugging Face names.

Matrix work runs in the dtype of the matrices that are passed in (bf16 in training, f32 in the checks); the residual
stream, norms, router, decay and the recurrent state are f32. Experts are computed densely: for 16 small experts that is
faster on a GPU than gathering, and gives the same result.
"""

import math

import torch
import torch.nn.functional as F

import config as C
import gdn

PREFIX = "model.language_model."


def is_matrix(name):
    """Whether the converter quantizes this weight (everything that is a Linear or an Embedding)."""
    return not name.endswith(("norm.weight", "layernorm.weight", "conv1d.weight", "A_log", "dt_bias"))


def bits_of(name):
    return 8 if name.endswith(("mlp.gate.weight", "mlp.shared_expert_gate.weight")) else 4


def shapes():
    """Name -> shape of every weight, in the order of the checkpoint."""
    h = C.HIDDEN
    s = {PREFIX + "embed_tokens.weight": (C.VOCAB, h)}
    for i, kind in enumerate(C.LAYER_TYPES):
        p = f"{PREFIX}layers.{i}."
        s[p + "input_layernorm.weight"] = (h,)
        if kind == "full_attention":
            a = p + "self_attn."
            s[a + "q_proj.weight"] = (C.QUERY_HEADS * 2 * C.HEAD_DIM, h)
            s[a + "k_proj.weight"] = (C.KV_HEADS * C.HEAD_DIM, h)
            s[a + "v_proj.weight"] = (C.KV_HEADS * C.HEAD_DIM, h)
            s[a + "o_proj.weight"] = (h, C.QUERY_HEADS * C.HEAD_DIM)
            s[a + "q_norm.weight"] = (C.HEAD_DIM,)
            s[a + "k_norm.weight"] = (C.HEAD_DIM,)
        else:
            a = p + "linear_attn."
            s[a + "in_proj_qkv.weight"] = (C.CONV_CHANNELS, h)
            s[a + "in_proj_z.weight"] = (C.VALUE_CHANNELS, h)
            s[a + "in_proj_b.weight"] = (C.VALUE_HEADS, h)
            s[a + "in_proj_a.weight"] = (C.VALUE_HEADS, h)
            s[a + "conv1d.weight"] = (C.CONV_CHANNELS, 1, C.CONV_KERNEL)
            s[a + "A_log"] = (C.VALUE_HEADS,)
            s[a + "dt_bias"] = (C.VALUE_HEADS,)
            s[a + "norm.weight"] = (C.STATE_DIM,)
            s[a + "out_proj.weight"] = (h, C.VALUE_CHANNELS)
        s[p + "post_attention_layernorm.weight"] = (h,)
        m = p + "mlp."
        s[m + "gate.weight"] = (C.EXPERTS, h)
        s[m + "experts.gate_up_proj"] = (C.EXPERTS, 2 * C.EXPERT_DIM, h)
        s[m + "experts.down_proj"] = (C.EXPERTS, h, C.EXPERT_DIM)
        s[m + "shared_expert.gate_proj.weight"] = (C.SHARED_EXPERT_DIM, h)
        s[m + "shared_expert.up_proj.weight"] = (C.SHARED_EXPERT_DIM, h)
        s[m + "shared_expert.down_proj.weight"] = (h, C.SHARED_EXPERT_DIM)
        s[m + "shared_expert_gate.weight"] = (1, h)
    s[PREFIX + "norm.weight"] = (h,)
    s["lm_head.weight"] = (C.VOCAB, h)
    return s


def initial_weights(seed):
    """Fresh f32 weights; matrices that write to the residual stream start smaller, by the number of layers."""
    g = torch.Generator().manual_seed(seed)
    w = {}
    for name, shape in shapes().items():
        if name.endswith("linear_attn.norm.weight"):
            w[name] = torch.ones(shape)
        elif name.endswith("norm.weight"):
            w[name] = torch.zeros(shape)  # zero-centred: applied as 1 + w
        elif name.endswith("A_log"):
            w[name] = torch.log(torch.rand(shape, generator=g) * 15.0 + 1.0)
        elif name.endswith("dt_bias"):
            dt = torch.exp(torch.rand(shape, generator=g) * math.log(100.0) + math.log(0.001))
            w[name] = dt + torch.log(-torch.expm1(-dt))
        elif name.endswith("conv1d.weight"):
            w[name] = (torch.rand(shape, generator=g) * 2 - 1) / math.sqrt(C.CONV_KERNEL)
        elif name.endswith("embed_tokens.weight"):
            w[name] = torch.randn(shape, generator=g) * 0.5
        else:
            std = 0.5 / math.sqrt(shape[-1])
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                std /= math.sqrt(2 * C.LAYERS)
            w[name] = torch.randn(shape, generator=g) * std
    return w


def linear(x, w):
    return x.to(w.dtype) @ w.mT


def rms(x, weight):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + C.NORM_EPS) * weight


def l2(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rope_tables(positions):
    """cos and sin [..., 32] of the rotated half-pairs for integer positions [...]."""
    i = torch.arange(0, C.ROTARY_DIM, 2, device=positions.device, dtype=torch.float64)
    angle = positions.double()[..., None] * C.ROPE_THETA ** (-i / C.ROTARY_DIM)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """x [B, T, heads, 256]; cos, sin [T, 32] or [B, T, 32]."""
    half = C.ROTARY_DIM // 2
    cos, sin = cos[..., None, :], sin[..., None, :]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def attention_project(x, norm, q_proj, k_proj, v_proj, q_norm, k_norm, cos, sin):
    """q [B, T, 8, 256], k and v [B, T, 1, 256] in the matrices' dtype, and the output gate [B, T, 2048]."""
    b, t, _ = x.shape
    n = rms(x, 1 + norm)
    q, gate = linear(n, q_proj).view(b, t, C.QUERY_HEADS, 2 * C.HEAD_DIM).chunk(2, -1)
    k = linear(n, k_proj).view(b, t, C.KV_HEADS, C.HEAD_DIM)
    v = linear(n, v_proj).view(b, t, C.KV_HEADS, C.HEAD_DIM)
    q = rotate(rms(q, 1 + q_norm), cos, sin).to(q_proj.dtype)
    k = rotate(rms(k, 1 + k_norm), cos, sin).to(q_proj.dtype)
    return q, k, v, gate.reshape(b, t, -1)


def attention_output(x, o, gate, o_proj):
    return x + linear(o * torch.sigmoid(gate), o_proj).float()


def gdn_project(x, norm, qkv_proj, z_proj, b_proj, a_proj):
    """Raw qkv rows, z, and the logits of beta and of the decay."""
    n = rms(x, 1 + norm)
    return linear(n, qkv_proj), linear(n, z_proj), linear(n, b_proj).float(), linear(n, a_proj).float()


def gdn_inputs(qkv, before, b, a, conv, a_log, dt_bias):
    """The recurrence's inputs from qkv [B, T, 1024] and the 3 rows before it; q, k, v [B, 4, T, 128] f32."""
    bs, t, _ = qkv.shape
    rows = torch.cat([before.to(qkv.dtype), qkv], 1).float()
    y = F.silu(sum(rows[:, j : j + t] * conv[:, 0, j] for j in range(C.CONV_KERNEL)))
    q, k, v = y.split([C.KEY_CHANNELS, C.KEY_CHANNELS, C.VALUE_CHANNELS], -1)
    share = C.VALUE_HEADS // C.KEY_HEADS  # value head h reads key head h // share
    q = l2(q.view(bs, t, C.KEY_HEADS, C.STATE_DIM)) * C.STATE_DIM**-0.5
    k = l2(k.view(bs, t, C.KEY_HEADS, C.STATE_DIM))
    q, k = (r.repeat_interleave(share, 2).transpose(1, 2) for r in (q, k))
    v = v.view(bs, t, C.VALUE_HEADS, C.STATE_DIM).transpose(1, 2)
    g = -a_log.exp() * F.softplus(a + dt_bias)
    return q, k, v, torch.sigmoid(b).transpose(1, 2), g.transpose(1, 2)


def gdn_output(x, o, z, norm, out_proj):
    """o [B, 4, T, 128]: normalise, then gate, then project back."""
    o = rms(o.transpose(1, 2), norm) * F.silu(z.float()).view(*z.shape[:2], C.VALUE_HEADS, C.STATE_DIM)
    return x + linear(o.flatten(2), out_proj).float()


def moe(x, norm, router, gate_up, down, s_gate, s_up, s_down, s_router):
    """The mixture of experts with its residual, and the load-balance loss (1 when the load is even)."""
    n = rms(x, 1 + norm)
    p = (n @ router.float().mT).softmax(-1)
    top, index = p.topk(C.EXPERTS_PER_TOKEN, -1)
    route = torch.zeros_like(p).scatter(-1, index, top / top.sum(-1, keepdim=True))
    m = n.to(gate_up.dtype)
    hidden = linear(m, gate_up.flatten(0, 1)).unflatten(-1, (C.EXPERTS, 2, C.EXPERT_DIM))
    act = F.silu(hidden[..., 0, :]) * hidden[..., 1, :] * route.to(m.dtype)[..., None]
    y = linear(act.flatten(-2), down.transpose(0, 1).flatten(1))
    shared = linear(F.silu(linear(m, s_gate)) * linear(m, s_up), s_down)
    y = y.float() + torch.sigmoid(n @ s_router.float().mT) * shared.float()
    load = (route > 0).float().flatten(0, -2).mean(0) / C.EXPERTS_PER_TOKEN
    balance = C.EXPERTS * (load * p.flatten(0, -2).mean(0)).sum()
    return x + y, balance


def head(x, norm, lm_head):
    return linear(rms(x, 1 + norm), lm_head)


def token_loss(x, norm, lm_head, targets):
    """Cross entropy of each token, f32 [B, T]; targets below 0 count nothing."""
    logits = head(x, norm, lm_head).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none").view_as(targets)


MOE_NAMES = [
    "post_attention_layernorm.weight",
    "mlp.gate.weight",
    "mlp.experts.gate_up_proj",
    "mlp.experts.down_proj",
    "mlp.shared_expert.gate_proj.weight",
    "mlp.shared_expert.up_proj.weight",
    "mlp.shared_expert.down_proj.weight",
    "mlp.shared_expert_gate.weight",
]


class Model:
    """The forward pass over whole rows; `compiled` fuses the stateless parts with torch.compile."""

    def __init__(self, compiled=False):
        wrap = torch.compile if compiled else (lambda f: f)
        self.attention_project, self.attention_output = wrap(attention_project), wrap(attention_output)
        self.gdn_project, self.gdn_inputs, self.gdn_output = wrap(gdn_project), wrap(gdn_inputs), wrap(gdn_output)
        self.within, self.read_out = wrap(gdn.within_chunks), wrap(gdn.read_out)
        self.moe, self.token_loss = wrap(moe), wrap(token_loss)

    def attention(self, w, p, x, tables):
        a = p + "self_attn."
        names = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_norm.weight", "k_norm.weight")
        q, k, v, gate = self.attention_project(
            x, w[p + "input_layernorm.weight"], *(w[a + n] for n in names), *tables
        )
        q, k, v = (r.transpose(1, 2) for r in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.attention_output(x, o.transpose(1, 2).flatten(2), gate, w[a + "o_proj.weight"])

    def delta_net(self, w, p, x):
        a = p + "linear_attn."
        bs = x.shape[0]
        qkv, z, b, alpha = self.gdn_project(
            x,
            w[p + "input_layernorm.weight"],
            *(w[a + f"in_proj_{n}.weight"] for n in ("qkv", "z", "b", "a")),
        )
        before = qkv.new_zeros(bs, C.CONV_KERNEL - 1, C.CONV_CHANNELS)
        inputs = self.gdn_inputs(qkv, before, b, alpha, w[a + "conv1d.weight"], w[a + "A_log"], w[a + "dt_bias"])
        state = x.new_zeros(bs, C.VALUE_HEADS, C.STATE_DIM, C.STATE_DIM)
        o, _ = gdn.gated_delta_rule(*inputs, state, self.within, self.read_out)
        return self.gdn_output(x, o, z, w[a + "norm.weight"], w[a + "out_proj.weight"])

    def hidden(self, w, ids):
        """Last hidden state before the final norm, f32 [B, T, hidden], and the mean load-balance loss."""
        x = F.embedding(ids, w[PREFIX + "embed_tokens.weight"]).float()
        tables = rope_tables(torch.arange(ids.shape[1], device=ids.device))
        balance = 0.0
        for i, kind in enumerate(C.LAYER_TYPES):
            p = f"{PREFIX}layers.{i}."
            x = self.attention(w, p, x, tables) if kind == "full_attention" else self.delta_net(w, p, x)
            x, b = self.moe(x, *(w[p + n] for n in MOE_NAMES))
            balance = balance + b / C.LAYERS
        return x, balance

    def logits(self, w, ids):
        x, _ = self.hidden(w, ids)
        return head(x, w[PREFIX + "norm.weight"], w["lm_head.weight"])

    def loss(self, w, ids, targets):
        """Cross entropy of each token [B, T] and the load-balance loss."""
        x, balance = self.hidden(w, ids)
        return self.token_loss(x, w[PREFIX + "norm.weight"], w["lm_head.weight"], targets), balance
