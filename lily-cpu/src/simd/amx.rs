//! The matrix unit of AMX: products of tiles of sixteen rows by 64 bytes.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::avx512::{bytes_in_order, transpose};
use super::tiles::{CHUNK, CHUNK_BYTES, TILE, Tiles, TokenTile, WeightTile};
use super::{CACHE_LINE, LANES};

/// Tiles of AMX, everything else with AVX-512.
pub(crate) struct Amx;

/// Bytes of a vector.
const VECTOR: usize = 64;

/// The shapes of the eight tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The tile of the weights; all others have a row for each token.
const WEIGHTS: usize = 6;

/// Shapes for each number of tokens up to sixteen: rows of 64 bytes, as many as tokens.
static SHAPES: [Shapes; TILE + 1] = {
    const TILES: usize = 8;
    let mut all = [Shapes {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    }; TILE + 1];
    let mut tokens = 1;
    while tokens <= TILE {
        let mut tile = 0;
        while tile < TILES {
            all[tokens].row_bytes[tile] = 64;
            all[tokens].rows[tile] = if tile == WEIGHTS { TILE as u8 } else { tokens as u8 };
            tile += 1;
        }
        tokens += 1;
    }
    all
};

/// Whether the processor has AMX with products of bytes, and the system lets this process use it, for which it is asked.
pub(crate) fn available() -> bool {
    static AVAILABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && permitted())
}

fn has_instructions() -> bool {
    const TILES_AND_INT8: u32 = 3 << 24;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_AND_INT8 == TILES_AND_INT8
}

/// Linux keeps the tiles of a process only after it has asked for them (the kernel's documentation, "Using XSTATE features in user space applications").
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes a number and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The sums of one group with the high and with the low bytes, `[half, token, row]`.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct GroupSums([[[i32; TILE]; TILE]; 2]);

/// `$body` for each token `$t` below `$tokens`, one after the other in the code: the compiler leaves a loop over sixteen as it is, and then
/// keeps what the tokens add up in memory.
macro_rules! each_token {
    ($tokens:ident, $t:ident, $body:expr) => {
        each_token!($tokens, $t, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($tokens:ident, $t:ident, $body:expr, $($number:literal)*) => {
        $(if $number < $tokens {
            let $t = $number;
            $body;
        })*
    };
}

impl Tiles for Amx {
    #[inline(always)]
    fn start(tokens: usize) {
        // SAFETY: the processor has AMX and the system permits it (see `Lanes`); the shapes are of palette 1.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &SHAPES[tokens], options(nostack, readonly, preserves_flags)) };
    }

    #[inline(always)]
    fn end() {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn unpack(rows: [*const u8; TILE], out: *mut u8) {
        // SAFETY: the caller's promise: sixteen vectors.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let words = words(rows);
            for (word, codes) in words.into_iter().enumerate() {
                let to = out.add(word * 2 * VECTOR);
                _mm512_storeu_si512(to.cast(), _mm512_and_si512(codes, mask));
                let high = _mm512_and_si512(_mm512_srli_epi32::<4>(codes), mask);
                _mm512_storeu_si512(to.add(VECTOR).cast(), high);
            }
        }
    }

    #[inline(always)]
    unsafe fn spread_bf16(rows: [*const u8; TILE], out: &mut [f32; TILE * TILE]) {
        // SAFETY: the caller's promise, and sixteen vectors are written.
        unsafe {
            let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            let words = words(rows);
            for (pair, numbers) in words.into_iter().enumerate() {
                let to = out.as_mut_ptr().add(pair * 2 * TILE);
                _mm512_storeu_si512(to.cast(), _mm512_slli_epi32::<16>(numbers));
                _mm512_storeu_si512(to.add(TILE).cast(), _mm512_and_si512(numbers, upper));
            }
        }
    }

    #[inline(always)]
    fn order_chunk(codes: &[i16; CHUNK], out: &mut [i16; CHUNK]) {
        for half in 0..2 {
            // SAFETY: 32 codes are read, and 32 bytes written twice, at bytes 32 and 96 for the second half.
            unsafe {
                let (high, low) = bytes_in_order(codes.as_ptr().add(half * 32));
                let to = out.as_mut_ptr().cast::<u8>().add(half * 32);
                // From words of eight in the order 0, 2, 1, 3.
                _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b1101_1000>(high));
                _mm256_storeu_si256(to.add(CHUNK).cast(), _mm256_permute4x64_epi64::<0b1101_1000>(low));
            }
        }
    }

    // The matrix unit works on the group after the next, and the next one's sums are written, while the vectors take this one's.
    #[inline(always)]
    unsafe fn multiply<const T: usize>(
        weights: &WeightTile,
        tokens: &TokenTile,
        ahead: &[u8],
        out: *mut f32,
        stride: usize,
    ) {
        // Lines to ask for with each group.
        let lines = ahead.len().div_ceil(CACHE_LINE).div_ceil(weights.groups);
        let mut sums = MaybeUninit::<[GroupSums; 2]>::uninit();
        let sums = sums.as_mut_ptr().cast::<GroupSums>();
        // SAFETY: the caller's promise; the groups are below `weights.groups`, and sums are read after they were written.
        unsafe {
            let mut lanes = MaybeUninit::<[[__m512; TILE]; LANES]>::uninit();
            let lanes = lanes.as_mut_ptr().cast::<[__m512; TILE]>();
            for lane in weights.groups..LANES {
                *lanes.add(lane) = [_mm512_setzero_ps(); TILE];
            }
            let mut group = 0;
            multiply_group(weights, tokens, 0);
            if weights.groups > 1 {
                multiply_group(weights, tokens, 1);
            }
            store_group(0, sums);
            for lane in 0..LANES.min(weights.groups) {
                let mut added = [_mm512_setzero_ps(); TILE];
                for _ in 0..lane_groups(lane, weights.groups) {
                    let (next, after) = (group + 1, group + 2);
                    if after < weights.groups {
                        multiply_group(weights, tokens, after);
                    }
                    if next < weights.groups {
                        store_group(next, sums.add(next % 2));
                    }
                    for line in group * lines..(group + 1) * lines {
                        _mm_prefetch::<_MM_HINT_T1>(ahead.as_ptr().wrapping_add(line * CACHE_LINE).cast());
                    }
                    let [high, low] = &(*sums.add(group % 2)).0;
                    let scale = _mm512_loadu_ps(weights.scales.add(group * TILE));
                    let bias = _mm512_loadu_ps(weights.biases.add(group * TILE));
                    let at = group * tokens.group_stride;
                    each_token!(T, t, {
                        let high = _mm512_slli_epi32::<8>(_mm512_load_si512(high[t].as_ptr().cast()));
                        let sum = _mm512_add_epi32(high, _mm512_load_si512(low[t].as_ptr().cast()));
                        let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(*tokens.scales.add(at + t)));
                        added[t] = _mm512_fmadd_ps(scaled, scale, added[t]);
                        added[t] = _mm512_fmadd_ps(bias, _mm512_set1_ps(*tokens.sums.add(at + t)), added[t]);
                    });
                    group += 1;
                }
                each_token!(T, t, (*lanes.add(lane))[t] = added[t]);
            }
            // As `Lanes::sum` adds them.
            for t in 0..T {
                macro_rules! pair {
                    ($lane:literal) => {
                        _mm512_add_ps((*lanes.add($lane))[t], (*lanes.add($lane + 1))[t])
                    };
                }
                let (low, high) = (_mm512_add_ps(pair!(0), pair!(2)), _mm512_add_ps(pair!(4), pair!(6)));
                _mm512_storeu_ps(out.add(t * stride), _mm512_add_ps(low, high));
            }
        }
    }
}

/// Word `i` of each of sixteen rows of eight words.
///
/// # Safety
/// Each of `rows` points to 32 bytes.
#[inline(always)]
unsafe fn words(rows: [*const u8; TILE]) -> [__m512i; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut words = [_mm512_setzero_si512(); 8];
        for (row, words) in words.iter_mut().enumerate() {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(rows[row].cast()));
            *words = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(rows[row + 8].cast()));
        }
        transpose(words)
    }
}

/// The tiles of even groups and those of odd ones: sums with the high and with the low bytes, and the high bytes themselves.
macro_rules! tiles_of {
    ($group:ident, $do:ident, $($argument:ident),*) => {
        if $group.is_multiple_of(2) {
            $do!("tmm0", "tmm1", "tmm2", $($argument),*);
        } else {
            $do!("tmm3", "tmm4", "tmm5", $($argument),*);
        }
    };
}

macro_rules! multiply_tiles {
    ($high:literal, $low:literal, $a:literal, $weights:ident, $tokens:ident, $group:ident) => {{
        let chunks = $weights.group_size / CHUNK;
        asm!(concat!("tilezero ", $high), concat!("tilezero ", $low), options(nomem, nostack, preserves_flags));
        for chunk in $group * chunks..($group + 1) * chunks {
            asm!(
                "tileloadd tmm6, [{weights} + {row}]",
                concat!("tileloadd ", $a, ", [{x} + {token}]"),
                concat!("tdpbsud ", $high, ", ", $a, ", tmm6"),
                "tileloadd tmm7, [{x} + {token} + 64]",
                concat!("tdpbsud ", $low, ", tmm7, tmm6"),
                weights = in(reg) $weights.codes.add(chunk * CHUNK_BYTES),
                row = in(reg) 64_usize,
                x = in(reg) $tokens.codes.add(chunk * 2 * CHUNK),
                token = in(reg) $tokens.codes_stride,
                options(readonly, nostack, preserves_flags),
            );
        }
    }};
}

macro_rules! store_tiles {
    ($high:literal, $low:literal, $a:literal, $sums:ident) => {
        asm!(
            concat!("tilestored [{sums} + {row}], ", $high),
            concat!("tilestored [{sums} + {row} + 1024], ", $low),
            sums = in(reg) $sums,
            row = in(reg) 64_usize,
            options(nostack, preserves_flags),
        )
    };
}

/// Groups of lane `lane`.
#[inline(always)]
fn lane_groups(lane: usize, groups: usize) -> usize {
    groups / LANES + usize::from(lane < groups % LANES)
}

/// Starts the integer sums of one group of all sixteen rows and tokens.
///
/// # Safety
/// As [`Tiles::multiply`], between [`Tiles::start`] and [`Tiles::end`].
#[inline(always)]
unsafe fn multiply_group(weights: &WeightTile, tokens: &TokenTile, group: usize) {
    // SAFETY: the caller's promise: the chunks are there.
    unsafe { tiles_of!(group, multiply_tiles, weights, tokens, group) };
}

/// Writes the sums that [`multiply_group`] has started.
///
/// # Safety
/// As there, and `sums` points to one.
#[inline(always)]
unsafe fn store_group(group: usize, sums: *mut GroupSums) {
    // SAFETY: the caller's promise: `sums` has two tiles.
    unsafe { tiles_of!(group, store_tiles, sums) };
}
