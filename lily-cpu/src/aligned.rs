//! Buffers that start at a cache line, so that no vector of a row crosses one.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

const LINE: usize = 64;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Plain numbers: any bytes are a value, and all zero bits are 0.
pub(crate) trait Number: Copy {}
impl Number for u8 {}
impl Number for i16 {}
impl Number for f32 {}

/// A buffer of numbers, zero at first.
#[derive(Clone, Debug)]
pub(crate) struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    numbers: PhantomData<T>,
}

impl<T: Number> Aligned<T> {
    pub(crate) fn new(len: usize) -> Aligned<T> {
        Aligned {
            lines: vec![Line([0; LINE]); (len * size_of::<T>()).div_ceil(LINE)],
            len,
            numbers: PhantomData,
        }
    }
}

impl<T: Number> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold `len` numbers of a type for which any bytes are a value, and are aligned more than it needs.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Number> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the lines are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
