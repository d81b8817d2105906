//! Mapped files as buffers, without a copy.
//!
//! A file may be longer than the largest buffer, so it is covered by windows that overlap: a tensor that is no longer than the
//! overlap lies whole in one of them.

use std::ops::Range;
use std::sync::Arc;

use crate::device::BufferId;
use crate::metal::buffer::{Pages, page_size};

/// The most that neighbouring windows share: larger than any tensor of the models that Lily knows.
const OVERLAP: usize = 1 << 30;

/// A file whose pages the GPU reads in place.
pub struct MappedFile {
    /// Address of the mapping, which identifies it.
    start: usize,
    len: usize,
    window: usize,
    step: usize,
    /// The buffers made so far, by window.
    buffers: Vec<Option<BufferId>>,
}

impl MappedFile {
    /// A mapping of `len` bytes at `start`, for a device whose largest buffer has `max_buffer` bytes.
    pub fn new(start: usize, len: usize, max_buffer: usize) -> Self {
        let page = page_size();
        let all = len.next_multiple_of(page);
        let window = all.min(max_buffer / page * page);
        let step = if window == all {
            all
        } else {
            window - OVERLAP.min(window / 2) / page * page
        };
        let count = if window == all {
            1
        } else {
            (all - window).div_ceil(step) + 1
        };
        Self {
            start,
            len: all,
            window,
            step,
            buffers: vec![None; count],
        }
    }

    /// Whether this is the mapping at that address.
    pub fn is_at(&self, start: usize) -> bool {
        self.start == start
    }

    /// The window that holds all of `range` (from the mapping's start), and its pages; `None` where none does.
    pub fn window_of(&self, range: &Range<usize>) -> Option<(usize, Pages)> {
        let index = (range.start / self.step).min(self.buffers.len() - 1);
        let start = index * self.step;
        let len = self.window.min(self.len - start);
        (range.start >= start && range.end <= start + len).then_some((
            index,
            Pages {
                start: self.start + start,
                len,
            },
        ))
    }

    /// The buffer of a window, if it was made.
    pub fn buffer(&self, window: usize) -> Option<BufferId> {
        self.buffers[window]
    }

    /// Remembers the buffer of a window.
    pub fn set_buffer(&mut self, window: usize, buffer: BufferId) {
        self.buffers[window] = Some(buffer);
    }
}

/// Keeps a mapping for as long as a buffer uses its pages.
pub struct Mapping<T>(pub Arc<T>);

impl<T: AsRef<[u8]>> AsRef<[u8]> for Mapping<T> {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_fits_is_one_window() {
        let file = MappedFile::new(0x10000, 100_000, 1 << 30);
        let (index, pages) = file.window_of(&(99_000..100_000)).unwrap();
        assert_eq!(
            (index, pages.start, pages.len),
            (0, 0x10000, 100_000_usize.next_multiple_of(page_size()))
        );
    }

    #[test]
    fn every_tensor_up_to_the_overlap_lies_in_a_window() {
        let page = page_size();
        let (len, max) = (100 * page + 17, 16 * page + 5);
        let file = MappedFile::new(1 << 40, len, max);
        let overlap = 8 * page;
        for start in (0..len - overlap).step_by(page / 3) {
            let range = start..start + overlap;
            let (_, pages) = file
                .window_of(&range)
                .unwrap_or_else(|| panic!("{range:?} lies in no window"));
            let first = pages.start - (1 << 40);
            assert!(first.is_multiple_of(page) && first <= range.start && range.end <= first + pages.len);
            assert!(pages.len <= max && first + pages.len <= len.next_multiple_of(page));
        }
        assert_eq!(file.window_of(&(0..17 * page)), None);
    }
}
