//! Integer products over one weight row, or over two in one 512-bit vector. A row's bits are the same either way: halves never mix.

use std::marker::PhantomData;

use super::{LANES, Lanes, STRIP_ROWS};

/// Vectors that have the same place of [`Rows::ROWS`] weight rows side by side.
///
/// As with [`Lanes`], only [`crate::KernelSet::run`] names the types that implement this.
pub(crate) trait Rows {
    type Lanes: Lanes;
    /// Eight 32-bit sums of each row.
    type Sums: Copy;
    /// Eight numbers of each row.
    type Floats: Copy;

    /// Weight rows of a vector, 1 or 2.
    const ROWS: usize;

    /// Vectors of weight rows that are multiplied at once: a strip of a panel, vector `i` of all of them before vector `i + 1`.
    const STRIP: usize;
    /// The most rows of activations that are multiplied with a strip at once.
    const TOKENS: usize;
    /// Bytes of a code in a block of unpacked groups.
    const CODE_BYTES: usize;
    /// Makes a block of the eight groups of each row: `groups` points to a row's codes as the file has them, of `bytes` (32 or 64)
    /// bytes a group, `out` to this row's (or these rows') first vector in a strip.
    /// # Safety
    /// Each of `groups` points to `LANES * bytes` bytes, `out` to room for the block in its strip.
    unsafe fn unpack_block(groups: [*const u8; 2], bytes: usize, out: *mut u8);
    /// Writes the activations of a group to its lane of a block, in the order of [`Rows::block_sums`].
    fn order_group(codes: &[i16], lane: usize, block: &mut [i16]);
    /// The integer sums of eight groups of `group_size` columns: `R` = [`Rows::STRIP`] vectors of weight rows by `T` rows of
    /// activations.
    /// # Safety
    /// `weights` points to the blocks of a strip as [`Rows::unpack_block`] makes them, `x` to blocks of [`Rows::order_group`].
    unsafe fn block_sums<const R: usize, const T: usize>(
        weights: *const u8,
        x: [*const i16; T],
        group_size: usize,
    ) -> [[Self::Sums; T]; R];
    fn from_sums(sums: Self::Sums) -> Self::Floats;
    fn zero() -> Self::Floats;
    /// # Safety
    /// `from` points to eight numbers of each row, row after row.
    unsafe fn load(from: *const f32) -> Self::Floats;
    /// The same eight numbers for every row.
    /// # Safety
    /// `from` points to eight numbers.
    unsafe fn repeat(from: *const f32) -> Self::Floats;
    /// The numbers of row `row`.
    fn row(floats: Self::Floats, row: usize) -> Self::Lanes;
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`
    fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn sub(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn splat(value: f32) -> Self::Floats;
    /// # Safety
    /// `to` points to room for eight numbers of each row.
    unsafe fn store(floats: Self::Floats, to: *mut f32);
}

/// One row.
pub(crate) struct One<V>(PhantomData<V>);

impl<V: Lanes> Rows for One<V> {
    type Lanes = V;
    type Sums = V::Sums;
    type Floats = V;

    const ROWS: usize = 1;
    const STRIP: usize = STRIP_ROWS;
    const TOKENS: usize = 2;
    const CODE_BYTES: usize = 2;

    #[inline(always)]
    unsafe fn unpack_block(groups: [*const u8; 2], bytes: usize, out: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { V::interleave_groups(groups[0], bytes, out.cast(), STRIP_ROWS * 2 * LANES) };
    }
    #[inline(always)]
    fn order_group(codes: &[i16], lane: usize, block: &mut [i16]) {
        for (word, codes) in codes.chunks_exact(8).enumerate() {
            for step in 0..4 {
                let at = (4 * word + step) * 2 * LANES + 2 * lane;
                block[at] = codes[step];
                block[at + 1] = codes[step + 4];
            }
        }
    }
    #[inline(always)]
    unsafe fn block_sums<const R: usize, const T: usize>(
        weights: *const u8,
        x: [*const i16; T],
        group_size: usize,
    ) -> [[V::Sums; T]; R] {
        assert!(R == STRIP_ROWS);
        let mut sums = [[V::zero_sums(); T]; R];
        // SAFETY: the caller's promise: a block has `LANES * group_size` columns, two to a lane of a vector.
        let all = unsafe { V::strip_sums::<T>(weights.cast(), x, group_size / 2) };
        sums.copy_from_slice(&all);
        sums
    }
    #[inline(always)]
    fn from_sums(sums: V::Sums) -> V {
        V::from_sums(sums)
    }
    #[inline(always)]
    fn zero() -> V {
        V::zero()
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn repeat(from: *const f32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    fn row(floats: V, _row: usize) -> V {
        floats
    }
    #[inline(always)]
    fn mul(a: V, b: V) -> V {
        a.mul(b)
    }
    #[inline(always)]
    fn mul_add(a: V, b: V, c: V) -> V {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn add(a: V, b: V) -> V {
        a.add(b)
    }
    #[inline(always)]
    fn sub(a: V, b: V) -> V {
        a.sub(b)
    }
    #[inline(always)]
    fn splat(value: f32) -> V {
        V::splat(value)
    }
    #[inline(always)]
    unsafe fn store(floats: V, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { floats.store(to) }
    }
}

/// [`Lanes::strip_sums`], as the compiler makes it.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn strip_sums<V: Lanes, const T: usize>(
    weights: *const i16,
    x: [*const i16; T],
    vectors: usize,
) -> [[V::Sums; T]; STRIP_ROWS] {
    let mut sums = [[V::zero_sums(); T]; STRIP_ROWS];
    for vector in 0..vectors {
        let at = vector * 2 * LANES;
        // SAFETY: the caller's promise.
        unsafe {
            // No closures: they are not compiled for the instruction set.
            let mut codes = [V::load_codes(x[0].add(at)); T];
            for (codes, x) in codes.iter_mut().zip(x).skip(1) {
                *codes = V::load_codes(x.add(at));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let w = V::load_codes(weights.add(at * STRIP_ROWS + row * 2 * LANES));
                for t in 0..T {
                    sums[t] = V::dot_add(sums[t], w, codes[t]);
                }
            }
        }
    }
    sums
}
