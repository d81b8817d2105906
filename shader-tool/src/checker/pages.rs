//! A bit for each byte of a buffer, kept only for the pages that a kernel touches.

use super::RangeSet;

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 64;

/// A set of byte positions of one buffer.
#[derive(Default)]
pub(crate) struct Bits {
    pages: Vec<Option<Box<[u64; WORDS]>>>,
}

/// The bits of `len` positions from `at` on that lie in the word of `at`, and how many they are.
fn in_word(at: usize, len: usize) -> (u64, usize) {
    let shift = at % 64;
    let count = len.min(64 - shift);
    ((u64::MAX >> (64 - count)) << shift, count)
}

impl Bits {
    pub fn new(len: usize) -> Self {
        Self {
            pages: (0..len.div_ceil(PAGE)).map(|_| None).collect(),
        }
    }

    pub fn set(&mut self, mut at: usize, mut len: usize) {
        while len > 0 {
            let Some(page) = self.pages.get_mut(at / PAGE) else {
                return;
            };
            let (mask, count) = in_word(at, len);
            page.get_or_insert_with(|| Box::new([0; WORDS]))[at % PAGE / 64] |= mask;
            at += count;
            len -= count;
        }
    }

    pub fn any(&self, mut at: usize, mut len: usize) -> bool {
        while len > 0 {
            let (mask, count) = in_word(at, len);
            if let Some(Some(page)) = self.pages.get(at / PAGE)
                && page[at % PAGE / 64] & mask != 0
            {
                return true;
            }
            at += count;
            len -= count;
        }
        false
    }

    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.pages.iter_mut().zip(&other.pages) {
            match (mine, theirs) {
                (Some(mine), Some(theirs)) => mine.iter_mut().zip(theirs.iter()).for_each(|(a, b)| *a |= b),
                (mine @ None, Some(theirs)) => *mine = Some(theirs.clone()),
                _ => {}
            }
        }
    }

    /// Whether the two share a position.
    pub fn meets(&self, other: &Self) -> bool {
        self.pages.iter().zip(&other.pages).any(|pages| match pages {
            (Some(mine), Some(theirs)) => mine.iter().zip(theirs.iter()).any(|(a, b)| a & b != 0),
            _ => false,
        })
    }

    pub fn ranges(&self) -> RangeSet {
        let mut out = RangeSet::default();
        for (number, page) in self.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            for (i, &word) in page.iter().enumerate() {
                let base = number * PAGE + i * 64;
                let mut rest = word;
                while rest != 0 {
                    let start = rest.trailing_zeros() as usize;
                    let len = (rest >> start).trailing_ones() as usize;
                    out.push(base + start..base + start + len);
                    rest = if start + len == 64 {
                        0
                    } else {
                        rest & (u64::MAX << (start + len))
                    };
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back() {
        let mut bits = Bits::new(10_000);
        bits.set(60, 8);
        bits.set(4090, 16);
        bits.set(128, 64);
        assert_eq!(bits.ranges().as_slice(), [60..68, 128..192, 4090..4106]);
        assert!(bits.any(67, 1) && !bits.any(68, 60) && bits.any(4100, 1));
        let mut other = Bits::new(10_000);
        other.set(4106, 100);
        other.set(59, 1);
        assert!(!bits.meets(&other) && !other.meets(&bits));
        other.set(4105, 1);
        assert!(bits.meets(&other) && other.meets(&bits));
    }
}
