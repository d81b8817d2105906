#!/bin/sh
# The CPU engine beside llama.cpp on the same shape, in turns: prefill of 512 and 2,048 tokens, decode at 1 and 4,096 tokens of context.
#
#   bench/cpu_against_llama.sh LLAMA_BENCH FOLDER [LAYERS...]
#
# FOLDER gets the GGUF files (0.5 GB a layer and 0.6 GB, for each of two mixes) and the reports; files that are there are used again.
set -eu
llama=$1 folder=$2
shift 2
here=$(dirname "$0")
lily=${LILY:-$here/../target/release/lily}
for layers in "${@:-8}"; do
    for mix in q4_0 q4_k_m; do
        model=$folder/$layers-$mix.gguf
        [ -f "$model" ] || "$here/synthetic_gguf.py" "$model" --layers "$layers" --mix "$mix"
        "$lily" bench --device cpu --synthetic qwen3.6-35b-a3b --layers "$layers" --against llama.cpp --peer-path "$llama" --peer-model "$model" \
            --prompt 512,2048 --decode-at 1,4096 --rounds "${ROUNDS:-2}" --save "$folder/$layers-$mix"
    done
done
