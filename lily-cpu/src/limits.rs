//! What the processor can do at most, measured: the limits that operations are compared with.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::simd::{Kernel, LANES, Lanes};
use crate::{CpuError, KernelSet, pool::Pool};

/// Bytes that are read: more than the caches of most processors hold.
const BYTES: usize = 512 << 20;
/// Rounds, of which the fastest counts.
const ROUNDS: usize = 4;
/// Steps of a thread's arithmetic, of [`CHAINS`] vectors each.
const STEPS: usize = 4 << 20;
/// Independent sums, enough to hide the latency of a multiply-add.
const CHAINS: usize = 12;

/// Limits of a processor with a number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes that all threads together read from memory in a second.
    pub bytes_per_second: f64,
    /// Single-precision operations of all threads in a second, two for a multiply-add. Products in integers may do more.
    pub flops_per_second: f64,
}

impl Limits {
    /// Measures, which takes about half a second and 512 MiB; all processors for `threads` of `None`.
    ///
    /// # Errors
    /// Where the threads cannot be started.
    pub fn measure(threads: Option<usize>) -> Result<Limits, CpuError> {
        let threads = threads.unwrap_or_else(crate::model::available_threads).max(1);
        let (set, mut pool) = (KernelSet::detect(), Pool::new(threads)?);
        // Written, so that every page is there.
        let share = (BYTES / size_of::<f32>() / threads).next_multiple_of(4 * LANES);
        let data = vec![1f32; threads * share];
        let reading = fastest(&mut pool, &|task| {
            black_box(set.run(Sum(&data[task * share..][..share])));
        });
        let adding = fastest(&mut pool, &|_| {
            black_box(set.run(MultiplyAdd(black_box(1.0))));
        });
        Ok(Limits {
            bytes_per_second: size_of_val(&data[..]) as f64 / reading.as_secs_f64(),
            flops_per_second: (threads * STEPS * CHAINS * LANES * 2) as f64 / adding.as_secs_f64(),
        })
    }
}

/// The fastest of some rounds in which every thread has one task.
fn fastest(pool: &mut Pool, task: &(dyn Fn(usize) + Sync)) -> Duration {
    let round = |pool: &mut Pool| {
        let started = Instant::now();
        pool.run(pool.threads(), &|index, _| task(index));
        started.elapsed()
    };
    (0..ROUNDS).map(|_| round(pool)).min().unwrap_or_default()
}

/// Reads all numbers.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Lanes>(self) -> f32 {
        let mut sums = [V::zero(); 4];
        for numbers in self.0.chunks_exact(4 * LANES) {
            for (index, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the chunk has four vectors.
                *sum = sum.add(unsafe { V::load(numbers.as_ptr().add(index * LANES)) });
            }
        }
        sums.into_iter().map(V::sum).sum()
    }
}

/// Multiply-adds in registers.
struct MultiplyAdd(f32);

impl Kernel for MultiplyAdd {
    type Output = f32;

    #[inline(always)]
    fn run<V: Lanes>(self) -> f32 {
        let (factor, addend) = (V::splat(self.0), V::splat(-self.0));
        let mut sums = [V::splat(self.0); CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = sum.mul_add(factor, addend);
            }
        }
        sums.into_iter().map(V::sum).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_a_processor() {
        let limits = Limits::measure(Some(1)).unwrap();
        assert!((1e8..1e12).contains(&limits.bytes_per_second), "{limits:?}");
        assert!((1e8..1e13).contains(&limits.flops_per_second), "{limits:?}");
    }
}
