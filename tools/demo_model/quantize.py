"""MLX's affine quantization as a differentiable rounding, so that training can see what the 4-bit file will hold."""

import torch

from model import bits_of, is_matrix

GROUP = 64


def round_groups(w, bits):
    """w [groups, 64] f32 -> what the file holds after mx.quantize of the bf16 weights: bf16 scale * code + bf16 bias.

    One end of the group (the larger in magnitude) is kept exactly and the scale is adjusted so that zero is a code.
    """
    w = w.to(torch.bfloat16).float()
    levels = 2**bits - 1
    low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    scale = ((high - low) / levels).clamp_min(1e-7)
    low_is_edge = low.abs() > high.abs()
    scale = torch.where(low_is_edge, scale, -scale)
    edge = torch.where(low_is_edge, low, high)
    zero_code = (edge / scale).round()
    nonzero = zero_code != 0
    scale = torch.where(nonzero, edge / torch.where(nonzero, zero_code, 1.0), scale)
    bias = torch.where(nonzero, edge, 0.0)
    code = ((w - bias) / scale).round().clamp(0, levels)
    return code * scale.to(torch.bfloat16).float() + bias.to(torch.bfloat16).float()


def round_vector(name, w):
    """An unquantized weight as stored: zero-centred norms as bf16(1 + w), A_log in f32, the rest in bf16."""
    if name.endswith("A_log"):
        return w
    half = w.to(torch.bfloat16)
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return (half + 1).float() - 1
    return half.float()


class EffectiveWeights:
    """The weights that the forward pass uses, made from the f32 parameters at every step.

    Matrices come out in `dtype`. With quantized=True every weight is first rounded as in the 4-bit file and the
    gradient passes the rounding unchanged (straight-through).
    """

    def __init__(self, params, dtype, compiled=False):
        self.params, self.dtype = params, dtype
        self.round_groups = torch.compile(round_groups) if compiled else round_groups
        self.matrices = {bits: [n for n in params if is_matrix(n) and bits_of(n) == bits] for bits in (4, 8)}

    def __call__(self, quantized):
        out = {}
        for name, p in self.params.items():
            if is_matrix(name):
                out[name] = p
            elif quantized:
                out[name] = p + (round_vector(name, p.detach()) - p.detach())
            else:
                out[name] = p
        for bits, names in self.matrices.items():
            if quantized:
                flat = torch.cat([self.params[n].reshape(-1, GROUP) for n in names])
                with torch.no_grad():
                    change = self.round_groups(flat, bits) - flat
                parts = (flat + change).to(self.dtype).split([self.params[n].numel() // GROUP for n in names])
                out.update({n: part.view_as(self.params[n]) for n, part in zip(names, parts)})
            else:
                out.update({n: self.params[n].to(self.dtype) for n in names})
        return out
