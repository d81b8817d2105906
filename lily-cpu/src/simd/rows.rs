//! Integer products over one weight row, or over two in one 512-bit vector. A row's bits are the same either way: halves never mix.

use std::marker::PhantomData;

use super::{LANES, Lanes};

/// Vectors that have the same place of [`Rows::ROWS`] weight rows side by side.
///
/// As with [`Lanes`], only [`crate::KernelSet::run`] names the types that implement this.
pub(crate) trait Rows {
    type Lanes: Lanes;
    /// Sixteen 16-bit integers of each row.
    type Codes: Copy;
    /// Eight 32-bit sums of each row.
    type Sums: Copy;
    /// Eight numbers of each row.
    type Floats: Copy;

    /// Weight rows of a vector, 1 or 2.
    const ROWS: usize;

    /// # Safety
    /// `from` points to sixteen numbers of each row, row after row.
    unsafe fn load_codes(from: *const i16) -> Self::Codes;
    /// The same for every row.
    /// # Safety
    /// `from` points to sixteen numbers.
    unsafe fn repeat_codes(from: *const i16) -> Self::Codes;
    /// As [`Lanes::load_nibbles`], rows being `stride` bytes apart.
    /// # Safety
    /// `from` points to 32 bytes, and so does `from + stride` where there are two rows.
    unsafe fn load_nibbles(from: *const u8, stride: usize) -> [Self::Codes; 4];
    fn zero_sums() -> Self::Sums;
    /// As [`Lanes::dot_add`].
    fn dot_add(sums: Self::Sums, a: Self::Codes, b: Self::Codes) -> Self::Sums;
    /// As [`Lanes::totals`].
    fn totals(sums: [Self::Sums; LANES]) -> Self::Sums;
    /// As [`Lanes::settle`].
    fn settle(sums: Self::Sums) -> Self::Sums;
    fn from_sums(sums: Self::Sums) -> Self::Floats;
    fn zero() -> Self::Floats;
    /// # Safety
    /// `from` points to eight numbers of each row, row after row.
    unsafe fn load(from: *const f32) -> Self::Floats;
    /// The same eight numbers for every row.
    /// # Safety
    /// `from` points to eight numbers.
    unsafe fn repeat(from: *const f32) -> Self::Floats;
    /// The numbers of the first and of the last row.
    fn from_rows(first: Self::Lanes, last: Self::Lanes) -> Self::Floats;
    /// The numbers of row `row`.
    fn row(floats: Self::Floats, row: usize) -> Self::Lanes;
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`
    fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
}

/// One row.
pub(crate) struct One<V>(PhantomData<V>);

impl<V: Lanes> Rows for One<V> {
    type Lanes = V;
    type Codes = V::Codes;
    type Sums = V::Sums;
    type Floats = V;

    const ROWS: usize = 1;

    #[inline(always)]
    unsafe fn load_codes(from: *const i16) -> V::Codes {
        // SAFETY: the caller's promise.
        unsafe { V::load_codes(from) }
    }
    #[inline(always)]
    unsafe fn repeat_codes(from: *const i16) -> V::Codes {
        // SAFETY: the caller's promise.
        unsafe { V::load_codes(from) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8, _stride: usize) -> [V::Codes; 4] {
        // SAFETY: the caller's promise.
        unsafe { V::load_nibbles(from) }
    }
    #[inline(always)]
    fn zero_sums() -> V::Sums {
        V::zero_sums()
    }
    #[inline(always)]
    fn dot_add(sums: V::Sums, a: V::Codes, b: V::Codes) -> V::Sums {
        V::dot_add(sums, a, b)
    }
    #[inline(always)]
    fn totals(sums: [V::Sums; LANES]) -> V::Sums {
        V::totals(sums)
    }
    #[inline(always)]
    fn settle(sums: V::Sums) -> V::Sums {
        V::settle(sums)
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
    fn from_rows(first: V, _last: V) -> V {
        first
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
}
