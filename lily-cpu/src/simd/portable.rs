//! Plain Rust; the compiler makes of it what the target's baseline allows.

use super::{LANES, Lanes};

#[derive(Clone, Copy)]
pub(crate) struct F32x8([f32; LANES]);

impl F32x8 {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        F32x8(std::array::from_fn(|lane| op(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    fn fold(self, op: impl Fn(f32, f32) -> f32) -> f32 {
        let v = self.0;
        op(op(op(v[0], v[4]), op(v[2], v[6])), op(op(v[1], v[5]), op(v[3], v[7])))
    }
}

impl Lanes for F32x8 {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        F32x8([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise; the read needs no alignment.
        F32x8(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise; the write needs no alignment.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise; the read needs no alignment.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        F32x8(bits.map(|bits| f32::from_bits(u32::from(u16::from_le(bits)) << 16)))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        let rounded = self.0.map(|value| {
            let bits = value.to_bits();
            ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
        });
        // SAFETY: the caller's promise; the write needs no alignment.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(rounded) }
    }
    #[inline(always)]
    fn from_u4(word: u32) -> Self {
        F32x8(std::array::from_fn(|lane| (word >> (4 * lane) & 15) as f32))
    }
    #[inline(always)]
    fn from_u8(word: u64) -> Self {
        F32x8(word.to_le_bytes().map(f32::from))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        // Not `f32::mul_add`: without the instruction that is a library call for each lane.
        F32x8(std::array::from_fn(|lane| {
            self.0[lane] * factor.0[lane] + addend.0[lane]
        }))
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        F32x8(
            self.0
                .map(|value| f32::from_bits((value.to_bits() << 23).wrapping_add(0x3f80_0000))),
        )
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        self.fold(|a, b| a + b)
    }
    #[inline(always)]
    fn sums(all: [Self; LANES]) -> Self {
        F32x8(all.map(Self::sum))
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.fold(f32::max)
    }

    type Rows = super::rows::One<Self>;
    type Tiles = super::tiles::PlainTiles<Self>;
    type Direct = super::direct::Chunks<Self>;
    type Codes = [i16; 2 * LANES];
    type Sums = [i32; LANES];

    #[inline(always)]
    unsafe fn load_codes(from: *const i16) -> Self::Codes {
        // SAFETY: the caller's promise; the read needs no alignment.
        unsafe { from.cast::<Self::Codes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> [Self::Codes; 4] {
        // SAFETY: the caller's promise; the read needs no alignment.
        let words = unsafe { from.cast::<[u16; 2 * LANES]>().read_unaligned() }.map(u16::from_le);
        std::array::from_fn(|vector| words.map(|word| (word >> (4 * vector) & 15) as i16))
    }
    #[inline(always)]
    fn zero_sums() -> Self::Sums {
        [0; LANES]
    }
    #[inline(always)]
    fn dot_add(sums: Self::Sums, a: Self::Codes, b: Self::Codes) -> Self::Sums {
        let product = |index: usize| i32::from(a[index]) * i32::from(b[index]);
        std::array::from_fn(|lane| sums[lane] + product(2 * lane) + product(2 * lane + 1))
    }
    #[inline(always)]
    fn totals(sums: [Self::Sums; LANES]) -> Self::Sums {
        sums.map(|sums| sums.iter().sum())
    }
    #[inline(always)]
    fn from_sums(sums: Self::Sums) -> Self {
        F32x8(sums.map(|sum| sum as f32))
    }
}
