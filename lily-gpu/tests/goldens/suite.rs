//! Whole models on a device against float64 logits.

#[path = "common.rs"]
#[allow(dead_code)]
mod common;

use std::sync::Arc;

use common::{Golden, assert_close, decoded, fixture, prefilled, top1};
use lily_gpu::{Device, GpuModel, GpuOptions, LogitRows, Sequence, Switches};
use lily_model::{Checkpoint, Source};

/// The model of a fixture on a device.
pub fn model_on<D: Device>(device: D, name: &str) -> GpuModel<D> {
    let checkpoint = Checkpoint::open(&Source::Directory(fixture(&format!("{name}/mlx-4bit")))).unwrap();
    let options = GpuOptions {
        switches: Switches::default(),
        max_chunk: 192,
        max_context: Some(4096),
    };
    GpuModel::new(
        device,
        Arc::new(checkpoint.config),
        &checkpoint.weights,
        options,
        &mut |_| {},
    )
    .unwrap()
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

/// A restored snapshot goes on as the sequence did that it was taken of, any number of times.
pub fn snapshot_and_restore<D: Device>(model: &mut GpuModel<D>, name: &str) {
    let tokens = golden(name).inputs;
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &tokens[..40], LogitRows::Last).unwrap();
    let snapshot = model.snapshot(&sequence).unwrap();
    let expected = greedy(model, sequence);
    for _ in 0..2 {
        let restored = model.restore(&snapshot).unwrap();
        assert_eq!(greedy(model, restored), expected);
    }
}

fn greedy<D: Device>(model: &mut GpuModel<D>, mut sequence: Sequence) -> Vec<u32> {
    let mut text = Vec::new();
    for _ in 0..12 {
        let token = top1(sequence.logits()) as u32;
        text.push(token);
        model.decode(&mut sequence, token).unwrap();
    }
    text
}
