//! Integer products of few activations straight from the weights' bytes: what decode spends its time with.

use lily_model::FloatType;

use super::groups::{Groups, add_groups, scale_type, some_scales, store_sums};
use super::{Inputs, PANEL_ROWS, PanelRows, Place, Tile, bytes_from};
use crate::quantize::{QuantizedRow, QuantizedRows};
use crate::simd::direct::{CHUNK, CHUNK_BYTES, Direct};
use crate::simd::rows::One;
use crate::simd::{Kernel, LANES, Lanes, PREFETCH};

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

/// The weight rows of a panel as they are in the file.
struct DirectRows<'a> {
    rows: usize,
    /// Codes, scales and biases, from the first row on to the end of the matrix or further.
    bytes: [&'a [u8]; 3],
    shape: RowShape,
    scale_type: FloatType,
    group_size: usize,
    /// What a thread goes on with, and the row at which it does.
    next: Option<[&'a [u8]; 3]>,
    leaves_at: usize,
}

/// Bytes of a row.
#[derive(Clone, Copy)]
struct RowShape {
    codes: usize,
    scales: usize,
}

/// Where the codes, scales and biases of a row are, or of a part of it.
#[derive(Clone, Copy)]
struct RowAt {
    codes: *const u8,
    scales: *const u8,
    biases: *const u8,
}

impl RowAt {
    #[inline(always)]
    fn of([codes, scales, biases]: [&[u8]; 3]) -> RowAt {
        RowAt {
            codes: codes.as_ptr(),
            scales: scales.as_ptr(),
            biases: biases.as_ptr(),
        }
    }

    /// `count` rows of this shape further.
    #[inline(always)]
    fn skip(self, shape: RowShape, count: usize) -> RowAt {
        RowAt {
            codes: self.codes.wrapping_add(count * shape.codes),
            scales: self.scales.wrapping_add(count * shape.scales),
            biases: self.biases.wrapping_add(count * shape.scales),
        }
    }
}

impl<'a> DirectRows<'a> {
    // Looked up once for a panel: a row of 512 columns takes less time than finding its slices.
    #[inline(always)]
    fn new(panel: PanelRows<'a>, group_size: usize) -> DirectRows<'a> {
        let matrix = panel.matrix;
        DirectRows {
            rows: panel.rows,
            bytes: bytes_from(Place {
                matrix,
                index: panel.index,
                row: panel.first_row,
            }),
            shape: RowShape {
                codes: matrix.row_bytes(),
                scales: matrix.row_scales(0, 0).len(),
            },
            scale_type: scale_type(matrix),
            group_size,
            next: panel.next.map(bytes_from),
            leaves_at: panel.leaves_at - panel.first_row,
        }
    }

    /// The products with `T` rows; `out` has tokens [`PANEL_ROWS`] apart.
    #[inline(always)]
    fn multiply<V: Lanes, const T: usize>(&self, x: &[QuantizedRow<'_>; T], out: &mut [f32]) {
        let whole_blocks = (self.shape.codes * 2).is_multiple_of(LANES * self.group_size);
        let usual = whole_blocks && self.scale_type == FloatType::Bf16;
        match (self.group_size, usual) {
            (CHUNK, true) => self.multiply_rows::<V, T, 1, true>(x, out),
            (CHUNK, false) => self.multiply_rows::<V, T, 1, false>(x, out),
            (_, true) => self.multiply_rows::<V, T, 2, true>(x, out),
            (_, false) => self.multiply_rows::<V, T, 2, false>(x, out),
        }
    }

    /// The same, for groups of `CHUNKS` chunks. `USUAL` rows have whole blocks of eight groups, and bfloat16 scales.
    #[inline(always)]
    fn multiply_rows<V: Lanes, const T: usize, const CHUNKS: usize, const USUAL: bool>(
        &self,
        x: &[QuantizedRow<'_>; T],
        out: &mut [f32],
    ) {
        let shape = self.shape;
        let groups = shape.codes / (CHUNKS * CHUNK_BYTES);
        let padded = groups.next_multiple_of(LANES);
        assert!(self.group_size == CHUNKS * CHUNK && shape.codes == groups * CHUNKS * CHUNK_BYTES);
        assert!(shape.scales == groups * self.scale_type.size());
        assert!(!USUAL || padded == groups && self.scale_type == FloatType::Bf16);
        let [codes, scales, biases] = self.bytes;
        assert!(self.rows * shape.codes <= codes.len() && self.rows * shape.scales <= scales.len().min(biases.len()));
        assert!(
            x.iter().all(|x| x.codes.len() >= padded * self.group_size
                && x.scales.len() >= padded
                && x.sums.len() >= padded)
        );
        let mut here = RowAt::of(self.bytes);
        for first in (0..self.rows).step_by(LANES) {
            let mut lanes = [[V::zero(); T]; LANES];
            let count = LANES.min(self.rows - first);
            let mut ahead = self.ahead(first);
            for (place, lanes) in lanes.iter_mut().enumerate().take(count) {
                // SAFETY: the row is one of the panel's, the rows of `x` are as long as was asked for.
                *lanes = unsafe {
                    if USUAL {
                        usual_row::<V, T, CHUNKS>(here, groups / LANES, x, ahead)
                    } else {
                        self.any_row::<V, T, CHUNKS>(first + place, groups, x, ahead)
                    }
                };
                (here, ahead) = (here.skip(shape, 1), ahead.skip(shape, 1));
            }
            if count == LANES {
                store_sums::<One<V>, LANES, T>(&lanes, &mut out[first..]);
            } else {
                for (place, lanes) in lanes.iter().enumerate().take(count) {
                    for t in 0..T {
                        out[t * PANEL_ROWS + first + place] = lanes[t].sum();
                    }
                }
            }
        }
    }

    /// What comes [`PREFETCH`] bytes of codes after row `row`.
    #[inline(always)]
    fn ahead(&self, row: usize) -> RowAt {
        let row = row + PREFETCH / self.shape.codes;
        let (bytes, row) = match self.next {
            Some(next) if row >= self.leaves_at => (next, row - self.leaves_at),
            _ => (self.bytes, row),
        };
        RowAt::of(bytes).skip(self.shape, row)
    }

    /// The lanes of any row, of `groups` groups.
    ///
    /// # Safety
    /// As [`usual_row`].
    #[inline(always)]
    unsafe fn any_row<V: Lanes, const T: usize, const CHUNKS: usize>(
        &self,
        row: usize,
        groups: usize,
        x: &[QuantizedRow<'_>; T],
        ahead: RowAt,
    ) -> [V; T] {
        let [codes, scales, biases] = self.bytes;
        let mut lanes = [V::zero(); T];
        for first in (0..groups).step_by(LANES) {
            let count = LANES.min(groups - first);
            let numbers = row * self.shape.scales + first * self.scale_type.size();
            let weights = Groups {
                scale: some_scales(self.scale_type, &scales[numbers..], count),
                sum: some_scales(self.scale_type, &biases[numbers..], count),
            };
            let start = first * CHUNKS * CHUNK_BYTES;
            let ahead = ahead.codes.wrapping_add(start);
            // SAFETY: the caller's promise.
            unsafe {
                let codes = codes.as_ptr().add(row * self.shape.codes + start);
                add_block::<V, T, CHUNKS>(codes, &weights, x, (first, count), ahead, &mut lanes);
            }
        }
        lanes
    }
}

/// The lanes of a row of `blocks` blocks of eight groups with bfloat16 scales. As many bytes are asked for as it has, where `ahead` is.
///
/// # Safety
/// `row` is where the row is, and the rows of `x` have its blocks.
#[inline(always)]
unsafe fn usual_row<V: Lanes, const T: usize, const CHUNKS: usize>(
    row: RowAt,
    blocks: usize,
    x: &[QuantizedRow<'_>; T],
    ahead: RowAt,
) -> [V; T] {
    let block = RowShape {
        codes: LANES * CHUNKS * CHUNK_BYTES,
        scales: LANES * 2,
    };
    let mut lanes = [V::zero(); T];
    for index in 0..blocks {
        let (here, ahead) = (row.skip(block, index), ahead.skip(block, index));
        // Once for each block, though a line has the scales of four: a branch takes longer.
        V::prefetch(ahead.scales);
        V::prefetch(ahead.biases);
        // SAFETY: the caller's promise.
        unsafe {
            let weights = Groups {
                scale: V::load_bf16(here.scales),
                sum: V::load_bf16(here.biases),
            };
            add_block::<V, T, CHUNKS>(here.codes, &weights, x, (index * LANES, LANES), ahead.codes, &mut lanes);
        }
    }
    lanes
}

/// Adds the groups `first` to `first + count - 1`, at most eight, whose codes are at `codes`.
///
/// # Safety
/// The codes are there, and the rows of `x` have the block of groups.
#[inline(always)]
unsafe fn add_block<V: Lanes, const T: usize, const CHUNKS: usize>(
    codes: *const u8,
    weights: &Groups<One<V>>,
    x: &[QuantizedRow<'_>; T],
    (first, count): (usize, usize),
    ahead: *const u8,
    lanes: &mut [V; T],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut tokens = [std::ptr::null(); T];
        for (token, x) in tokens.iter_mut().zip(x) {
            *token = x.codes.as_ptr().add(first * CHUNKS * CHUNK);
        }
        let totals = V::Direct::block_sums::<T, CHUNKS>(codes, count, tokens, ahead);
        for t in 0..T {
            lanes[t] = add_groups(lanes[t], totals[t], weights, &Groups::of(&x[t], first));
        }
    }
}
