//! Sampling defaults and end ids, as read from `generation_config.json`.

use serde_json::Value;

use crate::error::Result;
use crate::fields::Fields;
use crate::tokenizer::Tokenizer;

/// Sampling defaults and end ids of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// Ids that end a generation, ascending: those of `generation_config.json` and the tokenizer's `<|im_end|>` and `<|endoftext|>`.
    /// A union, because published files name one or the other and a chat that misses `<|im_end|>` never ends.
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

impl Default for GenerationConfig {
    /// Sampling from the model's own distribution; no end ids.
    fn default() -> Self {
        GenerationConfig {
            eos_token_ids: Vec::new(),
            do_sample: true,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

impl GenerationConfig {
    /// Reads the content of a `generation_config.json`, which errors call `file`; `None` for a checkpoint without one.
    pub(crate) fn read(file: &str, json: Option<&Value>, tokenizer: &Tokenizer) -> Result<GenerationConfig> {
        let mut config = GenerationConfig::default();
        config.eos_token_ids.extend(
            ["<|im_end|>", "<|endoftext|>"]
                .iter()
                .filter_map(|content| tokenizer.added_token(content)),
        );
        if let Some(json) = json {
            let root = Fields::root(file, json)?;
            config.eos_token_ids.extend(read_ids(root, tokenizer)?);
            if let Some(do_sample) = root.bool("do_sample")? {
                config.do_sample = do_sample;
            }
            if root.get("top_k").is_some() {
                config.top_k = root.usize("top_k", 0..=1 << 24)?;
            }
            for (name, value, range) in [
                ("temperature", &mut config.temperature, 0.0..=100.0),
                ("top_p", &mut config.top_p, 0.0..=1.0),
                ("min_p", &mut config.min_p, 0.0..=1.0),
                ("repetition_penalty", &mut config.repetition_penalty, 0.01..=100.0),
                ("presence_penalty", &mut config.presence_penalty, -100.0..=100.0),
                ("frequency_penalty", &mut config.frequency_penalty, -100.0..=100.0),
            ] {
                if root.get(name).is_some() {
                    *value = root.f64(name, range)? as f32;
                }
            }
        }
        config.eos_token_ids.sort_unstable();
        config.eos_token_ids.dedup();
        Ok(config)
    }
}

/// `eos_token_id`: a number or an array of numbers.
fn read_ids(root: Fields<'_>, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let items = match root.get("eos_token_id") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    items
        .iter()
        .map(|item| {
            item.as_u64()
                .filter(|id| *id < tokenizer.len() as u64)
                .map(|id| id as u32)
                .ok_or_else(|| root.wrong("eos_token_id", format!("ids below {}", tokenizer.len())))
        })
        .collect()
}
