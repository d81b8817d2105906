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

    type Codes = __m256i;
    type Sums = __m256i;

    #[inline(always)]
    unsafe fn load_codes(from: *const i16) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> [__m256i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = _mm256_loadu_si256(from.cast());
            let mask = _mm256_set1_epi16(15);
            [
                _mm256_and_si256(codes, mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask),
                _mm256_and_si256(_mm256_srli_epi16::<8>(codes), mask),
                _mm256_srli_epi16::<12>(codes),
            ]
        }
    }
    #[inline(always)]
    fn zero_sums() -> __m256i {
        // SAFETY: as in `lanes`.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    fn dot_add(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as in `lanes`.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)) }
    }
    #[inline(always)]
    fn totals(sums: [__m256i; 8]) -> __m256i {
        // SAFETY: as in `lanes`.
        unsafe {
            let four = |a, b, c, d| _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
            let low = four(sums[0], sums[1], sums[2], sums[3]);
            let high = four(sums[4], sums[5], sums[6], sums[7]);
            _mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            )
        }
    }
    #[inline(always)]
    fn from_sums(sums: __m256i) -> Self {
        lanes!(_mm256_cvtepi32_ps(sums))
    }
    #[inline(always)]
    unsafe fn interleave_groups(groups: *const u8, bytes: usize, out: *mut i16) {
        // SAFETY: the caller's promise; 32 bytes of each of the eight groups at a time, or 16 where a group has no more.
        unsafe {
            let mask = _mm256_set1_epi32(0x000f_000f);
            let mut first = 0;
            while first < bytes {
                let wide = bytes - first >= 32;
                let row = |group: usize| {
                    let from = groups.add(group * bytes + first);
                    if wide {
                        _mm256_loadu_si256(from.cast())
                    } else {
                        _mm256_castsi128_si256(_mm_loadu_si128(from.cast()))
                    }
                };
                let words = transpose([row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)]);
                for (word, codes) in words.iter().enumerate().take(if wide { 8 } else { 4 }) {
                    let to = out.add((first / 4 + word) * 64).cast::<__m256i>();
                    _mm256_storeu_si256(to, _mm256_and_si256(*codes, mask));
                    _mm256_storeu_si256(to.add(1), _mm256_and_si256(_mm256_srli_epi16::<4>(*codes), mask));
                    _mm256_storeu_si256(to.add(2), _mm256_and_si256(_mm256_srli_epi16::<8>(*codes), mask));
                    _mm256_storeu_si256(to.add(3), _mm256_srli_epi16::<12>(*codes));
                }
                first += if wide { 32 } else { 16 };
            }
        }
    }
}

/// Transposes eight rows of eight 32-bit words.
#[inline(always)]
fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: as in `lanes`.
    unsafe {
        let pairs = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let ((a0, a1), (a2, a3)) = (pairs(r[0], r[1]), pairs(r[2], r[3]));
        let ((a4, a5), (a6, a7)) = (pairs(r[4], r[5]), pairs(r[6], r[7]));
        let quads = |a, b| (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        let ((b0, b1), (b2, b3)) = (quads(a0, a2), quads(a1, a3));
        let ((b4, b5), (b6, b7)) = (quads(a4, a6), quads(a5, a7));
        let halves = |a, b| {
            (
                _mm256_permute2x128_si256::<0x20>(a, b),
                _mm256_permute2x128_si256::<0x31>(a, b),
            )
        };
        let ((c0, c4), (c1, c5)) = (halves(b0, b4), halves(b1, b5));
        let ((c2, c6), (c3, c7)) = (halves(b2, b6), halves(b3, b7));
        [c0, c1, c2, c3, c4, c5, c6, c7]
    }
}
