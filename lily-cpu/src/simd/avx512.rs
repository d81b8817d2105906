//! Two rows in one 512-bit vector: AVX-512 F, VL and VNNI. Unpacked codes are bytes, half of what 16-bit codes take from the caches,
//! and the 16 bits of an activation two bytes.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::LANES;
use super::avx2::{DotAdd, F32x8, both};
use super::rows::Rows;

/// Two rows side by side; `D` as in [`F32x8`].
pub(crate) struct Wide<D>(PhantomData<D>);

/// Bytes of a vector.
const VECTOR: usize = 64;

/// An expression of intrinsics without memory access.
macro_rules! wide {
    ($value:expr) => {
        // SAFETY: the processor has AVX-512 F, VL and VNNI (see `Lanes`).
        unsafe { $value }
    };
}

impl<D: DotAdd> Rows for Wide<D> {
    type Lanes = F32x8<D>;
    type Sums = __m512i;
    type Floats = __m512;

    const ROWS: usize = 2;
    // Sixteen sums and what they are made of fit 32 registers.
    const STRIP: usize = 4;
    const TOKENS: usize = 4;
    const CODE_BYTES: usize = 1;

    /// Vector `2 w + q` has in lane `i` the codes `8 w + q`, `8 w + q + 2` and so on of group `i`, of one row and then the other.
    #[inline(always)]
    unsafe fn unpack_block(groups: [*const u8; 2], bytes: usize, out: *mut u8) {
        // SAFETY: the caller's promise: a group has 32 or 64 bytes.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            for first in (0..bytes).step_by(32) {
                let mut words = [_mm512_setzero_si512(); LANES];
                for (group, words) in words.iter_mut().enumerate() {
                    let at = group * bytes + first;
                    let low = _mm512_castsi256_si512(_mm256_loadu_si256(groups[0].add(at).cast()));
                    *words = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(groups[1].add(at).cast()));
                }
                for (word, codes) in transpose(words).iter().enumerate() {
                    let to = out.add((first / 4 + word) * 2 * Self::STRIP * VECTOR);
                    _mm512_storeu_si512(to.cast(), _mm512_and_si512(*codes, mask));
                    let high = _mm512_and_si512(_mm512_srli_epi32::<4>(*codes), mask);
                    _mm512_storeu_si512(to.add(Self::STRIP * VECTOR).cast(), high);
                }
            }
        }
    }
    /// The high bytes of the block come first, rounded so that the low bytes are signed too; each half in the order of the codes.
    #[inline(always)]
    fn order_group(codes: &[i16], lane: usize, block: &mut [i16]) {
        let half = block.len() / 2;
        for (chunk, codes) in codes.chunks_exact(32).enumerate() {
            let (mut high, mut low) = ([0i16; 16], [0i16; 16]);
            // SAFETY: 32 codes are read, 32 bytes written twice.
            unsafe {
                let (highs, lows) = bytes_in_order(codes.as_ptr());
                _mm256_storeu_si256(high.as_mut_ptr().cast(), highs);
                _mm256_storeu_si256(low.as_mut_ptr().cast(), lows);
            }
            for (place, word) in [0, 2, 1, 3].into_iter().enumerate() {
                for step in 0..2 {
                    let at = (2 * (4 * chunk + word) + step) * LANES * 2 + 2 * lane;
                    let from = 4 * place + 2 * step;
                    block[at..at + 2].copy_from_slice(&high[from..from + 2]);
                    block[at + half..at + half + 2].copy_from_slice(&low[from..from + 2]);
                }
            }
        }
    }
    /// Codes and bytes of activations are multiplied four at a time: with the high bytes, then 256 times that and with the low bytes.
    #[inline(always)]
    unsafe fn block_sums<const R: usize, const T: usize>(
        weights: *const u8,
        x: [*const i16; T],
        group_size: usize,
    ) -> [[__m512i; T]; R] {
        assert!(R == Self::STRIP);
        // SAFETY: the caller's promise: a block has `group_size / 4` vectors, of each row of weights and of each half of the activations.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); T]; R];
            for half in 0..2 {
                for vector in 0..group_size / 4 {
                    let mut bytes = [_mm512_setzero_si512(); T];
                    for t in 0..T {
                        let codes = x[t].add((half * group_size / 4 + vector) * 2 * LANES);
                        bytes[t] = _mm512_broadcast_i64x4(_mm256_loadu_si256(codes.cast()));
                    }
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let w = _mm512_loadu_si512(weights.add((vector * R + r) * VECTOR).cast());
                        for t in 0..T {
                            sums[t] = _mm512_dpbusd_epi32(sums[t], w, bytes[t]);
                        }
                    }
                }
                if half == 0 {
                    for sums in &mut sums {
                        for sums in sums {
                            *sums = _mm512_slli_epi32::<8>(*sums);
                        }
                    }
                }
            }
            sums
        }
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
    #[inline(always)]
    fn add(a: __m512, b: __m512) -> __m512 {
        wide!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(a: __m512, b: __m512) -> __m512 {
        wide!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn splat(value: f32) -> __m512 {
        wide!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn store(floats: __m512, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, floats) }
    }
}

/// The high and the low bytes of 32 codes, both signed: the high bytes are rounded. Words of eight come in the order 0, 2, 1, 3, each first the
/// even ones of its bytes, then the odd ones.
///
/// # Safety
/// `codes` points to 32 numbers.
#[inline(always)]
pub(super) unsafe fn bytes_in_order(codes: *const i16) -> (__m256i, __m256i) {
    // SAFETY: the caller's promise, and the processor has AVX2 (see `Lanes`).
    unsafe {
        let a = _mm256_loadu_si256(codes.cast());
        let b = _mm256_loadu_si256(codes.add(16).cast());
        let (rounding, byte) = (_mm256_set1_epi16(128), _mm256_set1_epi16(255));
        // Packing takes the quarters in turns from both, which gives the words' order.
        let highs = _mm256_packs_epi16(
            _mm256_srai_epi16::<8>(_mm256_add_epi16(a, rounding)),
            _mm256_srai_epi16::<8>(_mm256_add_epi16(b, rounding)),
        );
        let lows = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
        let apart = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
        (_mm256_shuffle_epi8(highs, apart), _mm256_shuffle_epi8(lows, apart))
    }
}

/// Transposes eight rows of eight 32-bit words in each half.
#[inline(always)]
pub(super) fn transpose(r: [__m512i; 8]) -> [__m512i; 8] {
    wide!({
        let (a0, a1) = both!(_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, r[0], r[1]);
        let (a2, a3) = both!(_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, r[2], r[3]);
        let (a4, a5) = both!(_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, r[4], r[5]);
        let (a6, a7) = both!(_mm512_unpacklo_epi32, _mm512_unpackhi_epi32, r[6], r[7]);
        let (b0, b1) = both!(_mm512_unpacklo_epi64, _mm512_unpackhi_epi64, a0, a2);
        let (b2, b3) = both!(_mm512_unpacklo_epi64, _mm512_unpackhi_epi64, a1, a3);
        let (b4, b5) = both!(_mm512_unpacklo_epi64, _mm512_unpackhi_epi64, a4, a6);
        let (b6, b7) = both!(_mm512_unpacklo_epi64, _mm512_unpackhi_epi64, a5, a7);
        // Quarters 0 and 2, or 1 and 3, of both.
        let even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
        let odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
        [
            _mm512_permutex2var_epi64(b0, even, b4),
            _mm512_permutex2var_epi64(b1, even, b5),
            _mm512_permutex2var_epi64(b2, even, b6),
            _mm512_permutex2var_epi64(b3, even, b7),
            _mm512_permutex2var_epi64(b0, odd, b4),
            _mm512_permutex2var_epi64(b1, odd, b5),
            _mm512_permutex2var_epi64(b2, odd, b6),
            _mm512_permutex2var_epi64(b3, odd, b7),
        ]
    })
}
