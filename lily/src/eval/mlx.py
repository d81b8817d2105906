# MLX-LM's logits for `lily eval --against mlx-lm`: {"model": directory} loads the checkpoint, in f32, because MLX's bf16 products on a CPU
# accumulate in bf16; {"tokens": [..], "file": path, "fresh": bool} appends tokens to the sequence, or to a new one, and writes the logits
# after each of them as f32.
from pathlib import Path

import mlx.core as mx
import numpy
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

model = None
cache = None


def answer(request):
    global model, cache
    if "model" in request:
        model, _ = load_model(Path(request["model"]))
        model.set_dtype(mx.float32)
        mx.eval(model.parameters())
        return {"device": "cpu" if mx.default_device().type == mx.cpu else "gpu"}
    if request["fresh"]:
        cache = make_prompt_cache(model)
    logits = model(mx.array([request["tokens"]]), cache=cache)[0].astype(mx.float32)
    rows = numpy.array(logits)
    with open(request["file"], "wb") as file:
        file.write(rows.astype("<f4").tobytes())
    return {"rows": rows.shape[0], "vocabulary": rows.shape[1]}


run(answer)
