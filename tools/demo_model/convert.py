"""From a bf16 checkpoint of train.py to the published 4-bit MLX directory.

  convert.py --checkpoint DIR --data DIR --template FILE --out DIR

Writes the Hugging Face directory beside the output (OUT-hf) and converts it with mlx_lm.convert: affine 4-bit, group 64;
the router and the shared expert's gate at 8 bits.
"""

import argparse
import json
import shutil
from pathlib import Path

import mlx.core as mx

import checkpoint
import config as C
import tokenizer as bpe


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--template", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    out, hf = Path(args.out), Path(args.out + "-hf")
    for folder in (out, hf):
        shutil.rmtree(folder, ignore_errors=True)
    hf.mkdir(parents=True)
    checkpoint.save(checkpoint.load(args.checkpoint), hf, piece=1 << 40)
    bpe.write(hf, json.loads((Path(args.data) / "tokenizer.json").read_text()))
    write_json(hf / "config.json", C.hf_config())
    write_json(hf / "generation_config.json", C.generation_config())
    shutil.copy(args.template, hf / "chat_template.jinja")
    mx.set_default_device(mx.cpu)
    from mlx_lm.convert import convert

    convert(str(hf), str(out), quantize=True, q_group_size=64, q_bits=4)
    # What the conversion wrote about this machine or adds nothing to a single-file checkpoint.
    (out / "README.md").unlink(missing_ok=True)
    (out / "model.safetensors.index.json").unlink(missing_ok=True)
    write_json(out / "tokenizer_config.json", bpe.tokenizer_config())
    write_json(out / "generation_config.json", C.generation_config())
    shutil.copy(hf / "tokenizer.json", out / "tokenizer.json")
    shutil.copy(args.template, out / "chat_template.jinja")
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>12,} {file.name}")


if __name__ == "__main__":
    main()
