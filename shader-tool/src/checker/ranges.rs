//! Sets of bytes.

use std::ops::Range;

/// Byte positions as ascending ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<Range<usize>>);

impl RangeSet {
    /// The ranges, ascending.
    pub fn as_slice(&self) -> &[Range<usize>] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes they cover.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    /// From the first to past the last byte; empty at 0 if there are none.
    pub fn span(&self) -> Range<usize> {
        match (self.0.first(), self.0.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        }
    }

    /// Whether `range` shares a byte with it.
    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        let i = self.0.partition_point(|r| r.end <= range.start);
        range.start < range.end && self.0.get(i).is_some_and(|r| r.start < range.end)
    }

    /// Whether the two share a byte.
    pub fn intersects(&self, other: &Self) -> bool {
        self.0.iter().any(|range| other.overlaps(range))
    }

    /// Whether every byte of it lies in one of `ranges`.
    pub fn is_within(&self, ranges: &[Range<usize>]) -> bool {
        self.0.iter().all(|mine| {
            let mut from = mine.start;
            while from < mine.end {
                match ranges.iter().find(|r| r.start <= from && from < r.end) {
                    Some(r) => from = r.end,
                    None => return false,
                }
            }
            true
        })
    }

    /// Adds bytes that begin at or after the last one.
    pub(crate) fn push(&mut self, range: Range<usize>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }
}

impl FromIterator<Range<usize>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> Self {
        let mut sorted: Vec<Range<usize>> = ranges.into_iter().filter(|r| r.start < r.end).collect();
        sorted.sort_by_key(|r| r.start);
        let mut set = Self::default();
        for range in sorted {
            match set.0.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => set.0.push(range),
            }
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_compare() {
        let set: RangeSet = [8..12, 0..4, 4..6, 11..13].into_iter().collect();
        assert_eq!(set.as_slice(), [0..6, 8..13]);
        assert_eq!((set.bytes(), set.span()), (11, 0..13));
        assert!(set.overlaps(&(5..7)) && !set.overlaps(&(6..8)) && !set.overlaps(&(0..0)));
        assert!(set.is_within(&[0..3, 3..13]) && !set.is_within(&[0..6, 9..13]));
    }
}
