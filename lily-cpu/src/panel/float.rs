//! Products in f32: of unpacked rows, or for few activations straight from the weights' bytes.

use lily_model::{Encoding, Matrix};

use super::groups::scale_type;
use super::{Inputs, PANEL_ROWS, PanelRows, Tile};
use crate::quantize::DIRECT_ROWS;
use crate::simd::{Kernel, LANES, Lanes};

/// Whether products in f32 are made straight from the weights' bytes: for few rows, and codes that vectors are quickly made of.
pub(super) fn float_direct(matrix: &Matrix, inputs: &Inputs<'_>) -> bool {
    let quick = matches!(matrix.encoding, Encoding::Affine { bits: 4 | 8, .. });
    quick && inputs.rows() <= DIRECT_ROWS
}

/// A tile straight from the weights' bytes: the operations of [`FloatTile`] on the values of [`DequantizeRows`], in the same order.
pub(super) struct DirectFloatTile<'a> {
    pub(super) rows: PanelRows<'a>,
    pub(super) inputs: &'a Inputs<'a>,
    pub(super) first_token: usize,
    pub(super) tokens: usize,
    pub(super) tile: &'a mut Tile,
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

pub(super) struct FloatTile<'a> {
    pub(super) values: &'a [f32],
    pub(super) inputs: &'a Inputs<'a>,
    pub(super) first_token: usize,
    pub(super) tokens: usize,
    pub(super) tile: &'a mut Tile,
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
fn dot_tile<V: Lanes, const R: usize, const T: usize>(w: &[f32], x: [&[f32]; T]) -> [[f32; T]; R] {
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
