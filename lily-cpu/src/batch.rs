//! The sequences of one step and the rows that they have in its buffers.

use std::ops::Range;

use crate::kv::KvCache;
use crate::sequence::{DeltaNetState, LayerState};
use crate::{DecodeRow, Sequence};

/// The work of one step: a chunk of one sequence, or one token of each of several.
pub(crate) enum Batch<'b, 's> {
    Prefill {
        sequence: &'b mut Sequence,
        tokens: &'b [u32],
    },
    Decode(&'b mut [DecodeRow<'s>]),
}

impl Batch<'_, '_> {
    /// Rows of the step.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Batch::Prefill { tokens, .. } => tokens.len(),
            Batch::Decode(batch) => batch.len(),
        }
    }

    /// Sequences of the step.
    pub(crate) fn segments(&self) -> usize {
        match self {
            Batch::Prefill { .. } => 1,
            Batch::Decode(batch) => batch.len(),
        }
    }

    /// Rows of a sequence.
    pub(crate) fn segment_rows(&self, segment: usize) -> Range<usize> {
        match self {
            Batch::Prefill { tokens, .. } => 0..tokens.len(),
            Batch::Decode(_) => segment..segment + 1,
        }
    }

    /// Token of a row.
    pub(crate) fn token(&self, row: usize) -> u32 {
        match self {
            Batch::Prefill { tokens, .. } => tokens[row],
            Batch::Decode(batch) => batch[row].token,
        }
    }

    /// Position of a row.
    pub(crate) fn position(&self, row: usize) -> usize {
        match self {
            Batch::Prefill { sequence, .. } => sequence.position + row,
            Batch::Decode(batch) => batch[row].sequence.position,
        }
    }

    fn layer(&self, segment: usize, layer: usize) -> &LayerState {
        match self {
            Batch::Prefill { sequence, .. } => &sequence.layers[layer],
            Batch::Decode(batch) => &batch[segment].sequence.layers[layer],
        }
    }

    fn layer_mut(&mut self, segment: usize, layer: usize) -> &mut LayerState {
        match self {
            Batch::Prefill { sequence, .. } => &mut sequence.layers[layer],
            Batch::Decode(batch) => &mut batch[segment].sequence.layers[layer],
        }
    }

    /// The KV cache of an attention layer.
    ///
    /// # Panics
    /// Where the layer is not an attention layer.
    pub(crate) fn cache(&self, segment: usize, layer: usize) -> &KvCache {
        match self.layer(segment, layer) {
            LayerState::Attention(cache) => cache,
            LayerState::DeltaNet(_) => panic!("layer {layer} has no KV cache"),
        }
    }

    /// As [`Batch::cache`].
    pub(crate) fn cache_mut(&mut self, segment: usize, layer: usize) -> &mut KvCache {
        match self.layer_mut(segment, layer) {
            LayerState::Attention(cache) => cache,
            LayerState::DeltaNet(_) => panic!("layer {layer} has no KV cache"),
        }
    }

    /// The state of a Gated DeltaNet layer.
    ///
    /// # Panics
    /// Where the layer is not a Gated DeltaNet layer.
    pub(crate) fn delta_net_mut(&mut self, segment: usize, layer: usize) -> &mut DeltaNetState {
        match self.layer_mut(segment, layer) {
            LayerState::DeltaNet(state) => state,
            LayerState::Attention(_) => panic!("layer {layer} has no recurrent state"),
        }
    }
}
