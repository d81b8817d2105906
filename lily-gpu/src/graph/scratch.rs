//! The buffers that a pass works in, shared by all sequences.

use lily_model::{MlpConfig, ModelConfig};

use crate::device::Slice;
use crate::error::GpuError;
use crate::policy;

/// Rows of logits that are computed together.
pub const LOGIT_ROWS: usize = 32;

/// Allocates a named buffer of some bytes.
pub type Allocate<'a> = &'a mut dyn FnMut(&str, usize) -> Result<Slice, GpuError>;

/// Widths of the feed-forward part, with a dense MLP as a mixture without routed experts.
#[derive(Clone, Copy, Debug)]
pub struct MlpShape {
    /// Routed experts; 0 for a dense MLP.
    pub experts: usize,
    /// Routed experts of a token.
    pub top_k: usize,
    /// Rows of a routed expert's gate.
    pub intermediate: usize,
    /// Rows of the shared expert's (or the dense MLP's) gate.
    pub shared: usize,
}

impl MlpShape {
    /// Of a model.
    pub fn of(config: &ModelConfig) -> MlpShape {
        match config.mlp {
            MlpConfig::Moe {
                experts,
                top_k,
                intermediate,
                shared_intermediate,
            } => MlpShape {
                experts,
                top_k,
                intermediate,
                shared: shared_intermediate,
            },
            MlpConfig::Dense { intermediate } => MlpShape {
                experts: 0,
                top_k: 0,
                intermediate: 0,
                shared: intermediate,
            },
        }
    }

    /// Numbers between the activations of two slots of a decode step.
    pub fn slot_stride(&self) -> usize {
        self.intermediate.max(self.shared)
    }

    /// Blocks that a chunk of `rows` tokens can make at most with tiles of `tile_rows`.
    pub fn max_blocks(&self, rows: usize, tile_rows: usize) -> usize {
        let entries = rows * self.top_k;
        (entries / tile_rows + self.experts).min(entries)
    }
}

/// Buffers for up to `rows` tokens. Shapes are `[rows, ..]`, f32 unless said.
#[derive(Clone, Debug)]
pub struct Scratch {
    /// Tokens of a chunk, u32.
    pub tokens: Slice,
    /// Residual stream `[hidden]`.
    pub x: Slice,
    /// Normed residual stream of one token, where the norm is not folded in.
    pub normed: Slice,
    /// Normed residual stream, bfloat.
    pub n: Slice,
    /// Raw inputs of the convolution, bfloat.
    pub raw: Slice,
    /// Output gate of a Gated DeltaNet layer, bfloat.
    pub z: Slice,
    /// beta before its sigmoid.
    pub b: Slice,
    /// The decay before its softplus.
    pub a: Slice,
    /// Decay of each value head.
    pub decay: Slice,
    /// Step size of each value head.
    pub beta: Slice,
    /// Queries of a Gated DeltaNet layer, bfloat.
    pub delta_q: Slice,
    /// Keys of a Gated DeltaNet layer, bfloat.
    pub delta_k: Slice,
    /// Values of a Gated DeltaNet layer, bfloat.
    pub delta_v: Slice,
    /// Outputs of the recurrence, bfloat.
    pub delta_o: Slice,
    /// Input of the mixer's output projection, bfloat.
    pub mix: Slice,
    /// Query and gate, bfloat.
    pub q_gate: Slice,
    /// Keys, bfloat.
    pub k: Slice,
    /// Values, bfloat.
    pub v: Slice,
    /// Queries after norm and rotation, bfloat.
    pub q: Slice,
    /// Sums of the splits of attention.
    pub partial: Slice,
    /// Maximum and sum of weights of each split.
    pub extent: Slice,
    /// Router's logits.
    pub router_logits: Slice,
    /// Logit of the shared expert's gate.
    pub shared_logits: Slice,
    /// Chosen experts, u32.
    pub route_experts: Slice,
    /// Their logits.
    pub route_logits: Slice,
    /// Rows of each expert, u32; zero between passes.
    pub counts: Slice,
    /// Next sorted row of each expert, u32.
    pub cursors: Slice,
    /// Block map, u32.
    pub blocks: Slice,
    /// Blocks of the map, u32.
    pub block_count: Slice,
    /// Entries sorted by expert, u32.
    pub sorted: Slice,
    /// Gate and up, where SwiGLU is separate.
    pub gate_up: Slice,
    /// silu(gate) * up, bfloat.
    pub activations: Slice,
    /// Experts' outputs, bfloat.
    pub y: Slice,
    /// See `gate_up`; these three are of the shared expert.
    pub shared_gate_up: Slice,
    /// See `activations`.
    pub shared_activations: Slice,
    /// See `y`.
    pub shared_y: Slice,
    /// Logits of up to [`LOGIT_ROWS`] tokens `[vocab_size]`.
    pub logits: Slice,
}

impl Scratch {
    /// For passes of up to `rows` tokens and attention over up to `context` keys; `separate_swiglu`: with room for gate and up.
    ///
    /// # Errors
    /// Where there is no room.
    pub fn new(
        config: &ModelConfig,
        rows: usize,
        context: usize,
        separate_swiglu: bool,
        allocate: Allocate<'_>,
    ) -> Result<Scratch, GpuError> {
        const F32: usize = 4;
        const BF16: usize = 2;
        let (a, d, mlp) = (&config.attention, &config.delta_net, MlpShape::of(config));
        let hidden = config.hidden_size;
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let (queries, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        // a split has at least 256 keys, but for the shortest contexts; single-row attention of a whole chunk uses one split
        let splits = (policy::context_bucket(context) / policy::FIXED_BLOCK_KEYS).max(128);
        let split_rows = splits.max(if policy::attention_prefill(policy::Family::Apple, config).is_none() {
            rows
        } else {
            1
        });
        let entries = rows * mlp.top_k;
        let slots = mlp.top_k + 1;
        let activations = (entries * mlp.intermediate).max(slots * mlp.slot_stride());
        let gate_up = if separate_swiglu { 2 } else { 0 };
        let mut make = |label: &str, numbers: usize, size: usize| allocate(label, (numbers * size).max(16));
        Ok(Scratch {
            tokens: make("tokens", rows, F32)?,
            x: make("x", rows * hidden, F32)?,
            normed: make("normed", hidden, F32)?,
            n: make("n", rows * hidden, BF16)?,
            raw: make("raw", rows * d.conv_channels(), BF16)?,
            z: make("z", rows * values, BF16)?,
            b: make("b", rows * d.value_heads, F32)?,
            a: make("a", rows * d.value_heads, F32)?,
            decay: make("decay", rows * d.value_heads, F32)?,
            beta: make("beta", rows * d.value_heads, F32)?,
            delta_q: make("delta_q", rows * keys, BF16)?,
            delta_k: make("delta_k", rows * keys, BF16)?,
            delta_v: make("delta_v", rows * values, BF16)?,
            delta_o: make("delta_o", rows * values, BF16)?,
            mix: make("mix", rows * values.max(queries), BF16)?,
            q_gate: make("q_gate", rows * 2 * queries, BF16)?,
            k: make("k", rows * kv, BF16)?,
            v: make("v", rows * kv, BF16)?,
            q: make("q", rows * queries + policy::ATTENTION_PREFILL_ROWS * a.head_dim, BF16)?,
            partial: make("partial", split_rows * queries, F32)?,
            extent: make("extent", split_rows * a.heads * 2, F32)?,
            router_logits: make("router_logits", rows * mlp.experts, F32)?,
            shared_logits: make("shared_logits", rows, F32)?,
            route_experts: make("route_experts", entries, F32)?,
            route_logits: make("route_logits", entries, F32)?,
            counts: make("counts", mlp.experts, F32)?,
            cursors: make("cursors", mlp.experts, F32)?,
            blocks: make("blocks", mlp.max_blocks(rows, 16) * 3, F32)?,
            block_count: make("block_count", 1, F32)?,
            sorted: make("sorted", entries, F32)?,
            gate_up: make("gate_up", gate_up * activations, F32)?,
            activations: make("activations", activations, BF16)?,
            y: make("y", entries.max(slots) * hidden, BF16)?,
            shared_gate_up: make("shared_gate_up", gate_up * rows * mlp.shared, F32)?,
            shared_activations: make("shared_activations", rows * mlp.shared, BF16)?,
            shared_y: make("shared_y", rows * hidden, BF16)?,
            logits: make("logits", LOGIT_ROWS.min(rows) * config.vocab_size, F32)?,
        })
    }
}
