//! The most likely tokens, in order, without sorting the vocabulary.

/// A logit and its token as one number: larger for larger logits, and for the lower id among equal ones.
fn key(logit: f32, id: usize) -> u64 {
    // Adding 0 makes -0 equal to 0. Flipping all bits of negative floats, and the sign of the others, orders floats as unsigned integers.
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!(id as u32))
}

fn logit_of(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 {
        ordered & !(1 << 31)
    } else {
        !ordered
    })
}

fn id_of(key: u64) -> u32 {
    !(key as u32)
}

/// The candidates for the next token in order of falling logit, ties: the lower id first. Sorted only as far as it is read.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    keys: Vec<u64>,
    sorted: usize,
}

/// Up to this many candidates are found in one pass with a small buffer; more take a list of the whole vocabulary.
const SMALL: usize = 512;

impl Ranking {
    /// Ranks the `top` largest of `logits` (all for 0); tokens whose logit is -inf are no candidates.
    pub(super) fn fill(&mut self, logits: &[f32], top: usize) {
        self.keys.clear();
        self.sorted = 0;
        let finite = logits
            .iter()
            .enumerate()
            .filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
        if top == 0 || top > SMALL {
            self.keys.extend(finite.map(|(id, &logit)| key(logit, id)));
            if top > 0 && top < self.keys.len() {
                self.keys.select_nth_unstable_by(top - 1, |a, b| b.cmp(a));
                self.keys.truncate(top);
            }
            return;
        }
        let mut threshold = 0;
        for (id, &logit) in finite {
            let key = key(logit, id);
            if key > threshold {
                self.keys.push(key);
                if self.keys.len() == 2 * SMALL {
                    threshold = self.keep_largest(top);
                }
            }
        }
        if self.keys.len() > top {
            self.keep_largest(top);
        }
    }

    fn keep_largest(&mut self, top: usize) -> u64 {
        let (_, &mut last, _) = self.keys.select_nth_unstable_by(top - 1, |a, b| b.cmp(a));
        self.keys.truncate(top);
        last
    }

    /// Candidates.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Id and logit of candidate `rank`, 0 being the most likely.
    pub(super) fn get(&mut self, rank: usize) -> (u32, f32) {
        while rank >= self.sorted {
            let until = (4 * self.sorted).max(64);
            let rest = &mut self.keys[self.sorted..];
            let more = (until - self.sorted).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable_by(more - 1, |a, b| b.cmp(a));
            }
            rest[..more].sort_unstable_by(|a, b| b.cmp(a));
            self.sorted += more;
        }
        let key = self.keys[rank];
        (id_of(key), logit_of(key))
    }
}

/// The largest logit's id, the lowest among equals; `None` where nothing is above -inf.
pub(super) fn argmax(logits: &[f32]) -> Option<u32> {
    // Sixteen maxima side by side: one would wait for itself at every step.
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let max = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&logit| logit == max).map(|id| id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::philox::uniform;

    /// Logits with many ties, both zeros and banned tokens.
    fn logits(len: usize, seed: u64) -> Vec<f32> {
        (0..len as u64)
            .map(|step| match (uniform(seed, step) * 200.0) as i32 - 100 {
                -100 => f32::NEG_INFINITY,
                0 if step % 2 == 0 => -0.0,
                other => other as f32 / 8.0,
            })
            .collect()
    }

    fn reference(logits: &[f32], top: usize) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = (0..)
            .zip(logits.iter().copied())
            .filter(|(_, l)| *l > f32::NEG_INFINITY)
            .collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all.truncate(if top == 0 { usize::MAX } else { top });
        all
    }

    #[test]
    fn ranking_equals_a_full_sort() {
        let mut ranking = Ranking::default();
        for (len, seed) in [(1, 0), (5, 1), (64, 2), (65, 3), (1000, 4), (20_000, 5)] {
            let logits = logits(len, seed);
            for top in [0, 1, 2, 20, 63, 64, 65, 511, 512, 513, 5000, 30_000] {
                ranking.fill(&logits, top);
                let expected = reference(&logits, top);
                assert_eq!(ranking.len(), expected.len(), "{len} tokens, top {top}");
                for (rank, &(id, logit)) in expected.iter().enumerate() {
                    assert_eq!(ranking.get(rank), (id, logit), "{len} tokens, top {top}, rank {rank}");
                }
            }
            assert_eq!(argmax(&logits), expected_first(&logits));
        }
    }

    fn expected_first(logits: &[f32]) -> Option<u32> {
        reference(logits, 1).first().map(|&(id, _)| id)
    }

    #[test]
    fn nothing_is_the_largest_of_nothing() {
        assert_eq!(argmax(&[]), None);
        assert_eq!(argmax(&[f32::NEG_INFINITY; 40]), None);
    }
}
