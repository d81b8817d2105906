//! Options of sampling, and what the checkpoint says where they are absent.

use clap::Args;
use lily_engine::{GenerateRequest, Sampling};
use lily_model::Checkpoint;

/// How tokens are chosen.
#[derive(Args, Clone, Debug, Default)]
pub struct SamplingArgs {
    /// Divisor of the logits; 0 always takes the most likely token [default: the model's]
    #[arg(long, value_name = "T", help_heading = "Sampling")]
    pub temperature: Option<f32>,
    /// Most likely tokens that stay; 0 for all [default: the model's]
    #[arg(long, value_name = "K", help_heading = "Sampling")]
    pub top_k: Option<usize>,
    /// Probability mass that stays; 1 for all [default: the model's]
    #[arg(long, value_name = "P", help_heading = "Sampling")]
    pub top_p: Option<f32>,
    /// Least probability that stays, relative to the most likely token's [default: the model's]
    #[arg(long, value_name = "P", help_heading = "Sampling")]
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens seen before; 1 for none [default: the model's]
    #[arg(long, value_name = "F", help_heading = "Sampling")]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens that the reply has; 0 for none [default: the model's]
    #[arg(long, value_name = "F", help_heading = "Sampling", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtracted for each time that the reply has a token; 0 for none [default: the model's]
    #[arg(long, value_name = "F", help_heading = "Sampling", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Seed of the random numbers; the same seed gives the same text [default: a fresh one]
    #[arg(long, value_name = "N", help_heading = "Sampling")]
    pub seed: Option<u64>,
    /// Most tokens of the reply [default: up to the context's end]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Text that ends the reply; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    /// A request for a reply to `prompt`.
    pub fn request(&self, prompt: Vec<u32>, checkpoint: &Checkpoint) -> GenerateRequest {
        let base = Sampling::from_config(&checkpoint.generation);
        GenerateRequest {
            sampling: Sampling {
                temperature: self.temperature.unwrap_or(base.temperature),
                top_k: self.top_k.unwrap_or(base.top_k),
                top_p: self.top_p.unwrap_or(base.top_p),
                min_p: self.min_p.unwrap_or(base.min_p),
                repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
                presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
                frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
                seed: self.seed,
                logit_bias: Vec::new(),
            },
            stop_tokens: checkpoint.generation.eos_token_ids.clone(),
            stop_strings: self.stop.clone(),
            max_tokens: self.max_tokens,
            ..GenerateRequest::new(prompt)
        }
    }
}
