//! The trained demo model: quality, and text.

use std::path::Path;
use std::sync::Arc;

use lily_gpu::emulator::EmulatorOptions;
use lily_gpu::{LogitRows, Switches};
use lily_model::{Checkpoint, Source};

use crate::common::{Difference, Golden, Model, assert_close, build, decoded, prefilled, top1};

fn path(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo").join(file)
}

fn demo() -> (Model, Checkpoint) {
    let checkpoint = Checkpoint::open(&Source::Directory(path(""))).unwrap();
    (
        build(&checkpoint, Switches::default(), EmulatorOptions::default()),
        checkpoint,
    )
}

#[test]
fn quality() {
    let golden = Golden::open(&path("golden.safetensors"), "token_ids", "logits.numpy_f64");
    let (mut model, _) = demo();
    let rows = prefilled(&mut model, &golden.inputs, 100);
    assert_close("demo prefill", &rows, &golden);
    let difference = Difference::of(&rows, &golden);
    assert!((0.995..=1.005).contains(&difference.perplexity_ratio), "{difference:?}");
    let first = golden.first(24);
    assert_close("demo decode", &decoded(&mut model, &first.inputs), &first);
}

/// Greedy text against the CPU's, at least 64 tokens of five prompts; where they part, the two best logits are a near tie.
#[test]
fn greedy_text_is_that_of_the_cpu() {
    const PROMPTS: [&str; 5] = [
        "Once upon a time there was a little fox who",
        "The king said to his daughter:",
        "She opened the old box and found",
        "In the morning the sun",
        "Tom and his sister went to the river because",
    ];
    let (mut model, checkpoint) = demo();
    let (config, weights) = (
        Arc::new(checkpoint.config.clone()),
        Arc::new(checkpoint.weights.clone()),
    );
    let mut cpu = lily_cpu::CpuModel::new(config, weights, lily_cpu::CpuOptions::default()).unwrap();
    for prompt in PROMPTS {
        let tokens = checkpoint.tokenizer.encode_plain(prompt).unwrap();
        let mut on_cpu = cpu.new_sequence();
        let mut on_gpu = model.new_sequence().unwrap();
        cpu.prefill(&mut on_cpu, &tokens, lily_cpu::LogitRows::Last).unwrap();
        model.prefill(&mut on_gpu, &tokens, LogitRows::Last).unwrap();
        for step in 0..64 {
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
