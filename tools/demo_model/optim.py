"""Muon for the hidden matrices, AdamW for everything else."""

import torch

from model import is_matrix

SMALL = ("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "shared_expert_gate.weight", "in_proj_a.weight", "in_proj_b.weight")


def uses_muon(name):
    return is_matrix(name) and not name.endswith(SMALL)


def orthogonalize(m):
    """Nearly the closest semi-orthogonal matrix of each m [N, rows, columns], by five Newton-Schulz steps, in bf16 on a GPU."""
    x = m.to(torch.bfloat16) if m.is_cuda else m
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x.mT if tall else x


class Muon:
    """Momentum, then orthogonalization; the factor makes an update about as large as AdamW's."""

    def __init__(self, params, momentum=0.95, weight_decay=0.05):
        self.momentum, self.weight_decay = momentum, weight_decay
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.buffers = {
            shape: torch.zeros(sum(p.numel() for p in ps) // (shape[0] * shape[1]), *shape, device=ps[0].device)
            for shape, ps in self.groups.items()
        }

    @torch.no_grad()
    def step(self, rate):
        """`rate` is a tensor, so that a recorded step can be replayed with another one."""
        for shape, ps in self.groups.items():
            grad = torch.cat([p.grad.reshape(-1, *shape) for p in ps])
            buffer = self.buffers[shape]
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonalize(grad.lerp(buffer, self.momentum)).float()
            update *= -0.2 * max(shape) ** 0.5 * rate
            parts = update.split([p.numel() // (shape[0] * shape[1]) for p in ps])
            torch._foreach_mul_(ps, 1 - rate * self.weight_decay)
            torch._foreach_add_(ps, [part.view_as(p) for part, p in zip(parts, ps)])


class Optimizer:
    def __init__(self, params):
        self.params = list(params.values())
        device = self.params[0].device
        self.rate = torch.zeros((), device=device)
        self.muon = Muon([p for n, p in params.items() if uses_muon(n)])
        decayed = [p for n, p in params.items() if is_matrix(n) and not uses_muon(n)]
        vectors = [p for n, p in params.items() if not is_matrix(n)]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        on_gpu = device.type == "cuda"
        self.adam = torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.95), eps=1e-8, fused=on_gpu, capturable=on_gpu)
        self.by_adam = decayed + vectors

    def step(self):
        """One update with the learning rate in `rate`; returns the gradient's norm before it was clipped to 1."""
        norm = torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.muon.step(self.rate)
        self.adam.step()
        for p in self.params:
            p.grad = None
        return norm

    def state(self, copy=False):
        keep = torch.clone if copy else (lambda t: t)
        return {
            "muon": {shape: keep(b) for shape, b in self.muon.buffers.items()},
            "adam": [{k: keep(t) for k, t in self.adam.state[p].items()} for p in self.by_adam],
        }

    def load(self, state):
        """Takes a state over in place, as recorded steps refer to the tensors that are there. Adam's may be empty."""
        for shape, buffer in self.muon.buffers.items():
            buffer.copy_(state["muon"][shape])
        for p, saved in zip(self.by_adam, state["adam"]):
            own = self.adam.state[p]
            for key, tensor in own.items():
                tensor.copy_(saved[key]) if saved else tensor.zero_()
            if not own:
                own.update({k: t.clone() for k, t in saved.items()})
