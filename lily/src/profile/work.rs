//! Bytes and operations of a step, from the model's shapes.
//!
//! Bytes are what has to be touched at least once: weights, recurrent and convolution state, KV cache; activations, which stay in caches, are
//! not counted. Of the routed experts those count that so many tokens choose on average if they choose evenly.

use lily_model::{Matrix, Mixer, Mlp, MlpConfig, ModelConfig, Weights};

use super::record::Step;
use crate::inspect::parts;

/// Bytes and floating-point operations, two for a multiply-add.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes.
    pub bytes: f64,
    /// Operations.
    pub flops: f64,
}

/// Size of some matrices.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: f64,
    numbers: f64,
}

impl Size {
    /// Of matrices, stacked or not.
    fn of(matrices: &[&Matrix]) -> Size {
        let numbers = |matrix: &Matrix| (matrix.count * matrix.rows * matrix.cols) as f64;
        Size {
            bytes: matrices.iter().map(|matrix| parts::matrix_bytes(matrix) as f64).sum(),
            numbers: matrices.iter().map(|matrix| numbers(matrix)).sum(),
        }
    }

    /// The product with `rows` inputs.
    fn product(self, rows: f64) -> Work {
        Work {
            bytes: self.bytes,
            flops: 2.0 * self.numbers * rows,
        }
    }
}

#[derive(Default)]
struct Layer {
    projections: Size,
    output: Size,
    router: Size,
    /// Gate and up, then down, of all routed experts.
    experts: [Size; 2],
    /// The same of the shared expert, or of a model without routed ones.
    shared: [Size; 2],
}

/// Sizes of a model's parts.
pub struct Shapes {
    config: ModelConfig,
    layers: Vec<Layer>,
    embedding_row: f64,
    logits: Size,
}

/// Number formats of a backend's state.
#[derive(Clone, Copy, Debug)]
pub struct StateFormat {
    /// Bytes of a number in the KV cache.
    pub kv: usize,
    /// Bytes of a number in the convolution's state.
    pub conv: usize,
}

impl Shapes {
    /// Of a model.
    pub fn of(config: &ModelConfig, weights: &Weights) -> Shapes {
        let layers = weights.layers.iter().map(|layer| {
            let (projections, output) = match &layer.mixer {
                Mixer::Attention(a) => (Size::of(&[&a.q_proj, &a.k_proj, &a.v_proj]), Size::of(&[&a.o_proj])),
                Mixer::DeltaNet(d) => (
                    Size::of(&[&d.in_proj_qkv, &d.in_proj_z, &d.in_proj_b, &d.in_proj_a]),
                    Size::of(&[&d.out_proj]),
                ),
            };
            let mixer = Layer {
                projections,
                output,
                ..Layer::default()
            };
            let gated = |mlp: &lily_model::GatedMlp| [Size::of(&[&mlp.gate, &mlp.up]), Size::of(&[&mlp.down])];
            match &layer.mlp {
                Mlp::Moe(moe) => Layer {
                    router: Size::of(&[&moe.router, &moe.shared_gate]),
                    experts: gated(&moe.experts),
                    shared: gated(&moe.shared),
                    ..mixer
                },
                Mlp::Dense(mlp) => Layer {
                    shared: gated(mlp),
                    ..mixer
                },
            }
        });
        Shapes {
            layers: layers.collect(),
            embedding_row: parts::matrix_bytes(&weights.embedding) as f64 / weights.embedding.rows as f64,
            logits: Size::of(&[weights.output()]),
            config: config.clone(),
        }
    }

    /// What `operation` of `layer` does in `step`. With `shared_apart`, the shared expert is an operation of its own. Nothing for operations
    /// that touch activations only.
    pub fn work(
        &self,
        operation: &str,
        layer: Option<usize>,
        step: Step,
        state: StateFormat,
        shared_apart: bool,
    ) -> Work {
        let rows = step.rows as f64;
        let Some(layer) = layer.and_then(|layer| self.layers.get(layer)) else {
            return match operation {
                "embedding" => Work {
                    bytes: rows * self.embedding_row,
                    flops: 0.0,
                },
                "logits" => self.logits.product(1.0),
                _ => Work::default(),
            };
        };
        let (a, d) = (&self.config.attention, &self.config.delta_net);
        let kv_row = (2 * a.kv_heads * a.head_dim * state.kv) as f64;
        match operation {
            "projections" => layer.projections.product(rows),
            "output" => layer.output.product(rows),
            "router" => layer.router.product(rows),
            "gate and up" => self.experts(layer, 0, rows, !shared_apart),
            "down" => self.experts(layer, 1, rows, !shared_apart),
            "shared gate and up" => layer.shared[0].product(rows),
            "shared" => layer.shared[1].product(rows),
            "convolution" => Work {
                bytes: (2 * d.conv_channels() * (d.conv_kernel - 1) * state.conv) as f64,
                flops: rows * (2 * d.conv_channels() * d.conv_kernel) as f64,
            },
            // For each number of the state: a decay, and a multiply-add each for what it predicts, for the correction and for the output.
            "recurrence" | "scan" => {
                let numbers = (d.value_heads * d.value_dim * d.key_dim) as f64;
                Work {
                    bytes: 2.0 * 4.0 * numbers,
                    flops: 7.0 * numbers * rows,
                }
            }
            "q and k" => Work {
                bytes: rows * kv_row,
                flops: 0.0,
            },
            "attention" => {
                let keys = step.context as f64 * rows + rows * (rows + 1.0) / 2.0;
                Work {
                    bytes: (step.context as f64 + rows) * kv_row,
                    flops: keys * (4 * a.heads * a.head_dim) as f64,
                }
            }
            _ => Work::default(),
        }
    }

    fn experts(&self, layer: &Layer, part: usize, rows: f64, with_shared: bool) -> Work {
        let (used, active) = match self.config.mlp {
            MlpConfig::Moe { experts, top_k, .. } => {
                let share = top_k as f64 / experts as f64;
                (1.0 - (1.0 - share).powf(rows), share)
            }
            MlpConfig::Dense { .. } => (0.0, 0.0),
        };
        let (routed, shared) = (layer.experts[part], layer.shared[part].product(rows));
        let shared = if with_shared { shared } else { Work::default() };
        Work {
            bytes: routed.bytes * used + shared.bytes,
            flops: 2.0 * routed.numbers * active * rows + shared.flops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All operations of a decode step read what `lily inspect` says that a token reads, without the norms and the state.
    #[test]
    fn a_decoded_token_reads_the_weights_of_a_token() {
        let config = parts::tests::small_model();
        let weights = Weights::synthetic(&config, 1);
        let shapes = Shapes::of(&config, &weights);
        let step = Step {
            decode: true,
            context: 100,
            rows: 1,
        };
        let state = StateFormat { kv: 4, conv: 4 };
        let work = |operation, layer| shapes.work(operation, layer, step, state, false);
        let products = ["projections", "output", "router", "gate and up", "down"];
        let layers = (0..4).flat_map(|layer| products.map(|operation| work(operation, Some(layer))));
        let all: Vec<Work> = layers.chain([work("embedding", None), work("logits", None)]).collect();
        let inspected = parts::of_weights(&weights, &config);
        let vectors = |part: &&parts::Part| part.name == "norms";
        let read: u64 = inspected
            .iter()
            .filter(|part| !vectors(part))
            .map(|part| part.read_per_token)
            .sum();
        // Convolution taps, decay and its bias are part of the layers there and no product here.
        let d = &config.delta_net;
        let small = 3 * (2 * (d.conv_channels() * d.conv_kernel + d.value_heads) + 4 * d.value_heads);
        let bytes: f64 = all.iter().map(|work| work.bytes).sum();
        assert_eq!(bytes, (read - small as u64) as f64);
        // Two operations for every number of a product that takes part.
        let active: u64 = inspected
            .iter()
            .filter(|part| !vectors(part))
            .map(|part| part.active_parameters)
            .sum();
        let small = 3 * (d.conv_channels() * d.conv_kernel + 2 * d.value_heads);
        let flops: f64 = all.iter().map(|work| work.flops).sum();
        assert_eq!(flops, 2.0 * (active - small as u64) as f64);
    }

    #[test]
    fn attention_sees_every_earlier_token_and_itself() {
        let config = ModelConfig::qwen3_6_35b_a3b();
        let mut small = config.clone();
        small.layers.truncate(4);
        let shapes = Shapes {
            config: small,
            layers: (0..4).map(|_| Layer::default()).collect(),
            embedding_row: 0.0,
            logits: Size::default(),
        };
        let step = Step {
            decode: false,
            context: 10,
            rows: 3,
        };
        let work = shapes.work("attention", Some(3), step, StateFormat { kv: 2, conv: 2 }, true);
        // 11, 12 and 13 keys; a product with the key and one with the value.
        let a = &config.attention;
        assert_eq!(work.flops, (36 * 4 * a.heads * a.head_dim) as f64);
        assert_eq!(work.bytes, (13 * 2 * a.kv_heads * a.head_dim * 2) as f64);
    }
}
