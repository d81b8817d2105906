//! Fixtures, golden files and comparisons.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lily_gpu::emulator::{EmulatorDevice, EmulatorOptions};
use lily_gpu::{Device, GpuModel, GpuOptions, LogitRows, Switches};
use lily_model::{Checkpoint, FloatType, Source};
use safetensors::SafeTensors;

pub type Model = GpuModel<EmulatorDevice>;

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(path)
}

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

/// Token ids and expected logits, row after row.
pub struct Golden {
    pub inputs: Vec<u32>,
    pub targets: Vec<u32>,
    pub logits: Vec<Vec<f32>>,
}

impl Golden {
    /// Golden file `file`: `token_ids` and the logits named `logits`.
    pub fn read(file: &str, token_ids: &str, logits: &str) -> Golden {
        Golden::open(&fixture(file), token_ids, logits)
    }

    /// The same of any file.
    pub fn open(file: &Path, token_ids: &str, logits: &str) -> Golden {
        let bytes = std::fs::read(file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let ids = tensors.tensor(token_ids).unwrap();
        let size = ids.data().len() / ids.shape().iter().product::<usize>();
        let low = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let ids: Vec<u32> = ids.data().chunks_exact(size).map(low).collect();
        let tensor = tensors.tensor(logits).unwrap();
        let (rows, vocab_size) = (tensor.shape()[0], tensor.shape()[1]);
        let numbers: Vec<f32> = (0..rows * vocab_size)
            .map(|i| FloatType::F32.read(tensor.data(), i))
            .collect();
        Golden {
            inputs: ids[..rows].to_vec(),
            targets: ids[1..=rows].to_vec(),
            logits: numbers.chunks_exact(vocab_size).map(<[f32]>::to_vec).collect(),
        }
    }

    /// The first `rows` rows.
    pub fn first(&self, rows: usize) -> Golden {
        Golden {
            inputs: self.inputs[..rows].to_vec(),
            targets: self.targets[..rows].to_vec(),
            logits: self.logits[..rows].to_vec(),
        }
    }
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

/// How far logits are from the golden ones.
#[derive(Debug)]
pub struct Difference {
    pub mean_kl: f64,
    pub top1_agreement: f64,
    pub perplexity_ratio: f64,
}

impl Difference {
    pub fn of(logits: &[Vec<f32>], golden: &Golden) -> Difference {
        assert_eq!(logits.len(), golden.logits.len());
        let rows = logits.len() as f64;
        let (mut kl, mut same, mut loss) = (0.0, 0.0, 0.0);
        for ((found, expected), &target) in logits.iter().zip(&golden.logits).zip(&golden.targets) {
            assert_eq!(found.len(), expected.len());
            let (p, q) = (log_softmax(expected), log_softmax(found));
            kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            same += f64::from(top1(found) == top1(expected));
            loss += p[target as usize] - q[target as usize];
        }
        Difference {
            mean_kl: kl / rows,
            top1_agreement: same / rows,
            perplexity_ratio: (loss / rows).exp(),
        }
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit - max) - sum.ln()).collect()
}

pub fn top1(logits: &[f32]) -> usize {
    let better = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    (0..logits.len()).reduce(better).unwrap()
}

/// The bars of an engine with bfloat activations.
pub fn assert_close(what: &str, logits: &[Vec<f32>], golden: &Golden) {
    let difference = Difference::of(logits, golden);
    println!("{what}: {difference:?}");
    assert!(difference.mean_kl <= 5e-3, "{what}: {difference:?}");
    assert!(difference.top1_agreement >= 0.96, "{what}: {difference:?}");
}
