//! Buffers that the tasks of one parallel region fill together.

use std::marker::PhantomData;

/// A slice that several threads write, each its own part.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedMut<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<'_, T> {}

// SAFETY: the only access is `part`, whose callers promise that parts in use at the same time do not overlap.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        SharedMut {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// Elements `start .. start + len`.
    ///
    /// # Safety
    /// No other part in use at the same time overlaps this one.
    ///
    /// # Panics
    /// Where the part does not lie inside the slice.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: inside the slice (checked), alive for 'a, and not aliased (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// Element `index`: a thread's own scratch, where `index` is the thread's number.
    ///
    /// # Safety
    /// As for [`SharedMut::part`].
    #[inline(always)]
    pub(crate) unsafe fn item(&self, index: usize) -> &'a mut T {
        // SAFETY: the caller's promise is the same.
        unsafe { &mut self.part(index, 1)[0] }
    }
}
