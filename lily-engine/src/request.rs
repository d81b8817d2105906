//! What a caller asks of the engine.

use std::collections::HashSet;
use std::fmt;

pub use lily_model::Sampling;

use crate::engine::EngineInfo;
use crate::error::EngineError;

/// Says which tokens may come next: a grammar, a schema, a set of choices.
///
/// It runs on the engine's thread, once a token, so it must be quick.
pub trait TokenMask: Send {
    /// Clears in `allowed` the bits of the tokens that may not come next. Bit `id % 32` of word `id / 32` is token `id`; all bits are set
    /// before the call.
    ///
    /// # Errors
    /// A message for people; the generation fails with it.
    fn restrict(&mut self, allowed: &mut [u32]) -> Result<(), String>;

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// As [`TokenMask::restrict`].
    fn accept(&mut self, token: u32) -> Result<(), String>;
}

/// A limit to the reasoning at the start of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningBudget {
    /// Tokens of reasoning after which it is ended.
    pub tokens: usize,
    /// Tokens that end it; they become part of the reply. Where `</think>` is not among them, it follows them.
    pub end: Vec<u32>,
}

/// How the tokens of a reply are told apart; see [`crate::reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFormat {
    /// Everything is content, markup included: a raw completion.
    Raw,
    /// A chat's reply: reasoning, content and tool calls, set apart by control tokens.
    Chat {
        /// Whether the prompt ended inside a think block, so that the reply starts with reasoning.
        starts_in_reasoning: bool,
    },
}

/// One generation.
pub struct GenerateRequest {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the reply; usually the checkpoint's `eos_token_ids`.
    pub stop_tokens: Vec<u32>,
    /// Texts that end the reply and are not part of it. They are matched across token borders, in the content only (not in reasoning or
    /// tool calls); empty strings are refused.
    pub stop_strings: Vec<String>,
    /// Most tokens of the reply; up to the context limit where `None`. 0 only reads the prompt (and gives its log-probabilities if asked).
    pub max_tokens: Option<usize>,
    /// Log-probabilities of every token of the reply, with this many of the most likely alternatives; none where `None`.
    pub logprobs: Option<usize>,
    /// The same for the prompt's tokens. The whole prompt is then read anew, whatever the prefix cache has.
    pub prompt_logprobs: Option<usize>,
    /// How the reply's tokens are told apart.
    pub format: ReplyFormat,
    /// A limit to the reasoning.
    pub reasoning_budget: Option<ReasoningBudget>,
    /// Says which tokens may come next. In a chat's reply it starts after the reasoning.
    pub mask: Option<Box<dyn TokenMask>>,
    /// Token indices of the prompt at which a snapshot for later requests is worth keeping: the ends of its messages. (The ends of the
    /// prompt and of the reply are kept anyway.) Indices of 0 or past the prompt are ignored.
    pub snapshot_at: Vec<usize>,
    /// Name of the conversation (`prompt_cache_key`): when the cache is full, a conversation's own old snapshots go before those of others.
    pub cache_key: Option<String>,
    /// Name of whoever asks; clients that wait take turns.
    pub client: Option<String>,
}

impl GenerateRequest {
    /// Most alternatives that `logprobs` and `prompt_logprobs` may ask for.
    pub const MAX_TOP_LOGPROBS: usize = 128;

    /// A raw greedy completion of `prompt` without limits; set the fields that should differ.
    pub fn new(prompt: Vec<u32>) -> Self {
        GenerateRequest {
            prompt,
            sampling: Sampling::greedy(),
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
            max_tokens: None,
            logprobs: None,
            prompt_logprobs: None,
            format: ReplyFormat::Raw,
            reasoning_budget: None,
            mask: None,
            snapshot_at: Vec::new(),
            cache_key: None,
            client: None,
        }
    }
}

impl GenerateRequest {
    /// Whether every field is in its range.
    pub(crate) fn validate(&self, info: &EngineInfo) -> Result<(), EngineError> {
        let ids = |field, ids: &[u32]| match ids.iter().find(|&&id| id as usize >= info.vocabulary) {
            Some(id) => Err(EngineError::invalid(
                field,
                format!("token ids below {}", info.vocabulary),
                id,
            )),
            None => Ok(()),
        };
        if self.prompt.is_empty() {
            return Err(EngineError::invalid("prompt", "at least one token", "none"));
        }
        ids("prompt", &self.prompt)?;
        if let Some(budget) = &self.reasoning_budget {
            ids("reasoning_budget", &budget.end)?;
        }
        if self.stop_strings.iter().any(String::is_empty) {
            return Err(EngineError::invalid("stop_strings", "texts", "an empty text"));
        }
        for (field, wanted) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if wanted.is_some_and(|top| top > Self::MAX_TOP_LOGPROBS) {
                let expected = format!("at most {} alternatives", Self::MAX_TOP_LOGPROBS);
                return Err(EngineError::invalid(field, expected, wanted.unwrap_or(0)));
            }
        }
        check_sampling(&self.sampling, info.vocabulary)?;
        let reply = usize::from(self.max_tokens != Some(0));
        if self.prompt.len() + reply > info.context_limit {
            return Err(EngineError::ContextOverflow {
                prompt_tokens: self.prompt.len(),
                context_limit: info.context_limit,
            });
        }
        Ok(())
    }
}

impl fmt::Debug for GenerateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateRequest")
            .field("prompt_tokens", &self.prompt.len())
            .field("sampling", &self.sampling)
            .field("max_tokens", &self.max_tokens)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// Whether every field is in its range; token ids below `vocabulary` are valid.
fn check_sampling(sampling: &Sampling, vocabulary: usize) -> Result<(), EngineError> {
    let range = |field, ok: bool, expected: &str, found: f32| {
        if ok {
            Ok(())
        } else {
            Err(EngineError::invalid(field, expected, found))
        }
    };
    let temperature = sampling.temperature;
    range(
        "temperature",
        temperature >= 0.0 && temperature.is_finite(),
        "a number from 0",
        temperature,
    )?;
    range(
        "top_p",
        sampling.top_p > 0.0 && sampling.top_p <= 1.0,
        "a number above 0, at most 1",
        sampling.top_p,
    )?;
    range(
        "min_p",
        (0.0..=1.0).contains(&sampling.min_p),
        "a number from 0 to 1",
        sampling.min_p,
    )?;
    let repetition = sampling.repetition_penalty;
    range(
        "repetition_penalty",
        repetition > 0.0 && repetition.is_finite(),
        "a number above 0",
        repetition,
    )?;
    range(
        "presence_penalty",
        sampling.presence_penalty.is_finite(),
        "a finite number",
        sampling.presence_penalty,
    )?;
    range(
        "frequency_penalty",
        sampling.frequency_penalty.is_finite(),
        "a finite number",
        sampling.frequency_penalty,
    )?;
    let mut biased = HashSet::new();
    for &(id, bias) in &sampling.logit_bias {
        if !biased.insert(id) {
            return Err(EngineError::invalid(
                "logit_bias",
                "each token once",
                format!("token {id} twice"),
            ));
        }
        if id as usize >= vocabulary {
            return Err(EngineError::invalid(
                "logit_bias",
                format!("token ids below {vocabulary}"),
                id,
            ));
        }
        range("logit_bias", !bias.is_nan(), "numbers", bias)?;
    }
    Ok(())
}
