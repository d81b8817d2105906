//! AArch64: two NEON vectors of four.

use std::arch::aarch64::*;

use super::Lanes;

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
        unsafe { vaddvq_f32(vaddq_f32(self.0, self.1)) }
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        // SAFETY: every AArch64 processor that Rust's targets run on has NEON.
        unsafe { vmaxvq_f32(vmaxq_f32(self.0, self.1)) }
    }
}
