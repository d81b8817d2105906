//! The shape of a model, as read from `config.json`.

/// The mixer of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated DeltaNet (`linear_attention`).
    DeltaNet,
    /// Full attention with an output gate (`full_attention`).
    Attention,
}

/// Full attention: grouped-query, RMS-normalised q and k, partial rotary embedding, sigmoid output gate.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub heads: usize,
    /// KV heads; query head `h` reads KV head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Leading dimensions of a head that rotate, in half-split pairs `(i, i + rotary_dim / 2)`.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
}

/// Gated DeltaNet: a short causal convolution, then a gated delta rule over a state of `[value_dim, key_dim]` per value head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaNetConfig {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads; value head `h` uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Dimensions of a key head.
    pub key_dim: usize,
    /// Dimensions of a value head.
    pub value_dim: usize,
    /// Taps of the convolution; its state is the last `conv_kernel - 1` inputs.
    pub conv_kernel: usize,
}

impl DeltaNetConfig {
    /// Channels of the convolution: q, k and v side by side.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// The feed-forward part, the same in every layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MlpConfig {
    /// Routed experts and one shared expert (`qwen3_5_moe`).
    Moe {
        /// Routed experts of a layer.
        experts: usize,
        /// Experts chosen for a token; their weights are always renormalised.
        top_k: usize,
        /// Rows of a routed expert's gate and up projections.
        intermediate: usize,
        /// Rows of the shared expert's gate and up projections.
        shared_intermediate: usize,
    },
    /// One SwiGLU block (`qwen3_5`).
    Dense {
        /// Rows of the gate and up projections.
        intermediate: usize,
    },
}

/// The shape of a model, as read from `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding and of lm_head; rows past the tokenizer's last id are padding and never valid tokens.
    pub vocab_size: usize,
    /// The mixer of each layer, first layer first.
    pub layers: Vec<LayerKind>,
    /// Full-attention layers.
    pub attention: AttentionConfig,
    /// Gated DeltaNet layers.
    pub delta_net: DeltaNetConfig,
    /// Feed-forward part.
    pub mlp: MlpConfig,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f32,
    /// Whether lm_head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Longest context that the model was trained for, in tokens.
    pub max_position_embeddings: usize,
}
