//! The weights of a model as a tree with a name for every part, each checked against the config when it was loaded.

use crate::matrix::Matrix;

/// All weights of a text model.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[vocab_size, hidden_size]`: row `t` is the input of token `t`.
    pub embedding: Matrix,
    /// Layers, first layer first.
    pub layers: Vec<Layer>,
    /// Final RMSNorm `[hidden_size]`.
    pub norm: Vec<f32>,
    /// `[vocab_size, hidden_size]`, or `None` where it is tied to the embedding.
    pub lm_head: Option<Matrix>,
}

impl Weights {
    /// The matrix that makes logits from the last hidden state.
    pub fn output(&self) -> &Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embedding)
    }
}

/// One layer: `h = x + mixer(RMS(x))`, `out = h + mlp(RMS(h))`.
#[derive(Clone, Debug)]
pub struct Layer {
    /// RMSNorm before the mixer `[hidden_size]`, as `1 + w` of the original checkpoint.
    pub input_norm: Vec<f32>,
    /// Attention or Gated DeltaNet.
    pub mixer: Mixer,
    /// RMSNorm before the feed-forward part `[hidden_size]`.
    pub post_norm: Vec<f32>,
    /// Feed-forward part.
    pub mlp: Mlp,
}

/// The mixer of a layer.
#[derive(Clone, Debug)]
pub enum Mixer {
    /// Full attention.
    Attention(Box<Attention>),
    /// Gated DeltaNet.
    DeltaNet(Box<DeltaNet>),
}

/// Weights of a full-attention mixer.
#[derive(Clone, Debug)]
pub struct Attention {
    /// `[heads * 2 * head_dim, hidden_size]`: per head first the query's rows, then the output gate's.
    pub q_proj: Matrix,
    /// `[kv_heads * head_dim, hidden_size]`
    pub k_proj: Matrix,
    /// `[kv_heads * head_dim, hidden_size]`
    pub v_proj: Matrix,
    /// `[hidden_size, heads * head_dim]`
    pub o_proj: Matrix,
    /// `[head_dim]`
    pub q_norm: Vec<f32>,
    /// `[head_dim]`
    pub k_norm: Vec<f32>,
}

/// Weights of a Gated DeltaNet mixer.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    /// `[conv_channels, hidden_size]`: q, then k, then v.
    pub in_proj_qkv: Matrix,
    /// `[value_heads * value_dim, hidden_size]`: the output gate.
    pub in_proj_z: Matrix,
    /// `[value_heads, hidden_size]`: beta before its sigmoid.
    pub in_proj_b: Matrix,
    /// `[value_heads, hidden_size]`: the decay before its softplus.
    pub in_proj_a: Matrix,
    /// `[hidden_size, value_heads * value_dim]`
    pub out_proj: Matrix,
    /// `[conv_channels, conv_kernel]`; the last tap multiplies the current token.
    pub conv: Vec<f32>,
    /// `[value_heads]`
    pub a_log: Vec<f32>,
    /// `[value_heads]`
    pub dt_bias: Vec<f32>,
    /// `[value_dim]`: RMSNorm of each head's output, before the gate.
    pub norm: Vec<f32>,
}

/// The feed-forward part of a layer.
#[derive(Clone, Debug)]
pub enum Mlp {
    /// Routed experts and a shared one.
    Moe(Box<Moe>),
    /// One SwiGLU block.
    Dense(Box<GatedMlp>),
}

/// Weights of a mixture of experts.
#[derive(Clone, Debug)]
pub struct Moe {
    /// `[experts, hidden_size]`
    pub router: Matrix,
    /// Routed experts: each matrix has `count` = experts.
    pub experts: GatedMlp,
    /// The shared expert.
    pub shared: GatedMlp,
    /// `[1, hidden_size]`: the shared expert's gate before its sigmoid.
    pub shared_gate: Matrix,
}

/// `down(silu(gate(x)) * up(x))`
#[derive(Clone, Debug)]
pub struct GatedMlp {
    /// `[intermediate, hidden_size]`
    pub gate: Matrix,
    /// `[intermediate, hidden_size]`
    pub up: Matrix,
    /// `[hidden_size, intermediate]`
    pub down: Matrix,
}
