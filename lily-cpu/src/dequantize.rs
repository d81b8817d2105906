//! Packed rows to f32, a few at a time: the inputs of the f32 products.

use std::sync::LazyLock;

use lily_model::matrix::{e2m1, e4m3, e8m0};
use lily_model::{Encoding, FloatType, Matrix};

use crate::simd::{Kernel, LANES, Lanes};

static E2M1: LazyLock<[f32; 16]> = LazyLock::new(|| std::array::from_fn(|code| e2m1(code as u8)));
static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|code| e4m3(code as u8)));

/// Writes `rows` rows of matrix `index` as f32, row after row, into `out` (`[rows, cols]`).
///
/// `cols` and the group size are multiples of [`LANES`].
pub(crate) struct DequantizeRows<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) index: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for DequantizeRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let cols = self.matrix.cols;
        for (row, out) in self.out.chunks_exact_mut(cols).take(self.rows).enumerate() {
            dequantize_row::<V>(self.matrix, self.index, self.first_row + row, out);
        }
    }
}

#[inline(always)]
fn dequantize_row<V: Lanes>(matrix: &Matrix, index: usize, row: usize, out: &mut [f32]) {
    let codes = matrix.row_codes(index, row);
    let scales = matrix.row_scales(index, row);
    match matrix.encoding {
        Encoding::Float(float) => dequantize_float::<V>(float, codes, out),
        Encoding::Affine {
            bits,
            group_size,
            scale_type,
        } => {
            let biases = matrix.row_biases(index, row);
            let bits = bits as usize;
            let groups = codes.chunks_exact(group_size * bits / 8);
            for (group, (codes, out)) in groups.zip(out.chunks_exact_mut(group_size)).enumerate() {
                let scale = V::splat(scale_type.read(scales, group));
                let bias = V::splat(scale_type.read(biases, group));
                // A match outside the loops: each arm is compiled for its width.
                match bits {
                    4 => affine_group::<V>(codes, 4, out, |word| V::from_u4(word as u32).mul_add(scale, bias)),
                    8 => affine_group::<V>(codes, 8, out, |word| V::from_u8(word).mul_add(scale, bias)),
                    _ => affine_group::<V>(codes, bits, out, |word| {
                        V::from_u8(u64::from_le_bytes(spread(word, bits))).mul_add(scale, bias)
                    }),
                }
            }
        }
        Encoding::Mxfp4 => {
            for (group, (codes, out)) in codes.chunks_exact(16).zip(out.chunks_exact_mut(32)).enumerate() {
                table_group::<V>(codes, &*E2M1, 4, e8m0(scales[group]), out);
            }
        }
        Encoding::Nvfp4 { global_scale } => {
            for (group, (codes, out)) in codes.chunks_exact(8).zip(out.chunks_exact_mut(16)).enumerate() {
                table_group::<V>(codes, &*E2M1, 4, global_scale * E4M3[usize::from(scales[group])], out);
            }
        }
        Encoding::Mxfp8 => {
            for (group, (codes, out)) in codes.chunks_exact(32).zip(out.chunks_exact_mut(32)).enumerate() {
                table_group::<V>(codes, &*E4M3, 8, e8m0(scales[group]), out);
            }
        }
    }
}

#[inline(always)]
fn dequantize_float<V: Lanes>(float: FloatType, codes: &[u8], out: &mut [f32]) {
    match float {
        FloatType::Bf16 => {
            for (codes, out) in codes.chunks_exact(2 * LANES).zip(out.chunks_exact_mut(LANES)) {
                // SAFETY: both chunks hold eight numbers.
                unsafe { V::load_bf16(codes.as_ptr()).store(out.as_mut_ptr()) };
            }
        }
        FloatType::F16 | FloatType::F32 => {
            for (column, out) in out.iter_mut().enumerate() {
                *out = float.read(codes, column);
            }
        }
    }
}

/// Eight codes of `bits` bits fill `bits` bytes, whatever the width.
#[inline(always)]
fn affine_group<V: Lanes>(codes: &[u8], bits: usize, out: &mut [f32], value: impl Fn(u64) -> V) {
    for (codes, out) in codes.chunks_exact(bits).zip(out.chunks_exact_mut(LANES)) {
        let mut word = [0u8; 8];
        word[..bits].copy_from_slice(codes);
        // SAFETY: the chunk holds eight numbers.
        unsafe { value(u64::from_le_bytes(word)).store(out.as_mut_ptr()) };
    }
}

/// The eight `bits`-bit codes of a word, lowest first.
#[inline(always)]
fn spread(word: u64, bits: usize) -> [u8; 8] {
    let mask = (1u64 << bits) - 1;
    std::array::from_fn(|code| (word >> (bits * code) & mask) as u8)
}

#[inline(always)]
fn table_group<V: Lanes>(codes: &[u8], table: &[f32], bits: usize, scale: f32, out: &mut [f32]) {
    affine_group::<V>(codes, bits, out, |word| {
        let values: [f32; LANES] = spread_wide(word, bits).map(|code| table[usize::from(code)]);
        // SAFETY: eight numbers.
        unsafe { V::load(values.as_ptr()) }.mul(V::splat(scale))
    });
}

/// As [`spread`], for widths up to 8.
#[inline(always)]
fn spread_wide(word: u64, bits: usize) -> [u8; 8] {
    if bits == 8 {
        word.to_le_bytes()
    } else {
        spread(word, bits)
    }
}
