//! Teacher-forced comparison with logits that a reference computed.

use std::path::Path;

use lily_engine::{Backend, BackendError, DecodeStep, PrefillLogits};
use lily_model::FloatType;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use super::statistics::Comparison;
use crate::error::CliError;
use crate::output;

/// What a reference computed.
struct Golden {
    /// The tokens up to the last one that has logits, and the one after it.
    tokens: Vec<u32>,
    /// Position of each row of the logits, in ascending order.
    positions: Vec<usize>,
    /// `[positions, vocabulary]`
    logits: Vec<f32>,
    vocabulary: usize,
}

#[derive(Serialize)]
struct Report {
    positions: usize,
    chunk: usize,
    max_abs_logit_diff: f64,
    mean_kl: f64,
    top1_agreement: f64,
    perplexity: f64,
    reference_perplexity: f64,
    perplexity_ratio: f64,
}

/// Compares and prints.
pub fn run(
    backend: &mut impl Backend,
    path: &Path,
    name: &str,
    chunk: Option<usize>,
    json: bool,
) -> Result<(), CliError> {
    let golden = read(path, name)?;
    let problem = |problem| CliError::Golden {
        path: path.to_owned(),
        problem,
    };
    if golden.vocabulary != backend.vocab_size() {
        let (expected, found) = (backend.vocab_size(), golden.vocabulary);
        return Err(problem(format!(
            "tensor {name}: expected rows of {expected} logits, as the model has, found {found}"
        )));
    }
    if let Some(id) = golden.tokens.iter().find(|&&id| id as usize >= golden.vocabulary) {
        return Err(problem(format!(
            "tensor token_ids: expected ids below {}, found {id}",
            golden.vocabulary
        )));
    }
    let chunk = chunk
        .unwrap_or(usize::MAX)
        .min(backend.max_chunk())
        .min(golden.tokens.len() - 1);
    let comparison = compare(backend, &golden, chunk)?;
    let report = Report {
        positions: comparison.positions,
        chunk,
        max_abs_logit_diff: comparison.max_abs_logit_diff,
        mean_kl: comparison.mean_kl(),
        top1_agreement: comparison.top1_agreement(),
        perplexity: comparison.perplexity(),
        reference_perplexity: comparison.reference_perplexity(),
        perplexity_ratio: comparison.perplexity() / comparison.reference_perplexity(),
    };
    if json {
        return output::json(&report);
    }
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "positions             {}", report.positions)?;
    writeln!(out, "chunk                 {}", report.chunk)?;
    writeln!(out, "max |logit diff|      {:.3e}", report.max_abs_logit_diff)?;
    writeln!(out, "mean KL               {:.3e}", report.mean_kl)?;
    writeln!(out, "same top token        {:.2} %", 100.0 * report.top1_agreement)?;
    writeln!(out, "perplexity            {:.6}", report.perplexity)?;
    writeln!(out, "reference perplexity  {:.6}", report.reference_perplexity)?;
    writeln!(out, "ratio                 {:.8}", report.perplexity_ratio)?;
    Ok(())
}

fn compare<B: Backend>(backend: &mut B, golden: &Golden, chunk: usize) -> Result<Comparison, BackendError> {
    let mut comparison = Comparison::default();
    let mut add = |position: usize, logits: &[f32]| {
        if let Ok(row) = golden.positions.binary_search(&position) {
            let row = &golden.logits[row * golden.vocabulary..][..golden.vocabulary];
            comparison.add(logits, row, golden.tokens[position + 1]);
        }
    };
    let inputs = &golden.tokens[..golden.tokens.len() - 1];
    let mut sequence = backend.new_sequence()?;
    if chunk == 1 {
        for (position, &token) in inputs.iter().enumerate() {
            backend.decode(&mut [DecodeStep {
                sequence: &mut sequence,
                token,
            }])?;
            add(position, backend.logits(&sequence));
        }
        return Ok(comparison);
    }
    for (index, tokens) in inputs.chunks(chunk).enumerate() {
        let mut row = |row: usize, logits: &[f32]| add(index * chunk + row, logits);
        backend.prefill(&mut sequence, tokens, PrefillLogits::All(&mut row))?;
    }
    Ok(comparison)
}

fn read(path: &Path, name: &str) -> Result<Golden, CliError> {
    let bytes = std::fs::read(path).map_err(|source| CliError::File {
        path: path.to_owned(),
        source,
    })?;
    parse(&bytes, name).map_err(|problem| CliError::Golden {
        path: path.to_owned(),
        problem,
    })
}

fn parse(bytes: &[u8], name: &str) -> Result<Golden, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| format!("is no safetensors file: {error}"))?;
    let tensor = |name: &str| {
        file.tensor(name).map_err(|_| {
            let mut names = file.names();
            names.sort_unstable();
            format!("expected a tensor {name}, found {}", names.join(", "))
        })
    };
    let mut tokens = numbers("token_ids", &tensor("token_ids")?, 2)?;
    let logits = tensor(name)?;
    let most = tokens.len() - 1;
    let (rows, vocabulary) = match logits.shape() {
        &[rows, vocabulary] if (1..=most).contains(&rows) && vocabulary > 0 => (rows, vocabulary),
        shape => {
            return Err(format!(
                "tensor {name}: expected [1 to {most}, vocabulary], found {shape:?}"
            ));
        }
    };
    let positions = match file.tensor("positions") {
        Ok(found) => positions(&found, rows, most)?,
        Err(_) => (0..rows).collect(),
    };
    tokens.truncate(positions[rows - 1] + 2);
    let float = |float: FloatType| (0..rows * vocabulary).map(|i| float.read(logits.data(), i)).collect();
    let logits = match logits.dtype() {
        Dtype::F32 => float(FloatType::F32),
        Dtype::F16 => float(FloatType::F16),
        Dtype::BF16 => float(FloatType::Bf16),
        Dtype::F64 => {
            let (numbers, _) = logits.data().as_chunks::<8>();
            numbers.iter().map(|&bytes| f64::from_le_bytes(bytes) as f32).collect()
        }
        dtype => {
            return Err(format!(
                "tensor {name}: expected F64, F32, F16 or BF16, found {dtype:?}"
            ));
        }
    };
    Ok(Golden {
        tokens,
        positions,
        logits,
        vocabulary,
    })
}

/// Where the rows lie, where a file has logits of some positions only.
fn positions(found: &TensorView, rows: usize, most: usize) -> Result<Vec<usize>, String> {
    let positions: Vec<usize> = numbers("positions", found, 1)?.iter().map(|&p| p as usize).collect();
    let ascending = positions.is_sorted_by(|a, b| a < b) && positions.last().is_some_and(|&last| last < most);
    if positions.len() != rows || !ascending {
        return Err(format!(
            "tensor positions: expected {rows} ascending positions below {most}, found {positions:?}"
        ));
    }
    Ok(positions)
}

/// The integers of a one-dimensional tensor of at least `least`.
fn numbers(name: &str, found: &TensorView, least: usize) -> Result<Vec<u32>, String> {
    match (found.shape(), found.dtype()) {
        (&[length], Dtype::I32) if length >= least => {
            unsigned(name, found.data(), |bytes| i32::from_le_bytes(bytes).into())
        }
        (&[length], Dtype::U32) if length >= least => {
            unsigned(name, found.data(), |bytes| u32::from_le_bytes(bytes).into())
        }
        (&[length], Dtype::I64) if length >= least => unsigned(name, found.data(), i64::from_le_bytes),
        (shape, dtype) => Err(format!(
            "tensor {name}: expected [{least} or more] of I32, U32 or I64, found {shape:?} of {dtype:?}"
        )),
    }
}

fn unsigned<const SIZE: usize>(name: &str, data: &[u8], read: impl Fn([u8; SIZE]) -> i64) -> Result<Vec<u32>, String> {
    let (numbers, _) = data.as_chunks::<SIZE>();
    let number = |&bytes| {
        let number = read(bytes);
        u32::try_from(number)
            .map_err(|_| format!("tensor {name}: expected numbers from 0 to {}, found {number}", u32::MAX))
    };
    numbers.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Tensor = (Dtype, Vec<usize>, Vec<u8>);

    fn file(ids: Tensor, logits: Tensor) -> Vec<u8> {
        let tensors = [("token_ids", &ids), ("logits", &logits)]
            .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
        safetensors::serialize(tensors, None).unwrap()
    }

    fn i32s(values: &[i32]) -> Tensor {
        (
            Dtype::I32,
            vec![values.len()],
            values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        )
    }

    fn f64s(shape: &[usize], values: &[f64]) -> Tensor {
        (
            Dtype::F64,
            shape.to_vec(),
            values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        )
    }

    fn problem(bytes: &[u8]) -> String {
        parse(bytes, "logits").err().unwrap()
    }

    #[test]
    fn a_golden_file_is_read() {
        let golden = parse(&file(i32s(&[5, 6, 7]), f64s(&[2, 2], &[1.0, 2.0, 3.0, 4.0])), "logits").unwrap();
        assert_eq!(
            (golden.tokens, golden.logits, golden.vocabulary),
            (vec![5, 6, 7], vec![1.0, 2.0, 3.0, 4.0], 2)
        );
    }

    #[test]
    fn rows_may_lie_at_some_positions_only() {
        let some = |positions: &[i32]| {
            let (ids, rows, at) = (i32s(&[5, 6, 7, 8]), f64s(&[2, 1], &[1.0, 2.0]), i32s(positions));
            let tensors = [("token_ids", &ids), ("logits", &rows), ("positions", &at)]
                .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
            safetensors::serialize(tensors, None).unwrap()
        };
        let golden = parse(&some(&[0, 1]), "logits").unwrap();
        assert_eq!((golden.tokens, golden.positions), (vec![5, 6, 7], vec![0, 1]));
        let golden = parse(&some(&[1, 2]), "logits").unwrap();
        assert_eq!((golden.tokens, golden.positions), (vec![5, 6, 7, 8], vec![1, 2]));
        for bad in [&[1, 3][..], &[1, 1], &[2, 1], &[1]] {
            assert!(problem(&some(bad)).starts_with("tensor positions: expected 2 ascending positions below 3"));
        }
    }

    #[test]
    fn problems_name_the_tensor_and_what_was_expected() {
        assert!(problem(b"junk").starts_with("is no safetensors file"));
        let good = f64s(&[2, 1], &[1.0, 2.0]);
        assert!(problem(&file(i32s(&[5]), good.clone())).contains("expected [2 or more] of I32"));
        assert!(problem(&file(i32s(&[5, -6, 7]), good.clone())).contains("found -6"));
        assert!(problem(&file(i32s(&[5, 6]), good.clone())).contains("expected [1 to 1, vocabulary], found [2, 1]"));
        let missing = parse(&file(i32s(&[5, 6, 7]), good), "logits.f64").err().unwrap();
        assert_eq!(missing, "expected a tensor logits.f64, found logits, token_ids");
    }
}
