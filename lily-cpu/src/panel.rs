//! Panels: a few weight rows, made ready for products with many activation rows.
//!
//! There are two arithmetics. In f32, the rows are unpacked to f32 values, and one output is always the same chain of operations: eight
//! lanes, columns in order, then the sum of the lanes. With quantized activations ([`crate::quantize`]), a lane has a group: the
//! group's integer sum is exact, then `lane += scale * sum; lane += bias * group's sum of activations`, blocks of eight groups in order, then
//! the sum of the lanes. Either way the bits of an output do not depend on how many rows are multiplied at once.

use lily_model::{Encoding, FloatType, Matrix};

use crate::KernelSet;
use crate::aligned::Aligned;
use crate::dequantize::DequantizeRows;
use crate::quantize::{Layout, QuantizedRow, QuantizedRows, padded_cols, padded_groups, supports_group};
use crate::simd::{Kernel, LANES, Lanes};

/// Weight rows of a panel.
pub(crate) const PANEL_ROWS: usize = 16;
/// Activation rows of a tile.
pub(crate) const TILE_TOKENS: usize = 48;
/// Outputs of a tile, `[TILE_TOKENS, PANEL_ROWS]`.
pub(crate) type Tile = [f32; TILE_TOKENS * PANEL_ROWS];

/// The group size of a matrix that is multiplied in integers where its inputs are quantized.
pub(crate) fn integer_group_size(matrix: &Matrix) -> Option<usize> {
    match matrix.encoding {
        Encoding::Affine {
            bits: 4, group_size, ..
        } if supports_group(group_size) => Some(group_size),
        _ => None,
    }
}

/// Which rows of the activations take part in a product.
#[derive(Clone, Copy)]
pub(crate) enum Select<'a> {
    /// `count` rows from `first` on.
    Range { first: usize, count: usize },
    /// These rows, in this order.
    Rows(&'a [u32]),
}

/// Activations `[_, cols]`.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// Row after row.
    pub(crate) data: &'a [f32],
    /// Numbers of a row.
    pub(crate) cols: usize,
    /// The same rows quantized.
    pub(crate) quantized: Option<&'a QuantizedRows>,
    pub(crate) select: Select<'a>,
}

impl<'a> Inputs<'a> {
    /// The first `count` rows of `data`.
    pub(crate) fn first(count: usize, data: &'a [f32], cols: usize, quantized: Option<&'a QuantizedRows>) -> Self {
        Inputs {
            data,
            cols,
            quantized,
            select: Select::Range { first: 0, count },
        }
    }

    /// Rows of the product.
    pub(crate) fn rows(&self) -> usize {
        match self.select {
            Select::Range { count, .. } => count,
            Select::Rows(rows) => rows.len(),
        }
    }

    #[inline(always)]
    fn index(&self, row: usize) -> usize {
        match self.select {
            Select::Range { first, .. } => first + row,
            Select::Rows(rows) => rows[row] as usize,
        }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [f32] {
        let row = self.index(row);
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// The quantized rows, where the product with `matrix` is one of integers.
    fn integers_for(&self, matrix: &Matrix) -> Option<&'a QuantizedRows> {
        self.quantized
            .filter(|quantized| integer_group_size(matrix) == Some(quantized.group_size))
    }
}

/// Rows `first_row..first_row + rows` of matrix `index`, at most [`PANEL_ROWS`].
#[derive(Clone, Copy)]
pub(crate) struct PanelRows<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) index: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

impl<'a> PanelRows<'a> {
    /// The panels that cover `rows` rows from `first_row` on, or what there is of them.
    pub(crate) fn cover(
        matrix: &'a Matrix,
        index: usize,
        first_row: usize,
        rows: usize,
    ) -> impl Iterator<Item = PanelRows<'a>> {
        let end = matrix.rows.min(first_row + rows);
        (first_row..end).step_by(PANEL_ROWS).map(move |first_row| PanelRows {
            matrix,
            index,
            first_row,
            rows: PANEL_ROWS.min(end - first_row),
        })
    }
}

/// A thread's room for one panel.
pub(crate) struct Panel {
    /// f32 values `[PANEL_ROWS, cols]`.
    values: Aligned<f32>,
    /// Codes `[PANEL_ROWS, padded_cols]` in the order of [`Layout::Interleaved`].
    codes: Aligned<i16>,
    /// `[PANEL_ROWS, padded_groups]`; 0 beyond the last group.
    scales: Vec<f32>,
    /// As `scales`.
    biases: Vec<f32>,
}

impl Panel {
    /// Room for panels of matrices of up to `widest` columns, and of `widest_integer` (padded) columns that are multiplied in integers.
    pub(crate) fn new(widest: usize, widest_integer: usize) -> Panel {
        let groups = widest_integer / 64;
        Panel {
            values: Aligned::new(PANEL_ROWS * widest),
            codes: Aligned::new(PANEL_ROWS * widest_integer),
            scales: vec![0.0; PANEL_ROWS * groups],
            biases: vec![0.0; PANEL_ROWS * groups],
        }
    }

    /// Makes `rows` ready for products with `inputs`.
    pub(crate) fn load(&mut self, set: KernelSet, rows: PanelRows<'_>, inputs: &Inputs<'_>) {
        match inputs.integers_for(rows.matrix) {
            Some(quantized) if quantized.layout == Layout::Direct => {}
            Some(quantized) => set.run(InterleaveRows {
                rows,
                group_size: quantized.group_size,
                panel: self,
            }),
            None => set.run(DequantizeRows {
                matrix: rows.matrix,
                index: rows.index,
                first_row: rows.first_row,
                rows: rows.rows,
                out: &mut self.values,
            }),
        }
    }

    /// `tile[token * PANEL_ROWS + row]` becomes the product of activation row `first_token + token` and weight row `row`, for up to
    /// [`TILE_TOKENS`] rows. `rows` and `inputs` are those of the last [`Panel::load`].
    pub(crate) fn multiply(
        &self,
        set: KernelSet,
        rows: PanelRows<'_>,
        inputs: &Inputs<'_>,
        first_token: usize,
        tile: &mut Tile,
    ) -> usize {
        let tokens = TILE_TOKENS.min(inputs.rows() - first_token);
        match inputs.integers_for(rows.matrix) {
            Some(quantized) if quantized.layout == Layout::Direct => set.run(DirectTile {
                rows,
                quantized,
                inputs,
                first_token,
                tokens,
                tile,
            }),
            Some(quantized) => set.run(InterleavedTile {
                panel: self,
                rows: rows.rows,
                quantized,
                inputs,
                first_token,
                tokens,
                tile,
            }),
            None => set.run(FloatTile {
                values: &self.values[..rows.rows * inputs.cols],
                inputs,
                first_token,
                tokens,
                tile,
            }),
        }
        tokens
    }
}

struct FloatTile<'a> {
    values: &'a [f32],
    inputs: &'a Inputs<'a>,
    first_token: usize,
    tokens: usize,
    tile: &'a mut Tile,
}

impl Kernel for FloatTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let row = |token: usize| self.inputs.row(self.first_token + token);
        let mut token = 0;
        while self.tokens - token >= 3 {
            let x = [row(token), row(token + 1), row(token + 2)];
            float_rows::<V, 3>(self.values, x, &mut self.tile[token * PANEL_ROWS..]);
            token += 3;
        }
        for token in token..self.tokens {
            float_rows::<V, 1>(self.values, [row(token)], &mut self.tile[token * PANEL_ROWS..]);
        }
    }
}

#[inline(always)]
fn float_rows<V: Lanes, const T: usize>(values: &[f32], x: [&[f32]; T], out: &mut [f32]) {
    let cols = x[0].len();
    let mut row = 0;
    let mut put = |sums: &[[f32; T]]| {
        for sums in sums {
            for (token, sum) in sums.iter().enumerate() {
                out[token * PANEL_ROWS + row] = *sum;
            }
            row += 1;
        }
    };
    let fours = values.chunks_exact(4 * cols);
    let rest = fours.remainder();
    for four in fours {
        put(&dot_tile::<V, 4, T>(four, x));
    }
    for one in rest.chunks_exact(cols) {
        put(&dot_tile::<V, 1, T>(one, x));
    }
}

/// Dot products of `R` contiguous rows `w` with `T` rows `x`. `x` rows have the same length, a multiple of [`LANES`].
#[inline(always)]
pub(crate) fn dot_tile<V: Lanes, const R: usize, const T: usize>(w: &[f32], x: [&[f32]; T]) -> [[f32; T]; R] {
    let cols = x[0].len();
    assert!(cols.is_multiple_of(LANES) && w.len() == R * cols && x.iter().all(|x| x.len() == cols));
    let mut sums = [[V::zero(); T]; R];
    for at in (0..cols).step_by(LANES) {
        // SAFETY: `at + LANES` is at most `cols`, the length of every row.
        unsafe {
            let x: [V; T] = std::array::from_fn(|t| V::load(x[t].as_ptr().add(at)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let w = V::load(w.as_ptr().add(r * cols + at));
                for t in 0..T {
                    sums[t] = w.mul_add(x[t], sums[t]);
                }
            }
        }
    }
    let mut totals = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            totals[r][t] = sums[r][t].sum();
        }
    }
    totals
}

/// Eight scales (or biases) from group `first` on, 0 beyond the last.
#[inline(always)]
fn eight_scales<V: Lanes>(float: FloatType, scales: &[u8], first: usize) -> V {
    if float == FloatType::Bf16
        && let Some(eight) = scales.get(2 * first..2 * (first + LANES))
    {
        // SAFETY: the slice has eight numbers.
        return unsafe { V::load_bf16(eight.as_ptr()) };
    }
    let values = read_scales(float, scales, first);
    // SAFETY: eight numbers.
    unsafe { V::load(values.as_ptr()) }
}

/// As [`eight_scales`], for any format and the end of a row.
#[cold]
fn read_scales(float: FloatType, scales: &[u8], first: usize) -> [f32; LANES] {
    let mut values = [0.0; LANES];
    for (group, value) in (first..scales.len() / float.size()).zip(&mut values) {
        *value = float.read(scales, group);
    }
    values
}

fn scale_type(matrix: &Matrix) -> FloatType {
    match matrix.encoding {
        Encoding::Affine { scale_type, .. } => scale_type,
        _ => FloatType::F32,
    }
}

/// Unpacks rows of 4-bit codes into a panel.
struct InterleaveRows<'a> {
    rows: PanelRows<'a>,
    group_size: usize,
    panel: &'a mut Panel,
}

impl Kernel for InterleaveRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let PanelRows {
            matrix,
            index,
            first_row,
            rows,
        } = self.rows;
        let group_bytes = self.group_size / 2;
        let (padded, groups) = (
            padded_cols(matrix.cols, self.group_size),
            padded_groups(matrix.cols, self.group_size),
        );
        let scale_type = scale_type(matrix);
        for row in 0..rows {
            let (scales, biases) = (
                matrix.row_scales(index, first_row + row),
                matrix.row_biases(index, first_row + row),
            );
            let codes = matrix.row_codes(index, first_row + row);
            let to = &mut self.panel.codes[row * padded..(row + 1) * padded];
            let blocks = to
                .chunks_exact_mut(LANES * self.group_size)
                .zip(codes.chunks(LANES * group_bytes));
            for (block, (to, codes)) in blocks.enumerate() {
                let mut filled = [0u8; LANES * 64];
                let codes = if codes.len() == LANES * group_bytes {
                    codes
                } else {
                    filled[..codes.len()].copy_from_slice(codes);
                    &filled[..LANES * group_bytes]
                };
                let at = row * groups + block * LANES;
                let (to_scales, to_biases) = (
                    &mut self.panel.scales[at..at + LANES],
                    &mut self.panel.biases[at..at + LANES],
                );
                // SAFETY: `codes` has eight groups, `to` twice as many numbers as that has bytes, the scales eight numbers.
                unsafe {
                    V::interleave_groups(codes.as_ptr(), group_bytes, to.as_mut_ptr());
                    eight_scales::<V>(scale_type, scales, block * LANES).store(to_scales.as_mut_ptr());
                    eight_scales::<V>(scale_type, biases, block * LANES).store(to_biases.as_mut_ptr());
                }
            }
        }
    }
}

/// A tile of an interleaved panel.
struct InterleavedTile<'a> {
    panel: &'a Panel,
    rows: usize,
    quantized: &'a QuantizedRows,
    inputs: &'a Inputs<'a>,
    first_token: usize,
    tokens: usize,
    tile: &'a mut Tile,
}

impl Kernel for InterleavedTile<'_> {
    type Output = ();

    // Four weight rows stay in the nearest cache while all tokens pass by.
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (cols, group_size) = (self.quantized.cols, self.quantized.group_size);
        let (padded, groups) = (padded_cols(cols, group_size), padded_groups(cols, group_size));
        let token_row = |token: usize| self.quantized.row(self.inputs.index(self.first_token + token));
        let mut row = 0;
        while row < self.rows {
            let rows = if self.rows - row >= 4 { 4 } else { 1 };
            let weights = InterleavedWeights {
                codes: &self.panel.codes[row * padded..(row + rows) * padded],
                scales: &self.panel.scales[row * groups..(row + rows) * groups],
                biases: &self.panel.biases[row * groups..(row + rows) * groups],
                steps: group_size / 2,
            };
            let mut token = 0;
            while token < self.tokens {
                let out = &mut self.tile[token * PANEL_ROWS + row..];
                if self.tokens - token >= 2 {
                    let x = [token_row(token), token_row(token + 1)];
                    if rows == 4 {
                        weights.multiply::<V, 4, 2>(x, out);
                    } else {
                        weights.multiply::<V, 1, 2>(x, out);
                    }
                    token += 2;
                } else {
                    if rows == 4 {
                        weights.multiply::<V, 4, 1>([token_row(token)], out);
                    } else {
                        weights.multiply::<V, 1, 1>([token_row(token)], out);
                    }
                    token += 1;
                }
            }
            row += rows;
        }
    }
}

/// Some rows of an interleaved panel.
struct InterleavedWeights<'a> {
    codes: &'a [i16],
    scales: &'a [f32],
    biases: &'a [f32],
    /// Vectors of a block.
    steps: usize,
}

impl InterleavedWeights<'_> {
    #[inline(always)]
    fn multiply<V: Lanes, const R: usize, const T: usize>(&self, x: [QuantizedRow<'_>; T], out: &mut [f32]) {
        const STEP: usize = 2 * LANES;
        let (padded, groups) = (self.codes.len() / R, self.scales.len() / R);
        assert!(self.biases.len() == R * groups && groups.is_multiple_of(LANES));
        assert!(padded == groups / LANES * self.steps * STEP);
        assert!(
            x.iter()
                .all(|x| x.codes.len() == padded && x.scales.len() == groups && x.sums.len() == groups)
        );
        let mut lanes = [[V::zero(); T]; R];
        for block in 0..groups / LANES {
            let mut sums = [[V::zero_sums(); T]; R];
            let first = block * self.steps * STEP;
            for at in (first..first + self.steps * STEP).step_by(STEP) {
                // SAFETY: `at + STEP` is at most `padded`, the length of every row.
                unsafe {
                    let x: [V::Codes; T] = std::array::from_fn(|t| V::load_codes(x[t].codes.as_ptr().add(at)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let w = V::load_codes(self.codes.as_ptr().add(r * padded + at));
                        for t in 0..T {
                            sums[t] = V::dot_add(sums[t], w, x[t]);
                        }
                    }
                }
            }
            for r in 0..R {
                let at = block * LANES;
                // SAFETY: `at + LANES` is at most `groups`, the length of every row.
                unsafe {
                    let weights = Groups {
                        scale: V::load(self.scales.as_ptr().add(r * groups + at)),
                        sum: V::load(self.biases.as_ptr().add(r * groups + at)),
                    };
                    for t in 0..T {
                        lanes[r][t] = add_groups(lanes[r][t], sums[r][t], weights, Groups::of(&x[t], at));
                    }
                }
            }
        }
        if R == 4 && T == 2 {
            // The same as below, eight sums at once.
            let by_token = std::array::from_fn(|i| lanes[i % 4][i / 4]);
            let mut sums = [0.0; LANES];
            // SAFETY: room for eight numbers.
            unsafe { V::sums(by_token).store(sums.as_mut_ptr()) };
            for (t, sums) in sums.chunks_exact(4).enumerate() {
                out[t * PANEL_ROWS..t * PANEL_ROWS + 4].copy_from_slice(sums);
            }
            return;
        }
        for (r, lanes) in lanes.iter().enumerate() {
            for t in 0..T {
                out[t * PANEL_ROWS + r] = lanes[t].sum();
            }
        }
    }
}

/// What eight groups add to the lanes of an output.
#[inline(always)]
fn add_groups<V: Lanes>(lanes: V, sums: V::Sums, weights: Groups<V>, activations: Groups<V>) -> V {
    let products = V::from_sums(sums).mul(activations.scale);
    weights
        .sum
        .mul_add(activations.sum, products.mul_add(weights.scale, lanes))
}

/// Eight groups of a row of weights (scales and biases) or of activations (scales and sums).
#[derive(Clone, Copy)]
struct Groups<V> {
    scale: V,
    sum: V,
}

impl<V: Lanes> Groups<V> {
    /// The groups `first` to `first + 7` of a row of activations.
    ///
    /// # Safety
    /// The row has these groups.
    #[inline(always)]
    unsafe fn of(row: &QuantizedRow<'_>, first: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Groups {
                scale: V::load(row.scales.as_ptr().add(first)),
                sum: V::load(row.sums.as_ptr().add(first)),
            }
        }
    }
}

/// A tile straight from the weights' bytes, for few activation rows.
struct DirectTile<'a> {
    rows: PanelRows<'a>,
    quantized: &'a QuantizedRows,
    inputs: &'a Inputs<'a>,
    first_token: usize,
    tokens: usize,
    tile: &'a mut Tile,
}

impl Kernel for DirectTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let mut token = 0;
        while token < self.tokens {
            let row = |token: usize| self.quantized.row(self.inputs.index(self.first_token + token));
            let out = &mut self.tile[token * PANEL_ROWS..];
            if self.tokens - token >= 2 {
                direct_rows::<V, 2>(self.rows, self.quantized.group_size, [row(token), row(token + 1)], out);
                token += 2;
            } else {
                direct_rows::<V, 1>(self.rows, self.quantized.group_size, [row(token)], out);
                token += 1;
            }
        }
    }
}

#[inline(always)]
fn direct_rows<V: Lanes, const T: usize>(
    panel: PanelRows<'_>,
    group_size: usize,
    x: [QuantizedRow<'_>; T],
    out: &mut [f32],
) {
    let PanelRows {
        matrix,
        index,
        first_row,
        rows,
    } = panel;
    // Looked up once: a row of 512 columns takes less time than finding its slices.
    let (row_bytes, scale_bytes) = (matrix.row_bytes(), matrix.row_scales(0, 0).len());
    let first = index * matrix.rows + first_row;
    let codes = &matrix.codes[first * row_bytes..(first + rows) * row_bytes];
    let scales = &matrix.scales[first * scale_bytes..(first + rows) * scale_bytes];
    let biases = &matrix.biases[first * scale_bytes..(first + rows) * scale_bytes];
    let scale_type = scale_type(matrix);
    let slices = codes
        .chunks_exact(row_bytes)
        .zip(scales.chunks_exact(scale_bytes).zip(biases.chunks_exact(scale_bytes)));
    for (row, (codes, (scales, biases))) in slices.enumerate() {
        let weights = DirectRow {
            codes,
            scales,
            biases,
            scale_type,
            group_size,
        };
        weights.multiply::<V, T>(&x, &mut out[row..]);
    }
}

/// Columns of 32 bytes.
const CHUNK: usize = 64;

struct DirectRow<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
    scale_type: FloatType,
    group_size: usize,
}

impl DirectRow<'_> {
    #[inline(always)]
    fn multiply<V: Lanes, const T: usize>(&self, x: &[QuantizedRow<'_>; T], out: &mut [f32]) {
        let chunks = self.group_size / CHUNK;
        let groups = 2 * self.codes.len() / self.group_size;
        assert!(self.codes.len() == groups * chunks * CHUNK / 2);
        let padded = groups.next_multiple_of(LANES);
        assert!(
            x.iter().all(|x| x.codes.len() >= groups * self.group_size
                && x.scales.len() >= padded
                && x.sums.len() >= padded)
        );
        let mut lanes = [V::zero(); T];
        if chunks == 1 && padded == groups {
            for first in (0..groups).step_by(LANES) {
                // SAFETY: the groups from `first` to `first + 7` exist.
                unsafe { self.add_block::<V, T>(x, first, &mut lanes) };
            }
        } else {
            for first in (0..groups).step_by(LANES) {
                // SAFETY: group `first` exists.
                unsafe { self.add_some_groups::<V, T>(x, first, LANES.min(groups - first), &mut lanes) };
            }
        }
        for t in 0..T {
            out[t * PANEL_ROWS] = lanes[t].sum();
        }
    }

    /// Adds eight groups of 64 columns. Decode spends its time here: written out, so that the sums stay in registers.
    ///
    /// # Safety
    /// The row and the rows of `x` have the groups `first` to `first + 7`.
    #[inline(always)]
    unsafe fn add_block<V: Lanes, const T: usize>(&self, x: &[QuantizedRow<'_>; T], first: usize, lanes: &mut [V; T]) {
        // SAFETY: the caller's promise.
        let sums = unsafe {
            [
                self.group_sums::<V, T>(x, first),
                self.group_sums::<V, T>(x, first + 1),
                self.group_sums::<V, T>(x, first + 2),
                self.group_sums::<V, T>(x, first + 3),
                self.group_sums::<V, T>(x, first + 4),
                self.group_sums::<V, T>(x, first + 5),
                self.group_sums::<V, T>(x, first + 6),
                self.group_sums::<V, T>(x, first + 7),
            ]
        };
        let [a, b, c, d, e, f, g, h] = sums;
        let weights = self.groups::<V>(first);
        for t in 0..T {
            let totals = V::totals([a[t], b[t], c[t], d[t], e[t], f[t], g[t], h[t]]);
            // SAFETY: the caller's promise.
            lanes[t] = add_groups(lanes[t], totals, weights, unsafe { Groups::of(&x[t], first) });
        }
    }

    /// The sums of a group of 64 columns.
    ///
    /// # Safety
    /// The row and the rows of `x` have the group.
    #[inline(always)]
    unsafe fn group_sums<V: Lanes, const T: usize>(&self, x: &[QuantizedRow<'_>; T], group: usize) -> [V::Sums; T] {
        // SAFETY: the caller's promise.
        let weights = unsafe { V::load_nibbles(self.codes.as_ptr().add(group * CHUNK / 2)) };
        let mut sums = [V::zero_sums(); T];
        for t in 0..T {
            // SAFETY: the caller's promise.
            sums[t] = V::settle(unsafe { dot_chunk::<V>(sums[t], &weights, &x[t], group) });
        }
        sums
    }

    /// Adds `count` groups of any size, up to eight.
    ///
    /// # Safety
    /// The row and the rows of `x` have the groups `first` to `first + count - 1`.
    #[inline(always)]
    unsafe fn add_some_groups<V: Lanes, const T: usize>(
        &self,
        x: &[QuantizedRow<'_>; T],
        first: usize,
        count: usize,
        lanes: &mut [V; T],
    ) {
        let chunks = self.group_size / CHUNK;
        let mut sums = [[V::zero_sums(); T]; LANES];
        for (lane, sums) in sums.iter_mut().enumerate().take(count) {
            for chunk in (first + lane) * chunks..(first + lane + 1) * chunks {
                // SAFETY: the caller's promise.
                let weights = unsafe { V::load_nibbles(self.codes.as_ptr().add(chunk * CHUNK / 2)) };
                for (sums, x) in sums.iter_mut().zip(x) {
                    // SAFETY: the caller's promise.
                    *sums = unsafe { dot_chunk::<V>(*sums, &weights, x, chunk) };
                }
            }
        }
        let weights = self.groups::<V>(first);
        for t in 0..T {
            let totals = V::totals(sums.map(|sums| sums[t]));
            // SAFETY: rows of activations have whole blocks of groups.
            lanes[t] = add_groups(lanes[t], totals, weights, unsafe { Groups::of(&x[t], first) });
        }
    }

    #[inline(always)]
    fn groups<V: Lanes>(&self, first: usize) -> Groups<V> {
        Groups {
            scale: eight_scales::<V>(self.scale_type, self.scales, first),
            sum: eight_scales::<V>(self.scale_type, self.biases, first),
        }
    }
}

/// `sums` plus the products of chunk `chunk` of 64 columns.
///
/// # Safety
/// `x` has the chunk.
#[inline(always)]
unsafe fn dot_chunk<V: Lanes>(
    mut sums: V::Sums,
    weights: &[V::Codes; 4],
    x: &QuantizedRow<'_>,
    chunk: usize,
) -> V::Sums {
    for (vector, w) in weights.iter().enumerate() {
        // SAFETY: the caller's promise.
        let x = unsafe { V::load_codes(x.codes.as_ptr().add(chunk * CHUNK + 2 * LANES * vector)) };
        sums = V::dot_add(sums, *w, x);
    }
    sums
}

#[cfg(test)]
#[path = "panel_tests.rs"]
mod tests;
