//! Checkpoints of the Qwen3.6 family, as published: config, weights, quantization formats, tokenizer, chat template.
//!
//! Nothing here computes the model. The weights stay in the file's own compressed form ([`Matrix`]); a backend reads them in place.

pub mod bytes;
pub mod checkpoint;
pub mod config;
mod config_json;
pub mod detokenizer;
pub mod error;
mod fields;
#[cfg(test)]
mod fuzz;
pub mod generation;
mod guard;
pub mod hub;
mod identity;
mod late_system;
mod load;
pub mod matrix;
mod python;
mod quantization;
pub mod sampling;
mod shards;
mod source;
pub mod synthetic;
pub mod template;
pub mod tokenizer;
pub mod weights;

pub use bytes::Bytes;
pub use checkpoint::Checkpoint;
pub use config::{AttentionConfig, DeltaNetConfig, LayerKind, MlpConfig, ModelConfig};
pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use generation::GenerationConfig;
pub use matrix::{Encoding, FloatType, Matrix};
pub use sampling::{SamplerStart, Sampling, TokenHistory};
pub use source::Source;
pub use template::{ChatInput, ChatPrompt, ChatTemplate};
pub use tokenizer::Tokenizer;
pub use weights::{Attention, DeltaNet, GatedMlp, Layer, Mixer, Mlp, Moe, Weights};
