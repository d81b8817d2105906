//! How tokens are chosen: what a caller asks for, and what whoever chooses them has to know.

use crate::generation::GenerationConfig;

/// How the next token is chosen from the logits.
///
/// The order is: penalties, logit bias, mask, temperature, `top_k`, `top_p`, `min_p`; then the inverse of the cumulative distribution over what
/// remains, in order of falling probability (ties: the lower id first), at a random number that the seed and the token's index in the reply give.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits, at least 0; 0 is greedy: the largest logit, the lowest id among equals.
    pub temperature: f32,
    /// Most likely tokens that stay; 0 for all.
    pub top_k: usize,
    /// Least number of most likely tokens whose probabilities sum to this stay; above 0, at most 1; 1 for all.
    pub top_p: f32,
    /// Tokens at least this likely relative to the most likely one stay; 0 to 1; 0 for all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the reply; above 0; 1 for none.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the reply; -2 to 2 in OpenAI's API, any finite number here; 0 for none.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens for each time that the reply has them; 0 for none.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, each named once; an infinite bias bans or forces.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers; a fresh one where `None`. The same seed, prompt and backend give the same tokens.
    pub seed: Option<u64>,
}

impl Sampling {
    /// The most likely token, always.
    pub fn greedy() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }

    /// The checkpoint's own defaults.
    pub fn from_config(config: &GenerationConfig) -> Self {
        Sampling {
            temperature: if config.do_sample { config.temperature } else { 0.0 },
            top_k: config.top_k,
            top_p: config.top_p,
            min_p: config.min_p,
            repetition_penalty: config.repetition_penalty,
            presence_penalty: config.presence_penalty,
            frequency_penalty: config.frequency_penalty,
            ..Sampling::greedy()
        }
    }

    /// Whether any penalty changes a logit.
    pub fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// What penalties know about a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenHistory {
    /// The token is in the prompt or the reply, for the repetition penalty.
    pub listed: bool,
    /// The token is never penalised.
    pub exempt: bool,
    /// Times that the reply has it.
    pub count: u32,
}

/// What a device has to know to choose a reply's tokens from some token on.
#[derive(Clone, Copy, Debug)]
pub struct SamplerStart<'a> {
    /// How tokens are chosen; its `seed` does not count.
    pub sampling: &'a Sampling,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Tokens that the reply has so far: the random number of the next one.
    pub step: u32,
    /// Ids below this may be chosen; the rest are padding.
    pub valid_ids: usize,
    /// An entry for each valid id; none where no penalties apply.
    pub history: &'a [TokenHistory],
}
