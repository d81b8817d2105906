//! Integer sums of a weight row straight from its bytes, eight groups at a time: what decode spends its time with.

use std::marker::PhantomData;

use super::{CACHE_LINE, LANES, Lanes};

/// Columns of a chunk: a group has one or two.
pub(crate) const CHUNK: usize = 64;
/// Bytes of a chunk of weights.
pub(crate) const CHUNK_BYTES: usize = CHUNK / 2;

/// What an instruction set does with a row's bytes.
///
/// As with [`Lanes`], only [`crate::KernelSet::run`] names the types that implement this.
pub(crate) trait Direct {
    type Lanes: Lanes;
    /// Writes a chunk of activations, the `chunk`-th of its row, to its place in the row.
    fn order_chunk(codes: &[i16; CHUNK], chunk: usize, row: &mut [i16]);
    /// Lane `i` has the sum of group `i` of a block of `count` (at most eight) groups of `CHUNKS` chunks, for each of the `T` rows of activations;
    /// lanes beyond are of no meaning. Meanwhile the block's lines of `ahead` are asked for.
    ///
    /// # Safety
    /// `codes` points to the block's groups, each of `x` to the place of eight groups.
    unsafe fn block_sums<const T: usize, const CHUNKS: usize>(
        codes: *const u8,
        count: usize,
        x: [*const i16; T],
        ahead: *const u8,
    ) -> [<Self::Lanes as Lanes>::Sums; T];
}

/// A chunk at a time, as [`Lanes::load_nibbles`] gives the codes.
pub(crate) struct Chunks<V>(PhantomData<V>);

impl<V: Lanes> Direct for Chunks<V> {
    type Lanes = V;

    #[inline(always)]
    fn order_chunk(codes: &[i16; CHUNK], chunk: usize, row: &mut [i16]) {
        let out = &mut row[chunk * CHUNK..(chunk + 1) * CHUNK];
        for (vector, out) in out.chunks_exact_mut(2 * LANES).enumerate() {
            for (lane, out) in out.iter_mut().enumerate() {
                *out = codes[4 * lane + vector];
            }
        }
    }

    // Written out, so that the sums stay in registers, and every address is that of the block and a constant.
    #[inline(always)]
    unsafe fn block_sums<const T: usize, const CHUNKS: usize>(
        codes: *const u8,
        count: usize,
        x: [*const i16; T],
        ahead: *const u8,
    ) -> [V::Sums; T] {
        // SAFETY: the caller's promise; groups that are not there are not looked at.
        let [a, b, c, d, e, f, g, h] = unsafe {
            [
                group_sums::<V, T, CHUNKS>(codes, ahead, x, 0, count),
                group_sums::<V, T, CHUNKS>(codes, ahead, x, 1, count),
                group_sums::<V, T, CHUNKS>(codes, ahead, x, 2, count),
                group_sums::<V, T, CHUNKS>(codes, ahead, x, 3, count),
                group_sums::<V, T, CHUNKS>(codes, ahead, x, 4, count),
                group_sums::<V, T, CHUNKS>(codes, ahead, x, 5, count),
                group_sums::<V, T, CHUNKS>(codes, ahead, x, 6, count),
                group_sums::<V, T, CHUNKS>(codes, ahead, x, 7, count),
            ]
        };
        let mut totals = [V::zero_sums(); T];
        for (t, totals) in totals.iter_mut().enumerate() {
            *totals = V::totals([a[t], b[t], c[t], d[t], e[t], f[t], g[t], h[t]]);
        }
        totals
    }
}

/// The sums of group `group` of a block of `count` groups.
///
/// # Safety
/// The block has `count` groups, of weights and of activations.
#[inline(always)]
unsafe fn group_sums<V: Lanes, const T: usize, const CHUNKS: usize>(
    codes: *const u8,
    ahead: *const u8,
    x: [*const i16; T],
    group: usize,
    count: usize,
) -> [V::Sums; T] {
    let mut sums = [V::zero_sums(); T];
    if group < count {
        for chunk in 0..CHUNKS {
            let chunk = group * CHUNKS + chunk;
            // SAFETY: the caller's promise.
            unsafe {
                let weights = V::load_nibbles(codes.add(chunk * CHUNK_BYTES));
                for (sums, x) in sums.iter_mut().zip(x) {
                    for (vector, weights) in weights.iter().enumerate() {
                        let x = V::load_codes(x.add(chunk * CHUNK + 2 * LANES * vector));
                        *sums = V::dot_add(*sums, *weights, x);
                    }
                    *sums = V::settle(*sums);
                }
            }
            // A line holds two chunks.
            if chunk.is_multiple_of(2) {
                sums[0] = V::settle_and_prefetch(sums[0], ahead.wrapping_add(chunk / 2 * CACHE_LINE));
            }
        }
    }
    sums
}
