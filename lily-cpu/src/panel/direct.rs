//! Integer products of few activations straight from the weights' bytes: what decode spends its time with.

use lily_model::FloatType;

use super::groups::{Groups, add_groups, scale_type, some_scales, store_sums};
use super::{Inputs, PANEL_ROWS, PanelRows, Place, Tile, bytes_from};
use crate::quantize::{QuantizedRow, QuantizedRows};
use crate::simd::rows::{One, Rows};
use crate::simd::{CACHE_LINE, Kernel, LANES, Lanes};

/// A tile straight from the weights' bytes, for few activation rows.
pub(super) struct DirectTile<'a> {
    pub(super) rows: PanelRows<'a>,
    pub(super) quantized: &'a QuantizedRows,
    pub(super) inputs: &'a Inputs<'a>,
    pub(super) first_token: usize,
    pub(super) tokens: usize,
    pub(super) tile: &'a mut Tile,
}

impl Kernel for DirectTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let weights = DirectRows::new::<V>(self.rows, self.quantized.group_size);
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

/// Columns that are multiplied together, and their bytes.
const CHUNK: usize = 64;
const CHUNK_BYTES: usize = CHUNK / 2;

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
    /// Where what comes [`Lanes::PREFETCH`] bytes after a row of the panel is.
    ahead: Ahead<'a>,
}

/// The bytes that a thread reads soon.
#[derive(Clone, Copy)]
struct Ahead<'a> {
    /// From the panel's first row on: those of its matrix, and of what follows it from row `leaves_at` on.
    here: [&'a [u8]; 3],
    there: Option<[&'a [u8]; 3]>,
    leaves_at: usize,
    /// Rows of [`Lanes::PREFETCH`] bytes.
    rows: usize,
}

impl<'a> DirectRows<'a> {
    // Looked up once for a panel: a row of 512 columns takes less time than finding its slices.
    #[inline(always)]
    fn new<V: Lanes>(panel: PanelRows<'a>, group_size: usize) -> DirectRows<'a> {
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
                rows: V::PREFETCH / row_bytes,
            },
        }
    }

    /// The products with `T` rows; `out` has tokens [`PANEL_ROWS`] apart.
    #[inline(always)]
    fn multiply<V: Lanes, const T: usize>(&self, x: &[QuantizedRow<'_>; T], out: &mut [f32]) {
        if self.group_size == CHUNK {
            self.multiply_groups::<V, T, 1>(x, out);
        } else {
            self.multiply_groups::<V, T, 2>(x, out);
        }
    }

    /// The same, for groups of `CHUNKS` chunks.
    #[inline(always)]
    fn multiply_groups<V: Lanes, const T: usize, const CHUNKS: usize>(
        &self,
        x: &[QuantizedRow<'_>; T],
        out: &mut [f32],
    ) {
        const BUNDLES: usize = 4;
        let side_by_side = V::Rows::ROWS;
        let mut row = 0;
        while self.rows - row >= BUNDLES * side_by_side {
            let lanes = [
                self.lanes::<V::Rows, T, CHUNKS>(row, x),
                self.lanes::<V::Rows, T, CHUNKS>(row + side_by_side, x),
                self.lanes::<V::Rows, T, CHUNKS>(row + 2 * side_by_side, x),
                self.lanes::<V::Rows, T, CHUNKS>(row + 3 * side_by_side, x),
            ];
            store_sums::<V, BUNDLES, T>(&lanes, &mut out[row..]);
            row += BUNDLES * side_by_side;
        }
        for row in row..self.rows {
            let lanes = self.lanes::<One<V>, T, CHUNKS>(row, x);
            for t in 0..T {
                out[t * PANEL_ROWS + row] = lanes[t].sum();
            }
        }
    }

    /// The lanes of rows `row` to `row + B::ROWS - 1`.
    #[inline(always)]
    fn lanes<B: Rows, const T: usize, const CHUNKS: usize>(
        &self,
        row: usize,
        x: &[QuantizedRow<'_>; T],
    ) -> [B::Floats; T] {
        let groups = self.row_bytes / (CHUNKS * CHUNK_BYTES);
        let padded = groups.next_multiple_of(LANES);
        assert!(self.group_size == CHUNKS * CHUNK && self.row_bytes == groups * CHUNKS * CHUNK_BYTES);
        assert!((row + B::ROWS) * self.row_bytes <= self.codes.len());
        assert!(self.scale_bytes == groups * self.scale_type.size());
        assert!((row + B::ROWS) * self.scale_bytes <= self.scales.len().min(self.biases.len()));
        assert!(
            x.iter().all(|x| x.codes.len() >= groups * self.group_size
                && x.scales.len() >= padded
                && x.sums.len() >= padded)
        );
        let ahead = self.prefetch_scales::<B>(row);
        let mut lanes = [B::zero(); T];
        // A constant number of groups, so that the usual block is compiled without a branch in it.
        // SAFETY: the rows have the groups from `first` on, `count` of them.
        unsafe {
            for first in (0..groups / LANES * LANES).step_by(LANES) {
                self.add_block::<B, T, CHUNKS>(row, x, (first, LANES), ahead, &mut lanes);
            }
            if !groups.is_multiple_of(LANES) {
                let first = groups / LANES * LANES;
                self.add_block::<B, T, CHUNKS>(row, x, (first, groups - first), ahead, &mut lanes);
            }
        }
        lanes
    }

    /// Asks for the scales and biases that come [`Lanes::PREFETCH`] bytes of codes after row `row`; where the codes do is returned.
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

    /// Adds the groups `first` to `first + count - 1`, at most eight. Decode spends its time here: written out, so that the sums stay in
    /// registers, and every address is that of the block and a constant.
    ///
    /// # Safety
    /// The rows and the rows of `x` have these groups.
    #[inline(always)]
    unsafe fn add_block<B: Rows, const T: usize, const CHUNKS: usize>(
        &self,
        row: usize,
        x: &[QuantizedRow<'_>; T],
        (first, count): (usize, usize),
        ahead: *const u8,
        lanes: &mut [B::Floats; T],
    ) {
        let start = first * CHUNKS * CHUNK_BYTES;
        let ahead = ahead.wrapping_add(start);
        // SAFETY: the caller's promise; groups that are not there are not looked at, and rows of activations have whole blocks of groups.
        unsafe {
            let codes = self.codes.as_ptr().add(row * self.row_bytes + start);
            let mut tokens = [std::ptr::null(); T];
            for (token, x) in tokens.iter_mut().zip(x) {
                *token = x.codes.as_ptr().add(first * CHUNKS * CHUNK);
            }
            let [a, b, c, d, e, f, g, h] = [
                self.group_sums::<B, T, CHUNKS>(codes, ahead, tokens, 0, count),
                self.group_sums::<B, T, CHUNKS>(codes, ahead, tokens, 1, count),
                self.group_sums::<B, T, CHUNKS>(codes, ahead, tokens, 2, count),
                self.group_sums::<B, T, CHUNKS>(codes, ahead, tokens, 3, count),
                self.group_sums::<B, T, CHUNKS>(codes, ahead, tokens, 4, count),
                self.group_sums::<B, T, CHUNKS>(codes, ahead, tokens, 5, count),
                self.group_sums::<B, T, CHUNKS>(codes, ahead, tokens, 6, count),
                self.group_sums::<B, T, CHUNKS>(codes, ahead, tokens, 7, count),
            ];
            let weights = self.groups::<B>(row, first, count);
            for t in 0..T {
                let totals = B::totals([a[t], b[t], c[t], d[t], e[t], f[t], g[t], h[t]]);
                lanes[t] = add_groups(lanes[t], totals, &weights, &Groups::of(&x[t], first));
            }
        }
    }

    /// The sums of group `group` of a block of `count` groups, whose rows start at `codes` and whose activations at `x`.
    ///
    /// # Safety
    /// The block has `count` groups, of weights and of activations.
    #[inline(always)]
    unsafe fn group_sums<B: Rows, const T: usize, const CHUNKS: usize>(
        &self,
        codes: *const u8,
        ahead: *const u8,
        x: [*const i16; T],
        group: usize,
        count: usize,
    ) -> [B::Sums; T] {
        let mut sums = [B::zero_sums(); T];
        if group < count {
            for chunk in 0..CHUNKS {
                let chunk = group * CHUNKS + chunk;
                // SAFETY: the caller's promise.
                unsafe {
                    let weights = B::load_nibbles(codes.add(chunk * CHUNK_BYTES), self.row_bytes);
                    for t in 0..T {
                        sums[t] = B::settle(dot_chunk::<B>(sums[t], &weights, x[t].add(chunk * CHUNK)));
                    }
                    // A chunk of two rows has as many bytes as a line: every other chunk asks for a line of the first row or of the second. One of one
                    // row has half of them.
                    let (row, line) = (chunk % 2, chunk / 2 * CACHE_LINE);
                    if row < B::ROWS {
                        sums[0] = B::settle_and_prefetch(sums[0], ahead.wrapping_add(row * self.row_bytes + line));
                    }
                }
            }
        }
        sums
    }

    /// Scales and biases of groups of the rows from `row` on.
    ///
    /// # Safety
    /// The rows have these groups.
    #[inline(always)]
    unsafe fn groups<B: Rows>(&self, row: usize, first: usize, count: usize) -> Groups<B> {
        let from = row * self.scale_bytes + first * self.scale_type.size();
        let last = from + (B::ROWS - 1) * self.scale_bytes;
        let float = self.scale_type;
        // SAFETY: the caller's promise.
        unsafe {
            Groups {
                scale: B::from_rows(
                    eight_scales::<B::Lanes>(float, self.scales, from, count),
                    eight_scales::<B::Lanes>(float, self.scales, last, count),
                ),
                sum: B::from_rows(
                    eight_scales::<B::Lanes>(float, self.biases, from, count),
                    eight_scales::<B::Lanes>(float, self.biases, last, count),
                ),
            }
        }
    }
}

/// The `count` scales from byte `from` on, and 0 beyond.
///
/// # Safety
/// `scales` has them.
#[inline(always)]
unsafe fn eight_scales<V: Lanes>(float: FloatType, scales: &[u8], from: usize, count: usize) -> V {
    if count == LANES && float == FloatType::Bf16 {
        // SAFETY: the caller's promise.
        unsafe { V::load_bf16(scales.as_ptr().add(from)) }
    } else {
        some_scales(float, &scales[from..], count)
    }
}

/// `sums` plus the products of a chunk.
///
/// # Safety
/// `x` points to a chunk.
#[inline(always)]
unsafe fn dot_chunk<B: Rows>(mut sums: B::Sums, weights: &[B::Codes; 4], x: *const i16) -> B::Sums {
    for (vector, w) in weights.iter().enumerate() {
        // SAFETY: the caller's promise.
        let x = unsafe { B::repeat_codes(x.add(2 * LANES * vector)) };
        sums = B::dot_add(sums, *w, x);
    }
    sums
}
