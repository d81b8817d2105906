//! One token through the model.

use crate::device::Slice;
use crate::graph::products::Output;
use crate::graph::sample::SamplerSlices;
use crate::graph::{Graph, LayerState, Model, StateSlices};
use crate::params::{AttentionDecodeParams, AttentionStreamedParams};
use crate::pass::{Dispatch, Pass};
use crate::policy::{self, AttentionRoute};
use crate::weights::{GpuAttention, GpuDeltaNet, GpuMixer};

/// The pass that takes in the step state's token and leaves its logits in the first row of `scratch.logits`, with attention by `route`; with a
/// sampler, it also leaves the next token in the step state.
pub fn decode_pass(
    model: Model<'_>,
    state: &StateSlices,
    route: AttentionRoute,
    sampler: Option<&SamplerSlices>,
) -> Pass {
    let mut g = Graph::new(model, state.step);
    g.decoding = true;
    g.embed(1, true);
    for (index, (layer, &kept)) in model.weights.layers.iter().zip(&state.layers).enumerate() {
        let label = format!("layer {index}");
        match (&layer.mixer, kept) {
            (GpuMixer::Attention(w), LayerState::Attention { k, v }) => {
                g.attention_decode(&label, w, layer.input_norm, (k, v), route);
            }
            (GpuMixer::DeltaNet(w), LayerState::DeltaNet { ring, state }) => {
                g.delta_layer_decode(&label, w, layer.input_norm, ring, state);
            }
            _ => unreachable!("a sequence's layers are those of its model"),
        }
        g.mlp_decode(&label, layer);
    }
    g.logits(0, 1);
    if let Some(sampler) = sampler {
        g.sample(sampler);
    }
    g.pass
}

impl Graph<'_> {
    /// RMSNorm and products with one token's residual stream.
    fn normed_products(&mut self, label: &str, norm: Slice, outputs: &[Output]) {
        let normed = !self.switches.fused_norm;
        let mut x = Self::rows(self.scratch.x, 1, self.config.hidden_size, 4);
        if normed {
            self.rms_norm(label, norm, 1, self.scratch.normed, true);
            x = self.scratch.normed;
        }
        self.gemv_norm(&format!("{label} projections"), x, norm, normed, 1, outputs);
    }

    fn delta_layer_decode(&mut self, label: &str, w: &GpuDeltaNet, norm: Slice, ring: Slice, state: Slice) {
        let (s, d) = (self.scratch, &self.config.delta_net);
        let values = d.value_heads * d.value_dim;
        let heads = policy::delta_heads(self.config).filter(|_| self.switches.fused_delta);
        let qkv = match heads {
            // straight into the ring: the recurrence then needs no copy of its raw inputs
            Some(_) => Output {
                ring: d.conv_kernel,
                ..Output::bfloat(w.qkv, ring)
            },
            None => Output::bfloat(w.qkv, s.raw.part(0, self.raw_bytes())),
        };
        let outputs = [
            qkv,
            Output::bfloat(w.z, Self::rows(s.z, 1, values, 2)),
            Output::float(w.b, Self::rows(s.b, 1, d.value_heads, 4)),
            Output::float(w.a, Self::rows(s.a, 1, d.value_heads, 4)),
        ];
        self.normed_products(label, norm, &outputs);
        match heads {
            Some(heads) => self.delta_decode(label, w, ring, state, heads),
            None => self.delta_chunk(label, w, ring, state, 1),
        }
        self.mixer_output(
            label,
            Output::float(w.out, Self::rows(s.x, 1, self.config.hidden_size, 4)),
            values,
        );
    }

    fn mixer_output(&mut self, label: &str, output: Output, width: usize) {
        let x = Self::rows(self.scratch.mix, 1, width, 2);
        self.gemv(&format!("{label} output"), x, &[output], true);
    }

    fn attention_decode(
        &mut self,
        label: &str,
        w: &GpuAttention,
        norm: Slice,
        (k, v): (Slice, Slice),
        route: AttentionRoute,
    ) {
        let (s, a) = (self.scratch, &self.config.attention);
        let (queries, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let outputs = [
            Output::bfloat(w.q, Self::rows(s.q_gate, 1, 2 * queries, 2)),
            Output::bfloat(w.k, Self::rows(s.k, 1, kv, 2)),
            Output::bfloat(w.v, Self::rows(s.v, 1, kv, 2)),
        ];
        self.normed_products(label, norm, &outputs);
        if route.streamed {
            self.attention_streamed(label, w, (k, v), route);
        } else {
            self.attention_prepare(label, w, k, v, 1);
            self.attention_rows(label, (k, v), 1, route);
        }
        self.mixer_output(
            label,
            Output::float(w.o, Self::rows(s.x, 1, self.config.hidden_size, 4)),
            queries,
        );
    }

    /// What lies between the projections and the scores, and the scores, in one dispatch; then the reduction.
    fn attention_streamed(&mut self, label: &str, w: &GpuAttention, (k, v): (Slice, Slice), route: AttentionRoute) {
        let (s, a) = (self.scratch, &self.config.attention);
        let (queries, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let params = AttentionStreamedParams {
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            splits: route.splits as u32,
            eps: self.config.rms_norm_eps,
            scale: (a.head_dim as f32).sqrt().recip(),
        };
        self.pass.push(
            Dispatch::new("attention_decode_streamed_256_64", format!("{label} attention"))
                .grid(a.kv_heads, route.splits, 1)
                .threads(policy::STREAMED_ATTENTION_THREADS)
                .threadgroup_memory(policy::STREAMED_ATTENTION_BYTES)
                .read(Self::rows(s.q_gate, 1, 2 * queries, 2))
                .read(Self::rows(s.k, 1, kv, 2))
                .read(Self::rows(s.v, 1, kv, 2))
                .read(w.q_norm)
                .read(w.k_norm)
                .read(self.weights.frequencies)
                .update(k)
                .update(v)
                .read(self.step)
                .write(Self::rows(s.partial, route.splits, queries, 4))
                .write(Self::rows(s.extent, route.splits, a.heads * 2, 4))
                .params(&params),
        );
        self.attention_reduce(label, 1, route);
    }

    /// Attention of single query rows, and the reduction of its splits into `scratch.mix`.
    pub(super) fn attention_rows(&mut self, label: &str, (k, v): (Slice, Slice), rows: usize, route: AttentionRoute) {
        let (s, a) = (self.scratch, &self.config.attention);
        let queries = a.heads * a.head_dim;
        let dispatch = match route.packed_heads {
            Some(packed) => Dispatch::new(
                format!("attention_decode_{}_h{packed}", a.head_dim),
                format!("{label} attention"),
            )
            .constant(0, self.switches.coalesced_kv)
            .grid(a.heads / packed, route.splits, rows)
            .threads(256),
            None => Dispatch::new("attention_decode_general", format!("{label} attention"))
                .grid(a.heads, route.splits, rows)
                .threads(32),
        };
        self.pass.push(
            dispatch
                .read(Self::rows(s.q, rows, queries, 2))
                .read(k)
                .read(v)
                .read(self.step)
                .write(Self::rows(s.partial, rows * route.splits, queries, 4))
                .write(Self::rows(s.extent, rows * route.splits, a.heads * 2, 4))
                .params(&self.attention_params(route)),
        );
        self.attention_reduce(label, rows, route);
    }

    fn attention_params(&self, route: AttentionRoute) -> AttentionDecodeParams {
        let a = &self.config.attention;
        AttentionDecodeParams {
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            splits: route.splits as u32,
            split_keys: route.split_keys as u32,
            scale: (a.head_dim as f32).sqrt().recip(),
        }
    }

    /// The splits' sums into `scratch.mix`, times the gates.
    fn attention_reduce(&mut self, label: &str, rows: usize, route: AttentionRoute) {
        let (s, a) = (self.scratch, &self.config.attention);
        let queries = a.heads * a.head_dim;
        let reduce = match route.streamed {
            true => Dispatch::new("attention_reduce_many", format!("{label} splits"))
                .grid(a.heads, a.head_dim / 64, rows)
                .threads(256),
            false => Dispatch::new("attention_reduce", format!("{label} splits"))
                .grid(a.heads, rows, 1)
                .threads(a.head_dim),
        };
        self.pass.push(
            reduce
                .read(Self::rows(s.partial, rows * route.splits, queries, 4))
                .read(Self::rows(s.extent, rows * route.splits, a.heads * 2, 4))
                .read(Self::rows(s.q_gate, rows, 2 * queries, 2))
                .write(Self::rows(s.mix, rows, queries, 2))
                .params(&self.attention_params(route)),
        );
    }

    /// Logits of rows `[first, first + rows)` of the residual stream into `scratch.logits`.
    pub(super) fn logits(&mut self, first: usize, rows: usize) {
        let (hidden, vocab) = (self.config.hidden_size, self.config.vocab_size);
        let x = self.scratch.x.part(first * hidden * 4, rows * hidden * 4);
        let output = Output::float(self.weights.output, Self::rows(self.scratch.logits, rows, vocab, 4));
        self.gemv_norm("logits", x, self.weights.norm, false, rows, &[output]);
    }
}
