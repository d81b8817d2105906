//! Two rows in one 512-bit vector: AVX-512 F, VL and VNNI.

use std::arch::x86_64::*;

use super::LANES;
use super::avx2::{Avx512Vnni, F32x8};
use super::rows::Rows;

pub(crate) struct Wide;

/// An expression of intrinsics without memory access.
macro_rules! wide {
    ($value:expr) => {
        // SAFETY: the processor has AVX-512 F, VL and VNNI (see `Lanes`).
        unsafe { $value }
    };
}

/// The sum of the low and the high neighbours of two vectors, as `$low` and `$high` interleave them.
macro_rules! add_interleaved {
    ($low:ident, $high:ident, $a:expr, $b:expr) => {
        _mm512_add_epi32($low($a, $b), $high($a, $b))
    };
}

impl Rows for Wide {
    type Lanes = F32x8<Avx512Vnni>;
    type Codes = __m512i;
    type Sums = __m512i;
    type Floats = __m512;

    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn load_codes(from: *const i16) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn repeat_codes(from: *const i16) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8, stride: usize) -> [__m512i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
            let codes = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(from.add(stride).cast()));
            // Shifts of 32-bit words need no more than AVX-512 F; the mask takes what crosses from one half into the other.
            let mask = _mm512_set1_epi32(0x000f_000f);
            [
                _mm512_and_si512(codes, mask),
                _mm512_and_si512(_mm512_srli_epi32::<4>(codes), mask),
                _mm512_and_si512(_mm512_srli_epi32::<8>(codes), mask),
                _mm512_and_si512(_mm512_srli_epi32::<12>(codes), mask),
            ]
        }
    }
    #[inline(always)]
    fn zero_sums() -> __m512i {
        wide!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn dot_add(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        wide!(_mm512_dpwssd_epi32(sums, a, b))
    }
    #[inline(always)]
    fn totals(s: [__m512i; LANES]) -> __m512i {
        wide!({
            let ab = add_interleaved!(_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, s[0], s[1]);
            let cd = add_interleaved!(_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, s[2], s[3]);
            let ef = add_interleaved!(_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, s[4], s[5]);
            let gh = add_interleaved!(_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, s[6], s[7]);
            let low = add_interleaved!(_mm512_unpacklo_epi64, _mm512_unpackhi_epi64, ab, cd);
            let high = add_interleaved!(_mm512_unpacklo_epi64, _mm512_unpackhi_epi64, ef, gh);
            // Each quarter of `low` has four sums over a quarter of the vectors: even and odd quarters, then their sum.
            let even = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), high);
            let odd = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), high);
            _mm512_add_epi32(even, odd)
        })
    }
    #[inline(always)]
    fn settle(sums: __m512i) -> __m512i {
        wide!(settle(sums))
    }
    #[inline(always)]
    fn from_sums(sums: __m512i) -> __m512 {
        wide!(_mm512_cvtepi32_ps(sums))
    }
    #[inline(always)]
    fn zero() -> __m512 {
        wide!(_mm512_setzero_ps())
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn repeat(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_castps_pd(_mm256_loadu_ps(from)))) }
    }
    #[inline(always)]
    fn from_rows(first: Self::Lanes, last: Self::Lanes) -> __m512 {
        wide!({
            let low = _mm512_castps_pd(_mm512_castps256_ps512(first.0));
            _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, _mm256_castps_pd(last.0)))
        })
    }
    #[inline(always)]
    fn row(floats: __m512, row: usize) -> Self::Lanes {
        wide!(F32x8::new(if row == 0 {
            _mm512_castps512_ps256(floats)
        } else {
            _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(floats)))
        }))
    }
    #[inline(always)]
    fn mul(a: __m512, b: __m512) -> __m512 {
        wide!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        wide!(_mm512_fmadd_ps(a, b, c))
    }
}

/// As in `avx2`.
#[inline]
#[target_feature(enable = "avx512f")]
fn settle(mut sums: __m512i) -> __m512i {
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(zmm_reg) sums, options(pure, nomem, nostack, preserves_flags)) };
    sums
}
