//! RMSNorm.

use crate::KernelSet;
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::math::{dot, zip_in_place};
use crate::simd::{Kernel, LANES, Lanes};

/// Rows of one task.
const TASK_ROWS: usize = 8;

/// `x / sqrt(mean(x^2) + eps) * weight`, in place. Lengths are equal, a multiple of [`LANES`].
#[inline(always)]
pub(crate) fn rms_norm_in_place<V: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = V::splat(1.0 / (dot::<V>(x, x) / x.len() as f32 + eps).sqrt());
    zip_in_place::<V>(x, weight, |x, weight| x.mul(scale).mul(weight));
}

struct NormRow<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        self.out.copy_from_slice(self.x);
        rms_norm_in_place::<V>(self.out, self.weight, self.eps);
    }
}

/// RMSNorm of each row of `x` (`[rows, weight.len()]`) into `out`.
pub(crate) fn norm_rows(pool: &mut Pool, set: KernelSet, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let cols = weight.len();
    let rows = x.len() / cols;
    assert!(out.len() == x.len() && cols.is_multiple_of(LANES));
    let out = SharedMut::new(out);
    pool.run(rows.div_ceil(TASK_ROWS), &|task, _| {
        for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
            set.run(NormRow {
                x: &x[row * cols..(row + 1) * cols],
                weight,
                eps,
                // SAFETY: each row belongs to one task.
                out: unsafe { out.part(row * cols, cols) },
            });
        }
    });
}
