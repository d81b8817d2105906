//! The model: weights, threads and scratch buffers, and the pass over the layers.

use std::sync::Arc;

use lily_model::{ModelConfig, Weights};

use crate::{CpuError, CpuOptions, Sequence};

/// Which rows of a prefill chunk get logits.
pub enum LogitRows<'a> {
    /// None: more chunks follow.
    None,
    /// The last row, readable afterwards through [`Sequence::logits`].
    Last,
    /// Every row, handed over in order (row, `vocab_size` logits); the last stays readable through [`Sequence::logits`].
    All(&'a mut dyn FnMut(usize, &[f32])),
}

/// One sequence's part of a decode step.
pub struct DecodeRow<'a> {
    /// The sequence to extend.
    pub sequence: &'a mut Sequence,
    /// Its next token.
    pub token: u32,
}

/// A model on the CPU.
pub struct CpuModel {
    config: Arc<ModelConfig>,
}

impl CpuModel {
    /// A model over `weights`, which are read in place.
    pub fn new(config: Arc<ModelConfig>, _weights: Arc<Weights>, _options: CpuOptions) -> Result<CpuModel, CpuError> {
        Ok(CpuModel { config })
    }

    /// Processor, threads and kernels, for people: `AMD EPYC, 2 threads, AVX2`.
    pub fn description(&self) -> String {
        unimplemented!()
    }

    /// Logits of a row: the rows of lm_head.
    pub fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    /// Most tokens of one prefill chunk, and most sequences of one decode step.
    pub fn max_chunk(&self) -> usize {
        unimplemented!()
    }

    /// A sequence at position 0.
    pub fn new_sequence(&self) -> Sequence {
        unimplemented!()
    }

    /// Bytes of state that a sequence of `tokens` tokens takes.
    pub fn sequence_bytes(&self, _tokens: usize) -> usize {
        unimplemented!()
    }

    /// Appends a chunk of 1 to [`CpuModel::max_chunk`] tokens. Any split of a prompt into chunks gives the same bits.
    pub fn prefill(
        &mut self,
        _sequence: &mut Sequence,
        _tokens: &[u32],
        _logits: LogitRows<'_>,
    ) -> Result<(), CpuError> {
        unimplemented!()
    }

    /// Appends one token to each of several sequences, reading the weights once; each one's logits are ready afterwards.
    pub fn decode(&mut self, _batch: &mut [DecodeRow<'_>]) -> Result<(), CpuError> {
        unimplemented!()
    }
}
