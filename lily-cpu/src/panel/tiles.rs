//! Integer products by tiles of sixteen weight rows, for processors with a matrix unit.

use lily_model::FloatType;

use super::groups::scale_type;
use super::{PANEL_ROWS, Panel, PanelRows, Tile};
use crate::quantize::QuantizedRows;
use crate::simd::tiles::{CHUNK, CHUNK_BYTES, TILE, Tiles, WeightTile, place_of};
use crate::simd::{Kernel, Lanes};

/// Unpacks rows of 4-bit codes into a panel: for each sixteen rows their chunks, and scales and biases `[groups, TILE]`.
pub(super) struct TileRows<'a> {
    pub(super) rows: PanelRows<'a>,
    pub(super) group_size: usize,
    pub(super) panel: &'a mut Panel,
}

impl Kernel for TileRows<'_> {
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
        let (groups, chunks) = (matrix.cols / self.group_size, matrix.cols / CHUNK);
        let group_chunks = chunks / groups;
        let scale_bytes = matrix.row_scales(0, 0).len();
        for tile in 0..rows.div_ceil(TILE) {
            // Beyond the last row, that one again.
            let row = |place: usize| first_row + (tile * TILE + place).min(rows - 1);
            let mut codes = [std::ptr::null(); TILE];
            for (place, codes) in codes.iter_mut().enumerate() {
                *codes = matrix.row_codes(index, row(place)).as_ptr();
            }
            let out = &mut self.panel.codes[tile * chunks * CHUNK_BYTES..][..chunks * CHUNK_BYTES];
            for chunk in 0..chunks {
                let place = place_of(chunk / group_chunks, groups) * group_chunks + chunk % group_chunks;
                let out = &mut out[place * CHUNK_BYTES..][..CHUNK_BYTES];
                let mut here = codes;
                for here in &mut here {
                    *here = here.wrapping_add(chunk * CHUNK / 2);
                }
                // SAFETY: a row has 32 bytes for each chunk, `out` is one.
                unsafe { V::Tiles::unpack(here, out.as_mut_ptr()) };
            }
            let numbers = tile * groups * TILE..(tile + 1) * groups * TILE;
            let from = |place: usize| (index * matrix.rows + row(place)) * scale_bytes;
            let float = scale_type(matrix);
            for (all, out) in [
                (&matrix.scales[..], &mut self.panel.scales[numbers.clone()]),
                (&matrix.biases[..], &mut self.panel.biases[numbers]),
            ] {
                let mut places = [&all[..0]; TILE];
                for (place, bytes) in places.iter_mut().enumerate() {
                    *bytes = &all[from(place)..];
                }
                spread_scales::<V>(float, places, groups, out);
            }
        }
    }
}

/// The scales (or biases) of sixteen rows of `groups` groups, `[groups, TILE]` with groups in their places. Each of `rows` starts with a
/// row's and may go on.
#[inline(always)]
fn spread_scales<V: Lanes>(float: FloatType, rows: [&[u8]; TILE], groups: usize, out: &mut [f32]) {
    /// Groups that are spread at once.
    const SPREAD: usize = 16;
    for first in (0..groups).step_by(SPREAD) {
        let (count, from) = (SPREAD.min(groups - first), first * float.size());
        let mut numbers = [0.0; SPREAD * TILE];
        let mut words = [std::ptr::null(); TILE];
        let mut there = float == FloatType::Bf16;
        for (words, row) in words.iter_mut().zip(rows) {
            there &= row.len() >= from + SPREAD * float.size();
            *words = row.as_ptr().wrapping_add(from);
        }
        if there {
            // SAFETY: each row has sixteen numbers from there on.
            unsafe { V::Tiles::spread_bf16(words, &mut numbers) };
        } else {
            for (place, row) in rows.iter().enumerate() {
                for group in 0..count {
                    numbers[group * TILE + place] = float.read(row, first + group);
                }
            }
        }
        for (group, numbers) in numbers.chunks_exact(TILE).enumerate().take(count) {
            let to = place_of(first + group, groups) * TILE;
            out[to..to + TILE].copy_from_slice(numbers);
        }
    }
}

/// A tile of a panel of tiles.
pub(super) struct TiledTile<'a> {
    pub(super) panel: &'a Panel,
    pub(super) rows: PanelRows<'a>,
    pub(super) quantized: &'a QuantizedRows,
    /// Row of `quantized` that is the first token's.
    pub(super) first_row: usize,
    pub(super) first_token: usize,
    pub(super) tokens: usize,
    pub(super) tile: &'a mut Tile,
}

impl Kernel for TiledTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (cols, group_size) = (self.quantized.cols, self.quantized.group_size);
        let (groups, chunks) = (cols / group_size, cols / CHUNK);
        let [mut codes_ahead, mut scales_ahead, mut biases_ahead] =
            self.rows.ahead(self.first_token, TILE, self.tokens);
        for token in (0..self.tokens).step_by(TILE) {
            let count = TILE.min(self.tokens - token);
            let tokens = self.quantized.tile(self.first_row + token);
            // Pairs: the last may have one too many, whose outputs lie in the tile too.
            let pairs = count.next_multiple_of(2);
            V::Tiles::start(pairs);
            for tile in 0..self.rows.rows.div_ceil(TILE) {
                let codes = &self.panel.codes[tile * chunks * CHUNK_BYTES..][..chunks * CHUNK_BYTES];
                let numbers = tile * groups * TILE..(tile + 1) * groups * TILE;
                let weights = WeightTile {
                    codes: codes.as_ptr(),
                    scales: self.panel.scales[numbers.clone()].as_ptr(),
                    biases: self.panel.biases[numbers].as_ptr(),
                    groups,
                    group_size,
                };
                let ahead = codes_ahead.take(count);
                scales_ahead.ask::<V>(count);
                biases_ahead.ask::<V>(count);
                let out = &mut self.tile[token * PANEL_ROWS + tile * TILE..];
                let out = out[..(pairs - 1) * PANEL_ROWS + TILE].as_mut_ptr();
                macro_rules! multiply {
                    ($($pairs:literal)*) => {
                        match pairs {
                            // SAFETY: the panel has the tiles, the quantized rows one of sixteen rows from any of theirs on; `out` has room.
                            $($pairs => unsafe { V::Tiles::multiply::<$pairs>(&weights, &tokens, ahead, out, PANEL_ROWS) },)*
                            _ => unreachable!("a tile has no more than sixteen tokens"),
                        }
                    };
                }
                multiply!(2 4 6 8 10 12 14 16);
            }
        }
        V::Tiles::end();
    }
}
