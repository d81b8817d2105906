//! A cache line of weights at a time, two chunks of one row, with AVX-512 F, VL and VNNI. Codes are multiplied as bytes, first with the high
//! and then with the low bytes of the activations.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx2::{DotAdd, F32x8};
use super::direct::{CHUNK, CHUNK_BYTES, Direct};
use super::{CACHE_LINE, Lanes};

/// `D` as in [`F32x8`].
pub(crate) struct Lines<D>(PhantomData<D>);

/// 16-bit numbers of a line's activations: high bytes of even and of odd codes, then low bytes, of two chunks each.
const LINE_CODES: usize = 2 * CHUNK;
/// Bytes of one of those four parts.
const PART: usize = 64;

impl<D: DotAdd> Direct for Lines<D> {
    type Lanes = F32x8<D>;

    #[inline(always)]
    fn order_chunk(codes: &[i16; CHUNK], chunk: usize, row: &mut [i16]) {
        let line = &mut row[chunk / 2 * LINE_CODES..][..LINE_CODES];
        let to = line.as_mut_ptr().cast::<u8>();
        for half in 0..2 {
            let at = chunk % 2 * CHUNK_BYTES + half * 16;
            // SAFETY: 32 codes are read, and 16 bytes written in each of the line's four parts; the processor has AVX-512 F (see `Lanes`).
            unsafe {
                let pairs = _mm512_loadu_si512(codes.as_ptr().add(half * 32).cast());
                let even = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs));
                let odd = _mm512_srai_epi32::<16>(pairs);
                // The low bytes are signed too, so the high ones are rounded.
                let rounding = _mm512_set1_epi32(128);
                let even_high = _mm512_srai_epi32::<8>(_mm512_add_epi32(even, rounding));
                let odd_high = _mm512_srai_epi32::<8>(_mm512_add_epi32(odd, rounding));
                for (part, bytes) in [even_high, odd_high, even, odd].into_iter().enumerate() {
                    _mm_storeu_si128(to.add(part * PART + at).cast(), _mm512_cvtepi32_epi8(bytes));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn block_sums<const T: usize, const CHUNKS: usize>(
        codes: *const u8,
        count: usize,
        x: [*const i16; T],
        ahead: *const u8,
    ) -> [__m256i; T] {
        let line = Line {
            codes,
            chunks: count * CHUNKS,
            x,
            ahead,
            second_level: D::SECOND_LEVEL,
        };
        // SAFETY: the caller's promise; the processor has the instructions.
        unsafe {
            let mut totals = [F32x8::<D>::zero_sums(); T];
            let low = [line.sums(0), line.sums(1), line.sums(2), line.sums(3)];
            if CHUNKS == 1 {
                for (t, totals) in totals.iter_mut().enumerate() {
                    let quarters = add_four([low[0][t], low[1][t], low[2][t], low[3][t]]);
                    // The first half has sums of the groups 0, 2, 4 and 6, the second of those between.
                    let (even, odd) = (_mm512_castsi512_si256(quarters), upper(quarters));
                    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                    *totals = _mm256_permutevar8x32_epi32(add_halves(even, odd), order);
                }
            } else {
                let high = [line.sums(4), line.sums(5), line.sums(6), line.sums(7)];
                for (t, totals) in totals.iter_mut().enumerate() {
                    let low = add_four([low[0][t], low[1][t], low[2][t], low[3][t]]);
                    let high = add_four([high[0][t], high[1][t], high[2][t], high[3][t]]);
                    let low = _mm256_add_epi32(_mm512_castsi512_si256(low), upper(low));
                    let high = _mm256_add_epi32(_mm512_castsi512_si256(high), upper(high));
                    *totals = add_halves(low, high);
                }
            }
            totals
        }
    }
}

/// What the lines of a block have in common.
#[derive(Clone, Copy)]
struct Line<const T: usize> {
    codes: *const u8,
    /// Chunks of the block.
    chunks: usize,
    x: [*const i16; T],
    ahead: *const u8,
    second_level: bool,
}

impl<const T: usize> Line<T> {
    /// The sums over a line: the first half of a vector has those of its first chunk. 0 beyond the block.
    ///
    /// # Safety
    /// [`Direct::block_sums`]
    #[inline(always)]
    unsafe fn sums(self, line: usize) -> [__m512i; T] {
        // SAFETY: the caller's promise; of a chunk that is not there, nothing is read. The processor has the instructions.
        unsafe {
            let mut sums = [_mm512_setzero_si512(); T];
            if 2 * line >= self.chunks {
                return sums;
            }
            let from = self.codes.add(line * CACHE_LINE);
            let codes = if 2 * line + 1 < self.chunks {
                _mm512_loadu_si512(from.cast())
            } else {
                _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()))
            };
            let mask = _mm512_set1_epi32(0x0f0f_0f0f);
            let even = _mm512_and_si512(codes, mask);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<4>(codes), mask);
            for (sums, x) in sums.iter_mut().zip(self.x) {
                let x = x.add(line * LINE_CODES).cast::<u8>();
                let part = |part: usize| x.add(part * PART);
                let high = _mm512_dpbusd_epi32(*sums, even, _mm512_loadu_si512(part(0).cast()));
                let high = _mm512_dpbusd_epi32(high, odd, _mm512_loadu_si512(part(1).cast()));
                let both = _mm512_slli_epi32::<8>(high);
                let both = _mm512_dpbusd_epi32(both, even, _mm512_loadu_si512(part(2).cast()));
                let both = _mm512_dpbusd_epi32(both, odd, _mm512_loadu_si512(part(3).cast()));
                *sums = settle(both);
            }
            let ahead = self.ahead.wrapping_add(line * CACHE_LINE);
            sums[0] = if self.second_level {
                settle_and_prefetch_second(sums[0], ahead)
            } else {
                settle_and_prefetch(sums[0], ahead)
            };
            sums
        }
    }
}

/// An expression of intrinsics without memory access.
macro_rules! wide {
    ($value:expr) => {
        // SAFETY: the processor has AVX-512 F and VL (see `Lanes`).
        unsafe { $value }
    };
}

/// Number `i` of each quarter is the sum of that quarter of vector `i`.
#[inline(always)]
fn add_four(s: [__m512i; 4]) -> __m512i {
    wide!({
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    })
}

/// The sum of the halves of each.
#[inline(always)]
fn add_halves(a: __m256i, b: __m256i) -> __m256i {
    wide!(_mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(a, b),
        _mm256_permute2x128_si256::<0x31>(a, b)
    ))
}

#[inline(always)]
fn upper(sums: __m512i) -> __m256i {
    wide!(_mm512_extracti64x4_epi64::<1>(sums))
}

/// No instruction, but a place that the compiler moves nothing across.
#[inline]
#[target_feature(enable = "avx512f")]
fn settle(mut sums: __m512i) -> __m512i {
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(zmm_reg) sums, options(pure, nomem, nostack, preserves_flags)) };
    sums
}

/// As [`settle`], and a prefetch with `$instruction`; loads stay on their side of it as well.
macro_rules! settle_and_prefetch {
    ($name:ident, $instruction:literal) => {
        #[inline]
        #[target_feature(enable = "avx512f")]
        fn $name(mut sums: __m512i, line: *const u8) -> __m512i {
            // SAFETY: a prefetch of an address that is not mapped does nothing.
            unsafe {
                std::arch::asm!(
                    concat!($instruction, " [{line}]"),
                    "/* {sums} */",
                    sums = inout(zmm_reg) sums,
                    line = in(reg) line,
                    options(nostack, preserves_flags),
                );
            }
            sums
        }
    };
}
settle_and_prefetch!(settle_and_prefetch, "prefetcht0");
settle_and_prefetch!(settle_and_prefetch_second, "prefetcht1");
