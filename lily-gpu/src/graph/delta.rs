//! Gated DeltaNet after its input projections.

use crate::device::Slice;
use crate::graph::Graph;
use crate::params::DeltaParams;
use crate::pass::Dispatch;
use crate::policy;
use crate::weights::GpuDeltaNet;

impl Graph<'_> {
    fn delta_params(&self, rows: usize) -> DeltaParams {
        let d = &self.config.delta_net;
        DeltaParams {
            rows: rows as u32,
            key_heads: d.key_heads as u32,
            value_heads: d.value_heads as u32,
            key_dim: d.key_dim as u32,
            value_dim: d.value_dim as u32,
            taps: d.conv_kernel as u32,
            eps: self.config.rms_norm_eps,
        }
    }

    /// Bytes of one row of the convolution's raw input.
    pub(super) fn raw_bytes(&self) -> usize {
        self.config.delta_net.conv_channels() * 2
    }

    /// One token, its raw row already in the ring: everything up to the input of the output projection in one dispatch.
    /// `heads` names the kernel's head sizes.
    pub(super) fn delta_decode(&mut self, label: &str, w: &GpuDeltaNet, ring: Slice, state: Slice, heads: &str) {
        let (d, s) = (&self.config.delta_net, self.scratch);
        let values = d.value_heads * d.value_dim;
        let params = self.delta_params(1);
        self.pass.push(
            Dispatch::new(format!("delta_decode_{heads}"), format!("{label} recurrence"))
                .read(ring)
                .read(w.conv)
                .read(Self::rows(s.z, 1, values, 2))
                .read(Self::rows(s.b, 1, d.value_heads, 4))
                .read(Self::rows(s.a, 1, d.value_heads, 4))
                .read(w.a_log)
                .read(w.dt_bias)
                .read(w.norm)
                .update(state)
                .write(Self::rows(s.mix, 1, values, 2))
                .read(self.step)
                .params(&params)
                .grid(d.value_heads, 1, 1)
                .threads(4 * d.value_dim),
        );
    }

    /// A chunk of `rows` tokens, their raw rows in `scratch.raw`.
    pub(super) fn delta_chunk(&mut self, label: &str, w: &GpuDeltaNet, ring: Slice, state: Slice, rows: usize) {
        let (d, s) = (&self.config.delta_net, self.scratch);
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let raw = Self::rows(s.raw, rows, d.conv_channels(), 2);
        let (q, k) = (
            Self::rows(s.delta_q, rows, keys, 2),
            Self::rows(s.delta_k, rows, keys, 2),
        );
        let v = Self::rows(s.delta_v, rows, values, 2);
        let (decay, beta) = (
            Self::rows(s.decay, rows, d.value_heads, 4),
            Self::rows(s.beta, rows, d.value_heads, 4),
        );
        let o = Self::rows(s.delta_o, rows, values, 2);
        let params = self.delta_params(rows);
        let (conv, tokens) = policy::delta_conv_kernel(self.config);
        self.pass.push(
            Dispatch::new(conv, format!("{label} convolution"))
                .read(raw)
                .read(ring)
                .read(w.conv)
                .read(Self::rows(s.b, rows, d.value_heads, 4))
                .read(Self::rows(s.a, rows, d.value_heads, 4))
                .read(w.a_log)
                .read(w.dt_bias)
                .write(q)
                .write(k)
                .write(v)
                .write(decay)
                .write(beta)
                .read(self.step)
                .params(&params)
                .grid(2 * d.key_heads + d.value_heads, rows.div_ceil(tokens), 1)
                .threads(128),
        );
        self.pass.push(
            Dispatch::new("delta_ring", format!("{label} ring"))
                .read(raw)
                .update(ring)
                .read(self.step)
                .params(&params)
                .grid(d.conv_channels().div_ceil(256), d.conv_kernel, 1)
                .threads(256),
        );
        let heads = policy::delta_heads(self.config).filter(|_| self.switches.register_scan);
        let scan = match heads {
            Some(heads) => Dispatch::new(
                policy::delta_scan_kernel(self.model.family, heads),
                format!("{label} scan"),
            )
            .grid(d.value_dim / 32, d.value_heads, 1)
            .threads(128),
            None => Dispatch::new("delta_scan_general", format!("{label} scan"))
                .grid(d.value_dim, d.value_heads, 1)
                .threads(32),
        };
        self.pass.push(
            scan.read(q)
                .read(k)
                .read(v)
                .read(decay)
                .read(beta)
                .update(state)
                .write(o)
                .params(&params),
        );
        self.pass.push(
            Dispatch::new("delta_norm", format!("{label} gated norm"))
                .read(o)
                .read(Self::rows(s.z, rows, values, 2))
                .read(w.norm)
                .write(Self::rows(s.mix, rows, values, 2))
                .params(&params)
                .grid(d.value_heads, rows.div_ceil(4), 1)
                .threads(128),
        );
    }
}
