//! Asking for the bytes of the next panel while this one is multiplied.

use crate::simd::{CACHE_LINE, Lanes};

/// Bytes that are asked for bit by bit.
pub(super) struct Ahead<'a> {
    left: &'a [u8],
    /// Bytes of a part.
    part: usize,
}

impl<'a> Ahead<'a> {
    /// `bytes` in `parts` parts.
    pub(super) fn new(bytes: &'a [u8], parts: usize) -> Self {
        Ahead {
            left: bytes,
            part: bytes.len().div_ceil(parts),
        }
    }

    /// The next `parts` parts, or what there is of them.
    #[inline(always)]
    pub(super) fn take(&mut self, parts: usize) -> &'a [u8] {
        let (now, left) = self.left.split_at(self.left.len().min(self.part * parts));
        self.left = left;
        now
    }

    /// Asks for the next `parts` parts.
    #[inline(always)]
    pub(super) fn ask<V: Lanes>(&mut self, parts: usize) {
        let now = self.take(parts);
        for line in (0..now.len()).step_by(CACHE_LINE) {
            V::prefetch(now.as_ptr().wrapping_add(line));
        }
    }
}
