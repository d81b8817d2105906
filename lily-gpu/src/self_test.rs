//! Every kernel of prefill that multiplies through the tile vocabulary, on small inputs against plain loops. (Only NVIDIA GPUs, whose layout is
//! documented, multiply so in decode.)
//!
//! How a GPU spreads a tile over a simdgroup is documented nowhere, and the tensor operations' headers come with the system: so the kernels are
//! tried where they run, with all the forms and tiles that the policy picks.

use half::bf16;
use lily_model::{Bytes, Encoding, FloatType, Matrix, ModelConfig};

use crate::device::{Device, Memory, Slice};
use crate::error::GpuError;
use crate::params::{AttentionPrefillParams, GemmParams, Params, StepState};
use crate::pass::{Dispatch, Pass};
use crate::policy::{self, ATTENTION_PREFILL_ROWS, Family, Tile, TileRoute};
use crate::switches::Switches;
use crate::weights::{Form, GpuMatrix, describe_encoding};

/// One kernel's test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The kernel.
    pub kernel: String,
    /// What is wrong with it; `None` where its results are right.
    pub problem: Option<String>,
}

/// Tries every kernel of prefill that uses the tile vocabulary.
pub fn tile_kernels(device: &mut impl Device) -> Vec<Check> {
    let cases = cases(device.family());
    check(device, cases)
}

fn check(device: &mut impl Device, cases: impl IntoIterator<Item = (String, Case)>) -> Vec<Check> {
    cases
        .into_iter()
        .map(|(kernel, case)| {
            let mut bench = Bench {
                device,
                buffers: Vec::new(),
            };
            let result = bench.run(&kernel, case);
            bench.clear();
            let problem = match result {
                Ok(problem) => problem,
                Err(error) => Some(error.to_string()),
            };
            Check { kernel, problem }
        })
        .collect()
}

/// What a kernel computes.
#[derive(Clone, Copy, Debug)]
enum Case {
    /// `y = x W^T`, or `silu(x W^T) * (x V^T)` with `pair`.
    Dense { form: Form, tile: Tile, pair: bool },
    /// The same for rows that chose experts.
    Grouped { form: Form, tile: Tile, pair: bool },
    /// Causal attention with heads of so many dimensions.
    Attention { dim: usize },
}

/// Every kernel that the policy picks for GPUs of a family, by name.
fn cases(family: Family) -> Vec<(String, Case)> {
    let mut cases: Vec<(String, Case)> = Vec::new();
    let mut add = |name: String, case| {
        if cases.iter().all(|(known, _)| *known != name) {
            cases.push((name, case));
        }
    };
    let forms = [Form::Q4, Form::Q8, Form::Bf16, Form::Any];
    for (form, k) in forms
        .into_iter()
        .flat_map(|form| [(form, COLUMNS), (form, WARPGROUP_COLUMNS)])
    {
        let shapes = [(1, 64), (17, 64), (512, 1024), (1024, 2048), (2048, 4096), (4096, 1024)];
        let dense = shapes.map(|(m, n)| policy::dense_tile(family, form, m, (n, k)));
        let narrow = Switches {
            wide_tiles: false,
            ..Switches::default()
        };
        let grouped = [
            (1, narrow),
            (1, Switches::default()),
            (20, Switches::default()),
            (100, Switches::default()),
        ]
        .map(|(load, switches)| {
            policy::grouped_tile(family, form, policy::grouped_rows(family, form, load, &switches), k)
        });
        for (pair, infix) in [(false, ""), (true, "_swiglu")] {
            for tile in dense {
                let name = format!("gemm{infix}_{}_{}", form.name(), tile.name());
                add(name, Case::Dense { form, tile, pair });
            }
            for tile in grouped {
                let name = format!("gemm_grouped{infix}_{}_{}", form.name(), tile.name());
                add(name, Case::Grouped { form, tile, pair });
            }
        }
    }
    for dim in [64, 128, 256] {
        if let Some(route) = policy::attention_prefill(family, &with_head_dim(dim)) {
            add(route.kernel, Case::Attention { dim });
        }
    }
    cases
}

fn with_head_dim(dim: usize) -> ModelConfig {
    let mut config = ModelConfig::qwen3_6_35b_a3b();
    config.attention.head_dim = dim;
    config
}

/// A device, and what a test holds there.
struct Bench<'a, D> {
    device: &'a mut D,
    buffers: Vec<Slice>,
}

/// Columns of the weights: more than are staged at once.
const COLUMNS: usize = 64;
/// The same where four simdgroups multiply together, which takes them by 128.
const WARPGROUP_COLUMNS: usize = 256;

/// Columns for the kernel with a tile.
fn columns(tile: Tile) -> usize {
    match tile.route {
        TileRoute::Warpgroups { .. } => WARPGROUP_COLUMNS,
        TileRoute::Staged | TileRoute::Streamed => COLUMNS,
    }
}

impl<D: Device> Bench<'_, D> {
    /// What is wrong with the kernel's results, if anything is.
    fn run(&mut self, kernel: &str, case: Case) -> Result<Option<String>, GpuError> {
        match case {
            Case::Dense { form, tile, pair } => self.dense(kernel, form, tile, pair),
            Case::Grouped { form, tile, pair } => self.grouped(kernel, form, tile, pair),
            Case::Attention { dim } => self.attention(kernel, dim),
        }
    }

    fn dense(&mut self, kernel: &str, form: Form, tile: Tile, pair: bool) -> Result<Option<String>, GpuError> {
        let (columns, k) = (if pair { tile.columns / 2 } else { tile.columns }, columns(tile));
        // a part of a second tile in both directions
        let (m, n) = (tile.rows + 3, columns + 5);
        let x = integers(m * k, 3);
        let (w, v) = (weights(form, 1, (n, k), 5), weights(form, 1, (n, k), 7));
        let (first, second) = (self.matrix(&w)?, self.matrix(&v)?);
        let y = self.empty(m * n * 4)?;
        let mut params = product_params(m, (n, k), &first, &second);
        params.tile_end[0] = n.div_ceil(columns) as u32;
        params.float_outputs = 1;
        let mut dispatch = Dispatch::new(kernel, "self-test");
        if !pair {
            dispatch = dispatch.constant(0, false);
        }
        dispatch = bind(dispatch.read(self.bf16s(&x)?), &first);
        dispatch = match pair {
            true => bind(dispatch, &second).write(y),
            false => (0..9).fold(dispatch, |dispatch, _| dispatch.unused()).write(y),
        };
        if !pair {
            dispatch = (0..3).fold(dispatch, |dispatch, _| dispatch.unused());
        }
        self.launch(
            dispatch
                .params(&params)
                .grid(n.div_ceil(columns), m.div_ceil(tile.rows), 1)
                .threads(tile.simdgroups * 32)
                .threadgroup_memory(tile.threadgroup_bytes()),
        )?;
        let sums = |matrix: &Matrix, row: usize, column: usize| product(matrix, 0, column, &x[row * k..]);
        let expected = (0..m * n).map(|at| {
            let (row, column) = (at / n, at % n);
            match pair {
                true => silu(sums(&w, row, column)) * sums(&v, row, column),
                false => sums(&w, row, column),
            }
        });
        // sums of small integers are exact
        match pair {
            true => Ok(compare(&self.read_bf16s(y, m * n)?, expected, 0.02, 1.0)),
            false => Ok(compare(&self.read_floats(y)?, expected, 0.0, 0.0)),
        }
    }

    fn grouped(&mut self, kernel: &str, form: Form, tile: Tile, pair: bool) -> Result<Option<String>, GpuError> {
        const EXPERTS: usize = 3;
        let (columns, k) = (if pair { tile.columns / 2 } else { tile.columns }, columns(tile));
        let n = columns + 5;
        // expert 0 fills a tile and begins another, expert 1 has no rows, expert 2 has two
        let loads = [tile.rows + 1, 0, 2];
        let m = loads.iter().sum::<usize>();
        let x = integers(m * k, 3);
        let (w, v) = (weights(form, EXPERTS, (n, k), 5), weights(form, EXPERTS, (n, k), 7));
        let (first, second) = (self.matrix(&w)?, self.matrix(&v)?);
        // an order that is no identity: neighbours change places
        let sorted: Vec<u32> = (0..m as u32)
            .map(|entry| if entry ^ 1 < m as u32 { entry ^ 1 } else { entry })
            .collect();
        let blocks = [
            [0, 0, tile.rows as u32],
            [0, tile.rows as u32, 1],
            [2, tile.rows as u32 + 1, 2],
        ];
        let y = self.empty(m * n * 2)?;
        let mut params = product_params(m, (n, k), &first, &second);
        params.row_divisor = 1;
        // as in a chunk: the pair gathers and writes in order, the single one reads in order and scatters
        let dispatch = Dispatch::new(kernel, "self-test")
            .constant(0, pair)
            .constant(1, !pair)
            .constant(2, false);
        let dispatch = bind(dispatch.read(self.bf16s(&x)?), &first);
        let dispatch = match pair {
            true => bind(dispatch, &second),
            false => dispatch.unused().unused().unused(),
        };
        let dispatch = dispatch
            .read(self.words(&sorted)?)
            .read(self.words(blocks.as_flattened())?)
            .read(self.words(&[blocks.len() as u32])?)
            .write(y)
            .params(&params)
            .grid(n.div_ceil(columns), blocks.len() + 1, 1)
            .threads(tile.simdgroups * 32)
            .threadgroup_memory(tile.threadgroup_bytes());
        self.launch(dispatch)?;
        let mut expected = vec![0.0; m * n];
        for (position, &entry) in sorted.iter().enumerate() {
            let expert = if position < loads[0] { 0 } else { 2 };
            let (source, target) = match pair {
                true => (entry as usize, position),
                false => (position, entry as usize),
            };
            for column in 0..n {
                let sum = |matrix: &Matrix| product(matrix, expert, column, &x[source * k..]);
                expected[target * n + column] = match pair {
                    true => silu(sum(&w)) * sum(&v),
                    false => sum(&w),
                };
            }
        }
        Ok(compare(&self.read_bf16s(y, m * n)?, expected, 0.02, 1.0))
    }

    fn attention(&mut self, kernel: &str, dim: usize) -> Result<Option<String>, GpuError> {
        const HEADS: usize = 4;
        let Some(route) = policy::attention_prefill(self.device.family(), &with_head_dim(dim)) else {
            return Ok(Some("the policy has no such kernel".into()));
        };
        // keys of more than one block, and more rows than a threadgroup takes
        let (rows, position) = (35, 30);
        let keys = position + rows;
        let scale = (dim as f32).sqrt().recip();
        let floats = |count, seed| integers(count, seed).into_iter().map(|v| v * 0.5).collect::<Vec<f32>>();
        let q = floats((rows * HEADS + ATTENTION_PREFILL_ROWS) * dim, 3);
        let (k, v, gate) = (
            floats(keys * dim, 5),
            floats(keys * dim, 7),
            floats(rows * HEADS * 2 * dim, 11),
        );
        let step = StepState {
            token: 0,
            position: position as u32,
            sampled: 0,
            failed: 0,
        };
        let params = AttentionPrefillParams {
            heads: HEADS as u32,
            kv_heads: 1,
            rows: rows as u32,
            scale,
        };
        let out = self.empty(rows * HEADS * dim * 2)?;
        let dispatch = Dispatch::new(kernel, "self-test")
            .read(self.bf16s(&q)?)
            .read(self.bf16s(&k)?)
            .read(self.bf16s(&v)?)
            .read(self.bf16s(&gate)?)
            .write(out)
            .read(self.bytes(&step.bytes())?)
            .params(&params)
            .grid((rows * HEADS).div_ceil(route.rows), 1, 1)
            .threads(route.threads)
            .threadgroup_memory(route.threadgroup_bytes);
        self.launch(dispatch)?;
        let mut expected = Vec::with_capacity(rows * HEADS * dim);
        for head in 0..rows * HEADS {
            let seen = position + head / HEADS + 1;
            let query = &q[head * dim..][..dim];
            let scores: Vec<f32> = (0..seen).map(|key| dot(query, &k[key * dim..]) * scale).collect();
            let largest = scores.iter().copied().fold(f32::MIN, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f32 = weights.iter().sum();
            for d in 0..dim {
                let value: f32 = weights.iter().enumerate().map(|(key, w)| w * v[key * dim + d]).sum();
                expected.push(value / sum / (1.0 + (-gate[(head * 2 + 1) * dim + d]).exp()));
            }
        }
        // probabilities are rounded to bfloat before they weigh the values
        Ok(compare(&self.read_bf16s(out, expected.len())?, expected, 0.02, 0.15))
    }

    fn launch(&mut self, dispatch: Dispatch) -> Result<(), GpuError> {
        let mut pass = Pass::new(false);
        pass.push(dispatch);
        let recording = self.device.record(&pass)?;
        let result = self.device.submit(recording);
        self.device.discard(recording);
        result.map(drop)
    }

    fn empty(&mut self, len: usize) -> Result<Slice, GpuError> {
        let buffer = self.device.allocate("self-test", len, Memory::Device)?;
        let slice = Slice { buffer, offset: 0, len };
        self.buffers.push(slice);
        Ok(slice)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<Slice, GpuError> {
        let slice = self.empty(bytes.len())?;
        self.device.write(slice, bytes)?;
        Ok(slice)
    }

    fn words(&mut self, words: &[u32]) -> Result<Slice, GpuError> {
        self.bytes(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn bf16s(&mut self, values: &[f32]) -> Result<Slice, GpuError> {
        self.bytes(&bf16_bytes(values))
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<GpuMatrix, GpuError> {
        let codes = self.bytes(&matrix.codes)?;
        let mut other = |bytes: &[u8]| match bytes {
            [] => Ok(codes),
            bytes => self.bytes(bytes),
        };
        Ok(GpuMatrix {
            count: matrix.count,
            rows: matrix.rows,
            cols: matrix.cols,
            form: crate::weights::form(matrix.encoding),
            encoding: describe_encoding(matrix.encoding),
            codes,
            scales: other(&matrix.scales)?,
            biases: other(&matrix.biases)?,
        })
    }

    fn read(&mut self, slice: Slice) -> Result<Vec<u8>, GpuError> {
        let mut bytes = vec![0; slice.len];
        self.device.read(slice, &mut bytes)?;
        Ok(bytes)
    }

    fn read_floats(&mut self, slice: Slice) -> Result<Vec<f32>, GpuError> {
        let bytes = self.read(slice)?;
        Ok(bytes
            .as_chunks()
            .0
            .iter()
            .map(|&word| f32::from_le_bytes(word))
            .collect())
    }

    /// The first `count` bfloats of a slice.
    fn read_bf16s(&mut self, slice: Slice, count: usize) -> Result<Vec<f32>, GpuError> {
        let bytes = self.read(slice.part(0, count * 2))?;
        let words = bytes.as_chunks().0.iter();
        Ok(words.map(|&word| bf16::from_le_bytes(word).to_f32()).collect())
    }

    fn clear(&mut self) {
        for slice in self.buffers.drain(..) {
            self.device.release(slice.buffer);
        }
    }
}

/// Of `m` rows times one matrix, or a pair, of `n` rows.
fn product_params(m: usize, (n, k): (usize, usize), first: &GpuMatrix, second: &GpuMatrix) -> GemmParams {
    let mut params = GemmParams {
        m: m as u32,
        k: k as u32,
        segments: 1,
        ..GemmParams::default()
    };
    (params.rows[0], params.y_stride[0]) = (n as u32, n as u32);
    (params.encoding[0], params.encoding[1]) = (first.encoding, second.encoding);
    params
}

fn bind(dispatch: Dispatch, matrix: &GpuMatrix) -> Dispatch {
    dispatch.read(matrix.codes).read(matrix.scales).read(matrix.biases)
}

/// Numbers in a fixed, irregular order.
fn numbers(count: usize, seed: u32) -> impl Iterator<Item = u8> {
    let mut state = seed;
    (0..count).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
}

/// Integers from -2 to 2.
fn integers(count: usize, seed: u32) -> Vec<f32> {
    numbers(count, seed).map(|byte| f32::from(byte % 5) - 2.0).collect()
}

fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect()
}

/// Matrices `[count, rows, cols]` of integers from -8 to 7, in an encoding of the form.
fn weights(form: Form, count: usize, (rows, cols): (usize, usize), seed: u32) -> Matrix {
    let elements = count * rows * cols;
    let affine = |bits, group_size, scale_type| Encoding::Affine {
        bits,
        group_size,
        scale_type,
    };
    let (encoding, codes, lowest) = match form {
        Form::Q4 => (
            affine(4, 64, FloatType::Bf16),
            numbers(elements / 2, seed).collect(),
            -8.0,
        ),
        Form::Q8 => (
            affine(8, 64, FloatType::Bf16),
            numbers(elements, seed).map(|byte| 120 + byte % 16).collect(),
            -128.0,
        ),
        Form::Any => (
            affine(4, 32, FloatType::F32),
            numbers(elements / 2, seed).collect(),
            -8.0,
        ),
        Form::Bf16 => {
            let values: Vec<f32> = numbers(elements, seed).map(|byte| f32::from(byte % 16) - 8.0).collect();
            (Encoding::Float(FloatType::Bf16), bf16_bytes(&values), 0.0)
        }
    };
    let repeated = |value: f32| -> Vec<u8> {
        match encoding {
            Encoding::Affine {
                group_size,
                scale_type: FloatType::F32,
                ..
            } => value.to_le_bytes().repeat(elements / group_size),
            Encoding::Affine { group_size, .. } => bf16_bytes(&[value]).repeat(elements / group_size),
            _ => Vec::new(),
        }
    };
    Matrix {
        name: "self-test".into(),
        count,
        rows,
        cols,
        encoding,
        codes: Bytes::from(codes),
        scales: Bytes::from(repeated(1.0)),
        biases: Bytes::from(repeated(lowest)),
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Row `row` of matrix `index` times the start of `x`.
fn product(matrix: &Matrix, index: usize, row: usize, x: &[f32]) -> f32 {
    let mut weights = vec![0.0; matrix.cols];
    matrix.dequantize_row(index, row, &mut weights);
    dot(&weights, x)
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// What to say of results that are further from `expected` than `tolerance` of it, or of `scale` where it is smaller.
fn compare(found: &[f32], expected: impl IntoIterator<Item = f32>, tolerance: f32, scale: f32) -> Option<String> {
    let allowed = |expected: f32| tolerance * expected.abs().max(scale);
    let off: Vec<(f32, f32)> = found
        .iter()
        .copied()
        .zip(expected)
        // what is not a number is off, too
        .filter(|&(found, expected)| found.is_nan() || (found - expected).abs() > allowed(expected))
        .collect();
    let (first_found, first_expected) = off.first()?;
    Some(format!(
        "{} of {} results are wrong: {first_found} where {first_expected} is right",
        off.len(),
        found.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::{EmulatorDevice, EmulatorOptions, TileBackend, kernel_sources};
    use shader_tool::{Library, Options, SourceFile};

    /// The kernels of prefill that use the tile vocabulary are just those that are tried: the policy picks all of them, and none is left out.
    #[test]
    fn every_kernel_with_tiles_is_tried() {
        let library = Library::build(&kernel_sources(), Options::default()).unwrap();
        let kernels = &library.manifest().kernels;
        let names = kernels.iter().map(|kernel| kernel.name.as_str());
        let mut expected: Vec<&str> = names
            .filter(|name| {
                ["gemm", "attention_prefill", "attention_warpgroup"]
                    .iter()
                    .any(|start| name.starts_with(start))
            })
            .collect();
        // less threadgroup memory than an H200 has, as on cards for desktops
        let small = Family::Nvidia {
            processors: 128,
            threadgroup_bytes: 101_376,
            warpgroups: false,
        };
        let cases = [
            cases(Family::Apple),
            cases(Family::H200),
            cases(Family::B200),
            cases(small),
        ]
        .concat();
        let mut found: Vec<&str> = cases.iter().map(|(name, _)| name.as_str()).collect();
        expected.sort_unstable();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, expected);
    }

    fn emulator(sources: &[SourceFile], tiles: TileBackend, family: Family) -> EmulatorDevice {
        let options = EmulatorOptions {
            tiles,
            family,
            ..EmulatorOptions::default()
        };
        EmulatorDevice::with_sources(sources, options).unwrap()
    }

    /// Right kernels pass: all of them by the vocabulary that the tests are for, some by the others.
    #[test]
    fn the_kernels_pass() {
        for (tiles, family, step) in [
            (TileBackend::Tensor, Family::Apple, 1),
            (TileBackend::Simdgroup, Family::Apple, 7),
            (TileBackend::Native, Family::H200, 3),
        ] {
            let mut device = emulator(&kernel_sources(), tiles, family);
            for check in check(&mut device, cases(family).into_iter().step_by(step)) {
                assert_eq!(check.problem, None, "{} by {tiles:?}", check.kernel);
            }
        }
    }

    /// A vocabulary that puts elements in the wrong places fails in kernels of every kind.
    #[test]
    fn a_wrong_layout_is_noticed() {
        let broken = |source: SourceFile| match source.name.as_str() {
            "include/tile.h" => {
                let right = "* 2 + (i & 1) + (i >> 2) * 8";
                let text = source.text.replace(right, "* 2 + 1 - (i & 1) + (i >> 2) * 8");
                assert_ne!(text, source.text);
                SourceFile::new(source.name, text)
            }
            _ => source,
        };
        let sources: Vec<SourceFile> = kernel_sources().into_iter().map(broken).collect();
        let mut device = emulator(&sources, TileBackend::Native, Family::Apple);
        let mut kinds = Vec::new();
        let first_of_a_kind = |(_, case): &(String, Case)| {
            let kind = match *case {
                Case::Dense { pair, .. } => (0, pair),
                Case::Grouped { pair, .. } => (1, pair),
                Case::Attention { .. } => (2, false),
            };
            !kinds.contains(&kind) && {
                kinds.push(kind);
                true
            }
        };
        let checks = check(
            &mut device,
            cases(Family::Apple)
                .into_iter()
                .filter(first_of_a_kind)
                .collect::<Vec<_>>(),
        );
        assert_eq!(checks.len(), 5);
        for check in checks {
            assert!(check.problem.is_some(), "{}", check.kernel);
        }
    }
}
