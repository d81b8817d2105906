//! AArch64: two NEON vectors of four.

use std::arch::aarch64::*;

use super::{LANES, Lanes};

#[derive(Clone, Copy)]
pub(crate) struct F32x8(float32x4_t, float32x4_t);

impl Lanes for F32x8 {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { F32x8(vdupq_n_f32(value), vdupq_n_f32(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { F32x8(vld1q_f32(from), vld1q_f32(from.add(4))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            vst1q_f32(to, self.0);
            vst1q_f32(to.add(4), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = vreinterpretq_u16_u8(vld1q_u8(from));
            F32x8(
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(bits))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(bits))),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            let round = |half: float32x4_t| {
                let bits = vreinterpretq_u32_f32(half);
                let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
                vshrn_n_u32::<16>(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))))
            };
            vst1q_u16(to, vcombine_u16(round(self.0), round(self.1)));
        }
    }
    #[inline(always)]
    fn from_u4(word: u32) -> Self {
        let spread = |half: u32| {
            let half = u64::from(half);
            (half & 0xf) | (half & 0xf0) << 4 | (half & 0xf00) << 8 | (half & 0xf000) << 12
        };
        Self::from_u8(spread(word & 0xffff) | spread(word >> 16) << 32)
    }
    #[inline(always)]
    fn from_u8(word: u64) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe {
            let wide = vmovl_u8(vcreate_u8(word));
            F32x8(
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(wide))),
            )
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { F32x8(vaddq_f32(self.0, other.0), vaddq_f32(self.1, other.1)) }
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { F32x8(vsubq_f32(self.0, other.0), vsubq_f32(self.1, other.1)) }
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { F32x8(vmulq_f32(self.0, other.0), vmulq_f32(self.1, other.1)) }
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { F32x8(vdivq_f32(self.0, other.0), vdivq_f32(self.1, other.1)) }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { F32x8(vmaxq_f32(self.0, other.0), vmaxq_f32(self.1, other.1)) }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { F32x8(vminq_f32(self.0, other.0), vminq_f32(self.1, other.1)) }
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe {
            F32x8(
                vfmaq_f32(addend.0, self.0, factor.0),
                vfmaq_f32(addend.1, self.1, factor.1),
            )
        }
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe {
            let one = vdupq_n_u32(0x3f80_0000);
            let shift = |half| vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(half)), one));
            F32x8(shift(self.0), shift(self.1))
        }
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { vaddvq_f32(self.0) + vaddvq_f32(self.1) }
    }
    #[inline(always)]
    fn sums(all: [Self; LANES]) -> Self {
        let sums = all.map(Self::sum);
        // SAFETY: eight numbers.
        unsafe { Self::load(sums.as_ptr()) }
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { vmaxvq_f32(vmaxq_f32(self.0, self.1)) }
    }

    type Rows = super::rows::One<Self>;
    type Tiles = super::tiles::PlainTiles<Self>;
    type Direct = super::direct::Chunks<Self>;
    type Codes = (int16x8_t, int16x8_t);
    type Sums = (int32x4_t, int32x4_t);

    #[inline(always)]
    unsafe fn load_codes(from: *const i16) -> Self::Codes {
        // SAFETY: the caller's promise.
        unsafe { (vld1q_s16(from), vld1q_s16(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> [Self::Codes; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let low = vreinterpretq_u16_u8(vld1q_u8(from));
            let high = vreinterpretq_u16_u8(vld1q_u8(from.add(16)));
            let mask = vdupq_n_u16(15);
            let code = |word| vreinterpretq_s16_u16(vandq_u16(word, mask));
            [
                (code(low), code(high)),
                (code(vshrq_n_u16::<4>(low)), code(vshrq_n_u16::<4>(high))),
                (code(vshrq_n_u16::<8>(low)), code(vshrq_n_u16::<8>(high))),
                (code(vshrq_n_u16::<12>(low)), code(vshrq_n_u16::<12>(high))),
            ]
        }
    }
    #[inline(always)]
    fn zero_sums() -> Self::Sums {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { (vdupq_n_s32(0), vdupq_n_s32(0)) }
    }
    #[inline(always)]
    fn dot_add(sums: Self::Sums, a: Self::Codes, b: Self::Codes) -> Self::Sums {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe {
            let pairs = |a, b| vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
            (vaddq_s32(sums.0, pairs(a.0, b.0)), vaddq_s32(sums.1, pairs(a.1, b.1)))
        }
    }
    #[inline(always)]
    fn totals(sums: [Self::Sums; 8]) -> Self::Sums {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe {
            let half = sums.map(|(low, high)| vaddq_s32(low, high));
            let four = |i: usize| vpaddq_s32(vpaddq_s32(half[i], half[i + 1]), vpaddq_s32(half[i + 2], half[i + 3]));
            (four(0), four(4))
        }
    }
    #[inline(always)]
    fn from_sums(sums: Self::Sums) -> Self {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { F32x8(vcvtq_f32_s32(sums.0), vcvtq_f32_s32(sums.1)) }
    }
}
