//! Sampling defaults and end ids, as read from `generation_config.json`.

/// Sampling defaults and end ids of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// Ids that end a generation: those of `generation_config.json` and the tokenizer's `<|im_end|>` and `<|endoftext|>`, in ascending order.
    pub eos_token_ids: Vec<u32>,
    /// Whether to sample; greedy otherwise.
    pub do_sample: bool,
    /// Divisor of the logits.
    pub temperature: f32,
    /// Most likely tokens that stay; 0 for all.
    pub top_k: usize,
    /// Probability mass that stays; 1 for all.
    pub top_p: f32,
    /// Least probability that stays, relative to the most likely token's; 0 for all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen before; 1 for none.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens seen before; 0 for none.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens for each time that they were seen; 0 for none.
    pub frequency_penalty: f32,
}
