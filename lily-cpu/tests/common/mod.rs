//! What the tests of whole models share.

use std::sync::Arc;

use lily_cpu::{CpuModel, CpuOptions, LogitRows};
use lily_model::{Checkpoint, Source};

#[path = "../../../tests/golden.rs"]
#[allow(dead_code, reason = "each backend takes its own part")]
mod golden;

pub use golden::{Difference, Golden, fixture, top1};

/// The model in a fixture's directory.
pub fn model(path: &str, options: CpuOptions) -> CpuModel {
    let checkpoint = Checkpoint::open(&Source::Directory(fixture(path))).unwrap();
    CpuModel::new(Arc::new(checkpoint.config), Arc::new(checkpoint.weights), options).unwrap()
}

/// Logits of every row, the prompt given in chunks of `chunk` tokens.
pub fn all_logits(model: &mut CpuModel, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut sequence = model.new_sequence();
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
