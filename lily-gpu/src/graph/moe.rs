//! The feed-forward part: of one token, and of a chunk.

use crate::device::Slice;
use crate::graph::Graph;
use crate::graph::products::Output;
use crate::params::{ExpertParams, GemmParams, MoeParams, SwigluParams};
use crate::pass::Dispatch;
use crate::policy::{self, GEMV_SIMDGROUPS};
use crate::weights::{Form, GpuLayer, GpuMatrix, GpuMlp, GpuRouted};

/// The kernels that read both matrices.
fn common_form(a: Form, b: Form) -> Form {
    if a == b { policy::gemv_form(a) } else { Form::Any }
}

impl Graph<'_> {
    fn moe_params(&self, rows: usize, tile_rows: usize) -> MoeParams {
        MoeParams {
            rows: rows as u32,
            experts: self.mlp.experts as u32,
            top_k: self.mlp.top_k as u32,
            hidden: self.config.hidden_size as u32,
            tile_rows: tile_rows as u32,
            shared_gate: u32::from(self.mlp.top_k > 0),
            shared: 1,
            max_blocks: self.mlp.max_blocks(rows, tile_rows) as u32,
        }
    }

    fn router(&mut self, label: &str, routed: &GpuRouted, x: Slice, norm: Slice, normed: bool, rows: usize) {
        let s = self.scratch;
        let outputs = [
            Output::float(routed.router, Self::rows(s.router_logits, rows, self.mlp.experts, 4)),
            Output::float(routed.shared_gate, Self::rows(s.shared_logits, rows, 1, 4)),
        ];
        self.gemv_norm(&format!("{label} router"), x, norm, normed, rows, &outputs);
    }

    fn choose_experts(&mut self, label: &str, rows: usize, count: bool) {
        let (s, mlp) = (self.scratch, self.mlp);
        let params = self.moe_params(rows, 16);
        let dispatch = Dispatch::new("moe_route", format!("{label} top-k"))
            .constant(0, count)
            .read(Self::rows(s.router_logits, rows, mlp.experts, 4))
            .write(Self::rows(s.route_experts, rows, mlp.top_k, 4))
            .write(Self::rows(s.route_logits, rows, mlp.top_k, 4));
        let dispatch = if count {
            dispatch.update(s.counts)
        } else {
            dispatch.unused()
        };
        self.pass
            .push(dispatch.params(&params).grid(rows.div_ceil(8), 1, 1).threads(256));
    }

    fn swiglu(&mut self, label: &str, gate_up: Slice, y: Slice, n: usize, rows: usize) {
        self.pass.push(
            Dispatch::new("swiglu", format!("{label} SwiGLU"))
                .read(Self::rows(gate_up, rows, 2 * n, 4))
                .write(Self::rows(y, rows, n, 2))
                .params(&SwigluParams { n: n as u32 })
                .grid(n.div_ceil(256), rows, 1)
                .threads(256),
        );
    }

    fn combine(&mut self, label: &str, y: Slice, shared: Slice, rows: usize) {
        let (s, hidden, top_k) = (self.scratch, self.config.hidden_size, self.mlp.top_k);
        let params = self.moe_params(rows, 16);
        let dispatch = Dispatch::new("moe_combine", format!("{label} combine"));
        let dispatch = match top_k {
            0 => dispatch.unused().unused().read(shared).unused(),
            _ => dispatch
                .read(Self::rows(y, rows, top_k * hidden, 2))
                .read(Self::rows(s.route_logits, rows, top_k, 4))
                .read(shared)
                .read(Self::rows(s.shared_logits, rows, 1, 4)),
        };
        self.pass.push(
            dispatch
                .update(Self::rows(s.x, rows, hidden, 4))
                .params(&params)
                .grid((hidden / 4).div_ceil(256), rows, 1)
                .threads(256),
        );
    }

    /// `x += mlp(RMS(x))` for one token.
    pub(super) fn mlp_decode(&mut self, label: &str, layer: &GpuLayer) {
        let (s, mlp, hidden) = (self.scratch, self.mlp, self.config.hidden_size);
        let normed = !self.switches.fused_norm;
        let mut x = Self::rows(s.x, 1, hidden, 4);
        if normed {
            self.rms_norm(&format!("{label} mlp"), layer.post_norm, 1, s.normed, true);
            x = s.normed;
        }
        if let Some(routed) = &layer.routed {
            self.router(label, routed, x, layer.post_norm, normed, 1);
            if !self.switches.fused_top_k {
                self.choose_experts(label, 1, false);
            }
        }
        let stride = mlp.slot_stride();
        let experts = layer.routed.map_or(layer.shared, |routed| routed.experts);
        let base = ExpertParams {
            hidden: hidden as u32,
            experts: mlp.experts as u32,
            top_k: mlp.top_k as u32,
            intermediate: mlp.intermediate as u32,
            shared_intermediate: mlp.shared as u32,
            slot_stride: stride as u32,
            first_slot: 0,
            slots: mlp.top_k as u32 + 1,
            eps: self.config.rms_norm_eps,
            shared_gate: u32::from(mlp.top_k > 0),
            gate: experts.gate.encoding,
            up: experts.up.encoding,
            down: experts.down.encoding,
            shared_gate_matrix: layer.shared.gate.encoding,
            shared_up: layer.shared.up.encoding,
            shared_down: layer.shared.down.encoding,
        };
        let routed_form = common_form(experts.gate.form, experts.up.form);
        let shared_form = common_form(layer.shared.gate.form, layer.shared.up.form);
        let top_k = mlp.top_k;
        let tiles = |form| policy::expert_tiles(self.model.family, form, self.gate_up_is_fused(normed));
        let merged = self.switches.merged_projections
            && routed_form == shared_form
            && (!tiles(routed_form) || self.streamed_gate_up());
        let parts = match top_k {
            0 => vec![(0, 1, shared_form)],
            _ if merged => vec![(0, top_k + 1, routed_form)],
            _ => vec![(0, top_k, routed_form), (top_k, 1, shared_form)],
        };
        for (first, slots, form) in parts {
            let params = ExpertParams {
                first_slot: first as u32,
                slots: slots as u32,
                ..base
            };
            self.expert_gate_up(
                label,
                (x, layer.post_norm, normed),
                &experts,
                &layer.shared,
                form,
                &params,
            );
        }
        if !self.switches.fused_swiglu {
            self.swiglu(label, s.gate_up, s.activations, stride, top_k + 1);
        }
        let form = if top_k == 0 {
            policy::gemv_form(layer.shared.down.form)
        } else {
            common_form(experts.down.form, layer.shared.down.form)
        };
        self.expert_down(label, &experts.down, &layer.shared.down, form, &base);
    }

    /// Whether choice, norm and SwiGLU are all parts of the product of gate and up.
    fn gate_up_is_fused(&self, normed: bool) -> bool {
        self.switches.fused_top_k && self.switches.fused_swiglu && !normed
    }

    fn streamed_gate_up(&self) -> bool {
        policy::streamed_gate_up(self.model.family, self.config.hidden_size, self.mlp.experts)
    }

    fn expert_gate_up(
        &mut self,
        label: &str,
        (x, norm, normed): (Slice, Slice, bool),
        experts: &GpuMlp,
        shared: &GpuMlp,
        form: Form,
        params: &ExpertParams,
    ) {
        let (s, switches) = (self.scratch, self.switches);
        let (first, slots) = (params.first_slot as usize, params.slots as usize);
        let with_shared = first + slots > params.top_k as usize;
        let widest = match (slots > usize::from(with_shared), with_shared) {
            (true, true) => params.slot_stride,
            (true, false) => params.intermediate,
            _ => params.shared_intermediate,
        } as usize;
        let label = format!("{label} gate and up");
        let (dispatch, rows) = match policy::expert_tiles(self.model.family, form, self.gate_up_is_fused(normed)) {
            true if self.streamed_gate_up() => (
                Dispatch::new("expert_gate_up_streamed_2048", label).threadgroup_memory(policy::GATE_UP_STREAMED_BYTES),
                policy::EXPERT_TILE_ROWS,
            ),
            true => (Dispatch::new("expert_gate_up_tiles", label), policy::EXPERT_TILE_ROWS),
            false => {
                let rows = policy::gate_up_rows(form);
                let dispatch = Dispatch::new(format!("expert_gate_up_{}_r{rows}", form.name()), label)
                    .constant(0, !switches.fused_top_k)
                    .constant(1, !switches.fused_swiglu)
                    .constant(3, normed);
                (dispatch, rows * GEMV_SIMDGROUPS)
            }
        };
        let mut dispatch = dispatch.read(x).read(norm);
        let top_k = params.top_k as usize;
        dispatch = if first < top_k {
            dispatch.read(Self::rows(s.router_logits, 1, self.mlp.experts, 4))
        } else {
            dispatch.unused()
        };
        for matrix in [experts.gate, experts.up, shared.gate, shared.up] {
            dispatch = dispatch.read(matrix.codes).read(matrix.scales).read(matrix.biases);
        }
        // a dispatch of the shared expert alone does not touch the route
        dispatch = match first < top_k {
            true => dispatch
                .update(Self::rows(s.route_experts, 1, top_k, 4))
                .update(Self::rows(s.route_logits, 1, top_k, 4)),
            false => dispatch.unused().unused(),
        };
        let (out, width) = match switches.fused_swiglu {
            true => (s.activations, params.slot_stride as usize * 2),
            false => (s.gate_up, params.slot_stride as usize * 2 * 4),
        };
        self.pass.push(
            dispatch
                .write(out.part(first * width, slots * width))
                .params(params)
                .grid(widest.div_ceil(rows), slots, 1)
                .threads(GEMV_SIMDGROUPS * 32),
        );
    }

    fn expert_down(&mut self, label: &str, down: &GpuMatrix, shared: &GpuMatrix, form: Form, params: &ExpertParams) {
        let (s, hidden) = (self.scratch, self.config.hidden_size);
        let (top_k, separate) = (params.top_k as usize, !self.switches.fused_combine);
        let slots = top_k + 1;
        let (dispatch, rows) = match policy::expert_tiles(self.model.family, form, !separate) {
            true => (
                Dispatch::new("expert_down_tiles", format!("{label} down")),
                policy::EXPERT_TILE_ROWS,
            ),
            false => {
                let rows = policy::down_rows(form);
                let kernel = format!("expert_down_{}_r{rows}", form.name());
                let dispatch = Dispatch::new(kernel, format!("{label} down")).constant(2, separate);
                (dispatch, rows * GEMV_SIMDGROUPS)
            }
        };
        let mut dispatch = dispatch.read(Self::rows(s.activations, slots, params.slot_stride as usize, 2));
        dispatch = match top_k {
            0 => dispatch.unused().unused().unused(),
            _ => dispatch
                .read(Self::rows(s.route_experts, 1, top_k, 4))
                .read(Self::rows(s.route_logits, 1, top_k, 4))
                .read(Self::rows(s.shared_logits, 1, 1, 4)),
        };
        for matrix in [down, shared] {
            dispatch = dispatch.read(matrix.codes).read(matrix.scales).read(matrix.biases);
        }
        let y = Self::rows(s.y, slots, hidden, 2);
        dispatch = match separate {
            true => dispatch.unused().write(y),
            false => dispatch.update(Self::rows(s.x, 1, hidden, 4)).unused(),
        };
        self.pass.push(
            dispatch
                .params(params)
                .grid(hidden.div_ceil(rows), if separate { slots } else { 1 }, 1)
                .threads(GEMV_SIMDGROUPS * 32),
        );
        if separate {
            self.combine(label, y, y.part(top_k * hidden * 2, hidden * 2), 1);
        }
    }

    /// Logits of the experts for a chunk; what follows is [`Graph::mlp_chunk`].
    pub(super) fn route_chunk(&mut self, label: &str, layer: &GpuLayer, rows: usize) {
        let s = self.scratch;
        self.rms_norm(&format!("{label} mlp"), layer.post_norm, rows, s.n, false);
        if let Some(routed) = &layer.routed {
            let x = Self::rows(s.x, rows, self.config.hidden_size, 4);
            self.router(label, routed, x, layer.post_norm, false, rows);
        }
    }

    /// Rows of a tile of a layer's grouped products.
    pub(super) fn tile_rows(&self, routed: &GpuRouted, rows: usize) -> usize {
        let load = rows * self.mlp.top_k / self.mlp.experts;
        let tile = |m: &GpuMatrix| {
            let form = if self.model.expanded.is_some() {
                Form::Bf16
            } else {
                m.form
            };
            policy::grouped_rows(self.model.family, form, load, self.switches)
        };
        let (gate, down) = (tile(&routed.experts.gate), tile(&routed.experts.down));
        // one block map serves both products; every form has a tile of 32 rows
        if gate == down { gate } else { 32 }
    }

    /// Sorts a chunk's (token, slot) entries by expert, on the GPU.
    pub(super) fn sort_chunk(&mut self, label: &str, routed: &GpuRouted, rows: usize) {
        let (s, mlp) = (self.scratch, self.mlp);
        let params = self.moe_params(rows, self.tile_rows(routed, rows));
        let entries = rows * mlp.top_k;
        self.choose_experts(label, rows, true);
        self.pass.push(
            Dispatch::new("moe_offsets", format!("{label} offsets"))
                .update(s.counts)
                .write(s.cursors)
                .write(s.blocks)
                .write(s.block_count)
                .params(&params)
                .threads(512),
        );
        self.pass.push(
            Dispatch::new("moe_scatter", format!("{label} scatter"))
                .read(Self::rows(s.route_experts, rows, mlp.top_k, 4))
                .update(s.cursors)
                .write(Self::rows(s.sorted, rows, mlp.top_k, 4))
                .params(&params)
                .grid(entries.div_ceil(256), 1, 1)
                .threads(256),
        );
    }

    /// `x += mlp(RMS(x))` for a chunk whose norm, routing and sorting are done.
    pub(super) fn mlp_chunk(&mut self, label: &str, layer: &GpuLayer, rows: usize) {
        let (s, mlp, hidden) = (self.scratch, self.mlp, self.config.hidden_size);
        let n = Self::rows(s.n, rows, hidden, 2);
        if let Some(routed) = &layer.routed {
            let tile_rows = self.tile_rows(routed, rows);
            self.grouped_gate_up(label, &routed.experts, n, rows, tile_rows);
            let x = Self::rows(s.activations, rows, mlp.top_k * mlp.intermediate, 2);
            let y = Self::rows(s.y, rows, mlp.top_k * hidden, 2);
            let down = self.expanded(label, &[routed.experts.down])[0];
            self.grouped(
                &format!("{label} down"),
                down,
                None,
                x,
                y,
                hidden,
                (rows, tile_rows),
                (false, true, false),
            );
        }
        self.shared_chunk(label, &layer.shared, n, rows);
        self.combine(label, s.y, Self::rows(s.shared_y, rows, hidden, 2), rows);
    }

    fn grouped_gate_up(&mut self, label: &str, experts: &GpuMlp, n: Slice, rows: usize, tile_rows: usize) {
        let (s, mlp) = (self.scratch, self.mlp);
        let expanded = self.expanded(label, &[experts.gate, experts.up]);
        let (gate, up) = (expanded[0], expanded[1]);
        let width = mlp.intermediate;
        let activations = Self::rows(s.activations, rows, mlp.top_k * width, 2);
        let label = format!("{label} gate and up");
        if self.switches.fused_swiglu && gate.form == up.form {
            self.grouped(
                &label,
                gate,
                Some(up),
                n,
                activations,
                width,
                (rows, tile_rows),
                (true, false, false),
            );
            return;
        }
        let entries = rows * mlp.top_k;
        let both = Self::rows(s.gate_up, entries, 2 * width, 4);
        let how = (true, false, true);
        self.grouped(&label, gate, None, n, both, 2 * width, (rows, tile_rows), how);
        let up_half = both.part(4 * width, both.len - 4 * width);
        self.grouped(&label, up, None, n, up_half, 2 * width, (rows, tile_rows), how);
        self.swiglu(&label, both, activations, width, entries);
    }

    /// One grouped product. `gather`: input rows are tokens; `scatter`: output rows are entries; `float`: they are f32, else bfloat.
    #[allow(clippy::too_many_arguments)]
    fn grouped(
        &mut self,
        label: &str,
        matrix: GpuMatrix,
        up: Option<GpuMatrix>,
        x: Slice,
        y: Slice,
        stride: usize,
        (rows, tile_rows): (usize, usize),
        (gather, scatter, float): (bool, bool, bool),
    ) {
        let (s, mlp) = (self.scratch, self.mlp);
        let tile = policy::grouped_tile(self.model.family, matrix.form, tile_rows, matrix.cols);
        let mut params = GemmParams {
            m: rows as u32,
            k: matrix.cols as u32,
            segments: 1,
            row_divisor: mlp.top_k as u32,
            ..GemmParams::default()
        };
        params.rows[0] = matrix.rows as u32;
        params.y_stride[0] = stride as u32;
        params.encoding[0] = matrix.encoding;
        let pair = if up.is_some() { "_swiglu" } else { "" };
        let kernel = format!("gemm_grouped{pair}_{}_{}", matrix.form.name(), tile.name());
        let mut dispatch = Dispatch::new(kernel, label)
            .constant(0, gather)
            .constant(1, scatter)
            .constant(2, float)
            .read(x)
            .read(matrix.codes)
            .read(matrix.scales)
            .read(matrix.biases);
        dispatch = match up {
            Some(up) => {
                params.encoding[1] = up.encoding;
                dispatch.read(up.codes).read(up.scales).read(up.biases)
            }
            None => dispatch.unused().unused().unused(),
        };
        let columns = if up.is_some() { tile.columns / 2 } else { tile.columns };
        self.pass.push(
            dispatch
                .read(Self::rows(s.sorted, rows, mlp.top_k, 4))
                .read(s.blocks)
                .read(s.block_count)
                .write(y)
                .params(&params)
                .grid(matrix.rows.div_ceil(columns), mlp.max_blocks(rows, tile_rows), 1)
                .threads(tile.simdgroups * 32)
                .threadgroup_memory(tile.threadgroup_bytes()),
        );
    }

    fn shared_chunk(&mut self, label: &str, mlp: &GpuMlp, n: Slice, rows: usize) {
        let (s, hidden, width) = (self.scratch, self.config.hidden_size, self.mlp.shared);
        let label = format!("{label} shared");
        let activations = Self::rows(s.shared_activations, rows, width, 2);
        if self.switches.fused_swiglu && mlp.gate.form == mlp.up.form {
            let expanded = self.expanded(&label, &[mlp.gate, mlp.up]);
            self.gemm_swiglu(&label, n, rows, expanded[0], expanded[1], activations);
        } else {
            let both = Self::rows(s.shared_gate_up, rows, 2 * width, 4);
            let gate = Output {
                stride: 2 * width,
                ..Output::float(mlp.gate, both)
            };
            let up = Output {
                stride: 2 * width,
                ..Output::float(mlp.up, both.part(4 * width, both.len - 4 * width))
            };
            // two dispatches, since their outputs interleave
            self.gemm(&label, n, rows, &[gate], false);
            self.gemm(&label, n, rows, &[up], false);
            self.swiglu(&label, both, activations, width, rows);
        }
        let y = Output::bfloat(mlp.down, Self::rows(s.shared_y, rows, hidden, 2));
        self.gemm(&label, activations, rows, &[y], false);
    }

    fn gemm_swiglu(&mut self, label: &str, x: Slice, m: usize, gate: GpuMatrix, up: GpuMatrix, y: Slice) {
        let tile = policy::dense_tile(self.model.family, gate.form, m, (gate.rows * 2, gate.cols));
        let mut params = GemmParams {
            m: m as u32,
            k: gate.cols as u32,
            segments: 1,
            ..GemmParams::default()
        };
        params.rows[0] = gate.rows as u32;
        params.y_stride[0] = gate.rows as u32;
        params.encoding[0] = gate.encoding;
        params.encoding[1] = up.encoding;
        let kernel = format!("gemm_swiglu_{}_{}", gate.form.name(), tile.name());
        let mut dispatch = Dispatch::new(kernel, format!("{label} gate and up")).read(x);
        for matrix in [gate, up] {
            dispatch = dispatch.read(matrix.codes).read(matrix.scales).read(matrix.biases);
        }
        self.pass.push(
            dispatch
                .write(y)
                .params(&params)
                .grid(gate.rows.div_ceil(tile.columns / 2), m.div_ceil(tile.rows), 1)
                .threads(tile.simdgroups * 32)
                .threadgroup_memory(tile.threadgroup_bytes()),
        );
    }
}
