//! Random weights of any shape, made in memory: speed can be measured without a download.

use half::bf16;

use crate::bytes::Bytes;
use crate::config::{AttentionConfig, DeltaNetConfig, LayerKind, MlpConfig, ModelConfig};
use crate::matrix::{Encoding, FloatType, Matrix};
use crate::weights::{Attention, DeltaNet, GatedMlp, Layer, Mixer, Mlp, Moe, Weights};

const GROUP_SIZE: usize = 64;
/// Below this many bytes a thread costs more than it fills.
const PARALLEL_BYTES: usize = 1 << 20;

impl ModelConfig {
    /// The shape of Qwen3.6-35B-A3B. Cut `layers` for a shallower model.
    pub fn qwen3_6_35b_a3b() -> ModelConfig {
        ModelConfig {
            hidden_size: 2048,
            vocab_size: 248_320,
            layers: (1..=40)
                .map(|layer| {
                    if layer % 4 == 0 {
                        LayerKind::Attention
                    } else {
                        LayerKind::DeltaNet
                    }
                })
                .collect(),
            attention: AttentionConfig {
                heads: 16,
                kv_heads: 2,
                head_dim: 256,
                rotary_dim: 64,
                rope_theta: 1e7,
            },
            delta_net: DeltaNetConfig {
                key_heads: 16,
                value_heads: 32,
                key_dim: 128,
                value_dim: 128,
                conv_kernel: 4,
            },
            mlp: MlpConfig::Moe {
                experts: 256,
                top_k: 8,
                intermediate: 512,
                shared_intermediate: 512,
            },
            rms_norm_eps: 1e-6,
            tie_word_embeddings: false,
            max_position_embeddings: 262_144,
        }
    }
}

impl Weights {
    /// Random weights of the shape `config`, quantized as published checkpoints are: 4-bit in groups of 64, the router and the shared
    /// expert's gate 8-bit (bf16 where the columns are no multiple of 64). The same for the same `seed`, on any number of cores.
    ///
    /// A matrix keeps the size of its input: elements have variance `1 / cols`, so activations neither explode nor vanish.
    pub fn synthetic(config: &ModelConfig, seed: u64) -> Weights {
        let mut generator = Generator { seed, streams: 0 };
        let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
        Weights {
            embedding: generator.matrix("embed_tokens", 4, 1, vocabulary, hidden),
            layers: config
                .layers
                .iter()
                .enumerate()
                .map(|(index, kind)| generator.layer(config, index, *kind))
                .collect(),
            norm: vec![1.0; hidden],
            lm_head: (!config.tie_word_embeddings).then(|| generator.matrix("lm_head", 4, 1, vocabulary, hidden)),
        }
    }
}

struct Generator {
    seed: u64,
    /// Random sequences handed out so far: each tensor has its own.
    streams: u64,
}

impl Generator {
    fn stream(&mut self) -> u64 {
        self.streams += 1;
        mix(self.seed ^ mix(self.streams))
    }

    fn layer(&mut self, config: &ModelConfig, index: usize, kind: LayerKind) -> Layer {
        let hidden = config.hidden_size;
        let name = |part: &str| format!("layers.{index}.{part}");
        let mixer = match kind {
            LayerKind::Attention => {
                let shape = &config.attention;
                let (query_rows, kv_rows) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
                Mixer::Attention(Box::new(Attention {
                    q_proj: self.matrix(&name("self_attn.q_proj"), 4, 1, 2 * query_rows, hidden),
                    k_proj: self.matrix(&name("self_attn.k_proj"), 4, 1, kv_rows, hidden),
                    v_proj: self.matrix(&name("self_attn.v_proj"), 4, 1, kv_rows, hidden),
                    o_proj: self.matrix(&name("self_attn.o_proj"), 4, 1, hidden, query_rows),
                    q_norm: vec![1.0; shape.head_dim],
                    k_norm: vec![1.0; shape.head_dim],
                }))
            }
            LayerKind::DeltaNet => {
                let shape = &config.delta_net;
                let value_rows = shape.value_heads * shape.value_dim;
                let taps = 1.0 / (shape.conv_kernel as f32).sqrt();
                Mixer::DeltaNet(Box::new(DeltaNet {
                    in_proj_qkv: self.matrix(&name("linear_attn.in_proj_qkv"), 4, 1, shape.conv_channels(), hidden),
                    in_proj_z: self.matrix(&name("linear_attn.in_proj_z"), 4, 1, value_rows, hidden),
                    in_proj_b: self.matrix(&name("linear_attn.in_proj_b"), 4, 1, shape.value_heads, hidden),
                    in_proj_a: self.matrix(&name("linear_attn.in_proj_a"), 4, 1, shape.value_heads, hidden),
                    out_proj: self.matrix(&name("linear_attn.out_proj"), 4, 1, hidden, value_rows),
                    conv: self.vector(shape.conv_channels() * shape.conv_kernel, |u| (2.0 * u - 1.0) * taps),
                    // How the architecture initialises them: decay rates from 1 to 16, time steps from 0.001 to 0.1.
                    a_log: self.vector(shape.value_heads, |u| (1.0 + 15.0 * u).ln()),
                    dt_bias: self.vector(shape.value_heads, |u| inverse_softplus(0.001 * 100f32.powf(u))),
                    norm: vec![1.0; shape.value_dim],
                }))
            }
        };
        let mlp = match config.mlp {
            MlpConfig::Dense { intermediate } => {
                Mlp::Dense(Box::new(self.gated_mlp(&name("mlp"), 1, intermediate, hidden)))
            }
            MlpConfig::Moe {
                experts,
                intermediate,
                shared_intermediate,
                ..
            } => Mlp::Moe(Box::new(Moe {
                router: self.matrix(&name("mlp.gate"), 8, 1, experts, hidden),
                experts: self.gated_mlp(&name("mlp.switch_mlp"), experts, intermediate, hidden),
                shared: self.gated_mlp(&name("mlp.shared_expert"), 1, shared_intermediate, hidden),
                shared_gate: self.matrix(&name("mlp.shared_expert_gate"), 8, 1, 1, hidden),
            })),
        };
        Layer {
            input_norm: vec![1.0; hidden],
            mixer,
            post_norm: vec![1.0; hidden],
            mlp,
        }
    }

    fn gated_mlp(&mut self, name: &str, count: usize, intermediate: usize, hidden: usize) -> GatedMlp {
        GatedMlp {
            gate: self.matrix(&format!("{name}.gate_proj"), 4, count, intermediate, hidden),
            up: self.matrix(&format!("{name}.up_proj"), 4, count, intermediate, hidden),
            down: self.matrix(&format!("{name}.down_proj"), 4, count, hidden, intermediate),
        }
    }

    fn matrix(&mut self, name: &str, bits: u32, count: usize, rows: usize, cols: usize) -> Matrix {
        let stream = self.stream();
        let all_rows = count * rows;
        let deviation = 1.0 / (cols as f32).sqrt();
        let matrix = |encoding, codes, scales, biases| Matrix {
            name: name.into(),
            count,
            rows,
            cols,
            encoding,
            codes,
            scales,
            biases,
        };
        if !cols.is_multiple_of(GROUP_SIZE) {
            let amplitude = deviation * 3f32.sqrt();
            let numbers = bf16_bytes(all_rows * cols, |index| {
                (2.0 * uniform(stream, index) - 1.0) * amplitude
            });
            let none = || Bytes::from(&[][..]);
            return matrix(Encoding::Float(FloatType::Bf16), numbers, none(), none());
        }
        // Uniform codes have a variance of (levels^2 - 1) / 12 around the middle one; scales vary by a quarter from group to group.
        let levels = (1u32 << bits) as f32;
        let middle = (levels - 1.0) / 2.0;
        let mean_scale = deviation / ((levels * levels - 1.0) / 12.0).sqrt();
        let scale_stream = mix(stream);
        let groups = all_rows * (cols / GROUP_SIZE);
        let scale = |index: usize| bf16::from_f32(mean_scale * (0.75 + 0.5 * uniform(scale_stream, index)));
        let codes = random_bytes(all_rows * (cols * bits as usize / 8), stream);
        let encoding = Encoding::Affine {
            bits,
            group_size: GROUP_SIZE,
            scale_type: FloatType::Bf16,
        };
        let scales = bf16_bytes(groups, |index| scale(index).to_f32());
        let biases = bf16_bytes(groups, |index| -middle * scale(index).to_f32());
        matrix(encoding, codes, scales, biases)
    }

    fn vector(&mut self, len: usize, value: impl Fn(f32) -> f32) -> Vec<f32> {
        let stream = self.stream();
        (0..len).map(|index| value(uniform(stream, index))).collect()
    }
}

/// The mixing function of SplitMix64: a bijection that looks random.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Number `index` of a random sequence, in 0..1.
fn uniform(stream: u64, index: usize) -> f32 {
    (mix(stream.wrapping_add(index as u64)) >> 40) as f32 / (1u64 << 24) as f32
}

fn inverse_softplus(value: f32) -> f32 {
    value.exp_m1().ln()
}

/// Makes `len` bytes of units that depend on their place alone (so the split does not matter), on all cores. The last unit may be cut.
fn filled<const UNIT: usize>(len: usize, unit: impl Fn(usize) -> [u8; UNIT] + Sync) -> Bytes {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let share = len.div_ceil(threads).next_multiple_of(UNIT).max(PARALLEL_BYTES);
    let fill = |part: &mut [u8], first: usize| {
        let (units, rest) = part.as_chunks_mut::<UNIT>();
        for (index, out) in units.iter_mut().enumerate() {
            *out = unit(first + index);
        }
        if !rest.is_empty() {
            rest.copy_from_slice(&unit(first + units.len())[..rest.len()]);
        }
    };
    Bytes::build(len, |bytes| {
        std::thread::scope(|scope| {
            for (index, part) in bytes.chunks_mut(share).enumerate() {
                let first = index * share / UNIT;
                let fill = &fill;
                if part.len() < PARALLEL_BYTES {
                    fill(part, first);
                } else {
                    scope.spawn(move || fill(part, first));
                }
            }
        })
    })
}

/// A random sequence.
fn random_bytes(len: usize, stream: u64) -> Bytes {
    filled(len, |index| mix(stream.wrapping_add(index as u64)).to_le_bytes())
}

fn bf16_bytes(len: usize, value: impl Fn(usize) -> f32 + Sync) -> Bytes {
    filled(2 * len, |index| bf16::from_f32(value(index)).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(mlp: MlpConfig) -> ModelConfig {
        ModelConfig {
            hidden_size: 128,
            vocab_size: 256,
            layers: vec![LayerKind::DeltaNet, LayerKind::Attention],
            attention: AttentionConfig {
                heads: 4,
                kv_heads: 2,
                head_dim: 32,
                rotary_dim: 8,
                rope_theta: 1e7,
            },
            delta_net: DeltaNetConfig {
                key_heads: 2,
                value_heads: 4,
                key_dim: 16,
                value_dim: 16,
                conv_kernel: 4,
            },
            mlp,
            ..ModelConfig::qwen3_6_35b_a3b()
        }
    }

    fn moe() -> MlpConfig {
        MlpConfig::Moe {
            experts: 8,
            top_k: 2,
            intermediate: 64,
            shared_intermediate: 96,
        }
    }

    /// Mean and variance of a matrix's elements.
    fn moments(matrix: &Matrix) -> (f64, f64) {
        let mut row = vec![0.0; matrix.cols];
        let (mut sum, mut squares) = (0.0, 0.0);
        for index in 0..matrix.count {
            for number in 0..matrix.rows {
                matrix.dequantize_row(index, number, &mut row);
                sum += row.iter().map(|value| f64::from(*value)).sum::<f64>();
                squares += row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
            }
        }
        let count = (matrix.count * matrix.rows * matrix.cols) as f64;
        (sum / count, squares / count)
    }

    #[test]
    fn elements_keep_the_size_of_their_input() {
        let weights = Weights::synthetic(&small(moe()), 1);
        let Mlp::Moe(moe) = &weights.layers[0].mlp else {
            panic!("a mixture of experts was asked for");
        };
        for matrix in [&weights.embedding, &moe.experts.gate, &moe.router, &moe.shared.down] {
            assert!(matrix.has_expected_lengths(), "{}", matrix.name);
            let (mean, variance) = moments(matrix);
            let expected = 1.0 / matrix.cols as f64;
            assert!(
                (variance / expected - 1.0).abs() < 0.1,
                "{}: {variance} {expected}",
                matrix.name
            );
            assert!(mean.abs() < 0.05 * expected.sqrt(), "{}: {mean}", matrix.name);
        }
        // 96 columns are no whole groups.
        assert_eq!(moe.shared.down.encoding, Encoding::Float(FloatType::Bf16));
        assert_eq!(moe.router.encoding.bits(), 8);
    }

    #[test]
    fn the_seed_decides_everything() {
        let config = small(MlpConfig::Dense { intermediate: 64 });
        let [first, again, other] = [1, 1, 2].map(|seed| Weights::synthetic(&config, seed));
        assert_eq!(*first.embedding.codes, *again.embedding.codes);
        assert_eq!(*first.output().codes, *again.output().codes);
        assert_ne!(*first.embedding.codes, *other.embedding.codes);
        assert_ne!(*first.embedding.codes, *first.output().codes);
        let Mixer::DeltaNet(mixer) = &first.layers[0].mixer else {
            panic!("layer 0 is a Gated DeltaNet");
        };
        assert!(mixer.a_log.iter().all(|value| (0.0..=16f32.ln()).contains(value)));
        assert!(mixer.dt_bias.iter().all(|value| (-7.0..-2.0).contains(value)));
    }

    #[test]
    fn the_split_into_threads_does_not_matter() {
        let whole = random_bytes(3 * PARALLEL_BYTES + 5, 7);
        assert_eq!(whole[..40], *random_bytes(40, 7));
        let last = whole.len() - 5;
        let word = mix(7 + last as u64 / 8).to_le_bytes();
        assert_eq!(whole[last..], word[..5]);
    }

    #[test]
    fn the_preset_has_the_published_number_of_parameters() {
        let config = ModelConfig::qwen3_6_35b_a3b();
        let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
        let moe = 3 * 256 * 512 * hidden + 3 * 512 * hidden + 257 * hidden;
        let delta_net = (8192 + 4096 + 64) * hidden + hidden * 4096 + 8192 * 4 + 64 + 128;
        let attention = (8192 + 1024) * hidden + hidden * 4096 + 512;
        let total = 40 * (moe + 2 * hidden) + 30 * delta_net + 10 * attention + 2 * vocabulary * hidden + hidden;
        assert_eq!(total, 34_660_610_688);
        let kinds = |kind| config.layers.iter().filter(|layer| **layer == kind).count();
        assert_eq!((kinds(LayerKind::DeltaNet), kinds(LayerKind::Attention)), (30, 10));
        assert_eq!(config.layers[3], LayerKind::Attention);
    }
}
