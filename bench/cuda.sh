#!/usr/bin/env bash
# Everything that `bench/cuda.md` reports, on a machine with an NVIDIA GPU. Builds nothing.
#   bench/cuda.sh LILY OUT [STEP..]
# LILY is the program, OUT a folder for JSON and logs. Steps, in their order: correct, sanitize, greedy, trace, load, sweep, context, ablation.
# CHECKPOINT names a folder for a checkpoint of the 35B shape (19.5 GB, made where there is none) [default: /tmp/lily-35b].
set -uo pipefail

lily=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
shift 2
steps=${*:-correct sanitize greedy trace load sweep context ablation}
cd "$(dirname "$0")/.."
checkpoint=${CHECKPOINT:-/tmp/lily-35b}

# Runs a command with a time limit, keeps its output, and says how it ended.
run() { # NAME SECONDS COMMAND..
    local name=$1 limit=$2 started=$SECONDS code
    shift 2
    timeout -k 5 "$limit" "$@" > "$out/$name.txt" 2> "$out/$name.err"
    code=$?
    echo "-- $name: exit $code, $((SECONDS - started)) s"
    if [ $code -ne 0 ]; then tail -n 15 "$out/$name.err" "$out/$name.txt"; fi
    return $code
}

make_checkpoint() {
    if [ ! -e "$checkpoint/config.json" ]; then
        run make-checkpoint 240 bench/synthetic_checkpoint.py "$checkpoint"
        cat "$out/make-checkpoint.txt"
    fi
}

correct() { # Against the golden logits of float64.
    local fixtures=tests/fixtures
    run eval-tiny 60 "$lily" eval --device cuda -m $fixtures/tiny/mlx-4bit --golden $fixtures/tiny/golden.safetensors --json
    run eval-mini 60 "$lily" eval --device cuda -m $fixtures/mini/mlx-4bit --golden $fixtures/mini/golden.safetensors --json
    run eval-demo 60 "$lily" eval --device cuda --golden demo/golden.safetensors --json
    run eval-demo-steps 60 "$lily" eval --device cuda --golden demo/golden.safetensors --chunk 1 --json
    for name in tiny mini demo demo-steps; do
        echo "$name: $(tr -d '\n' < "$out/eval-$name.txt" | tr -s ' ' | cut -c 1-600)"
    done
}

sanitize() { # Bad accesses and races: every kernel of prefill and of decode.
    local demo=(eval --device cuda --golden demo/golden.safetensors)
    local tiny=(generate --device cuda -m tests/fixtures/tiny/mlx-4bit --max-tokens 4 --temperature 0 --ignore-eos --prompt-ids)
    tiny+=("$(seq -s, 1 40)")
    for tool in memcheck racecheck; do
        run "sanitize-$tool-demo" 150 compute-sanitizer --tool "$tool" --error-exitcode 9 "$lily" "${demo[@]}"
        run "sanitize-$tool-tiny" 150 compute-sanitizer --tool "$tool" --error-exitcode 9 "$lily" "${tiny[@]}"
        grep -h "ERROR SUMMARY\|RACECHECK SUMMARY" "$out/sanitize-$tool"-*.txt
    done
}

greedy() { # The demo model's text, against the emulator's.
    run greedy 90 bench/cuda/greedy.py compare "$lily" bench/cuda/greedy_emulator.json cuda
    cat "$out/greedy.txt"
}

trace() { # Where the time goes: every launch on its own.
    make_checkpoint
    LILY_CUDA_TRACE=1 run trace-decode 90 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt 256 --decode-at 256 --rounds 1
    LILY_CUDA_TRACE=1 run trace-prefill 90 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt 4096 --decode-at 4096 --rounds 1
    for name in decode prefill; do
        cat "$out/trace-$name.txt"
        head -n 40 "$out/trace-$name.err"
    done
}

load() { # From the disk, once with cold and once with warm pages.
    make_checkpoint
    sync
    echo 3 > /proc/sys/vm/drop_caches 2> /dev/null || echo "pages stay warm"
    for name in cold warm; do
        run "load-$name" 120 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt 256 --rounds 1 --json
        grep -h "peak_memory_bytes\|load" "$out/load-$name.txt"
    done
}

sweep() { # The contract's lengths.
    make_checkpoint
    local lengths=256,512,1024,2048,4096,8192,16384,32768,65536,131072
    run sweep 500 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt $lengths --rounds 2
    cat "$out/sweep.txt"
}

context() { # The longest context of the model.
    make_checkpoint
    run context 200 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt 262080 --rounds 1
    cat "$out/context.txt"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv > "$out/gpu.txt"
}

ablation() { # Every switch off, in turns with all on: two models on the GPU at once.
    make_checkpoint
    run ablation 500 "$lily" bench --device cuda -m "$checkpoint" --one-process --ablate --time-limit 450 --save "$out/ablation"
    cat "$out/ablation.txt"
    # Not a switch of the engine: a launch begins only when those that it depends on are done.
    local early
    for early in 1 0 1 0; do
        LILY_CUDA_EARLY=$early run "ablation-early-$early" 120 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt 3840
        printf 'early start %s: %s\n' "$early" "$(grep '^| 3,840' "$out/ablation-early-$early.txt")"
    done
}

for step in $steps; do
    echo "== $step"
    $step
done
