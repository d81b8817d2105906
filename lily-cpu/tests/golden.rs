//! Whole models against the logits of other implementations.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Difference, Golden, all_logits, model, top1};
use lily_cpu::{CpuOptions, DecodeRow, KernelSet, KvPrecision, LogitRows};

/// Options under which the numbers must hold: f32 throughout.
fn exact() -> CpuOptions {
    CpuOptions {
        kv: KvPrecision::F32,
        exact: true,
        threads: Some(2),
        ..CpuOptions::default()
    }
}

/// The default: 16-bit activations where the weights have 4 bits.
fn fast() -> CpuOptions {
    CpuOptions {
        exact: false,
        ..exact()
    }
}

/// Golden file and checkpoint of the models whose every logit is known in float64.
const MODELS: [(&str, &str); 3] = [
    ("tiny/golden.safetensors", "tiny/mlx-4bit"),
    ("mini/golden.safetensors", "mini/mlx-4bit"),
    ("../../demo/golden.safetensors", "../../demo"),
];

/// The bars of the exact path: against float64 or MLX in f32.
fn assert_exact(name: &str, logits: &[Vec<f32>], golden: &Golden) {
    let difference = Difference::of(logits, golden);
    println!("{name}: {difference:?}");
    assert!(difference.max_abs <= 1e-3, "{name}: {difference:?}");
    assert!(difference.mean_kl <= 1e-7, "{name}: {difference:?}");
    assert_eq!(difference.top1_agreement, 1.0, "{name}: {difference:?}");
}

#[test]
fn float64_logits_for_every_split_of_the_prompt() {
    for (golden, name) in MODELS {
        let golden = Golden::read(golden, "token_ids", "logits.numpy_f64");
        let mut model = model(name, exact());
        let whole = all_logits(&mut model, &golden.inputs, 192);
        assert_exact(name, &whole, &golden);
        for chunk in [1, 7, 64] {
            assert!(
                all_logits(&mut model, &golden.inputs, chunk) == whole,
                "{name} in chunks of {chunk}"
            );
        }
    }
}

#[test]
fn quantized_activations_stay_close_for_every_split_of_the_prompt() {
    let [tiny, mini, demo] = MODELS;
    for ((golden, name), kernels) in [
        (tiny, None),
        (mini, None),
        (mini, Some(KernelSet::Portable)),
        (demo, None),
    ] {
        let golden = Golden::read(golden, "token_ids", "logits.numpy_f64");
        let mut model = model(name, CpuOptions { kernels, ..fast() });
        let whole = all_logits(&mut model, &golden.inputs, 192);
        let difference = Difference::of(&whole, &golden);
        println!("{name}: {difference:?}");
        assert!(
            difference.max_abs <= 1e-2 && difference.mean_kl <= 1e-6,
            "{name}: {difference:?}"
        );
        assert_eq!(difference.top1_agreement, 1.0, "{name}: {difference:?}");
        assert!(
            (0.999..1.001).contains(&difference.perplexity_ratio),
            "{name}: {difference:?}"
        );
        for chunk in [1, 7, 64] {
            assert!(
                all_logits(&mut model, &golden.inputs, chunk) == whole,
                "{name} in chunks of {chunk}"
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn integer_instructions_change_no_bit() {
    let golden = Golden::read("mini/golden.safetensors", "token_ids", "logits.numpy_f64");
    let logits = |kernels| {
        let options = CpuOptions {
            kernels: Some(kernels),
            ..fast()
        };
        all_logits(&mut model("mini/mlx-4bit", options), &golden.inputs, 64)
    };
    let expected = logits(KernelSet::Avx2);
    for (kernels, here) in [
        (KernelSet::AvxVnni, is_x86_feature_detected!("avxvnni")),
        (KernelSet::Avx512Vnni, is_x86_feature_detected!("avx512vnni")),
        // Rust's macro does not know AMX yet, and a system may refuse it.
        (KernelSet::Avx512VnniAmx, KernelSet::Avx512VnniAmx.available()),
    ] {
        assert!(!here || logits(kernels) == expected, "{}", kernels.name());
    }
}

#[test]
fn decode_is_prefill() {
    let golden = Golden::read("tiny/golden.safetensors", "token_ids", "logits.numpy_f64");
    for options in [exact(), fast()] {
        check_decode(&golden, options);
    }
}

fn check_decode(golden: &Golden, options: CpuOptions) {
    let mut model = model("tiny/mlx-4bit", options);
    let prefilled = all_logits(&mut model, &golden.inputs, 192);
    let mut sequence = model.new_sequence();
    for (&token, expected) in golden.inputs.iter().zip(&prefilled) {
        let sequence_ref = &mut sequence;
        model
            .decode(&mut [DecodeRow {
                sequence: sequence_ref,
                token,
            }])
            .unwrap();
        assert!(sequence.logits() == expected);
    }
}

#[test]
fn neither_threads_nor_neighbours_change_a_bit() {
    let golden = Golden::read("mini/golden.safetensors", "token_ids", "logits.numpy_f64");
    for options in [exact(), fast()] {
        check_neighbours(&golden, &options);
    }
}

fn check_neighbours(golden: &Golden, options: &CpuOptions) {
    let mut one = model(
        "mini/mlx-4bit",
        CpuOptions {
            threads: Some(1),
            ..options.clone()
        },
    );
    let expected = all_logits(&mut one, &golden.inputs, 192);
    for threads in [2, 3, 5] {
        let mut several = model(
            "mini/mlx-4bit",
            CpuOptions {
                threads: Some(threads),
                ..options.clone()
            },
        );
        assert!(
            all_logits(&mut several, &golden.inputs, 192) == expected,
            "{threads} threads"
        );
        // Three sequences at different positions in one step.
        let mut sequences: Vec<_> = [10, 31, 100]
            .into_iter()
            .map(|length| {
                let mut sequence = several.new_sequence();
                several
                    .prefill(&mut sequence, &golden.inputs[..length], LogitRows::None)
                    .unwrap();
                sequence
            })
            .collect();
        for _ in 0..20 {
            let mut batch: Vec<_> = sequences
                .iter_mut()
                .map(|sequence| DecodeRow {
                    token: golden.inputs[sequence.position()],
                    sequence,
                })
                .collect();
            several.decode(&mut batch).unwrap();
            for sequence in &sequences {
                assert!(sequence.logits() == expected[sequence.position() - 1]);
            }
        }
    }
}

#[test]
fn a_restored_snapshot_continues_bit_for_bit() {
    let golden = Golden::read("mini/golden.safetensors", "token_ids", "logits.numpy_f64");
    for options in [exact(), fast()] {
        check_snapshots(&golden, options);
    }
}

fn check_snapshots(golden: &Golden, options: CpuOptions) {
    // Past a block of the KV cache, so that a full and a partial block are shared.
    let tokens: Vec<u32> = golden.inputs.iter().cycle().copied().take(300).collect();
    let mut model = model("mini/mlx-4bit", options);
    for cut in [1, 5, 255, 256, 257, 299] {
        let mut sequence = model.new_sequence();
        model.prefill(&mut sequence, &tokens[..cut], LogitRows::Last).unwrap();
        let snapshot = sequence.clone();
        model.prefill(&mut sequence, &tokens[cut..], LogitRows::Last).unwrap();
        // Another continuation in between must not disturb the snapshot.
        let mut other = snapshot.clone();
        model.prefill(&mut other, &tokens[..40], LogitRows::None).unwrap();
        assert!(other.logits().is_empty());
        let mut saved = Vec::new();
        snapshot.save(&mut saved).unwrap();
        assert_eq!(saved.len(), model.saved_bytes(cut, true));
        let mut loaded = model.load(cut, true, &mut &saved[..]).unwrap();
        assert!(model.load(cut, true, &mut &saved[1..]).is_err(), "it ends too soon");
        let mut again = Vec::new();
        loaded.save(&mut again).unwrap();
        assert!(again == saved && loaded.position() == cut);
        model.prefill(&mut loaded, &tokens[cut..], LogitRows::Last).unwrap();
        assert!(loaded.logits() == sequence.logits(), "saved at {cut}");
        let mut restored = snapshot.clone();
        assert_eq!(restored.position(), cut);
        assert!(restored.logits() == snapshot.logits());
        model.prefill(&mut restored, &tokens[cut..], LogitRows::Last).unwrap();
        assert!(restored.logits() == sequence.logits(), "cut at {cut}");
    }
}

#[test]
fn the_portable_kernels_hold_the_same_bars() {
    let golden = Golden::read("mini/golden.safetensors", "token_ids", "logits.numpy_f64");
    let options = CpuOptions {
        kernels: Some(KernelSet::Portable),
        ..exact()
    };
    let mut model = model("mini/mlx-4bit", options);
    let whole = all_logits(&mut model, &golden.inputs, 192);
    assert_exact("portable", &whole, &golden);
    assert!(all_logits(&mut model, &golden.inputs, 7) == whole);
}

#[test]
fn bf16_kv_stays_close() {
    let golden = Golden::read("tiny/golden.safetensors", "token_ids", "logits.numpy_f64");
    let mut model = model(
        "tiny/mlx-4bit",
        CpuOptions {
            kv: KvPrecision::Bf16,
            ..exact()
        },
    );
    let difference = Difference::of(&all_logits(&mut model, &golden.inputs, 192), &golden);
    println!("bf16 KV: {difference:?}");
    assert!(
        difference.mean_kl < 1e-4 && difference.top1_agreement >= 0.99,
        "{difference:?}"
    );
}

#[test]
fn greedy_tokens_of_the_golden_file() {
    let json = std::fs::read(common::fixture("tiny/greedy_golden.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let ids = |key: &str| -> Vec<u32> {
        json[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap() as u32)
            .collect()
    };
    let mut model = model("tiny/mlx-4bit", exact());
    let mut sequence = model.new_sequence();
    model
        .prefill(&mut sequence, &ids("prompt_ids"), LogitRows::Last)
        .unwrap();
    for expected in ids("greedy_fp32") {
        let token = top1(sequence.logits()) as u32;
        assert_eq!(token, expected);
        model
            .decode(&mut [DecodeRow {
                sequence: &mut sequence,
                token,
            }])
            .unwrap();
    }
}

#[test]
fn bad_tokens_and_chunks_are_errors_that_change_nothing() {
    let mut model = model("mini/mlx-4bit", exact());
    let mut sequence = model.new_sequence();
    let vocab_size = model.vocab_size() as u32;
    assert!(model.prefill(&mut sequence, &[1, vocab_size], LogitRows::Last).is_err());
    assert!(model.prefill(&mut sequence, &[], LogitRows::Last).is_err());
    assert!(
        model
            .prefill(&mut sequence, &vec![1; model.max_chunk() + 1], LogitRows::Last)
            .is_err()
    );
    assert!(model.decode(&mut []).is_err());
    assert!(
        model
            .decode(&mut [DecodeRow {
                sequence: &mut sequence,
                token: u32::MAX
            }])
            .is_err()
    );
    assert_eq!(sequence.position(), 0);
    assert!(model.sequence_bytes(1000) > model.sequence_bytes(0));
}

#[test]
fn every_weight_format() {
    for name in [
        "affine-3-g64",
        "affine-4-g32",
        "affine-6-g64",
        "mixed_4_6",
        "mxfp4",
        "mxfp8",
        "nvfp4",
    ] {
        let golden = Golden::read("mini/variants/golden_logits.safetensors", "token_ids", name);
        let mut model = model(&format!("mini/variants/{name}"), exact());
        let whole = all_logits(&mut model, &golden.inputs, 192);
        assert_exact(name, &whole, &golden);
        assert!(all_logits(&mut model, &golden.inputs, 7) == whole, "{name}");
    }
}

/// A profile changes no bit, and its operations take the time that the step takes.
#[test]
fn a_profile_accounts_for_the_step() {
    let golden = Golden::read("mini/golden.safetensors", "token_ids", "logits.numpy_f64");
    let mut model = model("mini/mlx-4bit", fast());
    let mut step = |profiled: bool| {
        let mut sequence = model.new_sequence();
        let tokens = &golden.inputs[..20];
        model.prefill(&mut sequence, tokens, LogitRows::None).unwrap();
        if profiled {
            model.start_profile();
        }
        let started = std::time::Instant::now();
        let row = DecodeRow {
            sequence: &mut sequence,
            token: golden.inputs[20],
        };
        model.decode(&mut [row]).unwrap();
        let time = started.elapsed();
        (sequence.logits().to_vec(), model.stop_profile(), time)
    };
    let (expected, none, _) = step(false);
    assert!(none.is_empty());
    // Another program may take the processor away between the end of the last operation and the clock: the best of some.
    let accounted = (0..10).map(|_| {
        let (found, spans, time) = step(true);
        assert!(found == expected);
        let first = spans.first().unwrap();
        assert_eq!((first.operation, first.layer), ("embedding", None));
        let last = spans.last().unwrap();
        assert_eq!((last.operation, last.layer), ("logits", None));
        spans
            .iter()
            .map(|span| span.time)
            .sum::<std::time::Duration>()
            .as_secs_f64()
            / time.as_secs_f64()
    });
    let best = accounted.fold(0.0, f64::max);
    assert!((0.95..=1.0).contains(&best), "{best}");
}
