//! Checkpoints of the Qwen3.6 family, as published: config, weights, quantization formats, tokenizer, chat template.
//!
//! Nothing here computes the model. The weights stay in the file's own compressed form ([`Matrix`]); a backend reads them in place.

pub mod bytes;
pub mod config;
pub mod matrix;
pub mod weights;

pub use bytes::Bytes;
pub use config::{AttentionConfig, DeltaNetConfig, LayerKind, MlpConfig, ModelConfig};
pub use matrix::{Encoding, FloatType, Matrix};
pub use weights::{Attention, DeltaNet, GatedMlp, Layer, Mixer, Mlp, Moe, Weights};
