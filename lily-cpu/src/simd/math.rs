//! Functions of eight numbers at once, and loops over slices made of them.

use super::{LANES, Lanes};

/// `e^x` within 2 units in the last place; 0 and infinity saturate near the ends of the f32 range.
///
/// Range reduction to `|r| <= ln 2 / 2` with a two-part `ln 2`, then the Taylor series of degree 7, whose remainder
/// `r^8 / 8!` is below 6e-9.
#[inline(always)]
pub(crate) fn exp<V: Lanes>(x: V) -> V {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.max(V::splat(-87.0)).min(V::splat(88.0));
    let shifted = x.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(ROUND));
    let n = shifted.sub(V::splat(ROUND));
    let r = n.mul_add(V::splat(-LN_2_HIGH), x);
    let r = n.mul_add(V::splat(-LN_2_LOW), r);
    let mut sum = V::splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum.mul_add(r, V::splat(coefficient));
    }
    sum.mul(shifted.pow2())
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid<V: Lanes>(x: V) -> V {
    let one = V::splat(1.0);
    one.div(one.add(exp(V::zero().sub(x))))
}

/// `x / (1 + e^-x)`
#[inline(always)]
pub(crate) fn silu<V: Lanes>(x: V) -> V {
    x.div(V::splat(1.0).add(exp(V::zero().sub(x))))
}

/// `1 / (1 + e^-x)` of one number.
pub(crate) fn sigmoid_scalar(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)` of one number.
pub(crate) fn softplus_scalar(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `sum a[i] * b[i]`; both slices have the same length, a multiple of [`LANES`].
#[inline(always)]
pub(crate) fn dot<V: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    assert!(a.len() == b.len() && a.len().is_multiple_of(LANES));
    let mut sum = V::zero();
    for at in (0..a.len()).step_by(LANES) {
        // SAFETY: `at + LANES` is at most the length of both.
        sum = unsafe { V::load(a.as_ptr().add(at)).mul_add(V::load(b.as_ptr().add(at)), sum) };
    }
    sum.sum()
}

/// `x[i] = f(x[i], y[i])`; both slices have the same length, a multiple of [`LANES`].
#[inline(always)]
pub(crate) fn zip_in_place<V: Lanes>(x: &mut [f32], y: &[f32], f: impl Fn(V, V) -> V) {
    assert!(x.len() == y.len() && x.len().is_multiple_of(LANES));
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: `at + LANES` is at most the length of both.
        unsafe {
            let value = f(V::load(x.as_ptr().add(at)), V::load(y.as_ptr().add(at)));
            value.store(x.as_mut_ptr().add(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kernel, tests::sets};
    use super::*;

    struct Apply<'a> {
        x: &'a mut [f32],
        which: usize,
    }

    impl Kernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<V: Lanes>(self) {
            let y = self.x.to_vec();
            zip_in_place::<V>(self.x, &y, |x, _| match self.which {
                0 => exp(x),
                1 => sigmoid(x),
                _ => silu(x),
            });
        }
    }

    #[test]
    fn functions_follow_their_definitions() {
        let inputs: Vec<f32> = (-8000..8000).map(|i| i as f32 * 0.0107).collect();
        let definitions: [fn(f64) -> f64; 3] = [f64::exp, |x| 1.0 / (1.0 + (-x).exp()), |x| x / (1.0 + (-x).exp())];
        for set in sets() {
            for (which, definition) in definitions.iter().enumerate() {
                let mut outputs = inputs.clone();
                set.run(Apply { x: &mut outputs, which });
                for (&x, &y) in inputs.iter().zip(&outputs) {
                    let expected = definition(f64::from(x));
                    let error = (f64::from(y) - expected).abs();
                    assert!(
                        error <= 3e-7 * expected.abs() + 2e-36,
                        "{} function {which}({x}) = {y}, expected {expected}",
                        set.name()
                    );
                }
            }
        }
    }
}
