//! AVX2 and FMA.

use std::arch::x86_64::*;

use super::Lanes;

#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

/// An expression of intrinsics without memory access.
macro_rules! lanes {
    ($value:expr) => {
        // SAFETY: the processor has AVX2 and FMA (see `Lanes`).
        F32x8(unsafe { $value })
    };
}

impl Lanes for F32x8 {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        lanes!(_mm256_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        lanes!(_mm256_loadu_ps(from))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        lanes!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(
            _mm_loadu_si128(from.cast())
        ))))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let high = _mm256_srli_epi32::<16>(rounded);
            let packed = _mm256_packus_epi32(high, high);
            let packed = _mm256_permute4x64_epi64::<0b1000>(packed);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        }
    }
    #[inline(always)]
    fn from_u4(word: u32) -> Self {
        lanes!({
            let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            let codes = _mm256_srlv_epi32(_mm256_set1_epi32(word as i32), shifts);
            _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(15)))
        })
    }
    #[inline(always)]
    fn from_u8(word: u64) -> Self {
        lanes!(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(word as i64))))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        lanes!(_mm256_add_ps(self.0, other.0))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        lanes!(_mm256_sub_ps(self.0, other.0))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        lanes!(_mm256_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        lanes!(_mm256_div_ps(self.0, other.0))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        lanes!(_mm256_max_ps(self.0, other.0))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        lanes!(_mm256_min_ps(self.0, other.0))
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        lanes!(_mm256_fmadd_ps(self.0, factor.0, addend.0))
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        lanes!(_mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0)),
            _mm256_set1_epi32(0x3f80_0000),
        )))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: as in `lanes`.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn max_lane(self) -> f32 {
        // SAFETY: as in `lanes`.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}
