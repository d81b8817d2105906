//! Whole models on any device: against float64 logits, against the CPU's text, and against themselves.

#[path = "common.rs"]
#[allow(dead_code, reason = "each user takes its own part")]
pub mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Difference, Golden, assert_close, decoded, fixture, prefilled, top1};
use lily_gpu::{Device, GpuModel, GpuOptions, LogitRows, Sequence, Switches};
use lily_model::{Checkpoint, SamplerStart, Sampling, Source};

/// Switches that change prefill.
const PREFILL: [&str; 7] = [
    "fused-dequant",
    "gpu-routing",
    "wide-tiles",
    "register-scan",
    "merged-projections",
    "fused-swiglu",
    "sparse-barriers",
];

/// The model of a checkpoint on a device.
pub fn checkpoint_on<D: Device>(device: D, checkpoint: &Checkpoint, switches: Switches) -> GpuModel<D> {
    let options = GpuOptions {
        switches,
        max_chunk: 192,
        max_context: Some(4096),
    };
    let config = Arc::new(checkpoint.config.clone());
    GpuModel::new(device, config, &checkpoint.weights, options, &mut |_| {}).unwrap()
}

/// The model of a fixture on a device.
pub fn model_on<D: Device>(device: D, name: &str) -> GpuModel<D> {
    model_with(device, name, Switches::default())
}

fn model_with<D: Device>(device: D, name: &str, switches: Switches) -> GpuModel<D> {
    let checkpoint = Checkpoint::open(&Source::Directory(fixture(&format!("{name}/mlx-4bit")))).unwrap();
    checkpoint_on(device, &checkpoint, switches)
}

fn demo_file(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo").join(file)
}

/// The trained demo model.
pub fn demo() -> Checkpoint {
    Checkpoint::open(&Source::Directory(demo_file(""))).unwrap()
}

fn golden(name: &str) -> Golden {
    Golden::read(&format!("{name}/golden.safetensors"), "token_ids", "logits.numpy_f64")
}

/// Prefill of the first `tokens` tokens, in chunks of each size, is as close to the goldens as the engine's bars ask, and the same
/// for all sizes.
pub fn prefill<D: Device>(model: &mut GpuModel<D>, name: &str, tokens: usize, chunks: &[usize]) {
    let golden = golden(name).first(tokens);
    let mut first = None;
    for &chunk in chunks {
        let rows = prefilled(model, &golden.inputs, chunk);
        assert_close(name, &rows, &golden);
        assert_eq!(
            first.get_or_insert_with(|| rows.clone()),
            &rows,
            "{name} in chunks of {chunk}"
        );
    }
}

/// The logits of the first `tokens` tokens through the decode pass.
pub fn decode<D: Device>(model: &mut GpuModel<D>, name: &str, tokens: usize) -> Vec<Vec<f32>> {
    decoded(model, &golden(name).inputs[..tokens])
}

/// A short prompt and one token more.
pub fn few_tokens<D: Device>(model: &mut GpuModel<D>, name: &str) {
    let tokens = golden(name).inputs;
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &tokens[..5], LogitRows::Last).unwrap();
    model.decode(&mut sequence, tokens[5]).unwrap();
}

/// A profile computes the same, and has a time for every dispatch.
pub fn profile<D: Device>(model: &mut GpuModel<D>, name: &str) {
    let tokens = golden(name).inputs;
    let mut run = |profiled: bool| {
        let mut sequence = model.new_sequence().unwrap();
        if profiled {
            model.start_profile();
        }
        model.prefill(&mut sequence, &tokens[..5], LogitRows::Last).unwrap();
        let read = model.stop_profile();
        let pass = model.decode_pass(&sequence);
        if profiled {
            model.start_profile();
        }
        model.decode(&mut sequence, tokens[5]).unwrap();
        (sequence.logits().to_vec(), read, model.stop_profile(), pass)
    };
    let (expected, read, written, _) = run(false);
    assert!(read.is_empty() && written.is_empty(), "nothing is noted unasked");
    let (found, read, written, pass) = run(true);
    assert_eq!(found, expected);
    let labels: Vec<&str> = written.iter().map(|dispatch| dispatch.label.as_str()).collect();
    let expected: Vec<&str> = pass
        .dispatches()
        .iter()
        .map(|dispatch| dispatch.label.as_str())
        .collect();
    assert_eq!(labels, expected);
    let last = written.last().unwrap();
    assert_eq!(last.stage, (0, pass.stage_count() - 1));
    // the chunk, and the logits of its last row
    assert_eq!(read.last().unwrap().stage.0, 1);
    assert_eq!(read.last().unwrap().label, "logits");
    assert!(read.iter().chain(&written).all(|dispatch| !dispatch.time.is_zero()));
}

/// The demo model against its goldens: `rows` rows of prefill (of all rows, the perplexity, too), `steps` of decode.
pub fn demo_quality<D: Device>(device: D, rows: Option<usize>, steps: usize) {
    let golden = Golden::open(&demo_file("golden.safetensors"), "token_ids", "logits.numpy_f64");
    let mut model = checkpoint_on(device, &demo(), Switches::default());
    let part = rows.map_or_else(|| golden.first(golden.inputs.len()), |rows| golden.first(rows));
    let found = prefilled(&mut model, &part.inputs, 100);
    assert_close("demo prefill", &found, &part);
    if rows.is_none() {
        let difference = Difference::of(&found, &part);
        assert!((0.995..=1.005).contains(&difference.perplexity_ratio), "{difference:?}");
    }
    let first = golden.first(steps);
    assert_close("demo decode", &decoded(&mut model, &first.inputs), &first);
}

/// Greedy text of the demo model against the CPU's; where they part, the two best logits are a near tie.
pub fn greedy_text<D: Device>(device: D, prompts: usize, steps: usize) {
    const PROMPTS: [&str; 5] = [
        "Once upon a time there was a little fox who",
        "The king said to his daughter:",
        "She opened the old box and found",
        "In the morning the sun",
        "Tom and his sister went to the river because",
    ];
    let checkpoint = demo();
    let mut model = checkpoint_on(device, &checkpoint, Switches::default());
    let (config, weights) = (
        Arc::new(checkpoint.config.clone()),
        Arc::new(checkpoint.weights.clone()),
    );
    let mut cpu = lily_cpu::CpuModel::new(config, weights, lily_cpu::CpuOptions::default()).unwrap();
    for prompt in &PROMPTS[..prompts] {
        let tokens = checkpoint.tokenizer.encode_plain(prompt).unwrap();
        let mut on_cpu = cpu.new_sequence();
        let mut on_gpu = model.new_sequence().unwrap();
        cpu.prefill(&mut on_cpu, &tokens, lily_cpu::LogitRows::Last).unwrap();
        model.prefill(&mut on_gpu, &tokens, LogitRows::Last).unwrap();
        for step in 0..steps {
            let (expected, found) = (top1(on_cpu.logits()), top1(on_gpu.logits()));
            if expected != found {
                let (a, b) = (on_cpu.logits()[expected], on_cpu.logits()[found]);
                println!("{prompt:?}: token {step} is {found}, on the CPU {expected}: logits {b} and {a}");
                assert!(
                    a - b < 0.05,
                    "{prompt:?}: token {step} is {found} ({b}), on the CPU {expected} ({a})"
                );
                break;
            }
            let token = expected as u32;
            cpu.decode(&mut [lily_cpu::DecodeRow {
                sequence: &mut on_cpu,
                token,
            }])
            .unwrap();
            model.decode(&mut on_gpu, token).unwrap();
        }
    }
}

/// Greedy text that the device chooses itself is what its logits say, two sequences at a time.
pub fn hand_off<D: Device>(model: &mut GpuModel<D>, name: &str, steps: usize) {
    let tokens = golden(name).inputs;
    let greedy_choice = Sampling::greedy();
    let start = SamplerStart {
        sampling: &greedy_choice,
        seed: 0,
        step: 0,
        valid_ids: model.config().vocab_size,
        history: &[],
    };
    let mut run = |prompts: &[usize]| {
        let mut sequences: Vec<Sequence> = Vec::new();
        for &len in prompts {
            let mut sequence = model.new_sequence().unwrap();
            model.prefill(&mut sequence, &tokens[..len], LogitRows::None).unwrap();
            model.start_hand_off(&mut sequence, tokens[len], &start).unwrap();
            sequences.push(sequence);
        }
        let mut texts = vec![Vec::new(); prompts.len()];
        for _ in 0..steps {
            for (text, sequence) in texts.iter_mut().zip(&mut sequences) {
                text.push(model.next_token(sequence, true).unwrap());
            }
        }
        for sequence in &mut sequences {
            model.end_hand_off(sequence).unwrap();
        }
        texts
    };
    let together = run(&[7, 12]);
    assert_eq!([run(&[7]), run(&[12])].concat(), together);
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &tokens[..8], LogitRows::Last).unwrap();
    assert_eq!(greedy(model, sequence, steps), together[0]);
}

/// Each optimization turned off changes nothing beyond rounding: in prefill of `rows` tokens, where it changes that, and in `steps` of decode.
pub fn each_switch_off<D: Device>(mut open: impl FnMut() -> D, name: &str, rows: usize, steps: usize) {
    let golden = golden(name);
    let mut with = |switches: Switches, prefill: bool| {
        let mut model = model_with(open(), name, switches);
        let read = match prefill {
            true => prefilled(&mut model, &golden.inputs[..rows], 192),
            false => Vec::new(),
        };
        (read, decoded(&mut model, &golden.inputs[..steps]))
    };
    let (read, written) = with(Switches::default(), true);
    for (name, _) in Switches::ALL {
        let off = with(Switches::default().without(name).unwrap(), PREFILL.contains(name));
        if PREFILL.contains(name) {
            assert_same(&format!("prefill without {name}"), &off.0, &read, &golden);
        }
        assert_same(&format!("decode without {name}"), &off.1, &written, &golden);
    }
}

fn assert_same(what: &str, found: &[Vec<f32>], all_on: &[Vec<f32>], golden: &Golden) {
    let part = golden.first(found.len());
    let against_all_on = Difference::of(
        found,
        &Golden {
            logits: all_on.to_vec(),
            ..golden.first(found.len())
        },
    );
    let against_golden = Difference::of(found, &part);
    println!("{what}: to golden {against_golden:?}, to all on {against_all_on:?}");
    assert!(
        against_golden.mean_kl <= 5e-3 && against_golden.top1_agreement >= 0.96,
        "{what}: {against_golden:?}"
    );
    // a choice of experts at a near tie moves a row by much
    assert!(against_all_on.mean_kl <= 5e-3, "{what}: {against_all_on:?}");
}

/// A restored snapshot goes on as the sequence did that it was taken of, any number of times.
pub fn snapshot_and_restore<D: Device>(model: &mut GpuModel<D>, name: &str) {
    let tokens = golden(name).inputs;
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &tokens[..40], LogitRows::Last).unwrap();
    let snapshot = model.snapshot(&sequence).unwrap();
    let expected = greedy(model, sequence, 12);
    for _ in 0..2 {
        let restored = model.restore(&snapshot).unwrap();
        assert_eq!(greedy(model, restored, 12), expected);
    }
}

fn greedy<D: Device>(model: &mut GpuModel<D>, mut sequence: Sequence, steps: usize) -> Vec<u32> {
    let mut text = Vec::new();
    for _ in 0..steps {
        let token = top1(sequence.logits()) as u32;
        text.push(token);
        model.decode(&mut sequence, token).unwrap();
    }
    text
}

/// Everything.
pub fn everything<D: Device>(mut open: impl FnMut() -> D) {
    for name in ["mini", "tiny"] {
        let mut model = model_on(open(), name);
        println!("{}", model.describe().description);
        prefill(&mut model, name, 192, &[192, 64, 7]);
        decode(&mut model, name, 64);
        snapshot_and_restore(&mut model, name);
        profile(&mut model, name);
        hand_off(&mut model, name, 12);
    }
    demo_quality(open(), None, 24);
    greedy_text(open(), 5, 64);
    each_switch_off(&mut open, "tiny", 192, 12);
}
