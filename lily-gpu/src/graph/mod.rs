//! The model written as dispatches.

pub mod decode;
mod delta;
mod moe;
pub mod prefill;
mod products;
pub mod sample;
pub mod scratch;

use lily_model::ModelConfig;

use crate::device::Slice;
use crate::params::{AttentionPrepareParams, EmbedParams, RmsNormParams};
use crate::pass::{Dispatch, Pass};
use crate::policy::Family;
use crate::switches::Switches;
use crate::weights::{GpuAttention, GpuWeights};
use scratch::{MlpShape, Scratch};

/// A sequence's state as a pass sees it.
#[derive(Clone, Debug)]
pub struct StateSlices {
    /// One for each layer.
    pub layers: Vec<LayerState>,
    /// [`crate::params::StepState`]
    pub step: Slice,
}

/// State of one layer.
#[derive(Clone, Copy, Debug)]
pub enum LayerState {
    /// KV cache: two times `[capacity, kv_heads, head_dim]` bfloat.
    Attention {
        /// Keys.
        k: Slice,
        /// Values.
        v: Slice,
    },
    /// Gated DeltaNet.
    DeltaNet {
        /// The last raw inputs of the convolution, position `n` in slot `n % taps`: `[taps, channels]` bfloat.
        ring: Slice,
        /// S: `[value_heads, value_dim, key_dim]` f32.
        state: Slice,
    },
}

/// Everything that a graph is written from.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Shape.
    pub config: &'a ModelConfig,
    /// Weights.
    pub weights: &'a GpuWeights,
    /// Working buffers.
    pub scratch: &'a Scratch,
    /// Optimizations in use.
    pub switches: &'a Switches,
    /// The kind of GPU that the policy chooses for.
    pub family: Family,
    /// Expanded weights, where `fused-dequant` is off.
    pub expanded: Option<Slice>,
}

/// A pass being written.
struct Graph<'a> {
    model: Model<'a>,
    config: &'a ModelConfig,
    weights: &'a GpuWeights,
    scratch: &'a Scratch,
    switches: &'a Switches,
    mlp: MlpShape,
    step: Slice,
    /// One token of a sequence rather than rows of a chunk, whose bits must not depend on how many they are.
    decoding: bool,
    pass: Pass,
}

impl<'a> Graph<'a> {
    fn new(model: Model<'a>, step: Slice) -> Graph<'a> {
        Graph {
            config: model.config,
            weights: model.weights,
            scratch: model.scratch,
            switches: model.switches,
            mlp: MlpShape::of(model.config),
            pass: Pass::new(!model.switches.sparse_barriers),
            model,
            step,
            decoding: false,
        }
    }

    /// The first `rows` rows of `width` numbers of `size` bytes.
    fn rows(slice: Slice, rows: usize, width: usize, size: usize) -> Slice {
        slice.part(0, rows * width * size)
    }

    fn embed(&mut self, rows: usize, from_step: bool) {
        let (hidden, embedding) = (self.config.hidden_size, self.weights.embedding);
        let params = EmbedParams {
            rows: rows as u32,
            k: hidden as u32,
            vocab: self.config.vocab_size as u32,
            encoding: embedding.encoding,
        };
        let dispatch = Dispatch::new("embed", "embedding").constant(0, from_step);
        let dispatch = match from_step {
            true => dispatch.unused().read(self.step),
            false => dispatch.read(Self::rows(self.scratch.tokens, rows, 1, 4)).unused(),
        };
        self.pass.push(
            dispatch
                .read(embedding.codes)
                .read(embedding.scales)
                .read(embedding.biases)
                .write(Self::rows(self.scratch.x, rows, hidden, 4))
                .params(&params)
                .grid(rows, 1, 1)
                .threads((hidden / 4).next_multiple_of(32).min(256)),
        );
    }

    /// RMSNorm of the first `rows` rows of the residual stream, to bfloat or, with `float`, to f32.
    fn rms_norm(&mut self, label: &str, norm: Slice, rows: usize, y: Slice, float: bool) {
        let hidden = self.config.hidden_size;
        let params = RmsNormParams {
            k: hidden as u32,
            eps: self.config.rms_norm_eps,
        };
        self.pass.push(
            Dispatch::new("rms_norm", format!("{label} norm"))
                .constant(0, float)
                .read(Self::rows(self.scratch.x, rows, hidden, 4))
                .read(norm)
                .write(Self::rows(y, rows, hidden, if float { 4 } else { 2 }))
                .params(&params)
                .grid(rows, 1, 1)
                .threads(256),
        );
    }

    /// Norms and rotations of q and k of `rows` tokens, and the write into the cache.
    fn attention_prepare(&mut self, label: &str, w: &GpuAttention, k_cache: Slice, v_cache: Slice, rows: usize) {
        let a = &self.config.attention;
        let (queries, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let params = AttentionPrepareParams {
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            rotary_dim: a.rotary_dim as u32,
            eps: self.config.rms_norm_eps,
        };
        let s = self.scratch;
        self.pass.push(
            Dispatch::new("attention_prepare", format!("{label} q and k"))
                .read(Self::rows(s.q_gate, rows, 2 * queries, 2))
                .read(Self::rows(s.k, rows, kv, 2))
                .read(Self::rows(s.v, rows, kv, 2))
                .read(w.q_norm)
                .read(w.k_norm)
                .read(self.weights.frequencies)
                .write(Self::rows(s.q, rows, queries, 2))
                .update(k_cache)
                .update(v_cache)
                .read(self.step)
                .params(&params)
                .grid(a.heads + 2 * a.kv_heads, rows, 1)
                .threads(32),
        );
    }
}
