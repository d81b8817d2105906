//! Scales and biases of groups, and from the sums of groups to outputs: what the integer products have in common.

use lily_model::{Encoding, FloatType, Matrix};

use super::PANEL_ROWS;
use crate::quantize::QuantizedRow;
use crate::simd::rows::Rows;
use crate::simd::{LANES, Lanes};

/// The scales (or biases) of `count` groups, up to eight, and 0 beyond. `scales` starts with them and may go on.
#[inline(always)]
pub(super) fn some_scales<V: Lanes>(float: FloatType, scales: &[u8], count: usize) -> V {
    if float == FloatType::Bf16 && scales.len() >= 2 * LANES {
        // SAFETY: the slice has eight numbers.
        let eight = unsafe { V::load_bf16(scales.as_ptr()) };
        return if count == LANES { eight } else { eight.first(count) };
    }
    let values = read_scales(float, scales, count);
    // SAFETY: eight numbers.
    unsafe { V::load(values.as_ptr()) }
}

/// As [`some_scales`], for any format and the end of a matrix.
#[cold]
fn read_scales(float: FloatType, scales: &[u8], count: usize) -> [f32; LANES] {
    let mut values = [0.0; LANES];
    for (group, value) in values.iter_mut().enumerate().take(count) {
        *value = float.read(scales, group);
    }
    values
}

pub(super) fn scale_type(matrix: &Matrix) -> FloatType {
    match matrix.encoding {
        Encoding::Affine { scale_type, .. } => scale_type,
        _ => FloatType::F32,
    }
}

/// Writes the sums of the lanes of `R` vectors of weight rows by `T` tokens to `out`, which has tokens [`PANEL_ROWS`] apart.
#[inline(always)]
pub(super) fn store_sums<B: Rows, const R: usize, const T: usize>(lanes: &[[B::Floats; T]; R], out: &mut [f32]) {
    let side_by_side = B::ROWS;
    let rows = R * side_by_side;
    // Eight sums at once. No closures: they are not compiled for the instruction set, and their calls would take as long as the products.
    for first in (0..rows * T).step_by(LANES) {
        let count = LANES.min(rows * T - first);
        let mut eight = [B::Lanes::zero(); LANES];
        for (place, one) in eight.iter_mut().enumerate().take(count) {
            let (t, row) = ((first + place) / rows, (first + place) % rows);
            *one = B::row(lanes[row / side_by_side][t], row % side_by_side);
        }
        let mut sums = [0.0; LANES];
        // SAFETY: room for eight numbers.
        unsafe { B::Lanes::sums(eight).store(sums.as_mut_ptr()) };
        for (place, sum) in sums.iter().enumerate().take(count) {
            let (t, row) = ((first + place) / rows, (first + place) % rows);
            out[t * PANEL_ROWS + row] = *sum;
        }
    }
}

/// What eight groups add to the lanes of an output.
#[inline(always)]
pub(super) fn add_groups<B: Rows>(
    lanes: B::Floats,
    sums: B::Sums,
    weights: &Groups<B>,
    activations: &Groups<B>,
) -> B::Floats {
    let products = B::mul(B::from_sums(sums), activations.scale);
    B::mul_add(weights.sum, activations.sum, B::mul_add(products, weights.scale, lanes))
}

/// Eight groups of rows of weights (scales and biases) or of activations (scales and sums).
pub(super) struct Groups<B: Rows> {
    pub(super) scale: B::Floats,
    pub(super) sum: B::Floats,
}

impl<B: Rows> Groups<B> {
    /// The groups `first` to `first + 7` of a row of activations.
    ///
    /// # Safety
    /// The row has these groups.
    #[inline(always)]
    pub(super) unsafe fn of(row: &QuantizedRow<'_>, first: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Groups {
                scale: B::repeat(row.scales.as_ptr().add(first)),
                sum: B::repeat(row.sums.as_ptr().add(first)),
            }
        }
    }
}
