//! Whole models through the Metal device against float64 logits: on a Mac over Metal, elsewhere over the software Metal.

#[path = "../goldens/common.rs"]
#[allow(dead_code)]
mod common;

use std::sync::Arc;

use common::{Golden, assert_close, decoded, fixture, prefilled, top1};
use lily_gpu::metal::{MetalDevice, MetalOptions};
use lily_gpu::{GpuModel, GpuOptions, LogitRows, Sequence, Switches};
use lily_model::{Checkpoint, Source};

pub type Model = GpuModel<MetalDevice>;

/// The model of a fixture on the system's GPU.
pub fn model(name: &str) -> Model {
    let device = MetalDevice::open(MetalOptions { tensor_operations: true, cache: None, progress: &mut |_, _| {} }).unwrap();
    let checkpoint = Checkpoint::open(&Source::Directory(fixture(&format!("{name}/mlx-4bit")))).unwrap();
    let options = GpuOptions { switches: Switches::default(), max_chunk: 192, max_context: Some(4096) };
    GpuModel::new(device, Arc::new(checkpoint.config), &checkpoint.weights, options, &mut |_| {}).unwrap()
}

fn golden(name: &str) -> Golden {
    Golden::read(&format!("{name}/golden.safetensors"), "token_ids", "logits.numpy_f64")
}

/// Prefill is as close to the goldens as the engine's bars ask, and the same for any split of the prompt.
pub fn prefill_for_every_split(model: &mut Model, name: &str) {
    let golden = golden(name);
    let whole = prefilled(model, &golden.inputs, 192);
    assert_close(name, &whole, &golden);
    for chunk in [7, 64] {
        assert_eq!(prefilled(model, &golden.inputs, chunk), whole, "{name} in chunks of {chunk}");
    }
}

/// So is decode.
pub fn decode(model: &mut Model, name: &str, tokens: usize) {
    let golden = golden(name).first(tokens);
    let rows = decoded(model, &golden.inputs);
    assert_close(name, &rows, &golden);
}

/// A snapshot goes on as the sequence does that it was taken of, and neither changes the other.
pub fn snapshot_and_restore(model: &mut Model, name: &str) {
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

fn greedy(model: &mut Model, mut sequence: Sequence) -> Vec<u32> {
    let mut text = Vec::new();
    for _ in 0..12 {
        let token = top1(sequence.logits()) as u32;
        text.push(token);
        model.decode(&mut sequence, token).unwrap();
    }
    text
}
