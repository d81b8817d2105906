"""The Gated DeltaNet recurrence in its chunked form, differentiable, in plain PyTorch.

For each value head, with S a matrix [key dim, value dim] that starts at zero, and for each token in this order:
    S <- exp(g) S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q

Inside a chunk that starts from S0, with c the running sum of g, this unrolls to a unit lower-triangular system
    (I + A) d = beta v - beta exp(c) k S0,    A[t, i] = beta_t exp(c_t - c_i) (k_t . k_i)  for i < t
so d = u - w S0 with u, w found for all chunks at once; only the short loop over chunks is sequential.
"""

import torch

CHUNK = 64


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of I + a for strictly lower-triangular a [..., n, n], n a power of two.

    Doubles the size of the inverted diagonal blocks at each step, which is as stable as forward substitution (a series
    in powers of a is not: its terms can be huge and cancel). The gradient needs the inverse only.
    """

    @staticmethod
    def forward(ctx, a):
        n = a.shape[-1]
        index = torch.arange(n, device=a.device)
        inverse = torch.eye(n, device=a.device, dtype=a.dtype).expand_as(a)
        size = 1
        while size < n:
            row, col = index[:, None] // size, index[None, :] // size
            below = ((row % 2 == 1) & (col == row - 1)).to(a.dtype)
            inverse = inverse - inverse @ (a * below) @ inverse
            size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT).tril(-1)


def within_chunks(q, k, v, beta, g):
    """Everything that needs no state, for all chunks at once.

    q, k, v [B, H, T, 128] f32; beta, g [B, H, T] f32, g the log of the decay. T is a multiple of CHUNK.
    """
    b, h, t, d = q.shape
    q, k, v = (x.reshape(b, h, t // CHUNK, CHUNK, d) for x in (q, k, v))
    beta = beta.reshape(b, h, t // CHUNK, CHUNK, 1)
    c = g.reshape(b, h, t // CHUNK, CHUNK).cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    # Masked before exp: above the diagonal the difference is positive and could overflow.
    decay = (c[..., :, None] - c[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    a = (beta * (k @ k.mT) * decay).tril(-1)
    inverse = UnitLowerInverse.apply(a)
    u = inverse @ (beta * v)
    w = inverse @ (beta * c.exp()[..., None] * k)
    scores = (q @ k.mT) * decay
    q_decayed = q * c.exp()[..., None]
    k_decayed = k * (c[..., -1:] - c).exp()[..., None]
    return u, w, scores, q_decayed, k_decayed, c[..., -1].exp()


def across_chunks(u, w, k_decayed, chunk_decay, state):
    """The sequential part: the state that enters each chunk, and each chunk's d."""
    states, ds = [], []
    for u_i, w_i, k_i, decay_i in zip(u.unbind(2), w.unbind(2), k_decayed.unbind(2), chunk_decay.unbind(2)):
        states.append(state)
        d = u_i - w_i @ state
        ds.append(d)
        state = state * decay_i[..., None, None] + k_i.mT @ d
    return torch.stack(states, 2), torch.stack(ds, 2), state


def read_out(q_decayed, states, scores, d):
    return (q_decayed @ states + scores @ d).flatten(2, 3)


def gated_delta_rule(q, k, v, beta, g, state, within=within_chunks, out=read_out):
    """Returns o [B, H, T, 128] and the final state. `within` and `out` may be compiled versions."""
    u, w, scores, q_decayed, k_decayed, chunk_decay = within(q, k, v, beta, g)
    states, d, state = across_chunks(u, w, k_decayed, chunk_decay, state)
    return out(q_decayed, states, scores, d), state


def gated_delta_step(q, k, v, beta, g, state):
    """One token: q, k, v [B, H, 128], beta, g [B, H]."""
    state = state * g.exp()[..., None, None]
    d = beta[..., None] * (v - (k[..., None, :] @ state).squeeze(-2))
    state = state + k[..., :, None] * d[..., None, :]
    return (q[..., None, :] @ state).squeeze(-2), state
