//! From logits to the next token.
//!
//! With the logits `l` after penalties, bias and mask, and the candidates in order of falling `l` (ties: the lower id first) cut to `top_k`:
//! `w_i = exp((l_i - l_0) / temperature)`; the shortest start of the list with `sum(w) >= top_p * sum of all w` stays, and of it what has
//! `w_i >= min_p`. The token is the first whose running sum of `w` exceeds `u(seed, step) * sum of what stays`, with [`uniform`]'s `u` and the
//! token's index in the reply as `step`. So a token depends on the logits, the seed and its place only, on any device.

mod philox;
mod select;

pub use philox::{philox4x32, uniform};

use lily_model::{SamplerStart, Sampling, TokenHistory};

use crate::error::EngineError;
use crate::generation::TokenLogprobs;
use select::{Ranking, argmax};

/// What one sequence's sampling remembers.
#[derive(Clone, Debug)]
pub struct SamplerState {
    sampling: Sampling,
    seed: u64,
    step: u64,
    history: Option<History>,
}

/// The tokens that penalties count.
#[derive(Clone, Debug)]
struct History {
    /// Times that the reply has each token.
    counts: Vec<u32>,
    /// Whether `seen` has the token.
    listed: Vec<bool>,
    /// Tokens of the prompt and the reply, each once.
    seen: Vec<u32>,
}

impl SamplerState {
    /// At the start of a reply to `prompt`, for ids below `vocabulary`; `fresh_seed` is used where the request has none.
    /// Tokens for which `exempt` holds are never penalised.
    pub fn new(
        sampling: Sampling,
        prompt: &[u32],
        vocabulary: usize,
        fresh_seed: u64,
        exempt: impl Fn(u32) -> bool,
    ) -> Self {
        let seed = sampling.seed.unwrap_or(fresh_seed);
        let mut state = SamplerState {
            sampling,
            seed,
            step: 0,
            history: None,
        };
        if state.sampling.penalises() {
            let mut history = History {
                counts: vec![0; vocabulary],
                listed: vec![false; vocabulary],
                seen: Vec::with_capacity(1024),
            };
            if state.sampling.repetition_penalty != 1.0 {
                prompt
                    .iter()
                    .filter(|&&id| !exempt(id))
                    .for_each(|&id| history.list(id));
            }
            state.history = Some(history);
        }
        state
    }

    /// How tokens are chosen.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Whether it remembers tokens for penalties.
    pub fn penalises(&self) -> bool {
        self.history.is_some()
    }

    /// What a device must know of the tokens so far to penalise them: an entry for each id. Tokens for which `exempt` holds are never penalised.
    pub fn history(&self, exempt: impl Fn(u32) -> bool) -> Vec<TokenHistory> {
        let entries = self
            .history
            .iter()
            .flat_map(|history| history.counts.iter().zip(&history.listed));
        let entry = |(id, (&count, &listed))| TokenHistory {
            listed,
            exempt: exempt(id),
            count,
        };
        (0..).zip(entries).map(entry).collect()
    }

    /// For a device that goes on from here, with what [`SamplerState::history`] gave, or nothing where no penalties apply.
    pub fn start<'a>(&'a self, valid_ids: usize, history: &'a [TokenHistory]) -> SamplerStart<'a> {
        SamplerStart {
            sampling: &self.sampling,
            seed: self.seed,
            // a reply is bounded by the context
            step: self.step as u32,
            valid_ids,
            history,
        }
    }

    /// Takes the token that was chosen (or forced) as the reply's next one. Where not `counted`, penalties ignore it.
    pub fn accept(&mut self, id: u32, counted: bool) {
        self.step += 1;
        if let Some(history) = self.history.as_mut().filter(|_| counted) {
            history.list(id);
            history.counts[id as usize] += 1;
        }
    }
}

impl History {
    fn list(&mut self, id: u32) {
        if !std::mem::replace(&mut self.listed[id as usize], true) {
            self.seen.push(id);
        }
    }

    fn apply(&self, sampling: &Sampling, logits: &mut [f32]) {
        for &id in &self.seen {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 {
                *logit / sampling.repetition_penalty
            } else {
                *logit * sampling.repetition_penalty
            };
            let count = self.counts[id as usize];
            if count > 0 {
                *logit -= sampling.presence_penalty + sampling.frequency_penalty * count as f32;
            }
        }
    }
}

/// Chooses tokens. Its buffers serve all sequences in turn, so that no token allocates.
#[derive(Debug, Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    ranking: Ranking,
    weights: Vec<f64>,
}

/// Why no token could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoToken {
    /// A logit is NaN or infinite.
    NotFinite,
    /// The mask or the bias bans every token.
    NoneAllowed,
}

impl NoToken {
    /// The error for a sequence of `position` tokens.
    pub(crate) fn at(self, position: usize) -> EngineError {
        match self {
            NoToken::NotFinite => EngineError::NotFinite { position },
            NoToken::NoneAllowed => EngineError::Mask("no token is allowed to come next".into()),
        }
    }
}

impl Sampler {
    /// Chooses the next token from the `logits` of the valid ids. `mask` has a bit for each token that may come (bit `id % 32` of word
    /// `id / 32`). Penalties only apply where `penalise`.
    ///
    /// # Errors
    /// [`NoToken`]
    pub fn sample(
        &mut self,
        logits: &[f32],
        state: &SamplerState,
        penalise: bool,
        mask: Option<&[u32]>,
    ) -> Result<u32, NoToken> {
        // Infinities of either sign and NaN fail this; one pass, no early exit, so that it vectorises.
        let finite = logits
            .iter()
            .fold(true, |finite, logit| finite & (logit.abs() <= f32::MAX));
        if !finite {
            return Err(NoToken::NotFinite);
        }
        let sampling = &state.sampling;
        let history = state.history.as_ref().filter(|_| penalise);
        let mut adjusted = std::mem::take(&mut self.adjusted);
        let logits = if history.is_some() || mask.is_some() || !sampling.logit_bias.is_empty() {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            if let Some(history) = history {
                history.apply(sampling, &mut adjusted);
            }
            for &(id, bias) in &sampling.logit_bias {
                if let Some(logit) = adjusted.get_mut(id as usize) {
                    // At most the largest finite number, so that differences of logits stay numbers.
                    *logit = (*logit + bias).min(f32::MAX);
                }
            }
            if let Some(mask) = mask {
                ban(&mut adjusted, mask);
            }
            &adjusted[..]
        } else {
            logits
        };
        let token = if sampling.temperature == 0.0 {
            argmax(logits)
        } else {
            self.draw(logits, sampling, f64::from(uniform(state.seed, state.step)))
        };
        self.adjusted = adjusted;
        token.ok_or(NoToken::NoneAllowed)
    }

    /// The token at `u` of the distribution, as this module's documentation defines it.
    fn draw(&mut self, logits: &[f32], sampling: &Sampling, u: f64) -> Option<u32> {
        let Sampler { ranking, weights, .. } = self;
        ranking.fill(logits, sampling.top_k);
        if ranking.len() == 0 {
            return None;
        }
        let (first, max) = ranking.get(0);
        let weight = |logit: f32| ((f64::from(logit) - f64::from(max)) / f64::from(sampling.temperature)).exp();
        let all_stay = sampling.top_p == 1.0 && sampling.min_p == 0.0;
        let keeps_all = sampling.top_k == 0 || sampling.top_k >= logits.len();

        // What all candidates weigh. Where the ranking holds the whole vocabulary this avoids sorting it.
        let total: f64 = if keeps_all {
            logits.iter().map(|&logit| weight(logit)).sum()
        } else {
            (0..ranking.len()).map(|rank| weight(ranking.get(rank).1)).sum()
        };

        weights.clear();
        let mut sum = 0.0;
        if all_stay {
            let mut last = first;
            for rank in 0..ranking.len() {
                let (id, logit) = ranking.get(rank);
                let w = weight(logit);
                if w == 0.0 {
                    break;
                }
                sum += w;
                if sum > u * total {
                    return Some(id);
                }
                last = id;
            }
            // Rounding can leave the running sum a hair below the total.
            return Some(last);
        }
        for rank in 0..ranking.len() {
            let w = weight(ranking.get(rank).1);
            if rank > 0 && (w < f64::from(sampling.min_p) || w == 0.0) {
                break;
            }
            sum += w;
            weights.push(w);
            if sampling.top_p < 1.0 && sum >= f64::from(sampling.top_p) * total {
                break;
            }
        }
        let target = u * sum;
        let mut running = 0.0;
        let rank = weights.iter().position(|w| {
            running += w;
            running > target
        });
        Some(ranking.get(rank.unwrap_or(weights.len() - 1)).0)
    }

    /// Log-probabilities of token `id` and of the `top` most likely tokens, from the `logits` of the valid ids.
    pub fn logprobs(&mut self, logits: &[f32], id: u32, top: usize) -> TokenLogprobs {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits
            .iter()
            .map(|&logit| (f64::from(logit) - f64::from(max)).exp())
            .sum();
        let log_sum = f64::from(max) + sum.ln();
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        let mut best = Vec::with_capacity(top);
        if top > 0 {
            self.ranking.fill(logits, top);
            for rank in 0..self.ranking.len() {
                let (id, logit) = self.ranking.get(rank);
                best.push((id, logprob(logit)));
            }
        }
        let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        TokenLogprobs {
            id,
            logprob: logprob(logit),
            top: best,
        }
    }
}

/// Bans the tokens whose bit in `mask` is clear.
fn ban(logits: &mut [f32], mask: &[u32]) {
    for (word, logits) in mask.iter().zip(logits.chunks_mut(32)) {
        if *word != u32::MAX {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
