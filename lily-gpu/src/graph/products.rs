//! Products with weight matrices: single rows (GEMV) and many (GEMM), several matrices to a dispatch.

use crate::device::Slice;
use crate::graph::Graph;
use crate::params::{DequantizeParams, Encoding, GemmParams, GemvParams};
use crate::pass::Dispatch;
use crate::policy;
use crate::weights::{Form, GpuMatrix};

/// One matrix of a product, and where its output goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    pub matrix: GpuMatrix,
    /// All of the output.
    pub y: Slice,
    /// Numbers between the outputs of two tokens.
    pub stride: usize,
    /// Output in f32, else bfloat.
    pub float: bool,
    /// 0, or the slots of a ring by position.
    pub ring: usize,
}

impl Output {
    pub(super) fn bfloat(matrix: GpuMatrix, y: Slice) -> Output {
        Output {
            matrix,
            y,
            stride: matrix.rows,
            float: false,
            ring: 0,
        }
    }

    pub(super) fn float(matrix: GpuMatrix, y: Slice) -> Output {
        Output {
            float: true,
            ..Output::bfloat(matrix, y)
        }
    }
}

/// Matrices of a dispatch.
const SEGMENTS: usize = 4;

impl Graph<'_> {
    /// Splits outputs into groups that one dispatch can make: the same kernels, at most four.
    fn groups(&self, outputs: &[Output], form: impl Fn(Form) -> Form) -> Vec<(Form, Vec<Output>)> {
        let mut groups: Vec<(Form, Vec<Output>)> = Vec::new();
        for &output in outputs {
            let form = form(output.matrix.form);
            let fits = |group: &&mut (Form, Vec<Output>)| {
                self.switches.merged_projections && group.0 == form && group.1.len() < SEGMENTS
            };
            match groups.iter_mut().find(fits) {
                Some((_, group)) => group.push(output),
                None => groups.push((form, vec![output])),
            }
        }
        groups
    }

    fn bind_weights(mut dispatch: Dispatch, outputs: &[Output], add: bool) -> Dispatch {
        for slot in 0..SEGMENTS {
            dispatch = match outputs.get(slot) {
                Some(o) => dispatch
                    .read(o.matrix.codes)
                    .read(o.matrix.scales)
                    .read(o.matrix.biases),
                None => dispatch.unused().unused().unused(),
            };
        }
        for slot in 0..SEGMENTS {
            dispatch = match outputs.get(slot) {
                Some(o) if add || o.ring != 0 => dispatch.update(o.y),
                Some(o) => dispatch.write(o.y),
                None => dispatch.unused(),
            };
        }
        dispatch
    }

    fn gemv_params(&self, outputs: &[Output], rows_per_block: usize, m: usize) -> GemvParams {
        let mut params = GemvParams {
            k: outputs[0].matrix.cols as u32,
            m: m as u32,
            eps: self.config.rms_norm_eps,
            segments: outputs.len() as u32,
            ..GemvParams::default()
        };
        let mut end = 0;
        for (slot, o) in outputs.iter().enumerate() {
            end += o.matrix.rows.div_ceil(rows_per_block);
            params.rows[slot] = o.matrix.rows as u32;
            params.block_end[slot] = end as u32;
            params.y_stride[slot] = o.stride as u32;
            params.ring[slot] = o.ring as u32;
            params.float_outputs |= u32::from(o.float) << slot;
            params.encoding[slot] = o.matrix.encoding;
        }
        params
    }

    /// `y = W * RMS(x)` for `m` rows of f32, or `y = W * x` where `normed`.
    pub(super) fn gemv_norm(&mut self, label: &str, x: Slice, norm: Slice, normed: bool, m: usize, outputs: &[Output]) {
        for (form, group) in self.groups(outputs, policy::gemv_form) {
            let widest = group.iter().map(|o| o.matrix.rows).max().unwrap_or(0);
            let gemv = policy::gemv_norm_kernel(
                self.model.family,
                form,
                (widest, group[0].matrix.cols),
                m,
                self.decoding,
            );
            let params = self.gemv_params(&group, gemv.rows, m);
            let blocks = params.block_end[group.len() - 1] as usize;
            let threadgroups = blocks.div_ceil(gemv.blocks).min(gemv.most.unwrap_or(usize::MAX));
            let dispatch = Dispatch::new(gemv.kernel, label).constant(1, normed);
            let dispatch = if gemv.adds {
                dispatch.constant(0, false)
            } else {
                dispatch
            };
            let dispatch = dispatch.read(x).read(norm);
            self.pass.push(
                Self::bind_weights(dispatch, &group, false)
                    .read(self.step)
                    .params(&params)
                    .grid(threadgroups, m.div_ceil(gemv.tokens), 1)
                    .threads(gemv.threads)
                    .threadgroup_memory(gemv.threadgroup_bytes),
            );
        }
    }

    /// `y = W * x`, or `y += W * x` with `add`, for one row of bfloat.
    pub(super) fn gemv(&mut self, label: &str, x: Slice, outputs: &[Output], add: bool) {
        for (form, group) in self.groups(outputs, policy::gemv_form) {
            let widest = group.iter().map(|o| o.matrix.rows).max().unwrap_or(0);
            if let (true, [o]) = (add, &group[..])
                && policy::streamed_output(self.model.family, form, o.matrix.cols)
            {
                let params = self.gemv_params(&group, 16, 1);
                self.pass.push(
                    Dispatch::new("gemv_streamed_4096", label)
                        .read(x)
                        .read(o.matrix.codes)
                        .read(o.matrix.scales)
                        .read(o.matrix.biases)
                        .update(o.y)
                        .params(&params)
                        .grid(o.matrix.rows.div_ceil(16), 1, 1)
                        .threads(policy::GEMV_SIMDGROUPS * 32),
                );
                continue;
            }
            let gemv = policy::gemv_kernel(self.model.family, form, widest);
            let params = self.gemv_params(&group, gemv.rows, 1);
            let blocks = params.block_end[group.len() - 1] as usize;
            let dispatch = Dispatch::new(gemv.kernel, label).constant(0, add).read(x);
            self.pass.push(
                Self::bind_weights(dispatch, &group, add)
                    .read(self.step)
                    .params(&params)
                    .grid(blocks.div_ceil(gemv.blocks), 1, 1)
                    .threads(policy::GEMV_SIMDGROUPS * 32),
            );
        }
    }

    /// Expands matrices to bfloat in a pass of their own, where `fused-dequant` is off; else gives them back as they are.
    pub(super) fn expanded(&mut self, label: &str, matrices: &[GpuMatrix]) -> Vec<GpuMatrix> {
        let Some(buffer) = self.model.expanded else {
            return matrices.to_vec();
        };
        let mut offset = 0;
        let mut out = Vec::with_capacity(matrices.len());
        for matrix in matrices {
            let rows = matrix.count * matrix.rows;
            let y = buffer.part(offset, rows * matrix.cols * 2);
            offset += y.len.next_multiple_of(256);
            let params = DequantizeParams {
                rows: rows as u32,
                k: matrix.cols as u32,
                encoding: matrix.encoding,
            };
            self.pass.push(
                Dispatch::new("dequantize", format!("{label} weights"))
                    .read(matrix.codes)
                    .read(matrix.scales)
                    .read(matrix.biases)
                    .write(y)
                    .params(&params)
                    .grid(rows, (matrix.cols / 4).div_ceil(256), 1)
                    .threads(256),
            );
            let encoding = Encoding {
                kind: 4,
                bits: 16,
                ..Encoding::default()
            };
            out.push(GpuMatrix {
                form: Form::Bf16,
                encoding,
                codes: y,
                scales: y,
                biases: y,
                ..*matrix
            });
        }
        out
    }

    /// `y = x * W^T`, or `y += x * W^T` with `add`, for a chunk of `m` rows of bfloat.
    pub(super) fn gemm(&mut self, label: &str, x: Slice, m: usize, outputs: &[Output], add: bool) {
        let matrices: Vec<GpuMatrix> = outputs.iter().map(|o| o.matrix).collect();
        let expanded = self.expanded(label, &matrices);
        let outputs: Vec<Output> = outputs
            .iter()
            .zip(expanded)
            .map(|(o, matrix)| Output { matrix, ..*o })
            .collect();
        for (form, group) in self.groups(&outputs, |form| form) {
            let widest = group.iter().map(|o| o.matrix.rows).max().unwrap_or(0);
            let tile = policy::dense_tile(self.model.family, form, m, (widest, group[0].matrix.cols));
            let mut params = GemmParams {
                m: m as u32,
                k: group[0].matrix.cols as u32,
                segments: group.len() as u32,
                ..GemmParams::default()
            };
            let mut end = 0;
            for (slot, o) in group.iter().enumerate() {
                end += o.matrix.rows.div_ceil(tile.columns);
                params.rows[slot] = o.matrix.rows as u32;
                params.tile_end[slot] = end as u32;
                params.y_stride[slot] = o.stride as u32;
                params.float_outputs |= u32::from(o.float) << slot;
                params.encoding[slot] = o.matrix.encoding;
            }
            let kernel = format!("gemm_{}_{}", form.name(), tile.name());
            let dispatch = Dispatch::new(kernel, label).constant(0, add).read(x);
            self.pass.push(
                Self::bind_weights(dispatch, &group, add)
                    .params(&params)
                    .grid(end, m.div_ceil(tile.rows), 1)
                    .threads(tile.simdgroups * 32)
                    .threadgroup_memory(tile.threadgroup_bytes()),
            );
        }
    }
}
