//! The weights of a model by part: parameters, bytes, and bytes read for one token.

use lily_model::{
    Encoding, FloatType, GatedMlp, Layer, LayerKind, Matrix, Mixer, Mlp, MlpConfig, ModelConfig, Weights,
};
use serde::Serialize;

/// A part of the weights, over all layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// Parameters.
    pub parameters: u64,
    /// Bytes in the checkpoint.
    pub bytes: u64,
    /// Parameters that take part in computing one token (an embedding's row does not: it is looked up).
    pub active_parameters: u64,
    /// Bytes read for one token of decode.
    pub read_per_token: u64,
}

/// Shape and format of a matrix, stacked `count` times.
#[derive(Clone, Copy)]
struct Shape {
    count: usize,
    rows: usize,
    cols: usize,
    encoding: Encoding,
}

impl Shape {
    fn parameters(self) -> u64 {
        (self.count * self.rows * self.cols) as u64
    }

    fn bytes(self) -> u64 {
        let row = self.cols * self.encoding.bits() / 8;
        let groups = self.encoding.group_size().map_or(0, |size| self.cols / size);
        let per_group = match self.encoding {
            Encoding::Affine { .. } => 2 * self.encoding.scale_size(),
            _ => self.encoding.scale_size(),
        };
        (self.count * self.rows * (row + groups * per_group)) as u64
    }
}

impl From<&Matrix> for Shape {
    fn from(matrix: &Matrix) -> Self {
        Shape {
            count: matrix.count,
            rows: matrix.rows,
            cols: matrix.cols,
            encoding: matrix.encoding,
        }
    }
}

/// Adds up parts in the order in which they first come.
#[derive(Default)]
struct Tally {
    parts: Vec<Part>,
}

impl Tally {
    fn part(&mut self, name: &'static str) -> &mut Part {
        let at = self.parts.iter().position(|part| part.name == name).unwrap_or_else(|| {
            self.parts.push(Part {
                name,
                parameters: 0,
                bytes: 0,
                active_parameters: 0,
                read_per_token: 0,
            });
            self.parts.len() - 1
        });
        &mut self.parts[at]
    }

    /// A matrix of which a token reads `used` of `of` parts.
    fn share(&mut self, name: &'static str, shape: impl Into<Shape>, used: usize, of: usize) {
        let shape = shape.into();
        let (parameters, bytes) = (shape.parameters(), shape.bytes());
        let of = of.max(1) as u64;
        let part = self.part(name);
        part.parameters += parameters;
        part.bytes += bytes;
        part.active_parameters += parameters / of * used as u64;
        part.read_per_token += bytes / of * used as u64;
    }

    fn matrix(&mut self, name: &'static str, shape: impl Into<Shape>) {
        self.share(name, shape, 1, 1);
    }

    /// A vector of `len` numbers of `size` bytes each.
    fn vector(&mut self, name: &'static str, len: usize, size: usize) {
        let (parameters, bytes) = (len as u64, (len * size) as u64);
        let part = self.part(name);
        part.parameters += parameters;
        part.bytes += bytes;
        part.active_parameters += parameters;
        part.read_per_token += bytes;
    }

    fn embedding(&mut self, shape: Shape, tied: bool) {
        if tied {
            return self.matrix("embedding and lm_head", shape);
        }
        self.share("embedding", shape, 1, shape.rows);
        // The row is looked up, not multiplied.
        self.part("embedding").active_parameters = 0;
    }
}

const ATTENTION: &str = "attention";
const DELTA_NET: &str = "Gated DeltaNet";
const ROUTER: &str = "router";
pub const EXPERTS: &str = "routed experts";
const SHARED: &str = "shared expert";
const MLP: &str = "MLP";
const NORMS: &str = "norms";
pub const LM_HEAD: &str = "lm_head";

/// Bytes of a number in the checkpoint's vectors: bfloat16, but for the decay's logarithm, which stays in single precision.
const VECTOR: usize = 2;
const A_LOG: usize = 4;

/// The parts of loaded weights.
pub fn of_weights(weights: &Weights, config: &ModelConfig) -> Vec<Part> {
    match config.mlp {
        MlpConfig::Moe { top_k, experts, .. } => tally(weights, top_k, experts),
        MlpConfig::Dense { .. } => tally(weights, 1, 1),
    }
}

/// Bytes of a matrix in the checkpoint, all of a stack.
pub fn matrix_bytes(matrix: &Matrix) -> u64 {
    Shape::from(matrix).bytes()
}

/// Bytes of loaded weights.
pub fn bytes(weights: &Weights) -> u64 {
    tally(weights, 1, 1).iter().map(|part| part.bytes).sum()
}

/// A token reads `used` of `experts` routed experts.
fn tally(weights: &Weights, used: usize, experts: usize) -> Vec<Part> {
    let mut tally = Tally::default();
    tally.embedding((&weights.embedding).into(), weights.lm_head.is_none());
    for layer in &weights.layers {
        layer_of_weights(&mut tally, layer, used, experts);
    }
    tally.vector(NORMS, weights.norm.len(), VECTOR);
    if let Some(lm_head) = &weights.lm_head {
        tally.matrix(LM_HEAD, lm_head);
    }
    tally.parts
}

fn layer_of_weights(tally: &mut Tally, layer: &Layer, used: usize, experts: usize) {
    tally.vector(NORMS, layer.input_norm.len() + layer.post_norm.len(), VECTOR);
    match &layer.mixer {
        Mixer::Attention(mixer) => {
            for matrix in [&mixer.q_proj, &mixer.k_proj, &mixer.v_proj, &mixer.o_proj] {
                tally.matrix(ATTENTION, matrix);
            }
            tally.vector(NORMS, mixer.q_norm.len() + mixer.k_norm.len(), VECTOR);
        }
        Mixer::DeltaNet(mixer) => {
            let matrices = [
                &mixer.in_proj_qkv,
                &mixer.in_proj_z,
                &mixer.in_proj_b,
                &mixer.in_proj_a,
                &mixer.out_proj,
            ];
            for matrix in matrices {
                tally.matrix(DELTA_NET, matrix);
            }
            tally.vector(DELTA_NET, mixer.conv.len() + mixer.dt_bias.len(), VECTOR);
            tally.vector(DELTA_NET, mixer.a_log.len(), A_LOG);
            tally.vector(NORMS, mixer.norm.len(), VECTOR);
        }
    }
    let gated = |mlp: &GatedMlp| [&mlp.gate, &mlp.up, &mlp.down].map(Shape::from);
    match &layer.mlp {
        Mlp::Moe(moe) => {
            tally.matrix(ROUTER, &moe.router);
            for shape in gated(&moe.experts) {
                tally.share(EXPERTS, shape, used, experts);
            }
            for shape in gated(&moe.shared) {
                tally.matrix(SHARED, shape);
            }
            tally.matrix(SHARED, &moe.shared_gate);
        }
        Mlp::Dense(mlp) => {
            for shape in gated(mlp) {
                tally.matrix(MLP, shape);
            }
        }
    }
}

/// The parts of a model of the shape `config` in MLX's published 4-bit form: groups of 64, router and shared expert's gate in 8 bits, norms in
/// bfloat16.
pub fn of_config(config: &ModelConfig) -> Vec<Part> {
    let affine = |bits| Encoding::Affine {
        bits,
        group_size: 64,
        scale_type: FloatType::Bf16,
    };
    let stack = |count, rows, cols, bits| Shape {
        count,
        rows,
        cols,
        encoding: affine(bits),
    };
    let matrix = |rows, cols| stack(1, rows, cols, 4);
    let hidden = config.hidden_size;
    let mut tally = Tally::default();
    tally.embedding(matrix(config.vocab_size, hidden), config.tie_word_embeddings);
    for kind in &config.layers {
        tally.vector(NORMS, 2 * hidden, VECTOR);
        match kind {
            LayerKind::Attention => {
                let attention = &config.attention;
                let (queries, keys) = (
                    attention.heads * attention.head_dim,
                    attention.kv_heads * attention.head_dim,
                );
                for shape in [
                    matrix(2 * queries, hidden),
                    matrix(keys, hidden),
                    matrix(keys, hidden),
                    matrix(hidden, queries),
                ] {
                    tally.matrix(ATTENTION, shape);
                }
                tally.vector(NORMS, 2 * attention.head_dim, VECTOR);
            }
            LayerKind::DeltaNet => {
                let delta = &config.delta_net;
                let values = delta.value_heads * delta.value_dim;
                let shapes = [
                    matrix(delta.conv_channels(), hidden),
                    matrix(values, hidden),
                    matrix(delta.value_heads, hidden),
                    matrix(delta.value_heads, hidden),
                    matrix(hidden, values),
                ];
                for shape in shapes {
                    tally.matrix(DELTA_NET, shape);
                }
                tally.vector(
                    DELTA_NET,
                    delta.conv_channels() * delta.conv_kernel + delta.value_heads,
                    VECTOR,
                );
                tally.vector(DELTA_NET, delta.value_heads, A_LOG);
                tally.vector(NORMS, delta.value_dim, VECTOR);
            }
        }
        match config.mlp {
            MlpConfig::Moe {
                experts,
                top_k,
                intermediate,
                shared_intermediate,
            } => {
                tally.matrix(ROUTER, stack(1, experts, hidden, 8));
                for (rows, cols) in [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)] {
                    tally.share(EXPERTS, stack(experts, rows, cols, 4), top_k, experts);
                }
                for (rows, cols) in [
                    (shared_intermediate, hidden),
                    (shared_intermediate, hidden),
                    (hidden, shared_intermediate),
                ] {
                    tally.matrix(SHARED, matrix(rows, cols));
                }
                tally.matrix(SHARED, stack(1, 1, hidden, 8));
            }
            MlpConfig::Dense { intermediate } => {
                for (rows, cols) in [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)] {
                    tally.matrix(MLP, matrix(rows, cols));
                }
            }
        }
    }
    tally.vector(NORMS, hidden, VECTOR);
    if !config.tie_word_embeddings {
        tally.matrix(LM_HEAD, matrix(config.vocab_size, hidden));
    }
    tally.parts
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Every kind of layer, and small enough to be made at once.
    pub fn small_model() -> ModelConfig {
        let mut config = ModelConfig::qwen3_6_35b_a3b();
        config.layers.truncate(4);
        config.vocab_size = 1024;
        config.hidden_size = 256;
        config.mlp = MlpConfig::Moe {
            experts: 8,
            top_k: 2,
            intermediate: 64,
            shared_intermediate: 128,
        };
        config
    }

    /// Counts that were taken from the published checkpoint's rules by other means.
    #[test]
    fn the_published_model() {
        let parts = of_config(&ModelConfig::qwen3_6_35b_a3b());
        let sum = |of: fn(&Part) -> u64| parts.iter().map(of).sum::<u64>();
        assert_eq!(sum(|part| part.parameters), 34_660_610_688);
        assert_eq!(sum(|part| part.bytes), 19_508_789_376);
        assert!((1_668_000_000..1_670_000_000).contains(&sum(|part| part.read_per_token)));
        assert!((2_900_000_000..3_000_000_000).contains(&sum(|part| part.active_parameters)));
        let experts = parts.iter().find(|part| part.name == EXPERTS).unwrap();
        assert_eq!(experts.bytes, 40 * 256 * 1_769_472);
    }

    /// Weights in memory, and the shape they were made from.
    #[test]
    fn loaded_weights_count_as_their_shape() {
        let config = small_model();
        let weights = Weights::synthetic(&config, 1);
        assert_eq!(of_weights(&weights, &config), of_config(&config));
    }
}
