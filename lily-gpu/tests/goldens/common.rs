//! Models on devices, and the bars that they meet.

use std::sync::Arc;

use lily_gpu::emulator::{EmulatorDevice, EmulatorOptions};
use lily_gpu::{Device, GpuModel, GpuOptions, LogitRows, Switches};
use lily_model::{Checkpoint, Source};

#[path = "../../../tests/golden.rs"]
mod golden;

pub use golden::{Difference, Golden, fixture, top1};

pub type Model = GpuModel<EmulatorDevice>;

/// The model in a fixture's directory, on the emulator.
pub fn model(path: &str, switches: Switches, emulator: EmulatorOptions) -> Model {
    let checkpoint = Checkpoint::open(&Source::Directory(fixture(path))).unwrap();
    build(&checkpoint, switches, emulator)
}

/// A checkpoint's model on the emulator.
pub fn build(checkpoint: &Checkpoint, switches: Switches, emulator: EmulatorOptions) -> Model {
    let options = GpuOptions {
        switches,
        max_chunk: 192,
        max_context: Some(4096),
    };
    let device = EmulatorDevice::new(emulator).unwrap();
    GpuModel::new(
        device,
        Arc::new(checkpoint.config.clone()),
        &checkpoint.weights,
        options,
        &mut |_| {},
    )
    .unwrap()
}

/// Logits of every row, the prompt given in chunks of `chunk` tokens.
pub fn prefilled<D: Device>(model: &mut GpuModel<D>, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut sequence = model.new_sequence().unwrap();
    let mut rows = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let mut receive = |_: usize, logits: &[f32]| rows.push(logits.to_vec());
        model
            .prefill(&mut sequence, tokens, LogitRows::All(&mut receive))
            .unwrap();
    }
    assert_eq!(sequence.position(), tokens.len());
    assert_eq!(sequence.logits(), rows.last().unwrap());
    rows
}

/// Logits of every row, the prompt given token by token to the decode pass.
pub fn decoded<D: Device>(model: &mut GpuModel<D>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut sequence = model.new_sequence().unwrap();
    let mut row = |&token: &u32| {
        model.decode(&mut sequence, token).unwrap();
        sequence.logits().to_vec()
    };
    tokens.iter().map(&mut row).collect()
}

/// The bars of an engine with bfloat activations.
pub fn assert_close(what: &str, logits: &[Vec<f32>], golden: &Golden) {
    let difference = Difference::of(logits, golden);
    println!("{what}: {difference:?}");
    assert!(difference.mean_kl <= 5e-3, "{what}: {difference:?}");
    assert!(difference.top1_agreement >= 0.96, "{what}: {difference:?}");
}
