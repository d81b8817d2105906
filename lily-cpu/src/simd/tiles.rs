//! Integer products of sixteen weight rows by up to sixteen rows of activations, a group at a time: what a processor's matrix unit does.
//!
//! A group of a weight row is multiplied 64 columns at a time. In a *chunk*, the 64 columns of sixteen weight rows, word `2 w` of a row has the codes
//! `8 w`, `8 w + 2`, `8 w + 4` and `8 w + 6` as bytes, word `2 w + 1` the ones between; word after word, each of all rows. A row of
//! activations has for every 64 columns the high bytes in that order and then the low bytes, both signed.
//!
//! The groups of a row are in the order in which they are added up, lane after lane (see [`crate::panel`]): [`place_of`].

use super::{LANES, Lanes};

/// Weight rows of a tile, and its most rows of activations.
pub(crate) const TILE: usize = 16;
/// Columns of a chunk.
pub(crate) const CHUNK: usize = 64;
/// Bytes of a chunk of weights.
pub(crate) const CHUNK_BYTES: usize = TILE * CHUNK;

/// The place of a group of `groups`: those of lane 0 come first, which are every eighth from group 0 on, then those of lane 1.
pub(crate) fn place_of(group: usize, groups: usize) -> usize {
    let (lane, block) = (group % LANES, group / LANES);
    lane * (groups / LANES) + lane.min(groups % LANES) + block
}

/// Sixteen weight rows.
#[derive(Clone, Copy)]
pub(crate) struct WeightTile {
    /// Chunks, in order.
    pub(crate) codes: *const u8,
    /// `[groups, TILE]`, in the groups' places.
    pub(crate) scales: *const f32,
    /// As the scales.
    pub(crate) biases: *const f32,
    pub(crate) groups: usize,
    pub(crate) group_size: usize,
}

/// Rows of activations, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct TokenTile {
    pub(crate) codes: *const u8,
    /// Bytes from one row's codes to the next's.
    pub(crate) codes_stride: usize,
    /// Scale of a row's first group; the next row's is the next number.
    pub(crate) scales: *const f32,
    /// Sum of a group, as the scales.
    pub(crate) sums: *const f32,
    /// Numbers from a group's scales to those of the next group.
    pub(crate) group_stride: usize,
}

/// What an instruction set does with tiles.
///
/// As with [`Lanes`], only [`crate::KernelSet::run`] names the types that implement this.
pub(crate) trait Tiles {
    /// Before the first of some [`Tiles::multiply`] with `tokens` tokens (at most sixteen), and whenever their number changes.
    fn start(_tokens: usize) {}
    /// After the last.
    fn end() {}
    /// Makes a chunk of 64 4-bit codes of each row.
    /// # Safety
    /// Each of `rows` points to 32 bytes, `out` to room for [`CHUNK_BYTES`].
    unsafe fn unpack(rows: [*const u8; TILE], out: *mut u8);
    /// Sixteen bfloat16 numbers of each row: the first of all rows, then the second and so on.
    /// # Safety
    /// Each of `rows` points to 32 bytes.
    unsafe fn spread_bf16(rows: [*const u8; TILE], out: &mut [f32; TILE * TILE]);
    /// Writes the activations of 64 columns as high and low bytes.
    fn order_chunk(codes: &[i16; CHUNK], out: &mut [i16; CHUNK]);
    /// Writes the products with `T` tokens, tokens being `stride` numbers apart: the arithmetic of [`crate::panel`]. Meanwhile the bytes
    /// `ahead` may be asked for.
    /// # Safety
    /// [`Tiles::start`] was told `T`; the pointers are those of what they stand for, with `T` rows of activations; `out` has room for
    /// sixteen numbers of each token.
    unsafe fn multiply<const T: usize>(
        weights: &WeightTile,
        tokens: &TokenTile,
        ahead: &[u8],
        out: *mut f32,
        stride: usize,
    );
}

/// The definition, for sets without a matrix unit.
pub(crate) struct PlainTiles<V>(std::marker::PhantomData<V>);

impl<V: Lanes> Tiles for PlainTiles<V> {
    unsafe fn unpack(rows: [*const u8; TILE], out: *mut u8) {
        for (place, row) in rows.into_iter().enumerate() {
            for byte in 0..CHUNK / 2 {
                // A byte has an even code and, in its upper half, the odd one after it.
                let at = byte / 4 * 8 * TILE + place * 4 + byte % 4;
                // SAFETY: the caller's promise.
                unsafe {
                    let codes = *row.add(byte);
                    *out.add(at) = codes & 15;
                    *out.add(at + 4 * TILE) = codes >> 4;
                }
            }
        }
    }

    unsafe fn spread_bf16(rows: [*const u8; TILE], out: &mut [f32; TILE * TILE]) {
        for (place, row) in rows.into_iter().enumerate() {
            for number in 0..TILE {
                // SAFETY: the caller's promise.
                let bits = u16::from_le(unsafe { row.cast::<u16>().add(number).read_unaligned() });
                out[number * TILE + place] = f32::from_bits(u32::from(bits) << 16);
            }
        }
    }

    fn order_chunk(codes: &[i16; CHUNK], out: &mut [i16; CHUNK]) {
        let mut bytes = [[0u8; CHUNK]; 2];
        for (column, &code) in codes.iter().enumerate() {
            let at = column / 8 * 8 + column % 2 * 4 + column % 8 / 2;
            bytes[0][at] = ((code + 128) >> 8) as u8;
            bytes[1][at] = code as u8;
        }
        for (out, pair) in out.iter_mut().zip(bytes.as_flattened().chunks_exact(2)) {
            *out = i16::from_ne_bytes([pair[0], pair[1]]);
        }
    }

    unsafe fn multiply<const T: usize>(
        weights: &WeightTile,
        tokens: &TokenTile,
        _ahead: &[u8],
        out: *mut f32,
        stride: usize,
    ) {
        for t in 0..T {
            for row in 0..TILE {
                let mut lanes = [0.0f32; LANES];
                for group in 0..weights.groups {
                    let lane = &mut lanes[group % LANES];
                    let group = place_of(group, weights.groups);
                    // SAFETY: the caller's promise.
                    unsafe {
                        let sum = group_sum(weights, tokens, group, row, t);
                        let at = group * tokens.group_stride + t;
                        let (scale, sums) = (*tokens.scales.add(at), *tokens.sums.add(at));
                        let (weight, bias) = (
                            *weights.scales.add(group * TILE + row),
                            *weights.biases.add(group * TILE + row),
                        );
                        let scaled = V::splat(sum as f32).mul(V::splat(scale));
                        let with_scale = scaled.mul_add(V::splat(weight), V::splat(*lane));
                        *lane = V::splat(bias).mul_add(V::splat(sums), with_scale).max_lane();
                    }
                }
                // SAFETY: eight numbers are read, and `out` has room (the caller's promise).
                unsafe { *out.add(t * stride + row) = V::load(lanes.as_ptr()).sum() };
            }
        }
    }
}

/// The integer sum of a group of a weight row and a token.
///
/// # Safety
/// As [`Tiles::multiply`].
unsafe fn group_sum(weights: &WeightTile, tokens: &TokenTile, group: usize, row: usize, token: usize) -> i32 {
    let mut sum = 0;
    for column in 0..weights.group_size {
        let (chunk, byte) = (group * weights.group_size / CHUNK + column / CHUNK, column % CHUNK);
        // SAFETY: the caller's promise.
        unsafe {
            let code = *weights
                .codes
                .add(chunk * CHUNK_BYTES + byte / 4 * 4 * TILE + row * 4 + byte % 4);
            let x = tokens.codes.add(token * tokens.codes_stride + chunk * 2 * CHUNK + byte);
            let (high, low) = (*x as i8, *x.add(CHUNK) as i8);
            sum += i32::from(code) * (256 * i32::from(high) + i32::from(low));
        }
    }
    sum
}
