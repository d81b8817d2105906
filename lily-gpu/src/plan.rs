//! What a decode step launches, known without a device and without weights.

use lily_model::{Encoding as StoredEncoding, FloatType, LayerKind, ModelConfig};
use serde::Serialize;

use crate::device::Slice;
use crate::error::GpuError;
use crate::graph::decode::decode_pass;
use crate::graph::sample::SamplerSlices;
use crate::graph::scratch::{MlpShape, Scratch};
use crate::graph::{LayerState, Model, StateSlices};
use crate::params::SampleParams;
use crate::pass::Pass;
use crate::policy;
use crate::switches::Switches;
use crate::weights::{
    GpuAttention, GpuDeltaNet, GpuLayer, GpuMatrix, GpuMixer, GpuMlp, GpuRouted, GpuWeights, Imagined,
    describe_encoding, form,
};

/// The launches of one pass.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Tokens of context that the pass was made for.
    pub context: usize,
    /// Launches.
    pub dispatches: usize,
    /// Dependency stages: launches of a stage run side by side, stages one after the other.
    pub stages: usize,
    /// Every launch.
    pub launches: Vec<Launch>,
}

/// One launch of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct Launch {
    /// Dependency stage, from 0.
    pub stage: usize,
    /// What it computes.
    pub label: String,
    /// Kernel.
    pub kernel: String,
    /// Grid, in threadgroups.
    pub threadgroups: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
}

impl Plan {
    /// The plan of a recorded pass.
    pub fn of(pass: &Pass, context: usize) -> Plan {
        let mut launches = Vec::with_capacity(pass.dispatches().len());
        for (stage, indices) in pass.by_stage().into_iter().enumerate() {
            launches.extend(indices.into_iter().map(|index| {
                let dispatch = &pass.dispatches()[index];
                Launch {
                    stage,
                    label: dispatch.label.clone(),
                    kernel: dispatch.kernel.clone(),
                    threadgroups: dispatch.threadgroups,
                    threads: dispatch.threads.iter().product(),
                }
            }));
        }
        Plan {
            context,
            dispatches: launches.len(),
            stages: pass.stage_count(),
            launches,
        }
    }
}

/// The decode pass of a model of this shape in the published encoding (4-bit affine, router and shared expert's gate 8-bit, groups of 64) at
/// `context` tokens, with the greedy choice of the next token.
///
/// # Errors
/// Where the model has a shape that no kernel takes.
pub fn decode_plan(config: &ModelConfig, context: usize, switches: &Switches) -> Result<Plan, GpuError> {
    policy::check_shape(config)?;
    let mut sketch = Sketch::new(config, 1, context, published)?;
    let sampler = sketch.sampler(true, false);
    let pass = sketch.decode(policy::Family::Apple, switches, &sampler);
    Ok(Plan::of(&pass, context))
}

/// A model, its scratch and a sequence, without their bytes.
struct Sketch<'a> {
    config: &'a ModelConfig,
    context: usize,
    weights: GpuWeights,
    scratch: Scratch,
    state: StateSlices,
    imagined: Imagined,
}

impl<'a> Sketch<'a> {
    /// For passes of up to `rows` tokens and `context` tokens in all; `encoding` tells how a matrix that is published in so many bits is stored.
    fn new(
        config: &'a ModelConfig,
        rows: usize,
        context: usize,
        encoding: impl Fn(u32) -> StoredEncoding,
    ) -> Result<Sketch<'a>, GpuError> {
        let mut imagined = Imagined::default();
        let weights = weights(config, encoding, &mut imagined);
        let scratch = Scratch::new(config, rows, context, true, &mut |_, bytes| Ok(imagined.slice(bytes)))?;
        let layers = config.layers.iter().map(|kind| match kind {
            LayerKind::Attention => {
                let bytes = context * config.attention.kv_heads * config.attention.head_dim * 2;
                LayerState::Attention {
                    k: imagined.slice(bytes),
                    v: imagined.slice(bytes),
                }
            }
            LayerKind::DeltaNet => {
                let d = &config.delta_net;
                LayerState::DeltaNet {
                    ring: imagined.slice(d.conv_kernel * d.conv_channels() * 2),
                    state: imagined.slice(d.value_heads * d.value_dim * d.key_dim * 4),
                }
            }
        });
        let layers = layers.collect();
        let state = StateSlices {
            layers,
            step: imagined.slice(16),
        };
        Ok(Sketch {
            config,
            context,
            weights,
            scratch,
            state,
            imagined,
        })
    }

    fn sampler(&mut self, greedy: bool, adjusted: bool) -> SamplerSlices {
        let mut optional = || adjusted.then(|| self.imagined.slice(self.config.vocab_size * 4));
        SamplerSlices {
            history: optional(),
            bias: optional(),
            adjusted: optional(),
            params: self.imagined.slice(size_of::<SampleParams>()),
            log: self.imagined.slice(4),
            largest: self.imagined.slice(policy::SAMPLE_SLICES * 12),
            greedy,
        }
    }

    fn model<'b>(&'b self, family: policy::Family, switches: &'b Switches, expanded: Option<Slice>) -> Model<'b> {
        Model {
            config: self.config,
            weights: &self.weights,
            scratch: &self.scratch,
            switches,
            family,
            expanded,
        }
    }

    fn decode(&self, family: policy::Family, switches: &Switches, sampler: &SamplerSlices) -> Pass {
        let route = policy::attention_route(family, self.config, self.context, switches);
        decode_pass(self.model(family, switches, None), &self.state, route, Some(sampler))
    }
}

/// How a published checkpoint stores a matrix of so many bits.
fn published(bits: u32) -> StoredEncoding {
    StoredEncoding::Affine {
        bits,
        group_size: 64,
        scale_type: FloatType::Bf16,
    }
}

/// The weights of a model of this shape, without their bytes; `stored` tells how a matrix that is published in so many bits is stored.
fn weights(config: &ModelConfig, stored: impl Fn(u32) -> StoredEncoding, imagined: &mut Imagined) -> GpuWeights {
    let hidden = config.hidden_size;
    let (a, d, mlp) = (&config.attention, &config.delta_net, MlpShape::of(config));
    let (queries, kv, values) = (
        a.heads * a.head_dim,
        a.kv_heads * a.head_dim,
        d.value_heads * d.value_dim,
    );
    let mut matrix = |count: usize, rows: usize, cols: usize, bits: u32| {
        let encoding = stored(bits);
        let groups = count * rows * cols / encoding.group_size().unwrap_or(cols);
        GpuMatrix {
            count,
            rows,
            cols,
            form: form(encoding),
            encoding: describe_encoding(encoding),
            codes: imagined.slice(count * rows * cols * encoding.bits() / 8),
            scales: imagined.slice(groups * 2),
            biases: imagined.slice(groups * 2),
        }
    };
    let embedding = matrix(1, config.vocab_size, hidden, 4);
    let output = if config.tie_word_embeddings {
        embedding
    } else {
        matrix(1, config.vocab_size, hidden, 4)
    };
    let mut layers = Vec::with_capacity(config.layers.len());
    let vector = |numbers: usize, imagined: &mut Imagined| imagined.slice(numbers * 4);
    let mut parts = Vec::with_capacity(config.layers.len());
    for kind in &config.layers {
        let mixer = match kind {
            LayerKind::Attention => vec![
                matrix(1, 2 * queries, hidden, 4),
                matrix(1, kv, hidden, 4),
                matrix(1, kv, hidden, 4),
                matrix(1, hidden, queries, 4),
            ],
            LayerKind::DeltaNet => vec![
                matrix(1, d.conv_channels(), hidden, 4),
                matrix(1, values, hidden, 4),
                matrix(1, d.value_heads, hidden, 4),
                matrix(1, d.value_heads, hidden, 4),
                matrix(1, hidden, values, 4),
            ],
        };
        let mut gated = |count: usize, width: usize| GpuMlp {
            gate: matrix(count, width, hidden, 4),
            up: matrix(count, width, hidden, 4),
            down: matrix(count, hidden, width, 4),
        };
        let shared = gated(1, mlp.shared);
        let experts = (mlp.top_k > 0).then(|| gated(mlp.experts, mlp.intermediate));
        let routed = experts.map(|experts| GpuRouted {
            router: matrix(1, mlp.experts, hidden, 8),
            experts,
            shared_gate: matrix(1, 1, hidden, 8),
        });
        parts.push((mixer, shared, routed));
    }
    for (mixer, shared, routed) in parts {
        let mixer = match mixer[..] {
            [q, k, v, o] => GpuMixer::Attention(GpuAttention {
                q,
                k,
                v,
                o,
                q_norm: vector(a.head_dim, imagined),
                k_norm: vector(a.head_dim, imagined),
            }),
            [qkv, z, b, a, out] => GpuMixer::DeltaNet(GpuDeltaNet {
                qkv,
                z,
                b,
                a,
                out,
                conv: vector(d.conv_channels() * d.conv_kernel, imagined),
                a_log: vector(d.value_heads, imagined),
                dt_bias: vector(d.value_heads, imagined),
                norm: vector(d.value_dim, imagined),
            }),
            _ => unreachable!("a mixer has four or five matrices"),
        };
        layers.push(GpuLayer {
            input_norm: vector(hidden, imagined),
            mixer,
            post_norm: vector(hidden, imagined),
            routed,
            shared,
        });
    }
    let (norm, frequencies) = (vector(hidden, imagined), vector(a.rotary_dim / 2, imagined));
    GpuWeights {
        embedding,
        layers,
        norm,
        output,
        frequencies,
        bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::kernel_sources;
    use crate::graph::prefill::{Chunk, Step, logits_pass, prefill_steps};
    use crate::graph::scratch::LOGIT_ROWS;
    use shader_tool::{Library, Options};

    #[test]
    fn six_stages_a_delta_net_layer_and_eight_an_attention_layer() {
        for context in [1, 4096, 131_072] {
            let plan = decode_plan(&ModelConfig::qwen3_6_35b_a3b(), context, &Switches::default()).unwrap();
            // the embedding, 30 layers of 6 stages, 10 of 8, the logits, and two for the next token
            assert_eq!((plan.dispatches, plan.stages), (264, 264), "{context}");
        }
    }

    #[test]
    fn every_fusion_saves_stages_or_dispatches() {
        let all_on = decode_plan(&ModelConfig::qwen3_6_35b_a3b(), 4096, &Switches::default()).unwrap();
        for name in [
            "fused-norm",
            "merged-projections",
            "fused-top-k",
            "fused-swiglu",
            "fused-combine",
            "fused-delta",
        ] {
            let plan = decode_plan(
                &ModelConfig::qwen3_6_35b_a3b(),
                4096,
                &Switches::default().without(name).unwrap(),
            )
            .unwrap();
            assert!(plan.dispatches > all_on.dispatches, "{name}");
            assert!(plan.stages >= all_on.stages, "{name}");
        }
    }

    fn shapes() -> Vec<ModelConfig> {
        let mut config = ModelConfig::qwen3_6_35b_a3b();
        config.layers = vec![LayerKind::DeltaNet, LayerKind::Attention];
        let mut shapes = vec![config.clone()];
        for (head_dim, heads) in [(128, 16), (64, 16), (256, 6), (128, 6), (64, 6), (96, 16)] {
            config.attention.head_dim = head_dim;
            config.attention.heads = heads;
            shapes.push(config.clone());
        }
        // narrow ones
        config.hidden_size = 1024;
        for dim in [64, 96] {
            config.delta_net.key_dim = dim;
            config.delta_net.value_dim = dim;
            shapes.push(config.clone());
        }
        // a wide one without experts
        config.hidden_size = 4096;
        config.mlp = lily_model::MlpConfig::Dense { intermediate: 12_288 };
        shapes.push(config);
        shapes
    }

    /// Nothing ships that no pass launches.
    #[test]
    fn every_kernel_is_launched_by_some_pass() {
        let encodings: [fn(u32) -> StoredEncoding; 4] = [
            published,
            |_| published(8),
            |_| StoredEncoding::Mxfp4,
            |_| StoredEncoding::Float(FloatType::Bf16),
        ];
        let mut all_switches = vec![Switches::default()];
        all_switches.extend(
            Switches::ALL
                .iter()
                .map(|(name, _)| Switches::default().without(name).unwrap()),
        );
        let mut launched = std::collections::BTreeSet::new();
        for (config, encoding) in shapes()
            .iter()
            .flat_map(|config| encodings.map(|encoding| (config, encoding)))
        {
            let mut sketch = Sketch::new(config, 4096, 4096, encoding).unwrap();
            let samplers = [sketch.sampler(true, true), sketch.sampler(false, false)];
            let expanded = sketch.imagined.slice(1 << 32);
            // one that takes the largest threadgroups, and one that does not
            let small = policy::Family::Nvidia {
                processors: 40,
                threadgroup_bytes: 100 * 1024,
                warpgroups: false,
            };
            for family in [policy::Family::Apple, policy::Family::H200, policy::Family::B200, small] {
                for switches in &all_switches {
                    let mut add = |pass: &Pass| launched.extend(pass.dispatches().iter().map(|d| d.kernel.clone()));
                    samplers
                        .iter()
                        .for_each(|sampler| add(&sketch.decode(family, switches, sampler)));
                    let expanded = (!switches.fused_dequant).then_some(expanded);
                    let model = sketch.model(family, switches, expanded);
                    for rows in [1, 16, 40, 300, 2048, 4096] {
                        let chunk = Chunk {
                            rows,
                            position: 0,
                            pass_limit: None,
                        };
                        for step in prefill_steps(model, &sketch.state, chunk) {
                            if let Step::Run(pass) = step {
                                add(&pass);
                            }
                        }
                        add(&logits_pass(model, sketch.state.step, 0, rows.min(LOGIT_ROWS)));
                    }
                }
            }
        }
        let library = Library::build(&kernel_sources(), Options::default()).unwrap();
        let kernels = library.manifest().kernels.iter().map(|kernel| kernel.name.clone());
        let idle: Vec<String> = kernels.filter(|name| !launched.contains(name)).collect();
        assert_eq!(idle, [""; 0]);
    }
}
