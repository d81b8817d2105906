//! Recorded passes, and how they are cut into command buffers.
//!
//! macOS kills a command buffer that keeps the GPU from the display for too long. How long a pass takes is only known once it
//! has run, so a pass is first cut by its number of threads, and then by the time that its parts took.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::pipeline::Pipeline;
use crate::device::{BufferId, Slice};

/// The longest that a command buffer should hold the GPU, seconds.
const LONGEST: f64 = 0.15;
/// Threads of the first cut: more than any decode pass has, so that those stay whole.
const FIRST_THREADS: u64 = 32 << 20;

/// What a slot is bound to.
pub enum Bound {
    /// A buffer from an offset on.
    Buffer(BufferId, usize),
    /// Bytes that the encoder copies.
    Bytes(Vec<u8>),
    /// Nothing that the kernel touches.
    Unused,
}

/// One kernel launch, ready to be encoded.
pub struct Launch {
    pub pipeline: Arc<Pipeline>,
    pub arguments: Vec<Bound>,
    pub threadgroups: [u32; 3],
    pub threads: [u32; 3],
}

impl Launch {
    fn thread_count(&self) -> u64 {
        self.threadgroups
            .iter()
            .chain(&self.threads)
            .map(|&n| u64::from(n))
            .product()
    }
}

/// Passes of one shape take about the same time: the number of launches, and of threads to the next power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    launches: usize,
    threads: u64,
}

/// A pass, ready to be encoded.
pub struct Recording {
    /// Launches of a stage may run together; a barrier stands between stages.
    pub stages: Vec<Vec<Launch>>,
    /// Threads of each stage.
    weights: Vec<u64>,
    /// Its shape.
    pub shape: Shape,
}

impl Recording {
    /// A recording of these stages.
    pub fn new(stages: Vec<Vec<Launch>>) -> Self {
        let weights: Vec<u64> = stages
            .iter()
            .map(|stage| stage.iter().map(Launch::thread_count).sum())
            .collect();
        let launches = stages.iter().map(Vec::len).sum();
        let threads = weights.iter().sum::<u64>().next_power_of_two();
        Self {
            stages,
            weights,
            shape: Shape { launches, threads },
        }
    }
}

/// How many command buffers passes are spread over, learnt from the time that they took.
#[derive(Default)]
pub struct Pacing {
    parts: HashMap<Shape, usize>,
}

impl Pacing {
    /// The stages of each command buffer of a recording.
    pub fn cut(&self, recording: &Recording) -> Vec<Range<usize>> {
        let parts = self.parts.get(&recording.shape).copied();
        cut(
            &recording.weights,
            parts.unwrap_or_else(|| first_parts(&recording.weights)),
        )
    }

    /// Learns that the longest command buffer of a pass, which was cut into `parts`, took `longest` seconds.
    pub fn took(&mut self, shape: Shape, parts: usize, longest: f64) {
        self.parts.insert(shape, next_parts(parts, longest));
    }
}

fn first_parts(weights: &[u64]) -> usize {
    let total: u64 = weights.iter().sum();
    usize::try_from(total / FIRST_THREADS)
        .unwrap_or(usize::MAX)
        .saturating_add(1)
        .min(weights.len().max(1))
}

/// More parts after one that took too long; fewer when even two of them together would be short.
fn next_parts(parts: usize, longest: f64) -> usize {
    if longest > LONGEST {
        let factor = (longest / LONGEST).ceil().min(64.0) as usize;
        parts.saturating_mul(factor)
    } else if longest < LONGEST / 4.0 {
        parts.div_ceil(2)
    } else {
        parts
    }
}

/// Cuts stages into at most `parts` runs of about the same number of threads.
fn cut(weights: &[u64], parts: usize) -> Vec<Range<usize>> {
    let parts = parts.clamp(1, weights.len().max(1));
    let total: u64 = weights.iter().sum();
    let share = (total / parts as u64).max(1);
    let mut cuts = Vec::with_capacity(parts);
    let (mut start, mut sum) = (0, 0);
    for (index, weight) in weights.iter().enumerate() {
        sum += weight;
        if sum >= share && cuts.len() + 1 < parts {
            cuts.push(start..index + 1);
            (start, sum) = (index + 1, 0);
        }
    }
    if start < weights.len() {
        cuts.push(start..weights.len());
    }
    cuts
}

/// The slice lies in a buffer of `len` bytes.
pub fn is_inside(slice: &Slice, len: usize) -> bool {
    slice.offset.checked_add(slice.len).is_some_and(|end| end <= len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_every_stage_once_and_in_order() {
        for weights in [vec![1; 7], vec![100, 1, 1, 1, 50], vec![0, 0, 0], vec![5]] {
            for parts in 1..=weights.len() {
                let cuts = cut(&weights, parts);
                assert!(cuts.len() <= parts);
                let stages: Vec<usize> = cuts.into_iter().flatten().collect();
                assert_eq!(stages, (0..weights.len()).collect::<Vec<_>>());
            }
        }
        assert!(cut(&[], 1).is_empty());
    }

    #[test]
    fn parts_follow_the_time_that_they_take() {
        assert_eq!(next_parts(1, 0.005), 1, "a decode pass stays whole");
        assert_eq!(next_parts(4, 0.6), 16);
        assert_eq!(next_parts(16, 0.1), 16);
        assert_eq!(next_parts(16, 0.01), 8);
        assert_eq!(cut(&[1, 1], 20).len(), 2, "a stage is never cut");
        assert_eq!(first_parts(&[1 << 20; 40]), 2);
        assert_eq!(first_parts(&[]), 1);
    }
}
