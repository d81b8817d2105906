"""Checks model.py against the Qwen3_5Moe implementation of transformers: same random weights, logits in f32.

Usage: check_model.py [cpu|cuda]
"""

import sys

import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

import config as C
from model import PREFIX, Model, initial_weights

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False
generator = torch.Generator().manual_seed(5)
weights = {}
for name, value in initial_weights(3).items():
    # Norm weights away from their initial value, or a forgotten one would not show.
    noise = 0.2 * torch.randn(value.shape, generator=generator) if name.endswith("norm.weight") else 0.0
    scale = 2.0 if value.dim() > 1 else 1.0
    weights[name] = value * scale + noise

reference = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**C.hf_config()["text_config"])).float().eval()
reference.load_state_dict({k.replace(PREFIX, "model."): v for k, v in weights.items()}, strict=True)
ids = torch.randint(0, C.BASE_TOKENS, (2, 256), generator=generator).to(device)
with torch.no_grad():
    expected = reference.to(device)(ids).logits
    got = Model().logits({k: v.to(device) for k, v in weights.items()}, ids)
difference = (expected - got).abs().max().item()
print(f"logits std {expected.std().item():.3f}, largest difference {difference:.2e}")
assert difference < 1e-3, "the model differs from transformers"
