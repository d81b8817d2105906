//! Fixtures, golden files and comparisons: what the backends' tests of whole models share.

use std::path::{Path, PathBuf};

use lily_model::FloatType;
use safetensors::SafeTensors;

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(path)
}

/// Token ids and expected logits, row after row.
pub struct Golden {
    pub inputs: Vec<u32>,
    pub targets: Vec<u32>,
    pub logits: Vec<Vec<f32>>,
}

impl Golden {
    /// Golden file `file` of the fixtures: `token_ids` and the logits named `logits`.
    pub fn read(file: &str, token_ids: &str, logits: &str) -> Golden {
        Golden::open(&fixture(file), token_ids, logits)
    }

    /// The same of any file.
    pub fn open(file: &Path, token_ids: &str, logits: &str) -> Golden {
        let bytes = std::fs::read(file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let ids: Vec<u32> = integers(&tensors, token_ids);
        let (shape, numbers) = floats(&tensors, logits);
        let (rows, vocab_size) = (shape[0], shape[1]);
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

fn integers(tensors: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    let tensor = tensors.tensor(name).unwrap();
    let size = tensor.data().len() / tensor.shape().iter().product::<usize>();
    let low = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
    tensor.data().chunks_exact(size).map(low).collect()
}

/// Shape and numbers of an f32 tensor.
fn floats(tensors: &SafeTensors<'_>, name: &str) -> (Vec<usize>, Vec<f32>) {
    let tensor = tensors.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), safetensors::Dtype::F32, "{name}");
    let count = tensor.shape().iter().product();
    let numbers = (0..count).map(|index| FloatType::F32.read(tensor.data(), index));
    (tensor.shape().to_vec(), numbers.collect())
}

/// How far logits are from the golden ones.
#[derive(Debug)]
pub struct Difference {
    pub max_abs: f64,
    pub mean_kl: f64,
    pub top1_agreement: f64,
    pub perplexity_ratio: f64,
}

impl Difference {
    pub fn of(logits: &[Vec<f32>], golden: &Golden) -> Difference {
        assert_eq!(logits.len(), golden.logits.len());
        let rows = logits.len() as f64;
        let (mut max_abs, mut kl, mut same, mut loss) = (0f64, 0.0, 0.0, 0.0);
        for ((found, expected), &target) in logits.iter().zip(&golden.logits).zip(&golden.targets) {
            assert_eq!(found.len(), expected.len());
            let (p, q) = (log_softmax(expected), log_softmax(found));
            kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            same += f64::from(top1(found) == top1(expected));
            loss += p[target as usize] - q[target as usize];
            let differences = found.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs()));
            max_abs = differences.fold(max_abs, f64::max);
        }
        Difference {
            max_abs,
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
