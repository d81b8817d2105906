# One arm of `lily bench --against mlx-lm`: loads the checkpoint, warms up with exactly the shape that is measured, measures one prefill and
# the decode steps after it. MLX-LM's own loop does both; its first token is delivered when the first decode step has been submitted.
import time
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step, generation_stream, wired_limit
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model


def measure(model, prompt, steps):
    prompt = mx.array(prompt)
    mx.eval(prompt)
    cache = make_prompt_cache(model)
    started = time.perf_counter()
    tokens = generate_step(prompt, model, max_tokens=steps + 1, prompt_cache=cache)
    chosen = [int(next(tokens)[0])]
    prefilled = time.perf_counter()
    for _ in range(steps):
        chosen.append(int(next(tokens)[0]))
    decoded = time.perf_counter()
    tokens.close()
    return prefilled - started, decoded - prefilled, chosen


def answer(request):
    model, _ = load_model(Path(request["model"]))
    if request["dtype"]:
        model.set_dtype(getattr(mx, request["dtype"]))
    mx.eval(model.parameters())
    with wired_limit(model, [generation_stream]):
        measure(model, request["prompt"], request["steps"])
        prefill, decode, tokens = measure(model, request["prompt"], request["steps"])
    # A quantized matrix computes in the number format of its scales.
    kinds = [array.dtype for name, array in tree_flatten(model.parameters()) if name.endswith("scales")]
    kinds = kinds or [array.dtype for _, array in tree_flatten(model.parameters())]
    device = "cpu" if mx.default_device().type == mx.cpu else "gpu"
    return {
        "prefill_seconds": prefill,
        "decode_seconds": decode,
        "tokens": tokens,
        "device": device,
        "dtype": str(kinds[0]).removeprefix("mlx.core."),
    }


run(answer)
