//! AVX2 and FMA, with one of some ways to multiply integers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::amx::Amx;
use super::avx512::Wide;
use super::direct::{Chunks, Direct};
use super::lines::Lines;
use super::rows::{One, Rows, strip_sums};
use super::tiles::{PlainTiles, Tiles};
use super::{LANES, Lanes, STRIP_ROWS};

/// Eight lanes; `D` multiplies 16-bit integers. The sums are exact, so all ways give the same bits.
#[derive(Clone, Copy)]
pub(crate) struct F32x8<D>(pub(super) __m256, PhantomData<D>);

impl<D> F32x8<D> {
    #[inline(always)]
    pub(super) fn new(value: __m256) -> Self {
        F32x8(value, PhantomData)
    }
}

/// `sums + a * b` as in [`Lanes::dot_add`].
pub(crate) trait DotAdd: Copy {
    type Rows: Rows<Lanes = F32x8<Self>>;
    type Tiles: Tiles;
    type Direct: Direct<Lanes = F32x8<Self>>;
    /// Whether the lines are asked for into the second-level cache, which has room for more that are on their way, and not into the first.
    const SECOND_LEVEL: bool = false;
    /// # Safety
    /// The processor has the instruction.
    unsafe fn dot_add(sums: __m256i, a: __m256i, b: __m256i) -> __m256i;
    /// As [`Lanes::strip_sums`].
    /// # Safety
    /// As there, and the processor has the instructions.
    #[inline(always)]
    unsafe fn strip_sums<const T: usize>(
        weights: *const i16,
        x: [*const i16; T],
        vectors: usize,
    ) -> [[__m256i; T]; STRIP_ROWS]
    where
        Self: Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { strip_sums::<F32x8<Self>, T>(weights, x, vectors) }
    }
}

/// `vpmaddwd` and `vpaddd`.
#[derive(Clone, Copy)]
pub(crate) struct MultiplyThenAdd;
/// `vpdpwssd` of AVX-VNNI: one instruction for the two.
#[derive(Clone, Copy)]
pub(crate) struct AvxVnni;
/// `vpdpwssd` of AVX-512 VNNI with 256-bit vectors.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni;
/// The same, and products with many activations by the matrix unit.
#[derive(Clone, Copy)]
pub(crate) struct Avx512VnniAmx;

impl DotAdd for MultiplyThenAdd {
    type Rows = One<F32x8<Self>>;
    type Tiles = PlainTiles<F32x8<Self>>;
    type Direct = Chunks<F32x8<Self>>;

    #[inline(always)]
    unsafe fn dot_add(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    unsafe fn strip_sums<const T: usize>(
        weights: *const i16,
        x: [*const i16; T],
        vectors: usize,
    ) -> [[__m256i; T]; STRIP_ROWS] {
        if T != 2 {
            // SAFETY: the caller's promise.
            return unsafe { strip_sums::<F32x8<Self>, T>(weights, x, vectors) };
        }
        // SAFETY: the caller's promise.
        let pairs = unsafe { strip_sums_of_two(weights, [x[0], x[T - 1]], vectors) };
        // SAFETY: as in `lanes`.
        let mut sums = [[unsafe { _mm256_setzero_si256() }; T]; STRIP_ROWS];
        for (sums, pair) in sums.iter_mut().zip(pairs) {
            sums.copy_from_slice(&pair[..T]);
        }
        sums
    }
}

impl DotAdd for AvxVnni {
    type Rows = One<F32x8<Self>>;
    type Tiles = PlainTiles<F32x8<Self>>;
    type Direct = Chunks<F32x8<Self>>;

    #[inline(always)]
    unsafe fn dot_add(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_dpwssd_avx_epi32(sums, a, b) }
    }
}

impl DotAdd for Avx512Vnni {
    type Rows = Wide<Self>;
    type Tiles = PlainTiles<F32x8<Self>>;
    type Direct = Lines<Self>;

    #[inline(always)]
    unsafe fn dot_add(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_dpwssd_epi32(sums, a, b) }
    }
}

impl DotAdd for Avx512VnniAmx {
    type Rows = Wide<Self>;
    type Tiles = Amx;
    type Direct = Lines<Self>;
    const SECOND_LEVEL: bool = true;

    #[inline(always)]
    unsafe fn dot_add(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { Avx512Vnni::dot_add(sums, a, b) }
    }
}

/// An expression of intrinsics without memory access.
macro_rules! lanes {
    ($value:expr) => {
        // SAFETY: the processor has AVX2 and FMA (see `Lanes`).
        F32x8(unsafe { $value }, PhantomData)
    };
}

impl<D: DotAdd> Lanes for F32x8<D> {
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
            let pairs = _mm256_hadd_ps(self.0, self.0);
            let halves = _mm256_hadd_ps(pairs, pairs);
            _mm_cvtss_f32(_mm_add_ss(
                _mm256_castps256_ps128(halves),
                _mm256_extractf128_ps::<1>(halves),
            ))
        }
    }
    #[inline(always)]
    fn sums(all: [Self; LANES]) -> Self {
        lanes!({
            let low = _mm256_hadd_ps(_mm256_hadd_ps(all[0].0, all[1].0), _mm256_hadd_ps(all[2].0, all[3].0));
            let high = _mm256_hadd_ps(_mm256_hadd_ps(all[4].0, all[5].0), _mm256_hadd_ps(all[6].0, all[7].0));
            _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(low, high),
                _mm256_permute2f128_ps::<0x31>(low, high),
            )
        })
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
    #[inline(always)]
    fn first(self, count: usize) -> Self {
        const MASK: [u32; 2 * LANES] = [!0, !0, !0, !0, !0, !0, !0, !0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mask = &MASK[LANES - count..2 * LANES - count];
        // SAFETY: the slice has eight words.
        let mask = unsafe { _mm256_loadu_ps(mask.as_ptr().cast()) };
        lanes!(_mm256_and_ps(self.0, mask))
    }

    type Rows = D::Rows;
    type Tiles = D::Tiles;
    type Direct = D::Direct;
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
        unsafe { D::dot_add(sums, a, b) }
    }
    #[inline(always)]
    fn totals(sums: [__m256i; 8]) -> __m256i {
        // SAFETY: as in `lanes`.
        unsafe {
            let low = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
            let high = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[4], sums[5]), _mm256_hadd_epi32(sums[6], sums[7]));
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
    fn settle(sums: __m256i) -> __m256i {
        // SAFETY: as in `lanes`.
        unsafe { settle(sums) }
    }
    #[inline(always)]
    fn settle_and_prefetch(sums: __m256i, line: *const u8) -> __m256i {
        // SAFETY: as in `lanes`.
        unsafe { settle_and_prefetch(sums, line) }
    }
    #[inline(always)]
    unsafe fn strip_sums<const T: usize>(
        weights: *const i16,
        x: [*const i16; T],
        vectors: usize,
    ) -> [[__m256i; T]; STRIP_ROWS] {
        // SAFETY: the caller's promise.
        unsafe { D::strip_sums(weights, x, vectors) }
    }
    #[inline(always)]
    fn prefetch(line: *const u8) {
        // SAFETY: a prefetch of an address that is not mapped does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[inline(always)]
    unsafe fn interleave_groups(groups: *const u8, bytes: usize, out: *mut i16, stride: usize) {
        // SAFETY: the caller's promise: a group has 32 or 64 bytes.
        unsafe {
            let mask = _mm256_set1_epi32(0x000f_000f);
            for first in (0..bytes).step_by(32) {
                let mut words = [_mm256_setzero_si256(); 8];
                for (group, words) in words.iter_mut().enumerate() {
                    *words = _mm256_loadu_si256(groups.add(group * bytes + first).cast());
                }
                for (word, codes) in transpose(words).iter().enumerate() {
                    let to = out.add((first / 4 + word) * 4 * stride);
                    let (second, third) = (_mm256_srli_epi16::<4>(*codes), _mm256_srli_epi16::<8>(*codes));
                    _mm256_storeu_si256(to.cast(), _mm256_and_si256(*codes, mask));
                    _mm256_storeu_si256(to.add(stride).cast(), _mm256_and_si256(second, mask));
                    _mm256_storeu_si256(to.add(2 * stride).cast(), _mm256_and_si256(third, mask));
                    _mm256_storeu_si256(to.add(3 * stride).cast(), _mm256_srli_epi16::<12>(*codes));
                }
            }
        }
    }
}

/// Adds the products of a row of weights, at byte `$row` of the strip, and both rows of activations to `$first` and `$second`.
macro_rules! strip_row {
    ($row:literal, $first:literal, $second:literal) => {
        concat!(
            "vpmaddwd ymm14, ymm12, [{w} + ",
            $row,
            "]\n",
            "vpmaddwd ymm15, ymm13, [{w} + ",
            $row,
            "]\n",
            "vpaddd ",
            $first,
            ", ",
            $first,
            ", ymm14\n",
            "vpaddd ",
            $second,
            ", ",
            $second,
            ", ymm15\n",
        )
    };
}

/// [`Lanes::strip_sums`] of two rows of activations, with every register in its place: the compiler keeps weights in registers, and what
/// then does not fit any more in memory. Multiplied from memory, twelve sums, two vectors of activations and two products are sixteen.
///
/// # Safety
/// As there, and `vectors` is not 0.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn strip_sums_of_two(weights: *const i16, x: [*const i16; 2], vectors: usize) -> [[__m256i; 2]; STRIP_ROWS] {
    let bytes = vectors * size_of::<__m256i>();
    let mut sums = [[_mm256_setzero_si256(); 2]; STRIP_ROWS];
    let [[a0, a1], [b0, b1], [c0, c1], [d0, d1], [e0, e1], [f0, f1]] = &mut sums;
    // SAFETY: reads `vectors` vectors of each row of activations and of each of the strip's rows, the caller's promise.
    unsafe {
        std::arch::asm!(
            "2:",
            "vmovdqu ymm12, [{x0} + {at}]",
            "vmovdqu ymm13, [{x1} + {at}]",
            strip_row!("0", "ymm0", "ymm1"),
            strip_row!("32", "ymm2", "ymm3"),
            strip_row!("64", "ymm4", "ymm5"),
            strip_row!("96", "ymm6", "ymm7"),
            strip_row!("128", "ymm8", "ymm9"),
            strip_row!("160", "ymm10", "ymm11"),
            "add {w}, 192",
            "add {at}, 32",
            "jnz 2b",
            w = inout(reg) weights => _,
            // From the rows' ends: the offset is 0 when all is done.
            x0 = in(reg) x[0].byte_add(bytes),
            x1 = in(reg) x[1].byte_add(bytes),
            at = inout(reg) -bytes.cast_signed() => _,
            inout("ymm0") *a0, inout("ymm1") *a1, inout("ymm2") *b0, inout("ymm3") *b1,
            inout("ymm4") *c0, inout("ymm5") *c1, inout("ymm6") *d0, inout("ymm7") *d1,
            inout("ymm8") *e0, inout("ymm9") *e1, inout("ymm10") *f0, inout("ymm11") *f1,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(pure, readonly, nostack),
        );
    }
    sums
}

/// No instruction, but a place that the compiler moves nothing across.
#[inline]
#[target_feature(enable = "avx2")]
fn settle(mut sums: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) sums, options(pure, nomem, nostack, preserves_flags)) };
    sums
}

/// As [`settle`], and a prefetch; loads stay on their side of it as well.
#[inline]
#[target_feature(enable = "avx2")]
fn settle_and_prefetch(mut sums: __m256i, line: *const u8) -> __m256i {
    // SAFETY: a prefetch of an address that is not mapped does nothing.
    unsafe {
        std::arch::asm!(
            "prefetcht0 [{line}]",
            "/* {sums} */",
            sums = inout(ymm_reg) sums,
            line = in(reg) line,
            options(nostack, preserves_flags),
        );
    }
    sums
}

/// `(_mm256_unpacklo, _mm256_unpackhi)` of a pair, and the like: macros, because a closure is not compiled for AVX2.
macro_rules! both {
    ($low:ident, $high:ident, $a:expr, $b:expr) => {
        ($low($a, $b), $high($a, $b))
    };
}
pub(super) use both;

/// Transposes eight rows of eight 32-bit words.
#[inline(always)]
fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: as in `lanes`.
    unsafe {
        let (a0, a1) = both!(_mm256_unpacklo_epi32, _mm256_unpackhi_epi32, r[0], r[1]);
        let (a2, a3) = both!(_mm256_unpacklo_epi32, _mm256_unpackhi_epi32, r[2], r[3]);
        let (a4, a5) = both!(_mm256_unpacklo_epi32, _mm256_unpackhi_epi32, r[4], r[5]);
        let (a6, a7) = both!(_mm256_unpacklo_epi32, _mm256_unpackhi_epi32, r[6], r[7]);
        let (b0, b1) = both!(_mm256_unpacklo_epi64, _mm256_unpackhi_epi64, a0, a2);
        let (b2, b3) = both!(_mm256_unpacklo_epi64, _mm256_unpackhi_epi64, a1, a3);
        let (b4, b5) = both!(_mm256_unpacklo_epi64, _mm256_unpackhi_epi64, a4, a6);
        let (b6, b7) = both!(_mm256_unpacklo_epi64, _mm256_unpackhi_epi64, a5, a7);
        [
            _mm256_permute2x128_si256::<0x20>(b0, b4),
            _mm256_permute2x128_si256::<0x20>(b1, b5),
            _mm256_permute2x128_si256::<0x20>(b2, b6),
            _mm256_permute2x128_si256::<0x20>(b3, b7),
            _mm256_permute2x128_si256::<0x31>(b0, b4),
            _mm256_permute2x128_si256::<0x31>(b1, b5),
            _mm256_permute2x128_si256::<0x31>(b2, b6),
            _mm256_permute2x128_si256::<0x31>(b3, b7),
        ]
    }
}
