//! What a decode step launches, known without a device and without weights.

use lily_model::{Encoding as StoredEncoding, FloatType, LayerKind, ModelConfig};
use serde::Serialize;

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
    let mut imagined = Imagined::default();
    let weights = published(config, &mut imagined);
    let scratch = Scratch::new(config, 1, context, &mut |_, bytes| Ok(imagined.slice(bytes)))?;
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
    let state = StateSlices {
        layers: layers.collect(),
        step: imagined.slice(16),
    };
    let route = policy::attention_route(policy::Family::Apple, config, context, switches);
    let sampler = SamplerSlices {
        params: imagined.slice(size_of::<SampleParams>()),
        log: imagined.slice(4),
        history: None,
        bias: None,
        adjusted: None,
        largest: imagined.slice(policy::SAMPLE_SLICES * 12),
        greedy: true,
    };
    let model = Model {
        config,
        weights: &weights,
        scratch: &scratch,
        switches,
        family: policy::Family::Apple,
        expanded: None,
    };
    Ok(Plan::of(&decode_pass(model, &state, route, Some(&sampler)), context))
}

/// The weights of a published checkpoint of this shape, without their bytes.
fn published(config: &ModelConfig, imagined: &mut Imagined) -> GpuWeights {
    let hidden = config.hidden_size;
    let (a, d, mlp) = (&config.attention, &config.delta_net, MlpShape::of(config));
    let (queries, kv, values) = (
        a.heads * a.head_dim,
        a.kv_heads * a.head_dim,
        d.value_heads * d.value_dim,
    );
    let mut matrix = |count: usize, rows: usize, cols: usize, bits: u32| {
        let encoding = StoredEncoding::Affine {
            bits,
            group_size: 64,
            scale_type: FloatType::Bf16,
        };
        let groups = count * rows * cols / 64;
        GpuMatrix {
            count,
            rows,
            cols,
            form: form(encoding),
            encoding: describe_encoding(encoding),
            codes: imagined.slice(count * rows * cols * bits as usize / 8),
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
}
