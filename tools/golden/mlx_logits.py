"""Golden logits from MLX-LM in f32, for checkpoints in any of its formats (needs mlx-lm).

    mlx_logits.py TOKENS.safetensors OUT.safetensors CHECKPOINT...

Writes, under each checkpoint's directory name, the logits after the first 64 of the `token_ids` in TOKENS. f32, because MLX's bf16
products on the CPU accumulate in bf16 and are no reference.
"""

import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm import load
from safetensors.numpy import load_file, save_file

POSITIONS = 64

mx.set_default_device(mx.cpu)
tokens, out, *checkpoints = sys.argv[1:]
token_ids = load_file(tokens)["token_ids"].astype(np.int32)
golden = {"token_ids": token_ids}
for checkpoint in checkpoints:
    model, _ = load(checkpoint)
    model.set_dtype(mx.float32)
    golden[Path(checkpoint).name] = np.array(model(mx.array(token_ids[None, :POSITIONS])))[0].astype(np.float32)
save_file(golden, out)
