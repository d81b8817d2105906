//! Eight f32 lanes, the same in every instruction set, so that each kernel is written once.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod direct;
#[cfg(target_arch = "x86_64")]
mod lines;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
pub(crate) mod rows;
pub(crate) mod tiles;

use crate::{CpuError, KernelSet};

/// f32 lanes of one vector.
pub(crate) const LANES: usize = 8;
/// Bytes that a prefetch brings.
pub(crate) const CACHE_LINE: usize = 64;
/// How many bytes ahead a product straight from the weights' bytes asks for cache lines: the rows that come next.
pub(crate) const PREFETCH: usize = 8192;
/// Weight rows of [`Lanes::strip_sums`]: with two rows of activations, twelve sums and what they are made of fill sixteen registers.
pub(crate) const STRIP_ROWS: usize = 6;

/// Eight f32 numbers.
///
/// The operations use instructions that not every processor has. Only [`KernelSet::run`] names the types that implement this
/// trait, after the processor was asked, and everything between `run` and an operation is inlined.
pub(crate) trait Lanes: Copy {
    fn splat(value: f32) -> Self;
    /// # Safety
    /// `from` points to eight numbers.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `to` points to room for eight numbers.
    unsafe fn store(self, to: *mut f32);
    /// Eight bfloat16 numbers.
    /// # Safety
    /// `from` points to 16 bytes.
    unsafe fn load_bf16(from: *const u8) -> Self;
    /// Rounds to bfloat16, ties to even. Numbers must be finite.
    /// # Safety
    /// `to` points to room for eight numbers.
    unsafe fn store_bf16(self, to: *mut u16);
    /// The eight 4-bit codes of a word, lowest bits first.
    fn from_u4(word: u32) -> Self;
    /// The eight bytes of a word, lowest first.
    fn from_u8(word: u64) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once where the instruction set can.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// `2^n` for numbers `1.5 * 2^23 + n`.
    fn pow2(self) -> Self;
    /// Sum of the lanes: neighbours first, then their sums, then the halves.
    fn sum(self) -> f32;
    /// The [`Lanes::sum`] of each of eight.
    fn sums(all: [Self; LANES]) -> Self;
    /// The largest lane.
    fn max_lane(self) -> f32;
    /// The first `count` lanes (at most eight), and 0 in the others.
    #[inline(always)]
    fn first(self, count: usize) -> Self {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: eight numbers.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes[count..].fill(0.0);
        // SAFETY: as above.
        unsafe { Self::load(lanes.as_ptr()) }
    }

    /// Vectors of integer products.
    type Rows: rows::Rows<Lanes = Self>;
    /// Tiles of integer products.
    type Tiles: tiles::Tiles;
    /// Integer products straight from the weights' bytes.
    type Direct: direct::Direct<Lanes = Self>;
    /// Sixteen 16-bit integers.
    type Codes: Copy;
    /// Eight 32-bit sums.
    type Sums: Copy;
    /// # Safety
    /// `from` points to sixteen numbers.
    unsafe fn load_codes(from: *const i16) -> Self::Codes;
    /// The 64 4-bit codes of 32 bytes: vector `i` has codes `i`, `i + 4`, `i + 8` and so on.
    /// # Safety
    /// `from` points to 32 bytes.
    unsafe fn load_nibbles(from: *const u8) -> [Self::Codes; 4];
    fn zero_sums() -> Self::Sums;
    /// `sums + a * b`, where lane `i` gets the products of the elements `2 i` and `2 i + 1`.
    fn dot_add(sums: Self::Sums, a: Self::Codes, b: Self::Codes) -> Self::Sums;
    /// Lane `i` is the sum of the lanes of `sums[i]`.
    fn totals(sums: [Self::Sums; LANES]) -> Self::Sums;
    fn from_sums(sums: Self::Sums) -> Self;
    /// The same sums, computed here and now. Where many independent sums are formed one after the other, the compiler otherwise
    /// starts all their multiplications first and spills the products: half the speed.
    #[inline(always)]
    fn settle(sums: Self::Sums) -> Self::Sums {
        sums
    }
    /// The same, and asks for a cache line, of any address, at this place among the loads: the compiler would gather all requests and all loads
    /// of a block, and then they wait for each other.
    #[inline(always)]
    fn settle_and_prefetch(sums: Self::Sums, line: *const u8) -> Self::Sums {
        Self::prefetch(line);
        Self::settle(sums)
    }
    /// The 4-bit codes of eight groups side by side. `groups` has the codes of each group as the file has them, in `bytes` bytes
    /// (32 or 64); vector `4 w + q` of `out`, vectors being `stride` numbers apart, has in lane `i` the codes `8 w + q` and
    /// `8 w + q + 4` of group `i`.
    /// # Safety
    /// `groups` points to `LANES * bytes` bytes, `out` to room for `2 * bytes` vectors of sixteen numbers.
    #[inline(always)]
    unsafe fn interleave_groups(groups: *const u8, bytes: usize, out: *mut i16, stride: usize) {
        for group in 0..LANES {
            for word in 0..bytes / 4 {
                // SAFETY: the group and word are inside, and so are the numbers that they become.
                unsafe {
                    let codes = u32::from_le(groups.add(group * bytes + 4 * word).cast::<u32>().read_unaligned());
                    for step in 0..4 {
                        let to = out.add((4 * word + step) * stride + 2 * group);
                        *to = (codes >> (4 * step) & 15) as i16;
                        *to.add(1) = (codes >> (4 * step + 16) & 15) as i16;
                    }
                }
            }
        }
    }
    /// The integer sums of a strip of six weight rows by `T` rows of activations over `vectors` vectors. `weights` has vector after
    /// vector of all six rows, `x` those of a row.
    /// # Safety
    /// `weights` and `x` have the vectors.
    #[inline(always)]
    unsafe fn strip_sums<const T: usize>(
        weights: *const i16,
        x: [*const i16; T],
        vectors: usize,
    ) -> [[Self::Sums; T]; STRIP_ROWS] {
        // SAFETY: the caller's promise.
        unsafe { rows::strip_sums::<Self, T>(weights, x, vectors) }
    }
    /// Asks for a cache line, of any address.
    #[inline(always)]
    fn prefetch(_line: *const u8) {}
    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }
}

/// A kernel, generic over the instruction set. Implementations are `#[inline(always)]`, so that they are compiled for the
/// instructions of the set that runs them.
pub(crate) trait Kernel {
    type Output;
    fn run<V: Lanes>(self) -> Self::Output;
}

impl KernelSet {
    /// Every set; on a processor that runs several, the first of them is the fastest.
    const BEST_FIRST: [KernelSet; 6] = [
        KernelSet::Avx512VnniAmx,
        KernelSet::Avx512Vnni,
        KernelSet::AvxVnni,
        KernelSet::Avx2,
        KernelSet::Neon,
        KernelSet::Portable,
    ];

    /// The best set of this processor.
    pub(crate) fn detect() -> KernelSet {
        KernelSet::BEST_FIRST
            .into_iter()
            .find(|set| set.available())
            .unwrap_or(KernelSet::Portable)
    }

    /// This set, or an error where the processor cannot run it.
    pub(crate) fn checked(self) -> Result<KernelSet, CpuError> {
        if self.available() {
            Ok(self)
        } else {
            Err(CpuError::UnsupportedKernels(self.name()))
        }
    }

    /// Whether this processor runs the set, and the system lets this process use it.
    pub fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            KernelSet::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            KernelSet::AvxVnni => KernelSet::Avx2.available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            KernelSet::Avx512Vnni => {
                KernelSet::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            KernelSet::Avx512VnniAmx => KernelSet::Avx512Vnni.available() && amx::available(),
            KernelSet::Neon => cfg!(target_arch = "aarch64"),
            KernelSet::Portable => true,
            #[cfg(not(target_arch = "x86_64"))]
            KernelSet::Avx2 | KernelSet::AvxVnni | KernelSet::Avx512Vnni | KernelSet::Avx512VnniAmx => false,
        }
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            KernelSet::Avx2 => "AVX2",
            KernelSet::AvxVnni => "AVX2 and AVX-VNNI",
            KernelSet::Avx512Vnni => "AVX2 and AVX-512 VNNI",
            KernelSet::Avx512VnniAmx => "AVX2, AVX-512 VNNI and AMX",
            KernelSet::Neon => "NEON",
            KernelSet::Portable => "portable",
        }
    }

    /// Runs `kernel` with the instructions of this set, which has passed [`KernelSet::checked`].
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `checked` found AVX2 and FMA.
            KernelSet::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `checked` found these as well.
            KernelSet::AvxVnni => unsafe { run_avx_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `checked` found these as well.
            KernelSet::Avx512Vnni => unsafe { run_avx512_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `checked` found these as well.
            KernelSet::Avx512VnniAmx => unsafe { run_avx512_vnni_amx(kernel) },
            #[cfg(target_arch = "aarch64")]
            KernelSet::Neon => kernel.run::<neon::F32x8>(),
            _ => kernel.run::<portable::F32x8>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::F32x8<avx2::MultiplyThenAdd>>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avxvnni")]
fn run_avx_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::F32x8<avx2::AvxVnni>>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512vnni")]
fn run_avx512_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::F32x8<avx2::Avx512Vnni>>()
}

// AMX itself is written in assembly, which needs no feature of the compiler.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512vnni")]
fn run_avx512_vnni_amx<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::F32x8<avx2::Avx512VnniAmx>>()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Every set that this processor runs.
    pub(crate) fn sets() -> Vec<KernelSet> {
        KernelSet::BEST_FIRST
            .into_iter()
            .filter(|set| set.available())
            .collect()
    }

    /// Numbers from -1 to 1 in a fixed, irregular order.
    pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f32 / (1u64 << 30) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    struct RoundTrip<'a>(&'a [f32], &'a mut [u16]);

    impl Kernel for RoundTrip<'_> {
        type Output = (Vec<f32>, f32, f32);
        #[inline(always)]
        fn run<V: Lanes>(self) -> Self::Output {
            let mut back = vec![0.0; LANES];
            // SAFETY: all three hold eight numbers.
            unsafe {
                let value = V::load(self.0.as_ptr());
                value.store_bf16(self.1.as_mut_ptr());
                V::load_bf16(self.1.as_ptr().cast()).store(back.as_mut_ptr());
                (back, value.sum(), value.max_lane())
            }
        }
    }

    struct Codes(u32, u64);

    impl Kernel for Codes {
        type Output = ([f32; LANES], [f32; LANES]);
        #[inline(always)]
        fn run<V: Lanes>(self) -> Self::Output {
            let (mut four, mut eight) = ([0.0; LANES], [0.0; LANES]);
            // SAFETY: both have room for eight numbers.
            unsafe {
                V::from_u4(self.0).store(four.as_mut_ptr());
                V::from_u8(self.1).store(eight.as_mut_ptr());
            }
            (four, eight)
        }
    }

    #[test]
    fn conversions_and_reductions() {
        let values = [1.0, -2.5, 3.141_7, -1e-20, 1.003_906_2, 1.011_718_8, 65_504.0, -7.0];
        for set in sets() {
            let mut bits = [0u16; LANES];
            let (back, sum, max) = set.run(RoundTrip(&values, &mut bits));
            for lane in 0..LANES {
                assert_eq!(
                    back[lane],
                    half::bf16::from_f32(values[lane]).to_f32(),
                    "{}",
                    set.name()
                );
            }
            assert!((sum - values.iter().sum::<f32>()).abs() < 0.02);
            assert_eq!(max, 65_504.0);
            let (four, eight) = set.run(Codes(0xfedc_3210, 0xff80_7f40_2010_0100));
            assert_eq!(four, [0.0, 1.0, 2.0, 3.0, 12.0, 13.0, 14.0, 15.0]);
            assert_eq!(eight, [0.0, 1.0, 16.0, 32.0, 64.0, 127.0, 128.0, 255.0]);
        }
    }
}
