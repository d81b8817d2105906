//! Activations as 16-bit integers, for integer dot products with 4-bit codes.
//!
//! A group `x` of a row becomes `t * q` with `|q| <= 32639`: the rounding error is at most `max|x| / 65278`, within its group. A
//! product of a row of codes `c` with scales `s` and biases `b` by group is then the sum over groups of
//! `t * s * sum(q c) + b * t * sum(q)`, where `sum(q c)` is exact in 32 bits: `128 * 15 * 32639 < 2^31`.

use crate::KernelSet;
use crate::aligned::Aligned;
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::direct::Direct;
use crate::simd::rows::Rows;
use crate::simd::tiles::{CHUNK, TILE, Tiles, TokenTile, place_of};
use crate::simd::{CACHE_LINE, Kernel, LANES, Lanes};

/// Order of a row's integers: the sums over a group are exact, so the order changes no bit of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As [`Direct::block_sums`] takes them: for products straight from the weights' bytes.
    Direct,
    /// As [`Rows::block_sums`] takes them, eight groups to a block: for products with an unpacked panel.
    Interleaved,
    /// As [`Tiles::multiply`] takes them: for products with a panel of tiles.
    Tiled,
}

/// Rows of a task, and the most rows that are not worth a parallel region.
const TASK_ROWS: usize = 4;
/// `127 * 256 + 127`: two signed bytes hold it.
const LARGEST: f32 = 32639.0;
/// The largest group.
const MAX_GROUP: usize = 128;

/// Whether activations can be quantized for groups of this many columns.
pub(crate) fn supports_group(group_size: usize) -> bool {
    matches!(group_size, 64 | 128)
}

/// Columns of a row with its last block filled up.
pub(crate) fn padded_cols(cols: usize, group_size: usize) -> usize {
    cols.next_multiple_of(LANES * group_size)
}

/// Groups of a row with its last block filled up.
pub(crate) fn padded_groups(cols: usize, group_size: usize) -> usize {
    padded_cols(cols, group_size) / group_size
}

/// Numbers from one row's codes to the next's. A cache line more than the codes: rows that are a multiple of 4 KB apart would share the
/// few places that the nearest cache has for an address.
fn row_stride(padded_cols: usize) -> usize {
    padded_cols + CACHE_LINE / size_of::<i16>()
}

/// Most rows of a step whose products read the weights' bytes directly: with more, unpacking a panel once pays.
pub(crate) const DIRECT_ROWS: usize = 4;

impl Layout {
    /// The layout for a step of `rows` rows.
    pub(crate) fn for_rows(set: KernelSet, rows: usize) -> Layout {
        match set {
            _ if rows <= DIRECT_ROWS => Layout::Direct,
            KernelSet::Avx512VnniAmx => Layout::Tiled,
            _ => Layout::Interleaved,
        }
    }
}

/// Quantized rows.
pub(crate) struct QuantizedRows {
    pub(crate) cols: usize,
    pub(crate) group_size: usize,
    pub(crate) layout: Layout,
    /// [`padded_cols`] and [`padded_groups`] of a row, so that finding one takes no division.
    padded: (usize, usize),
    /// Rows that there is room for, with those of a tile that begins at the last.
    room: usize,
    /// `[rows, padded_cols]`, [`row_stride`] apart.
    codes: Aligned<i16>,
    /// Scale of each group, `[rows, padded_groups]`, or `[padded_groups, room]` in [`Layout::Tiled`]; 0 beyond the last group.
    scales: Vec<f32>,
    /// Sum of the activations of each group as quantized, laid out like the scales.
    sums: Vec<f32>,
}

/// One quantized row.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedRow<'a> {
    pub(crate) codes: &'a [i16],
    pub(crate) scales: &'a [f32],
    pub(crate) sums: &'a [f32],
}

impl QuantizedRows {
    /// Room for `rows` rows of up to `cols` columns.
    pub(crate) fn new(rows: usize, cols: usize, group_size: usize) -> QuantizedRows {
        let room = rows.next_multiple_of(TILE) + TILE;
        QuantizedRows {
            cols,
            group_size,
            layout: Layout::Direct,
            padded: (padded_cols(cols, group_size), padded_groups(cols, group_size)),
            room,
            codes: Aligned::new(room * row_stride(padded_cols(cols, group_size))),
            scales: vec![0.0; room * padded_groups(cols, group_size)],
            sums: vec![0.0; room * padded_groups(cols, group_size)],
        }
    }

    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> QuantizedRow<'_> {
        let (cols, groups) = self.padded;
        let start = row * row_stride(cols);
        QuantizedRow {
            codes: &self.codes[start..start + cols],
            scales: &self.scales[row * groups..(row + 1) * groups],
            sums: &self.sums[row * groups..(row + 1) * groups],
        }
    }

    /// Sixteen rows from `first` on, in [`Layout::Tiled`].
    #[inline(always)]
    pub(crate) fn tile(&self, first: usize) -> TokenTile {
        let (cols, groups) = self.padded;
        let stride = row_stride(cols);
        let codes = &self.codes[first * stride..(first + TILE) * stride];
        let numbers = first..(groups - 1) * self.room + first + TILE;
        TokenTile {
            codes: codes.as_ptr().cast(),
            codes_stride: stride * size_of::<i16>(),
            scales: self.scales[numbers.clone()].as_ptr(),
            sums: self.sums[numbers].as_ptr(),
            group_stride: self.room,
        }
    }

    fn set_shape(&mut self, layout: Layout, cols: usize) {
        (self.layout, self.cols) = (layout, cols);
        self.padded = (padded_cols(cols, self.group_size), padded_groups(cols, self.group_size));
    }

    /// Quantizes the rows of `x` (`[rows, cols]`) in place of what was there.
    pub(crate) fn fill(&mut self, pool: &mut Pool, set: KernelSet, layout: Layout, x: &[f32], cols: usize) {
        self.set_shape(layout, cols);
        let (padded, groups) = self.padded;
        let stride = row_stride(padded);
        let rows = x.len() / cols;
        let (row_step, step) = match layout {
            Layout::Tiled => (1, self.room),
            Layout::Direct | Layout::Interleaved => (groups, 1),
        };
        let group_size = self.group_size;
        let codes = SharedMut::new(&mut self.codes);
        let sums = SharedMut::new(&mut self.sums);
        let scales = SharedMut::new(&mut self.scales);
        pool.run(rows.div_ceil(TASK_ROWS), &|task, _| {
            for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                set.run(QuantizeRow {
                    x: &x[row * cols..(row + 1) * cols],
                    group_size,
                    layout,
                    // SAFETY: each row belongs to one task.
                    codes: unsafe { codes.part(row * stride, padded) },
                    scales,
                    sums,
                    places: Places {
                        first: row * row_step,
                        step,
                    },
                    groups,
                });
            }
        });
    }

    /// Takes the rows `rows` of `from`, in this order, in place of what was there; all in [`Layout::Tiled`].
    pub(crate) fn gather(&mut self, pool: &mut Pool, from: &QuantizedRows, rows: &[u32]) {
        self.set_shape(from.layout, from.cols);
        let (padded, groups) = self.padded;
        let (cols, room, stride) = (self.cols, self.room, row_stride(padded));
        let codes = SharedMut::new(&mut self.codes);
        let sums = SharedMut::new(&mut self.sums);
        let scales = SharedMut::new(&mut self.scales);
        pool.run(rows.len().div_ceil(TILE), &|task, _| {
            let first = task * TILE;
            let rows = &rows[first..rows.len().min(first + TILE)];
            for (place, &row) in rows.iter().enumerate() {
                // SAFETY: each row belongs to one task.
                let codes = unsafe { codes.part((first + place) * stride, cols) };
                codes.copy_from_slice(&from.codes[row as usize * stride..][..cols]);
            }
            for group in 0..groups {
                let to = group * room + first;
                // SAFETY: as above.
                let (scales, sums) = unsafe { (scales.part(to, rows.len()), sums.part(to, rows.len())) };
                for ((scale, sum), &row) in scales.iter_mut().zip(sums).zip(rows) {
                    let at = group * from.room + row as usize;
                    (*scale, *sum) = (from.scales[at], from.sums[at]);
                }
            }
        });
    }
}

/// Number `group` of a row is at `first + group * step`.
#[derive(Clone, Copy)]
struct Places {
    first: usize,
    step: usize,
}

struct QuantizeRow<'a> {
    x: &'a [f32],
    group_size: usize,
    layout: Layout,
    codes: &'a mut [i16],
    scales: SharedMut<'a, f32>,
    sums: SharedMut<'a, f32>,
    places: Places,
    /// With those beyond the last.
    groups: usize,
}

impl QuantizeRow<'_> {
    #[inline(always)]
    fn set(&self, group: usize, scale: f32, sum: f32) {
        let at = self.places.first + group * self.places.step;
        // SAFETY: the places of a row belong to its task.
        unsafe {
            *self.scales.item(at) = scale;
            *self.sums.item(at) = sum;
        }
    }
}

impl Kernel for QuantizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let mut group_codes = [0i16; MAX_GROUP];
        let groups = self.x.len() / self.group_size;
        for group in groups..self.groups {
            self.set(group, 0.0, 0.0);
        }
        for (group, x) in self.x.chunks_exact(self.group_size).enumerate() {
            let mut largest = V::zero();
            for eight in x.chunks_exact(LANES) {
                // SAFETY: the chunk holds eight numbers.
                let value = unsafe { V::load(eight.as_ptr()) };
                largest = largest.max(value).max(V::zero().sub(value));
            }
            let largest = largest.max_lane();
            let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
            let group_codes = &mut group_codes[..self.group_size];
            let mut sum = 0;
            for (code, x) in group_codes.iter_mut().zip(x) {
                *code = round_to_i16(x * inverse);
                sum += i32::from(*code);
            }
            let scale = largest / LARGEST;
            let group = match self.layout {
                Layout::Tiled => place_of(group, groups),
                Layout::Direct | Layout::Interleaved => group,
            };
            self.set(group, scale, sum as f32 * scale);
            match self.layout {
                Layout::Direct => {
                    let (chunks, _) = group_codes.as_chunks::<CHUNK>();
                    for (chunk, codes) in chunks.iter().enumerate() {
                        V::Direct::order_chunk(codes, group * chunks.len() + chunk, self.codes);
                    }
                }
                Layout::Interleaved => {
                    let block = LANES * self.group_size;
                    let block = &mut self.codes[group / LANES * block..(group / LANES + 1) * block];
                    V::Rows::order_group(group_codes, group % LANES, block);
                }
                Layout::Tiled => {
                    let (chunks, _) = group_codes.as_chunks::<CHUNK>();
                    let (out, _) = self.codes[group * self.group_size..].as_chunks_mut::<CHUNK>();
                    for (codes, out) in chunks.iter().zip(out) {
                        V::Tiles::order_chunk(codes, out);
                    }
                }
            }
        }
    }
}

/// Rounds to the nearest integer (ties to even) of a magnitude below 2^15: adding `1.5 * 2^23` leaves it in the low bits.
#[inline(always)]
fn round_to_i16(x: f32) -> i16 {
    (x + 12_582_912.0).to_bits() as i16
}
