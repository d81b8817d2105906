//! Random weights of any shape, made in memory: speed can be measured without a download.

use crate::config::ModelConfig;
use crate::weights::Weights;

impl Weights {
    /// Random 4-bit weights of the shape `config` (router and shared expert's gate 8-bit, groups of 64), the same for the same `seed`.
    pub fn synthetic(config: &ModelConfig, seed: u64) -> Weights {
        let _ = (config, seed);
        todo!()
    }
}

impl ModelConfig {
    /// The shape of Qwen3.6-35B-A3B. Cut `layers` for a shallower model.
    pub fn qwen3_6_35b_a3b() -> ModelConfig {
        todo!()
    }
}
