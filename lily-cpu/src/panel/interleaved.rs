//! Integer products of unpacked rows with many activations.

use super::groups::{Groups, add_groups, scale_type, some_scales, store_sums};
use super::{Inputs, PANEL_ROWS, Panel, PanelRows, Tile};
use crate::quantize::{QuantizedRow, QuantizedRows, padded_cols, padded_groups};
use crate::simd::rows::Rows;
use crate::simd::{Kernel, LANES, Lanes, STRIP_ROWS};

/// Unpacks rows of 4-bit codes into a panel.
pub(super) struct InterleaveRows<'a> {
    pub(super) rows: PanelRows<'a>,
    pub(super) group_size: usize,
    pub(super) panel: &'a mut Panel,
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
        let blocks = padded_groups(matrix.cols, self.group_size) / LANES;
        let scale_type = scale_type(matrix);
        let side_by_side = V::Rows::ROWS;
        // Bytes of a file's block, of a vector, and of the block of a strip that it becomes part of.
        let file_block = LANES * group_bytes;
        let vector_bytes = side_by_side * LANES * 2 * size_of::<i16>();
        let block_bytes = V::Rows::STRIP * side_by_side * LANES * self.group_size * V::Rows::CODE_BYTES;
        let scale_bytes = matrix.row_scales(0, 0).len();
        let (all_scales, all_biases) = (&matrix.scales[..], &matrix.biases[..]);
        for bundle in 0..rows.div_ceil(side_by_side) {
            let (strip, in_strip) = (bundle / V::Rows::STRIP, bundle % V::Rows::STRIP);
            // Beyond the last row, that one again.
            let row = |place: usize| first_row + (bundle * side_by_side + place).min(rows - 1);
            let codes = [0, side_by_side - 1].map(|place| matrix.row_codes(index, row(place)));
            for block in 0..blocks {
                let mut filled = [[0u8; LANES * 64]; 2];
                let from = block * file_block;
                let codes = if codes[0].len() - from >= file_block {
                    codes.map(|codes| codes[from..].as_ptr())
                } else {
                    for (filled, codes) in filled.iter_mut().zip(codes) {
                        filled[..codes.len() - from].copy_from_slice(&codes[from..]);
                    }
                    [filled[0].as_ptr(), filled[1].as_ptr()]
                };
                let block_at = strip * blocks + block;
                let to = &mut self.panel.codes[block_at * block_bytes..(block_at + 1) * block_bytes];
                // SAFETY: both codes have eight groups, `to` has room for those of a strip.
                unsafe { V::Rows::unpack_block(codes, group_bytes, to[in_strip * vector_bytes..].as_mut_ptr()) };
                let skipped = block * LANES * scale_type.size();
                let count = LANES.min((scale_bytes - skipped) / scale_type.size());
                for place in 0..side_by_side {
                    let from = (index * matrix.rows + row(place)) * scale_bytes + skipped;
                    let at = ((block_at * V::Rows::STRIP + in_strip) * side_by_side + place) * LANES;
                    let scales = some_scales::<V>(scale_type, &all_scales[from..], count);
                    let biases = some_scales::<V>(scale_type, &all_biases[from..], count);
                    // SAFETY: both have eight numbers.
                    unsafe {
                        scales.store(self.panel.scales[at..at + LANES].as_mut_ptr());
                        biases.store(self.panel.biases[at..at + LANES].as_mut_ptr());
                    }
                }
            }
        }
    }
}

/// A tile of an interleaved panel.
pub(super) struct InterleavedTile<'a> {
    pub(super) panel: &'a Panel,
    pub(super) rows: PanelRows<'a>,
    pub(super) quantized: &'a QuantizedRows,
    pub(super) inputs: &'a Inputs<'a>,
    pub(super) first_token: usize,
    pub(super) tokens: usize,
    pub(super) tile: &'a mut Tile,
}

impl Kernel for InterleavedTile<'_> {
    type Output = ();

    // A strip stays in the nearest cache while all tokens pass by. Rows beyond the panel's last are those of an earlier panel: their
    // outputs are not looked at.
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (cols, group_size) = (self.quantized.cols, self.quantized.group_size);
        let groups = padded_groups(cols, group_size);
        let row_bytes = padded_cols(cols, group_size) * V::Rows::CODE_BYTES;
        let token_row = |token: usize| self.quantized.row(self.inputs.index(self.first_token + token));
        let rows = V::Rows::STRIP * V::Rows::ROWS;
        let mut ahead = self.rows.ahead(self.first_token, rows, self.tokens);
        for row in (0..self.rows.rows).step_by(rows) {
            let strip = Strip {
                codes: &self.panel.codes[row * row_bytes..(row + rows) * row_bytes],
                scales: &self.panel.scales[row * groups..(row + rows) * groups],
                biases: &self.panel.biases[row * groups..(row + rows) * groups],
                group_size,
            };
            let mut token = 0;
            while token < self.tokens {
                let out = &mut self.tile[token * PANEL_ROWS + row..];
                let step = match self.tokens - token {
                    4.. if V::Rows::TOKENS == 4 => 4,
                    2.. => 2,
                    _ => 1,
                };
                for ahead in &mut ahead {
                    ahead.ask::<V>(step);
                }
                match step {
                    4 => strip.multiply::<V, 4>(
                        [
                            token_row(token),
                            token_row(token + 1),
                            token_row(token + 2),
                            token_row(token + 3),
                        ],
                        out,
                    ),
                    2 => strip.multiply::<V, 2>([token_row(token), token_row(token + 1)], out),
                    _ => strip.multiply::<V, 1>([token_row(token)], out),
                }
                token += step;
            }
        }
    }
}

/// The rows of a panel that are multiplied at once.
struct Strip<'a> {
    codes: &'a [u8],
    scales: &'a [f32],
    biases: &'a [f32],
    group_size: usize,
}

impl Strip<'_> {
    /// The products with `T` tokens.
    #[inline(always)]
    fn multiply<V: Lanes, const T: usize>(&self, x: [QuantizedRow<'_>; T], out: &mut [f32]) {
        // Only the branch for the set's own number of vectors is compiled.
        if V::Rows::STRIP == STRIP_ROWS {
            self.multiply_vectors::<V, STRIP_ROWS, T>(x, out);
        } else {
            self.multiply_vectors::<V, 4, T>(x, out);
        }
    }

    /// The same for `R` vectors of weight rows.
    #[inline(always)]
    fn multiply_vectors<V: Lanes, const R: usize, const T: usize>(&self, x: [QuantizedRow<'_>; T], out: &mut [f32]) {
        let side_by_side = V::Rows::ROWS;
        let groups = self.scales.len() / (R * side_by_side);
        let block_cols = LANES * self.group_size;
        let block_bytes = R * side_by_side * block_cols * V::Rows::CODE_BYTES;
        assert!(self.biases.len() == self.scales.len() && groups.is_multiple_of(LANES));
        assert!(self.codes.len() == groups / LANES * block_bytes);
        assert!(x.iter().all(|x| x.codes.len() == groups / LANES * block_cols
            && x.scales.len() == groups
            && x.sums.len() == groups));
        let mut lanes = [[V::Rows::zero(); T]; R];
        for block in 0..groups / LANES {
            // No closures: they are not compiled for the instruction set.
            let mut tokens = [std::ptr::null(); T];
            for (tokens, x) in tokens.iter_mut().zip(&x) {
                *tokens = x.codes[block * block_cols..].as_ptr();
            }
            let weights = self.codes[block * block_bytes..].as_ptr();
            // SAFETY: the strip and the rows have the block.
            let sums = unsafe { V::Rows::block_sums::<R, T>(weights, tokens, self.group_size) };
            for r in 0..R {
                let at = (block * R + r) * side_by_side * LANES;
                // SAFETY: the strip has the row's numbers of the block, and the rows of activations have those of the block.
                unsafe {
                    let weights: Groups<V::Rows> = Groups {
                        scale: V::Rows::load(self.scales.as_ptr().add(at)),
                        sum: V::Rows::load(self.biases.as_ptr().add(at)),
                    };
                    for t in 0..T {
                        let activations = Groups::of(&x[t], block * LANES);
                        lanes[r][t] = add_groups(lanes[r][t], sums[r][t], &weights, &activations);
                    }
                }
            }
        }
        store_sums::<V::Rows, R, T>(&lanes, out);
    }
}
