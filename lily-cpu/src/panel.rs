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
use crate::simd::rows::{One, Rows};
use crate::simd::{CACHE_LINE, Kernel, LANES, Lanes};

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

/// A row of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) index: usize,
    pub(crate) row: usize,
}

/// Rows `first_row..first_row + rows` of matrix `index`, at most [`PANEL_ROWS`].
#[derive(Clone, Copy)]
pub(crate) struct PanelRows<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) index: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// The row at which the thread most likely leaves the matrix, and where it goes on from there.
    pub(crate) leaves_at: usize,
    pub(crate) next: Option<Place<'a>>,
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
            leaves_at: matrix.rows,
            next: None,
        })
    }

    /// The same rows of a thread that leaves the matrix at row `leaves_at` for `next`.
    pub(crate) fn before(self, leaves_at: usize, next: Option<Place<'a>>) -> Self {
        PanelRows {
            leaves_at,
            next,
            ..self
        }
    }
}

/// A thread's room for one panel.
pub(crate) struct Panel {
    /// f32 values `[PANEL_ROWS, cols]`.
    values: Aligned<f32>,
    /// Codes `[PANEL_ROWS / ROWS, padded_cols / 16, ROWS, 16]` in the order of [`Layout::Interleaved`], where a vector has [`Rows::ROWS`] rows.
    codes: Aligned<i16>,
    /// `[PANEL_ROWS / ROWS, padded_groups / 8, ROWS, 8]`; 0 beyond the last group.
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
            None if float_direct(rows.matrix, inputs) => {}
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
            None if float_direct(rows.matrix, inputs) => set.run(DirectFloatTile {
                rows,
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

/// Whether products in f32 are made straight from the weights' bytes: for few rows, and codes that vectors are quickly made of.
fn float_direct(matrix: &Matrix, inputs: &Inputs<'_>) -> bool {
    let quick = matches!(matrix.encoding, Encoding::Affine { bits: 4 | 8, .. });
    quick && Layout::for_rows(inputs.rows()) == Layout::Direct
}

/// A tile straight from the weights' bytes: the operations of [`FloatTile`] on the values of [`DequantizeRows`], in the same order.
struct DirectFloatTile<'a> {
    rows: PanelRows<'a>,
    inputs: &'a Inputs<'a>,
    first_token: usize,
    tokens: usize,
    tile: &'a mut Tile,
}

impl Kernel for DirectFloatTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let PanelRows {
            matrix,
            index,
            first_row,
            rows,
            ..
        } = self.rows;
        for token in 0..self.tokens {
            let x = self.inputs.row(self.first_token + token);
            let out = &mut self.tile[token * PANEL_ROWS..][..rows];
            for (at, out) in (0..rows).step_by(4).zip(out.chunks_mut(4)) {
                let first = index * matrix.rows + first_row + at;
                match (out.len(), matrix.encoding.bits()) {
                    (4, 4) => out.copy_from_slice(&direct_floats::<V, 4, 4>(matrix, first, x)),
                    (4, _) => out.copy_from_slice(&direct_floats::<V, 4, 8>(matrix, first, x)),
                    (_, 4) => single_rows(out, |row| direct_floats::<V, 1, 4>(matrix, first + row, x)),
                    (_, _) => single_rows(out, |row| direct_floats::<V, 1, 8>(matrix, first + row, x)),
                }
            }
        }
    }
}

#[inline(always)]
fn single_rows(out: &mut [f32], product: impl Fn(usize) -> [f32; 1]) {
    for (row, out) in out.iter_mut().enumerate() {
        [*out] = product(row);
    }
}

/// Products with `x` of `R` rows of `BITS`-bit codes (4 or 8), from row `first` on, all matrices counted.
#[inline(always)]
fn direct_floats<V: Lanes, const R: usize, const BITS: usize>(matrix: &Matrix, first: usize, x: &[f32]) -> [f32; R] {
    let (row_bytes, group_size) = (matrix.row_bytes(), matrix.encoding.group_size().unwrap_or(x.len()));
    let (groups, scale_type) = (x.len() / group_size, scale_type(matrix));
    let codes = &matrix.codes[first * row_bytes..(first + R) * row_bytes];
    let (all_scales, all_biases) = (&matrix.scales[..], &matrix.biases[..]);
    assert!(row_bytes * 8 == x.len() * BITS && x.len() == groups * group_size && group_size.is_multiple_of(LANES));
    let mut sums = [V::zero(); R];
    for (group, x) in x.chunks_exact(group_size).enumerate() {
        let (mut scales, mut biases) = ([V::zero(); R], [V::zero(); R]);
        for r in 0..R {
            let scale = (first + r) * groups + group;
            scales[r] = V::splat(scale_type.read(all_scales, scale));
            biases[r] = V::splat(scale_type.read(all_biases, scale));
            // The rows that come next.
            let ahead = (r + R) * row_bytes + group * group_size * BITS / 8;
            V::prefetch(codes.as_ptr().wrapping_add(ahead));
        }
        for at in (0..group_size).step_by(LANES) {
            // SAFETY: `x` has `group_size` numbers, a multiple of eight, and each row as many codes for each group.
            unsafe {
                let x = V::load(x.as_ptr().add(at));
                for r in 0..R {
                    let from = codes.as_ptr().add(r * row_bytes + (group * group_size + at) * BITS / 8);
                    let code = if BITS == 4 {
                        V::from_u4(u32::from_le_bytes(from.cast::<[u8; 4]>().read()))
                    } else {
                        V::from_u8(u64::from_le_bytes(from.cast::<[u8; 8]>().read()))
                    };
                    sums[r] = code.mul_add(scales[r], biases[r]).mul_add(x, sums[r]);
                }
            }
        }
    }
    let mut totals = [0.0; R];
    for r in 0..R {
        totals[r] = sums[r].sum();
    }
    totals
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

/// The scales (or biases) of `count` groups, up to eight, and 0 beyond. `scales` starts with them and may go on.
#[inline(always)]
fn some_scales<V: Lanes>(float: FloatType, scales: &[u8], count: usize) -> V {
    if float == FloatType::Bf16 && scales.len() >= 2 * LANES {
        // SAFETY: the slice has eight numbers.
        let eight = unsafe { V::load_bf16(scales.as_ptr()) };
        return if count == LANES { eight } else { eight.first(count) };
    }
    let values = read_scales(float, scales, count);
    // SAFETY: eight numbers.
    unsafe { V::load(values.as_ptr()) }
}

/// As [`some_scales`], for any format and the end of a matrix.
#[cold]
fn read_scales(float: FloatType, scales: &[u8], count: usize) -> [f32; LANES] {
    let mut values = [0.0; LANES];
    for (group, value) in values.iter_mut().enumerate().take(count) {
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
            ..
        } = self.rows;
        let group_bytes = self.group_size / 2;
        let (padded, groups) = (
            padded_cols(matrix.cols, self.group_size),
            padded_groups(matrix.cols, self.group_size),
        );
        let scale_type = scale_type(matrix);
        let side_by_side = V::Rows::ROWS;
        // Numbers from one step of a row to the next, from block to block, and the same of scales.
        let stride = 2 * LANES * side_by_side;
        let (block_codes, block_scales) = (side_by_side * LANES * self.group_size, side_by_side * LANES);
        let scale_bytes = matrix.row_scales(0, 0).len();
        for row in 0..rows {
            let first_scale = (index * matrix.rows + first_row + row) * scale_bytes;
            let (scales, biases) = (&matrix.scales[first_scale..], &matrix.biases[first_scale..]);
            let codes = matrix.row_codes(index, first_row + row);
            let (bundle, place) = (row / side_by_side, row % side_by_side);
            let to = &mut self.panel.codes[bundle * side_by_side * padded..(bundle + 1) * side_by_side * padded];
            let blocks = to.chunks_exact_mut(block_codes).zip(codes.chunks(LANES * group_bytes));
            for (block, (to, codes)) in blocks.enumerate() {
                let mut filled = [0u8; LANES * 64];
                let codes = if codes.len() == LANES * group_bytes {
                    codes
                } else {
                    filled[..codes.len()].copy_from_slice(codes);
                    &filled[..LANES * group_bytes]
                };
                let at = (bundle * groups / LANES + block) * block_scales + place * LANES;
                let (skipped, count) = (
                    block * LANES * scale_type.size(),
                    LANES.min(scale_bytes / scale_type.size() - block * LANES),
                );
                let (to_scales, to_biases) = (
                    &mut self.panel.scales[at..at + LANES],
                    &mut self.panel.biases[at..at + LANES],
                );
                // SAFETY: `codes` has eight groups, `to` twice as many numbers as that has bytes for each row, the scales eight numbers.
                unsafe {
                    let to = to.as_mut_ptr().add(place * 2 * LANES);
                    V::interleave_groups(codes.as_ptr(), group_bytes, to, stride);
                    some_scales::<V>(scale_type, &scales[skipped..], count).store(to_scales.as_mut_ptr());
                    some_scales::<V>(scale_type, &biases[skipped..], count).store(to_biases.as_mut_ptr());
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

    // Four vectors' weight rows stay in the nearest cache while all tokens pass by. Rows beyond the panel's last are those of an
    // earlier panel: their outputs are not looked at.
    #[inline(always)]
    fn run<V: Lanes>(self) {
        const BUNDLES: usize = 4;
        let (cols, group_size) = (self.quantized.cols, self.quantized.group_size);
        let (padded, groups) = (padded_cols(cols, group_size), padded_groups(cols, group_size));
        let token_row = |token: usize| self.quantized.row(self.inputs.index(self.first_token + token));
        let rows = BUNDLES * V::Rows::ROWS;
        for row in (0..self.rows).step_by(rows) {
            let weights = InterleavedWeights {
                codes: &self.panel.codes[row * padded..(row + rows) * padded],
                scales: &self.panel.scales[row * groups..(row + rows) * groups],
                biases: &self.panel.biases[row * groups..(row + rows) * groups],
                steps: group_size / 2,
            };
            let mut token = 0;
            while token < self.tokens {
                let out = &mut self.tile[token * PANEL_ROWS + row..];
                let left = self.tokens - token;
                // Sixteen sums of 512 bits, or eight of 256, and what they are made of fit the registers.
                if left >= 4 && V::Rows::ROWS == 2 {
                    let x = std::array::from_fn(|t| token_row(token + t));
                    weights.multiply::<V, BUNDLES, 4>(x, out);
                    token += 4;
                } else if left >= 2 {
                    weights.multiply::<V, BUNDLES, 2>([token_row(token), token_row(token + 1)], out);
                    token += 2;
                } else {
                    weights.multiply::<V, BUNDLES, 1>([token_row(token)], out);
                    token += 1;
                }
            }
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
    /// `R` vectors of weight rows by `T` tokens.
    #[inline(always)]
    fn multiply<V: Lanes, const R: usize, const T: usize>(&self, x: [QuantizedRow<'_>; T], out: &mut [f32]) {
        const STEP: usize = 2 * LANES;
        let side_by_side = V::Rows::ROWS;
        let (bundle_codes, bundle_scales) = (self.codes.len() / R, self.scales.len() / R);
        let (padded, groups) = (bundle_codes / side_by_side, bundle_scales / side_by_side);
        assert!(self.biases.len() == self.scales.len() && groups.is_multiple_of(LANES));
        assert!(padded == groups / LANES * self.steps * STEP);
        assert!(
            x.iter()
                .all(|x| x.codes.len() == padded && x.scales.len() == groups && x.sums.len() == groups)
        );
        let mut lanes = [[V::Rows::zero(); T]; R];
        for block in 0..groups / LANES {
            let mut sums = [[V::Rows::zero_sums(); T]; R];
            let first = block * self.steps * STEP;
            for at in (first..first + self.steps * STEP).step_by(STEP) {
                // SAFETY: `at + STEP` is at most `padded`, the length of every row.
                unsafe {
                    let x: [_; T] = std::array::from_fn(|t| V::Rows::repeat_codes(x[t].codes.as_ptr().add(at)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let w = V::Rows::load_codes(self.codes.as_ptr().add(r * bundle_codes + at * side_by_side));
                        for t in 0..T {
                            sums[t] = V::Rows::dot_add(sums[t], w, x[t]);
                        }
                    }
                }
            }
            for r in 0..R {
                let at = block * LANES;
                // SAFETY: `at + LANES` is at most `groups`, the length of every row.
                unsafe {
                    let weights: Groups<V::Rows> = Groups {
                        scale: V::Rows::load(self.scales.as_ptr().add(r * bundle_scales + at * side_by_side)),
                        sum: V::Rows::load(self.biases.as_ptr().add(r * bundle_scales + at * side_by_side)),
                    };
                    for t in 0..T {
                        lanes[r][t] = add_groups(lanes[r][t], sums[r][t], &weights, &Groups::of(&x[t], at));
                    }
                }
            }
        }
        store_sums::<V, R, T>(&lanes, out);
    }
}

/// Writes the sums of the lanes of `R` vectors of weight rows by `T` tokens to `out`, which has tokens [`PANEL_ROWS`] apart.
#[inline(always)]
fn store_sums<V: Lanes, const R: usize, const T: usize>(lanes: &[[<V::Rows as Rows>::Floats; T]; R], out: &mut [f32]) {
    let side_by_side = V::Rows::ROWS;
    // No closures: they are not compiled for the instruction set, and their calls would take as long as the products.
    let rows = R * side_by_side;
    let mut all = [[V::zero(); LANES]; T];
    for (t, all) in all.iter_mut().enumerate() {
        for row in 0..rows.min(LANES) {
            all[row] = V::Rows::row(lanes[row / side_by_side][t], row % side_by_side);
        }
    }
    if rows == LANES {
        // The same as below, eight sums at once.
        for (t, all) in all.iter().enumerate() {
            let out = &mut out[t * PANEL_ROWS..t * PANEL_ROWS + LANES];
            // SAFETY: room for eight numbers.
            unsafe { V::sums(*all).store(out.as_mut_ptr()) };
        }
    } else if rows == 4 && T == 2 {
        let (first, second) = (all[0], all[T - 1]);
        let both = [
            first[0], first[1], first[2], first[3], second[0], second[1], second[2], second[3],
        ];
        let mut sums = [0.0; LANES];
        // SAFETY: room for eight numbers.
        unsafe { V::sums(both).store(sums.as_mut_ptr()) };
        for (t, sums) in sums.chunks_exact(4).enumerate() {
            out[t * PANEL_ROWS..t * PANEL_ROWS + 4].copy_from_slice(sums);
        }
    } else {
        for (t, all) in all.iter().enumerate() {
            for row in 0..rows {
                out[t * PANEL_ROWS + row] = all[row].sum();
            }
        }
    }
}

/// What eight groups add to the lanes of an output.
#[inline(always)]
fn add_groups<B: Rows>(lanes: B::Floats, sums: B::Sums, weights: &Groups<B>, activations: &Groups<B>) -> B::Floats {
    let products = B::mul(B::from_sums(sums), activations.scale);
    B::mul_add(weights.sum, activations.sum, B::mul_add(products, weights.scale, lanes))
}

/// Eight groups of rows of weights (scales and biases) or of activations (scales and sums).
struct Groups<B: Rows> {
    scale: B::Floats,
    sum: B::Floats,
}

impl<B: Rows> Groups<B> {
    /// The groups `first` to `first + 7` of a row of activations.
    ///
    /// # Safety
    /// The row has these groups.
    #[inline(always)]
    unsafe fn of(row: &QuantizedRow<'_>, first: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Groups {
                scale: B::repeat(row.scales.as_ptr().add(first)),
                sum: B::repeat(row.sums.as_ptr().add(first)),
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
        let weights = DirectRows::new(self.rows, self.quantized.group_size);
        let row = |token: usize| self.quantized.row(self.inputs.index(self.first_token + token));
        let mut token = 0;
        while token < self.tokens {
            let out = &mut self.tile[token * PANEL_ROWS..];
            if self.tokens - token >= 2 {
                weights.multiply::<V, 2>(&[row(token), row(token + 1)], out);
                token += 2;
            } else {
                weights.multiply::<V, 1>(&[row(token)], out);
                token += 1;
            }
        }
    }
}

/// Columns of 32 bytes.
const CHUNK: usize = 64;
/// How many bytes ahead a product straight from the weights' bytes asks for cache lines: the rows that come next.
const PREFETCH: usize = 8192;

/// The weight rows of a panel as they are in the file.
struct DirectRows<'a> {
    rows: usize,
    codes: &'a [u8],
    /// Scales and biases from the first row on to the end of the matrix.
    scales: &'a [u8],
    biases: &'a [u8],
    row_bytes: usize,
    scale_bytes: usize,
    scale_type: FloatType,
    group_size: usize,
    /// Where what comes [`PREFETCH`] bytes after a row of the panel is.
    ahead: Ahead<'a>,
}

/// Groups `first` to `first + count - 1`, up to eight, of `chunks` chunks each.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    count: usize,
    chunks: usize,
}

/// The bytes that a thread reads soon.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    /// From the panel's first row on: those of its matrix, and of what follows it from row `leaves_at` on.
    here: [&'a [u8]; 3],
    there: Option<[&'a [u8]; 3]>,
    leaves_at: usize,
    /// Rows of [`PREFETCH`] bytes.
    rows: usize,
}

/// Codes, scales and biases from a row on.
fn bytes_from<'a>(place: Place<'a>) -> [&'a [u8]; 3] {
    let (matrix, row) = (place.matrix, place.index * place.matrix.rows + place.row);
    let scale_bytes = matrix.row_scales(0, 0).len();
    [
        &matrix.codes[row * matrix.row_bytes()..],
        &matrix.scales[row * scale_bytes..],
        matrix.biases.get(row * scale_bytes..).unwrap_or(&[]),
    ]
}

impl<'a> DirectRows<'a> {
    // Looked up once for a panel: a row of 512 columns takes less time than finding its slices.
    fn new(panel: PanelRows<'a>, group_size: usize) -> DirectRows<'a> {
        let matrix = panel.matrix;
        let (row_bytes, scale_bytes) = (matrix.row_bytes(), matrix.row_scales(0, 0).len());
        let here = bytes_from(Place {
            matrix,
            index: panel.index,
            row: panel.first_row,
        });
        DirectRows {
            rows: panel.rows,
            codes: &here[0][..panel.rows * row_bytes],
            scales: here[1],
            biases: here[2],
            row_bytes,
            scale_bytes,
            scale_type: scale_type(matrix),
            group_size,
            ahead: Ahead {
                here,
                there: panel.next.map(bytes_from),
                leaves_at: panel.leaves_at - panel.first_row,
                rows: PREFETCH / row_bytes,
            },
        }
    }

    /// The products with `T` rows; `out` has tokens [`PANEL_ROWS`] apart.
    #[inline(always)]
    fn multiply<V: Lanes, const T: usize>(&self, x: &[QuantizedRow<'_>; T], out: &mut [f32]) {
        const BUNDLES: usize = 4;
        let side_by_side = V::Rows::ROWS;
        let mut row = 0;
        while self.rows - row >= BUNDLES * side_by_side {
            let lanes = [
                self.lanes::<V::Rows, T>(row, x),
                self.lanes::<V::Rows, T>(row + side_by_side, x),
                self.lanes::<V::Rows, T>(row + 2 * side_by_side, x),
                self.lanes::<V::Rows, T>(row + 3 * side_by_side, x),
            ];
            store_sums::<V, BUNDLES, T>(&lanes, &mut out[row..]);
            row += BUNDLES * side_by_side;
        }
        for row in row..self.rows {
            let lanes = self.lanes::<One<V>, T>(row, x);
            for t in 0..T {
                out[t * PANEL_ROWS + row] = lanes[t].sum();
            }
        }
    }

    /// The lanes of rows `row` to `row + B::ROWS - 1`.
    #[inline(always)]
    fn lanes<B: Rows, const T: usize>(&self, row: usize, x: &[QuantizedRow<'_>; T]) -> [B::Floats; T] {
        let chunks = self.group_size / CHUNK;
        let groups = 2 * self.row_bytes / self.group_size;
        assert!(self.row_bytes == groups * chunks * CHUNK / 2);
        assert!((row + B::ROWS) * self.row_bytes <= self.codes.len());
        let padded = groups.next_multiple_of(LANES);
        assert!(
            x.iter().all(|x| x.codes.len() >= groups * self.group_size
                && x.scales.len() >= padded
                && x.sums.len() >= padded)
        );
        let ahead = self.prefetch_scales::<B>(row);
        let mut lanes = [B::zero(); T];
        for first in (0..groups).step_by(LANES) {
            let count = groups - first;
            // Constants, so that the usual block is compiled without a branch in it.
            let usual = Block {
                first,
                count: LANES,
                chunks: 1,
            };
            // SAFETY: the rows have the groups from `first` on, `count` of them.
            unsafe {
                if chunks == 1 && count >= LANES {
                    self.add_block::<B, T>(row, x, usual, ahead, &mut lanes);
                } else {
                    let count = LANES.min(count);
                    self.add_block::<B, T>(row, x, Block { first, count, chunks }, ahead, &mut lanes);
                }
            }
        }
        lanes
    }

    /// Asks for the scales and biases that come [`PREFETCH`] bytes of codes after row `row`; where the codes do is returned.
    #[inline(always)]
    fn prefetch_scales<B: Rows>(&self, row: usize) -> *const u8 {
        let ahead = row + self.ahead.rows;
        let (bytes, ahead) = match &self.ahead.there {
            Some(there) if ahead >= self.ahead.leaves_at => (there, ahead - self.ahead.leaves_at),
            _ => (&self.ahead.here, ahead),
        };
        let [codes, scales, biases] = bytes;
        for line in (0..B::ROWS * self.scale_bytes).step_by(CACHE_LINE) {
            let at = ahead * self.scale_bytes + line;
            B::Lanes::prefetch(scales.as_ptr().wrapping_add(at));
            B::Lanes::prefetch(biases.as_ptr().wrapping_add(at));
        }
        codes.as_ptr().wrapping_add(ahead * self.row_bytes)
    }

    /// Adds the groups of `block`. Decode spends its time here: written out, so that the sums stay in registers.
    ///
    /// # Safety
    /// The rows and the rows of `x` have these groups.
    #[inline(always)]
    unsafe fn add_block<B: Rows, const T: usize>(
        &self,
        row: usize,
        x: &[QuantizedRow<'_>; T],
        block: Block,
        ahead: *const u8,
        lanes: &mut [B::Floats; T],
    ) {
        let Block { first, count, chunks } = block;
        for row in 0..B::ROWS {
            let start = row * self.row_bytes + first * chunks * CHUNK / 2;
            for line in (0..count * chunks * CHUNK / 2).step_by(CACHE_LINE) {
                B::Lanes::prefetch(ahead.wrapping_add(start + line));
            }
        }
        let codes = self.codes[row * self.row_bytes..].as_ptr();
        let group = |group: usize| (codes, first + group, if group < count { chunks } else { 0 });
        // SAFETY: the caller's promise; groups that are not there have no chunks.
        let [a, b, c, d, e, f, g, h] = unsafe {
            [
                self.group_sums::<B, T>(x, group(0)),
                self.group_sums::<B, T>(x, group(1)),
                self.group_sums::<B, T>(x, group(2)),
                self.group_sums::<B, T>(x, group(3)),
                self.group_sums::<B, T>(x, group(4)),
                self.group_sums::<B, T>(x, group(5)),
                self.group_sums::<B, T>(x, group(6)),
                self.group_sums::<B, T>(x, group(7)),
            ]
        };
        let weights = self.groups::<B>(row, first, count);
        for t in 0..T {
            let totals = B::totals([a[t], b[t], c[t], d[t], e[t], f[t], g[t], h[t]]);
            // SAFETY: rows of activations have whole blocks of groups.
            lanes[t] = add_groups(lanes[t], totals, &weights, &unsafe { Groups::of(&x[t], first) });
        }
    }

    /// The sums of a group, of `chunks` chunks, of the rows that start at `codes`.
    ///
    /// # Safety
    /// The rows and the rows of `x` have these chunks.
    #[inline(always)]
    unsafe fn group_sums<B: Rows, const T: usize>(
        &self,
        x: &[QuantizedRow<'_>; T],
        (codes, group, chunks): (*const u8, usize, usize),
    ) -> [B::Sums; T] {
        let mut sums = [B::zero_sums(); T];
        for chunk in group * chunks..(group + 1) * chunks {
            // SAFETY: the caller's promise.
            let weights = unsafe { B::load_nibbles(codes.add(chunk * CHUNK / 2), self.row_bytes) };
            for t in 0..T {
                // SAFETY: the caller's promise.
                sums[t] = B::settle(unsafe { dot_chunk::<B>(sums[t], &weights, &x[t], chunk) });
            }
        }
        sums
    }

    /// Scales and biases of groups of the rows from `row` on.
    #[inline(always)]
    fn groups<B: Rows>(&self, row: usize, first: usize, count: usize) -> Groups<B> {
        let from = row * self.scale_bytes + first * self.scale_type.size();
        let last = from + (B::ROWS - 1) * self.scale_bytes;
        let float = self.scale_type;
        Groups {
            scale: B::from_rows(
                some_scales::<B::Lanes>(float, &self.scales[from..], count),
                some_scales::<B::Lanes>(float, &self.scales[last..], count),
            ),
            sum: B::from_rows(
                some_scales::<B::Lanes>(float, &self.biases[from..], count),
                some_scales::<B::Lanes>(float, &self.biases[last..], count),
            ),
        }
    }
}

/// `sums` plus the products of chunk `chunk` of 64 columns.
///
/// # Safety
/// `x` has the chunk.
#[inline(always)]
unsafe fn dot_chunk<B: Rows>(
    mut sums: B::Sums,
    weights: &[B::Codes; 4],
    x: &QuantizedRow<'_>,
    chunk: usize,
) -> B::Sums {
    for (vector, w) in weights.iter().enumerate() {
        // SAFETY: the caller's promise.
        let x = unsafe { B::repeat_codes(x.codes.as_ptr().add(chunk * CHUNK + 2 * LANES * vector)) };
        sums = B::dot_add(sums, *w, x);
    }
    sums
}

#[cfg(test)]
#[path = "panel_tests.rs"]
mod tests;
