"""Recomputes both golden files with the float64 reference and compares them with what is stored.

  check_goldens.py DIR
"""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from reference import Reference

folder = Path(sys.argv[1])
reference = Reference(folder)
for name in ("golden.safetensors", "golden_tools.safetensors"):
    golden = load_file(folder / name)
    stored = golden["logits.numpy_f64"]
    logits = reference.logits(golden["token_ids"][:-1])
    difference = np.abs(logits[golden["positions"]] - stored).max()
    same = (logits.argmax(-1) == golden["mlx_fp32.top_token"]).all()
    print(f"{name}: {len(logits)} positions, {len(stored)} with logits, largest difference {difference:.1e}")
    # Stored as f32, so equal up to its rounding.
    assert difference < 1e-5, f"{name}: logits differ"
    assert same, f"{name}: the top token differs from MLX-LM's"
    assert golden["mlx_fp32.largest_difference"].max() < 1e-3, f"{name}: MLX-LM differs too much"
