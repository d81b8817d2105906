//! One round of the contract on a backend in this process: a prefill and decode steps.

use std::time::{Duration, Instant};

use lily_engine::{Backend, BackendError, DecodeStep, PrefillLogits, Sampling};
use lily_model::SamplerStart;

/// Decode steps that the contract measures.
pub const DECODE_STEPS: usize = 64;

/// Token `index` of the prompt.
fn prompt_token(index: usize, vocab_size: usize) -> u32 {
    let spread = (index as u64).wrapping_mul(2_654_435_761) & 0xffff_ffff;
    (spread % vocab_size.max(1) as u64) as u32
}

/// The contract's prompt of `length` tokens.
pub fn prompt(length: usize, vocab_size: usize) -> Vec<u32> {
    shifted_prompt(0, length, vocab_size)
}

/// `length` tokens of the contract's from the one at `shift` on: prompts that differ in their first token.
pub fn shifted_prompt(shift: usize, length: usize, vocab_size: usize) -> Vec<u32> {
    (shift..shift + length)
        .map(|index| prompt_token(index, vocab_size))
        .collect()
}

/// One round of a measurement.
pub struct Round {
    /// Time of the prompt, the choice of the first token included.
    pub prefill: Duration,
    /// Time of the decode steps.
    pub decode: Duration,
    /// The tokens chosen.
    pub tokens: Vec<u32>,
}

/// One prefill and `steps` decode steps, whose tokens the device chooses where it can, as it does for the engine.
pub fn round<B: Backend>(backend: &mut B, prompt: &[u32], steps: usize) -> Result<Round, BackendError> {
    let mut sequence = backend.new_sequence()?;
    let mut tokens = Vec::with_capacity(steps + 1);
    let chunk = backend.max_chunk();
    let chunks = prompt.len().div_ceil(chunk);
    let started = Instant::now();
    for (index, part) in prompt.chunks(chunk).enumerate() {
        let logits = if index + 1 == chunks {
            PrefillLogits::Last
        } else {
            PrefillLogits::None
        };
        backend.prefill(&mut sequence, part, logits)?;
    }
    let mut token = most_likely(backend.logits(&sequence));
    let prefill = started.elapsed();
    tokens.push(token);
    let started = Instant::now();
    if steps > 0 && backend.hands_over_tokens() {
        let greedy = Sampling::greedy();
        let start = SamplerStart {
            sampling: &greedy,
            seed: 0,
            step: 1,
            valid_ids: backend.vocab_size(),
            history: &[],
        };
        backend.start_hand_off(&mut sequence, token, &start)?;
        for step in 1..=steps {
            tokens.push(backend.next_token(&mut sequence, step < steps)?);
        }
    } else {
        for _ in 0..steps {
            backend.decode(&mut [DecodeStep {
                sequence: &mut sequence,
                token,
            }])?;
            token = most_likely(backend.logits(&sequence));
            tokens.push(token);
        }
    }
    Ok(Round {
        prefill,
        decode: started.elapsed(),
        tokens,
    })
}

/// The largest logit's id, the lowest among equals.
pub fn most_likely(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().fold(
        (0, f32::NEG_INFINITY),
        |best, (id, &logit)| {
            if logit > best.1 { (id, logit) } else { best }
        },
    );
    best.0 as u32
}

/// The middle value, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_tokens_follow_the_contract() {
        assert_eq!(prompt_token(0, 248_320), 0);
        assert_eq!(prompt_token(1, 248_320), 2_654_435_761u64.rem_euclid(248_320) as u32);
        // 2 * 2654435761 wraps around 2^32.
        assert_eq!(
            prompt_token(2, 248_320),
            (5_308_871_522u64 - (1 << 32)).rem_euclid(248_320) as u32
        );
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
    }
}
