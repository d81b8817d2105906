//! One conversation's state at one position.

use std::sync::Arc;

use lily_model::{LayerKind, ModelConfig};

use crate::KvPrecision;
use crate::aligned::Aligned;
use crate::kv::KvCache;

/// One conversation's state at one position: the KV cache of the attention layers, the convolution and recurrent states of the
/// Gated DeltaNet layers, and the last logits.
///
/// A clone is a snapshot: it shares the full KV blocks with its source and copies the rest; later work on either does not change
/// the other.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub(crate) position: usize,
    pub(crate) logits: Vec<f32>,
    pub(crate) layers: Vec<LayerState>,
}

/// State of one layer.
#[derive(Clone, Debug)]
pub(crate) enum LayerState {
    Attention(KvCache),
    DeltaNet(DeltaNetState),
}

/// State of one Gated DeltaNet layer; its size does not depend on the position.
#[derive(Clone, Debug)]
pub(crate) struct DeltaNetState {
    /// The last inputs of the convolution `[conv_kernel - 1, conv_channels]`, oldest first.
    pub(crate) conv: Vec<f32>,
    /// `[value_heads, value_dim / block, key_dim, block]` (see [`crate::delta_net::state_block`]).
    pub(crate) recurrent: Aligned<f32>,
}

/// Numbers of a layer's convolution and recurrent states.
pub(crate) fn delta_net_sizes(config: &ModelConfig) -> (usize, usize) {
    let delta_net = &config.delta_net;
    (
        (delta_net.conv_kernel - 1) * delta_net.conv_channels(),
        delta_net.value_heads * delta_net.value_dim * delta_net.key_dim,
    )
}

impl Sequence {
    pub(crate) fn new(config: &ModelConfig, kv: KvPrecision) -> Sequence {
        let (conv, recurrent) = delta_net_sizes(config);
        let layers = config.layers.iter().map(|kind| match kind {
            LayerKind::Attention => {
                LayerState::Attention(KvCache::new(kv, config.attention.kv_heads, config.attention.head_dim))
            }
            LayerKind::DeltaNet => LayerState::DeltaNet(DeltaNetState {
                conv: vec![0.0; conv],
                recurrent: Aligned::new(recurrent),
            }),
        });
        Sequence {
            position: 0,
            logits: Vec::new(),
            layers: layers.collect(),
        }
    }

    /// Bytes of a sequence of `tokens` tokens with its logits.
    pub fn bytes(config: &ModelConfig, kv: KvPrecision, tokens: usize) -> usize {
        let (conv, recurrent) = delta_net_sizes(config);
        let row = config.attention.kv_heads * config.attention.head_dim;
        let layers = config.layers.iter().map(|kind| match kind {
            LayerKind::Attention => KvCache::bytes(kv, row, tokens),
            LayerKind::DeltaNet => (conv + recurrent) * size_of::<f32>(),
        });
        layers.sum::<usize>() + config.vocab_size * size_of::<f32>()
    }

    /// Tokens that the sequence holds.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Logits `[vocab_size]` after the last token; empty where the last chunk asked for none.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Tells `piece` the address and the bytes of each piece of memory that the sequence holds. Blocks that clones share have the same
    /// address in both.
    pub fn memory(&self, piece: &mut dyn FnMut(usize, usize)) {
        if !self.logits.is_empty() {
            piece(self.logits.as_ptr() as usize, size_of_val(&self.logits[..]));
        }
        for layer in &self.layers {
            match layer {
                LayerState::Attention(cache) => {
                    for block in cache.blocks() {
                        piece(Arc::as_ptr(block) as usize, block.bytes());
                    }
                }
                LayerState::DeltaNet(state) => {
                    for numbers in [&state.conv[..], &state.recurrent] {
                        piece(numbers.as_ptr() as usize, size_of_val(numbers));
                    }
                }
            }
        }
    }

    pub(crate) fn set_logits(&mut self, logits: &[f32]) {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
    }
}
