//! A chunk of a prompt through the model.

use crate::device::Slice;
use crate::graph::products::Output;
use crate::graph::scratch::MlpShape;
use crate::graph::{Graph, LayerState, Model, StateSlices};
use crate::params::AttentionPrefillParams;
use crate::pass::{Dispatch, Pass};
use crate::policy::{self, AttentionRoute};
use crate::weights::{GpuAttention, GpuDeltaNet, GpuLayer, GpuMatrix, GpuMixer, GpuMlp};

/// One part of a chunk's work.
#[derive(Clone, Debug)]
pub enum Step {
    /// Dispatches.
    Run(Pass),
    /// The host chooses and sorts the experts, where `gpu-routing` is off.
    HostRouting {
        /// Rows of a tile of the layer's grouped products.
        tile_rows: usize,
    },
}

/// A chunk of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Tokens, which are in `scratch.tokens`.
    pub rows: usize,
    /// Position of the first one, which the step state holds, too.
    pub position: usize,
    /// Multiply-adds that one pass may hold ([`crate::Device::pass_limit`]); a layer is never split.
    pub pass_limit: Option<u64>,
}

/// The work of a chunk. The residual stream after the last layer stays in `scratch.x`.
pub fn prefill_steps(model: Model<'_>, state: &StateSlices, chunk: Chunk) -> Vec<Step> {
    let rows = chunk.rows;
    let mut steps = Vec::new();
    let mut work = 0;
    let mut g = Graph::new(model, state.step);
    g.embed(rows, false);
    for (index, (layer, &kept)) in model.weights.layers.iter().zip(&state.layers).enumerate() {
        let label = format!("layer {index}");
        let layer_work = layer_macs(&model, layer, chunk);
        if work > 0 && chunk.pass_limit.is_some_and(|limit| work + layer_work > limit) {
            let done = std::mem::replace(&mut g, Graph::new(model, state.step));
            steps.push(Step::Run(done.pass));
            work = 0;
        }
        work += layer_work;
        g.rms_norm(&label, layer.input_norm, rows, model.scratch.n, false);
        match (&layer.mixer, kept) {
            (GpuMixer::Attention(w), LayerState::Attention { k, v }) => g.attention_chunk(&label, w, (k, v), rows),
            (GpuMixer::DeltaNet(w), LayerState::DeltaNet { ring, state }) => {
                g.delta_layer_chunk(&label, w, ring, state, rows);
            }
            _ => unreachable!("a sequence's layers are those of its model"),
        }
        g.route_chunk(&label, layer, rows);
        if let Some(routed) = &layer.routed {
            if model.switches.gpu_routing {
                g.sort_chunk(&label, routed, rows);
            } else {
                let tile_rows = g.tile_rows(routed, rows);
                let done = std::mem::replace(&mut g, Graph::new(model, state.step));
                steps.push(Step::Run(done.pass));
                steps.push(Step::HostRouting { tile_rows });
            }
        }
        g.mlp_chunk(&label, layer, rows);
    }
    steps.push(Step::Run(g.pass));
    steps
}

/// Multiply-adds of a layer over a chunk: its products and its attention.
fn layer_macs(model: &Model<'_>, layer: &GpuLayer, chunk: Chunk) -> u64 {
    let size = |m: &GpuMatrix| m.rows * m.cols;
    let mlp = |m: &GpuMlp| size(&m.gate) + size(&m.up) + size(&m.down);
    let a = &model.config.attention;
    let mixer = match &layer.mixer {
        GpuMixer::Attention(w) => {
            let keys = chunk.position + chunk.rows;
            [&w.q, &w.k, &w.v, &w.o].map(size).iter().sum::<usize>() + 2 * keys * a.heads * a.head_dim
        }
        GpuMixer::DeltaNet(w) => [&w.qkv, &w.z, &w.b, &w.a, &w.out].map(size).iter().sum(),
    };
    let routed = layer.routed.map_or(0, |r| {
        size(&r.router) + MlpShape::of(model.config).top_k * mlp(&r.experts)
    });
    (chunk.rows * (mixer + mlp(&layer.shared) + routed)) as u64
}

/// The pass that makes the logits of rows `[first, first + rows)` of a chunk, into `scratch.logits`.
pub fn logits_pass(model: Model<'_>, step: Slice, first: usize, rows: usize) -> Pass {
    let mut g = Graph::new(model, step);
    g.logits(first, rows);
    g.pass
}

impl Graph<'_> {
    fn delta_layer_chunk(&mut self, label: &str, w: &GpuDeltaNet, ring: Slice, state: Slice, rows: usize) {
        let (s, d, hidden) = (self.scratch, &self.config.delta_net, self.config.hidden_size);
        let values = d.value_heads * d.value_dim;
        let outputs = [
            Output::bfloat(w.qkv, Self::rows(s.raw, rows, d.conv_channels(), 2)),
            Output::bfloat(w.z, Self::rows(s.z, rows, values, 2)),
            Output::float(w.b, Self::rows(s.b, rows, d.value_heads, 4)),
            Output::float(w.a, Self::rows(s.a, rows, d.value_heads, 4)),
        ];
        self.gemm(
            &format!("{label} projections"),
            Self::rows(s.n, rows, hidden, 2),
            rows,
            &outputs,
            false,
        );
        self.delta_chunk(label, w, ring, state, rows);
        let out = Output::float(w.out, Self::rows(s.x, rows, hidden, 4));
        self.gemm(
            &format!("{label} output"),
            Self::rows(s.mix, rows, values, 2),
            rows,
            &[out],
            true,
        );
    }

    fn attention_chunk(&mut self, label: &str, w: &GpuAttention, (k, v): (Slice, Slice), rows: usize) {
        let (s, a, hidden) = (self.scratch, &self.config.attention, self.config.hidden_size);
        let (queries, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let outputs = [
            Output::bfloat(w.q, Self::rows(s.q_gate, rows, 2 * queries, 2)),
            Output::bfloat(w.k, Self::rows(s.k, rows, kv, 2)),
            Output::bfloat(w.v, Self::rows(s.v, rows, kv, 2)),
        ];
        self.gemm(
            &format!("{label} projections"),
            Self::rows(s.n, rows, hidden, 2),
            rows,
            &outputs,
            false,
        );
        self.attention_prepare(label, w, k, v, rows);
        match policy::attention_prefill(self.model.family, self.config) {
            Some(route) => {
                let group = a.heads / a.kv_heads;
                let params = AttentionPrefillParams {
                    heads: a.heads as u32,
                    kv_heads: a.kv_heads as u32,
                    rows: rows as u32,
                    scale: (a.head_dim as f32).sqrt().recip(),
                };
                self.pass.push(
                    Dispatch::new(route.kernel, format!("{label} attention"))
                        .read(s.q)
                        .read(k)
                        .read(v)
                        .read(Self::rows(s.q_gate, rows, 2 * queries, 2))
                        .write(Self::rows(s.mix, rows, queries, 2))
                        .read(self.step)
                        .params(&params)
                        .grid((rows * group).div_ceil(route.rows), a.kv_heads, 1)
                        .threads(route.threads)
                        .threadgroup_memory(route.threadgroup_bytes),
                );
            }
            None => {
                let route = AttentionRoute {
                    packed_heads: None,
                    splits: 1,
                    split_keys: 0,
                    streamed: false,
                };
                self.attention_rows(label, (k, v), rows, route);
            }
        }
        let out = Output::float(w.o, Self::rows(s.x, rows, hidden, 4));
        self.gemm(
            &format!("{label} output"),
            Self::rows(s.mix, rows, queries, 2),
            rows,
            &[out],
            true,
        );
    }
}
