//! How well a model predicts a text.

use lily_engine::{Backend, BackendError, PrefillLogits};
use serde::Serialize;

use super::EvalArgs;
use super::statistics::surprise;
use crate::error::CliError;
use crate::output;

#[derive(Serialize)]
struct Report {
    bytes: usize,
    tokens: usize,
    window: usize,
    perplexity: f64,
    bits_per_byte: f64,
}

/// Evaluates and prints. `bytes_of` tells the bytes of a token. There is no token before the first, so that one is not predicted.
pub fn run(
    backend: &mut impl Backend,
    tokens: &[u32],
    bytes_of: impl Fn(u32) -> usize,
    args: &EvalArgs,
) -> Result<(), CliError> {
    if tokens.len() < 2 {
        return Err(CliError::Usage(format!(
            "--text: expected at least 2 tokens, found {}",
            tokens.len()
        )));
    }
    let window = args.window.min(backend.context_limit());
    let chunk = args.chunk.unwrap_or(usize::MAX).min(backend.max_chunk());
    let nats = total_surprise(backend, tokens, window, chunk)?;
    let bytes: usize = tokens[1..].iter().map(|&id| bytes_of(id)).sum();
    let predicted = tokens.len() - 1;
    let report = Report {
        bytes,
        tokens: predicted,
        window,
        perplexity: (nats / predicted as f64).exp(),
        bits_per_byte: nats / std::f64::consts::LN_2 / bytes as f64,
    };
    if args.json {
        return output::json(&report);
    }
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "tokens         {}", report.tokens)?;
    writeln!(out, "bytes          {}", report.bytes)?;
    writeln!(out, "perplexity     {:.4}", report.perplexity)?;
    writeln!(out, "bits per byte  {:.4}", report.bits_per_byte)?;
    Ok(())
}

/// Negative log-likelihood of all tokens but the first, in nats. Windows overlap by one token, so that each is predicted once.
fn total_surprise<B: Backend>(
    backend: &mut B,
    tokens: &[u32],
    window: usize,
    chunk: usize,
) -> Result<f64, BackendError> {
    let mut nats = 0.0;
    let mut start = 0;
    while start + 1 < tokens.len() {
        let end = (start + window).min(tokens.len());
        let mut sequence = backend.new_sequence()?;
        // The last token of a window is only predicted; the next window reads it.
        let inputs = &tokens[start..end - 1];
        for (index, part) in inputs.chunks(chunk).enumerate() {
            let first = start + index * chunk;
            let mut row = |row: usize, logits: &[f32]| {
                nats += surprise(logits, tokens[first + row + 1]).unwrap_or(f64::INFINITY);
            };
            backend.prefill(&mut sequence, part, PrefillLogits::All(&mut row))?;
        }
        start = end - 1;
    }
    Ok(nats)
}
