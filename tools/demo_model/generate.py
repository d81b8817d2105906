"""Batched generation in PyTorch, for evaluation: prompts of different lengths, one recurrent step a token."""

import torch
import torch.nn.functional as F

import config as C
import gdn
import model as M


class Decoder:
    """Holds the states of a batch. Weights are effective weights (see quantize.py), on the device to run on."""

    def __init__(self, weights, prompts, room):
        self.w = weights
        self.device = weights["lm_head.weight"].device
        self.lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        width = -(-int(self.lengths.max()) // gdn.CHUNK) * gdn.CHUNK
        ids = torch.zeros(len(prompts), width, dtype=torch.long, device=self.device)
        for row, prompt in zip(ids, prompts):
            row[: len(prompt)] = torch.tensor(prompt, device=self.device)
        self.room = width + room
        self.rows = torch.arange(len(prompts), device=self.device)
        self.cache = {}
        self.logits = self.prefill(ids)

    def prefill(self, ids):
        x = F.embedding(ids, self.w[M.PREFIX + "embed_tokens.weight"]).float()
        valid = torch.arange(ids.shape[1], device=self.device) < self.lengths[:, None]
        tables = M.rope_tables(torch.arange(ids.shape[1], device=self.device))
        for i, kind in enumerate(C.LAYER_TYPES):
            p = f"{M.PREFIX}layers.{i}."
            if kind == "full_attention":
                x = self.attention(i, p, x, tables)
            else:
                x = self.delta_net(i, p, x, valid)
            x, _ = M.moe(x, *(self.w[p + n] for n in M.MOE_NAMES))
        return self.head(x[self.rows, self.lengths - 1])

    def step(self, tokens):
        x = F.embedding(tokens, self.w[M.PREFIX + "embed_tokens.weight"]).float()[:, None]
        tables = M.rope_tables(self.lengths[:, None])
        for i, kind in enumerate(C.LAYER_TYPES):
            p = f"{M.PREFIX}layers.{i}."
            x = self.attention(i, p, x, tables) if kind == "full_attention" else self.delta_net(i, p, x, None)
            x, _ = M.moe(x, *(self.w[p + n] for n in M.MOE_NAMES))
        self.lengths = self.lengths + 1
        self.logits = self.head(x[:, 0])
        return self.logits

    def head(self, x):
        logits = M.head(x, self.w[M.PREFIX + "norm.weight"], self.w["lm_head.weight"]).float()
        logits[:, C.BASE_TOKENS + len(C.ADDED_TOKENS) :] = float("-inf")  # rows that stand for no token
        return logits

    def attention(self, i, p, x, tables):
        a = p + "self_attn."
        names = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_norm.weight", "k_norm.weight")
        weights = (self.w[a + n] for n in names)
        q, k, v, gate = M.attention_project(x, self.w[p + "input_layernorm.weight"], *weights, *tables)
        q, k, v = (r.transpose(1, 2) for r in (q, k, v))
        if i not in self.cache:
            pad = (0, 0, 0, self.room - k.shape[2])
            self.cache[i] = (F.pad(k, pad), F.pad(v, pad))
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            keys, values = self.cache[i]
            keys[self.rows, :, self.lengths] = k[:, :, 0]
            values[self.rows, :, self.lengths] = v[:, :, 0]
            seen = torch.arange(self.room, device=self.device) <= self.lengths[:, None]
            o = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None, None], enable_gqa=True)
        return M.attention_output(x, o.transpose(1, 2).flatten(2), gate, self.w[a + "o_proj.weight"])

    def delta_net(self, i, p, x, valid):
        a = p + "linear_attn."
        weights = (self.w[a + f"in_proj_{n}.weight"] for n in ("qkv", "z", "b", "a"))
        qkv, z, b, alpha = M.gdn_project(x, self.w[p + "input_layernorm.weight"], *weights)
        conv, a_log, dt_bias = (self.w[a + n] for n in ("conv1d.weight", "A_log", "dt_bias"))
        if i not in self.cache:
            before = qkv.new_zeros(len(x), C.CONV_KERNEL - 1, C.CONV_CHANNELS)
            q, k, v, beta, g = M.gdn_inputs(qkv, before, b, alpha, conv, a_log, dt_bias)
            # A padded position must leave the state as it is: no decay and no write.
            beta, g = beta * valid[:, None], g * valid[:, None]
            state = x.new_zeros(len(x), C.VALUE_HEADS, C.STATE_DIM, C.STATE_DIM)
            o, state = gdn.gated_delta_rule(q, k, v, beta, g, state)
            last = self.lengths[:, None] - torch.arange(C.CONV_KERNEL - 1, 0, -1, device=self.device)
            before = qkv[self.rows[:, None], last]
        else:
            before, state = self.cache[i]
            q, k, v, beta, g = (r.squeeze(2) for r in M.gdn_inputs(qkv, before, b, alpha, conv, a_log, dt_bias))
            o, state = gdn.gated_delta_step(q, k, v, beta, g, state)
            o = o[:, :, None]
            before = torch.cat([before[:, 1:], qkv], 1)
        self.cache[i] = (before, state)
        return M.gdn_output(x, o, z, self.w[a + "norm.weight"], self.w[a + "out_proj.weight"])


def choose(logits, temperature, top_k, top_p, generator):
    if temperature == 0:
        return logits.argmax(-1)
    values, index = (logits / temperature).topk(top_k, -1)
    probability = values.softmax(-1)
    probability = torch.where(probability.cumsum(-1) - probability < top_p, probability, 0.0)
    return index.gather(-1, torch.multinomial(probability, 1, generator=generator)).squeeze(-1)


@torch.no_grad()
def generate(weights, prompts, most, temperature=0.0, top_k=20, top_p=0.95, seed=0):
    """Continuations (token ids without the stop token) and whether each ended with <|im_end|>."""
    decoder = Decoder(weights, prompts, most)
    generator = torch.Generator(decoder.device).manual_seed(seed)
    out, ended, stopped = [[] for _ in prompts], [False] * len(prompts), [False] * len(prompts)
    for _ in range(most):
        tokens = choose(decoder.logits, temperature, top_k, top_p, generator)
        for i, token in enumerate(tokens.tolist()):
            if stopped[i]:
                continue
            if token in (C.IM_END, C.ENDOFTEXT):
                stopped[i], ended[i] = True, token == C.IM_END
            else:
                out[i].append(token)
        if all(stopped):
            break
        decoder.step(tokens)
    return out, ended
