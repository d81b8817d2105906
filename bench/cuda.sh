#!/usr/bin/env bash
# Everything that `bench/cuda.md` reports, on a machine with an NVIDIA GPU. Builds nothing.
#   bench/cuda.sh LILY OUT [STEP..]
# LILY is the program, OUT a folder for JSON and logs. Steps, in their order: correct, doctor, greedy, sanitize, trace, profile, load, sweep, context, ablation; and, where they are named, tests, llama and
# llama-sweep.
# CHECKPOINT names a folder for a checkpoint of the 35B shape (19.5 GB, made where there is none) [default: /tmp/lily-35b].
# TESTS is the built test program of lily-gpu/tests/cuda. LLAMA_BENCH is llama.cpp's llama-bench, GGUF a file of the same shape (19.6 GB, made where there is none) [default: /tmp/lily-35b-q4_0.gguf].
set -uo pipefail

lily=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
shift 2
steps=${*:-correct doctor greedy sanitize trace profile load sweep context ablation}
cd "$(dirname "$0")/.."
checkpoint=${CHECKPOINT:-/tmp/lily-35b}
gguf=${GGUF:-/tmp/lily-35b-q4_0.gguf}

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
    run eval-demo-tools 60 "$lily" eval --device cuda --golden demo/golden_tools.safetensors --json
    for name in tiny mini demo demo-steps demo-tools; do
        echo "$name: $(tr -d '\n' < "$out/eval-$name.txt" | tr -s ' ' | cut -c 1-600)"
    done
}

doctor() { # Every kernel with matrix tiles against plain loops, and the demo model against the CPU.
    run doctor 90 "$lily" doctor --device cuda --seconds 3
    cat "$out/doctor.txt"
}

tests() { # The tests of the repository that need the GPU.
    run tests 300 "$TESTS" --nocapture --test-threads 1
    grep "^test " "$out/tests.txt"
}

sanitize() { # Bad accesses and races: every kernel of prefill and of decode.
    local demo=(eval --device cuda --golden demo/golden.safetensors)
    local tiny=(generate --device cuda -m tests/fixtures/tiny/mlx-4bit --max-tokens 4 --temperature 0 --ignore-eos --prompt-ids)
    tiny+=("$(seq -s, 1 40)")
    for tool in memcheck racecheck; do
        run "sanitize-$tool-demo" 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$lily" "${demo[@]}"
        run "sanitize-$tool-tiny" 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$lily" "${tiny[@]}"
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

profile() { # One pass of each kind: time, bytes and operations of every dispatch.
    make_checkpoint
    run profile-decode 90 "$lily" profile decode --device cuda -m "$checkpoint" --context 4096 --bandwidth 4300 --arithmetic 790
    run profile-prefill 90 "$lily" profile prefill --device cuda -m "$checkpoint" --prompt 4096 --bandwidth 4300 --arithmetic 790
    cat "$out"/profile-*.txt
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
    run sweep 500 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt $lengths --rounds 2 --save "$out/sweep"
    cat "$out/sweep.txt"
}

context() { # The longest context of the model, and the GPU's memory meanwhile.
    make_checkpoint
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 200 > "$out/memory.txt" &
    local watching=$!
    run context 200 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt 262080 --rounds 1
    kill $watching
    cat "$out/context.txt"
    echo "GPU memory in use, at most: $(sort -n "$out/memory.txt" | tail -n 1) MiB"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv > "$out/gpu.txt"
}

ablation() { # Every switch off, in turns with all on, a fresh process for each.
    make_checkpoint
    run ablation 500 "$lily" bench --device cuda -m "$checkpoint" --ablate --time-limit 450 --save "$out/ablation"
    cat "$out/ablation.txt"
    # Not a switch of the engine: a launch begins only when those that it depends on are done.
    local early
    for early in 1 0 1 0; do
        LILY_CUDA_EARLY=$early run "ablation-early-$early" 120 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt 3840
        printf 'early start %s: %s\n' "$early" "$(grep '^| 3,840' "$out/ablation-early-$early.txt")"
    done
}

# llama-bench, which has a process of its own for each call, and what it says in a line a test.
llama_bench() { # NAME SECONDS ARGUMENTS..
    local name=$1 limit=$2
    shift 2
    run "$name" "$limit" "${LLAMA_BENCH:?llama-bench}" -m "$gguf" -ngl 99 -fa 1 -o jsonl "$@"
    python3 - "$out/$name.txt" << 'END'
import json
import sys

for line in open(sys.argv[1]):
    if line.startswith("{"):
        test = json.loads(line)
        what = f"prefill {test['n_prompt']}" if test["n_prompt"] else f"decode of {test['n_gen']} at {test['n_depth']}"
        print(f"llama.cpp {test['build_commit']}, ubatch {test['n_ubatch']}: {what}: {test['avg_ts']:.1f} tokens/s, runs {[round(rate, 1) for rate in test['samples_ts']]}")
END
}

make_gguf() {
    if [ ! -e "$gguf" ]; then
        run make-gguf 240 python3 bench/synthetic_gguf.py "$gguf" --layers 40 --mix q4_0
    fi
}

llama() { # llama.cpp and Lily in turns, twice, at 4K and at 128K.
    make_checkpoint
    make_gguf
    local round at size
    for round in 1 2; do
        for at in 4096 131072; do
            size=$((at > 65536 ? 4096 : 2048))
            llama_bench "llama-$at-$round" 150 -b $size -ub $size -r 1 -p $at -n 0
            llama_bench "llama-decode-$at-$round" 150 -b $size -ub $size -r 1 -p 0 -n 64 -d $at
            run "turn-$at-$round" 120 "$lily" bench --device cuda -m "$checkpoint" --one-process --prompt $at --rounds 1
            grep '^| [0-9]' "$out/turn-$at-$round.txt"
        done
    done
}

llama-sweep() { # llama.cpp at the other lengths.
    make_gguf
    llama_bench llama-prefill 200 -b 2048 -ub 2048 -r 2 -n 0 -p 256,512,1024,2048,8192,16384,32768,65536
    llama_bench llama-decode 200 -b 2048 -ub 2048 -r 2 -p 0 -n 64 -d 0,256,1024,16384,32768,65536
}

for step in $steps; do
    echo "== $step"
    $step
done
