//! Buffers that a model allocates once.

use lily_model::{MlpConfig, ModelConfig};

use crate::KernelSet;
use crate::aligned::Aligned;
use crate::attention::AttentionScratch;
use crate::delta_net::scan_scratch;
use crate::panel::{PANEL_ROWS, Panel, TASK_ROWS, TILE_TOKENS, Tile};
use crate::quantize::{Layout, QuantizedRows, padded_cols};
use crate::rope::RotaryTable;
use crate::router::Routing;

/// What one thread works with.
pub(crate) struct ThreadScratch {
    pub(crate) panel: Panel,
    /// Its partner, where two matrices are multiplied side by side.
    pub(crate) second_panel: Panel,
    pub(crate) tile: Box<Tile>,
    pub(crate) second_tile: Box<Tile>,
    /// Sums of a feed-forward task `[rows, TASK_ROWS]`.
    pub(crate) sums: Vec<f32>,
    pub(crate) attention: AttentionScratch,
    pub(crate) scan: Aligned<f32>,
}

impl ThreadScratch {
    /// Scratch for matrices of up to `widest` columns, `group_size` that of the integer products if there are any, and steps of `rows`.
    pub(crate) fn new(config: &ModelConfig, widest: usize, group_size: Option<usize>, rows: usize) -> ThreadScratch {
        let widest_integer = group_size.map_or(0, |group_size| padded_cols(widest, group_size));
        ThreadScratch {
            panel: Panel::new(widest, widest_integer),
            second_panel: Panel::new(widest, widest_integer),
            tile: Box::new([0.0; TILE_TOKENS * PANEL_ROWS]),
            second_tile: Box::new([0.0; TILE_TOKENS * PANEL_ROWS]),
            sums: vec![0.0; rows * TASK_ROWS],
            attention: AttentionScratch::new(&config.attention),
            scan: Aligned::new(scan_scratch(&config.delta_net)),
        }
    }
}

/// Activations of one step; the leading dimension is the rows of the largest step.
pub(crate) struct Activations {
    /// Residual stream `[rows, hidden_size]`.
    pub(crate) x: Vec<f32>,
    /// Normalised input of the part that runs `[rows, hidden_size]`.
    pub(crate) normed: Vec<f32>,
    /// Queries and gates of attention, or q, k and v of Gated DeltaNet.
    pub(crate) queries: Vec<f32>,
    /// Keys of attention `[rows, kv_heads * head_dim]`.
    pub(crate) keys: Vec<f32>,
    /// Values of attention `[rows, kv_heads * head_dim]`.
    pub(crate) values: Vec<f32>,
    /// Output gate of Gated DeltaNet `[rows, value_heads * value_dim]`.
    pub(crate) z: Vec<f32>,
    /// `[rows, value_heads]`
    pub(crate) a: Vec<f32>,
    /// `[rows, value_heads]`
    pub(crate) b: Vec<f32>,
    /// Output of the mixer before its projection.
    pub(crate) mixed: Vec<f32>,
    /// Router logits `[rows, experts]`.
    pub(crate) router: Vec<f32>,
    /// The shared expert's gates `[rows]`.
    pub(crate) shared_gates: Vec<f32>,
    /// Hidden rows of the routed experts `[rows * top_k, intermediate]`.
    pub(crate) hidden: Vec<f32>,
    /// Hidden rows of the shared block `[rows, intermediate]`.
    pub(crate) shared_hidden: Vec<f32>,
    /// Logits of some rows `[LOGIT_ROWS, vocab_size]`.
    pub(crate) logits: Vec<f32>,
    pub(crate) routing: Routing,
    pub(crate) rotary: RotaryTable,
    pub(crate) quantized: Option<QuantizedActivations>,
}

/// The inputs of matrix products as integers.
pub(crate) struct QuantizedActivations {
    pub(crate) normed: QuantizedRows,
    pub(crate) mixed: QuantizedRows,
    pub(crate) hidden: QuantizedRows,
    pub(crate) shared_hidden: QuantizedRows,
    /// `normed` for every slot of the routed experts, for kernels that need an expert's rows side by side.
    pub(crate) gathered: Option<QuantizedRows>,
}

/// Rows whose logits are computed at once.
pub(crate) const LOGIT_ROWS: usize = 16;

impl Activations {
    pub(crate) fn new(config: &ModelConfig, set: KernelSet, group_size: Option<usize>, rows: usize) -> Activations {
        let (attention, delta_net) = (&config.attention, &config.delta_net);
        let heads = attention.heads * attention.head_dim;
        let kv = attention.kv_heads * attention.head_dim;
        let values = delta_net.value_heads * delta_net.value_dim;
        let (experts, top_k, intermediate, shared) = match config.mlp {
            MlpConfig::Moe {
                experts,
                top_k,
                intermediate,
                shared_intermediate,
            } => (experts, top_k, intermediate, shared_intermediate),
            MlpConfig::Dense { intermediate } => (0, 0, 0, intermediate),
        };
        let buffer = |cols: usize| vec![0.0; rows * cols];
        Activations {
            x: buffer(config.hidden_size),
            normed: buffer(config.hidden_size),
            queries: buffer(delta_net.conv_channels().max(2 * heads)),
            keys: buffer(kv),
            values: buffer(kv),
            z: buffer(values),
            a: buffer(delta_net.value_heads),
            b: buffer(delta_net.value_heads),
            mixed: buffer(values.max(heads)),
            router: buffer(experts),
            shared_gates: buffer(1),
            hidden: buffer(top_k * intermediate),
            shared_hidden: buffer(shared),
            logits: vec![0.0; LOGIT_ROWS.min(rows) * config.vocab_size],
            routing: Routing::new(experts, top_k, rows),
            rotary: RotaryTable::new(attention, rows),
            quantized: group_size.map(|group_size| QuantizedActivations {
                normed: QuantizedRows::new(rows, config.hidden_size, group_size),
                mixed: QuantizedRows::new(rows, values.max(heads), group_size),
                hidden: QuantizedRows::new(rows * top_k, intermediate, group_size),
                shared_hidden: QuantizedRows::new(rows, shared, group_size),
                gathered: (Layout::for_rows(set, rows) == Layout::Tiled)
                    .then(|| QuantizedRows::new(rows * top_k, config.hidden_size, group_size)),
            }),
        }
    }
}
