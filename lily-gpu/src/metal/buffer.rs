//! Buffers: memory that the GPU and the CPU share.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResource, MTLResourceOptions};

use super::system::System;
use crate::error::GpuError;

/// A buffer, and what its memory belongs to.
pub struct Buffer {
    buffer: ManuallyDrop<Retained<ProtocolObject<dyn MTLBuffer>>>,
    len: usize,
    /// The pages that a buffer without a copy uses: the buffer must not outlive them.
    _pages: Option<Arc<dyn AsRef<[u8]> + Send + Sync>>,
}

// SAFETY: MTLBuffer's own methods may be called from any thread; its contents are only touched through the device, which is
// borrowed exclusively for that.
unsafe impl Send for Buffer {}

impl Buffer {
    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    /// Metal has no room for it, or it is larger than the largest buffer.
    pub fn new(system: &System, label: &str, len: usize) -> Result<Self, GpuError> {
        autoreleasepool(|_| {
            // Tracked, as buffers are by default: Metal then orders command buffers that use it. Metal clears new buffers.
            let options = MTLResourceOptions::StorageModeShared;
            let buffer = system
                .device()
                .newBufferWithLength_options(len.max(1), options)
                .ok_or_else(|| GpuError::OutOfMemory {
                    label: label.into(),
                    needed: len,
                    available: system.max_buffer_length(),
                })?;
            buffer.setLabel(Some(&NSString::from_str(label)));
            Ok(Self {
                buffer: ManuallyDrop::new(buffer),
                len,
                _pages: None,
            })
        })
    }

    /// A buffer over whole pages of memory that nobody writes; `None` where Metal does not take them.
    ///
    /// The GPU never writes it, so no tracking is needed.
    pub fn over_pages(
        system: &System,
        label: &str,
        pages: Arc<dyn AsRef<[u8]> + Send + Sync>,
        range: Pages,
    ) -> Option<Self> {
        let bytes = (*pages).as_ref();
        let start = bytes.as_ptr() as usize;
        // The range lies in the mapping, up to the end of the mapping's last page.
        let inside = range.start >= start && range.end() <= (start + bytes.len()).next_multiple_of(page_size());
        let pointer = NonNull::new(range.start as *mut c_void).filter(|_| inside)?;
        autoreleasepool(|_| {
            let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
            // SAFETY: whole pages of a mapping (checked above) that `_pages` keeps; nothing writes them.
            let buffer = unsafe {
                system
                    .device()
                    .newBufferWithBytesNoCopy_length_options_deallocator(pointer, range.len, options, None)
            }?;
            // Virtual GPUs return a buffer of no length.
            if buffer.length() < range.len {
                return None;
            }
            buffer.setLabel(Some(&NSString::from_str(label)));
            Some(Self {
                buffer: ManuallyDrop::new(buffer),
                len: range.len,
                _pages: Some(pages),
            })
        })
    }

    /// Metal's buffer.
    pub fn metal(&self) -> &ProtocolObject<dyn MTLBuffer> {
        &self.buffer
    }

    /// Bytes that were asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `bytes` to `offset`. The caller sees to it that no submitted work uses them.
    ///
    /// # Panics
    /// If they do not fit, or the memory is not the buffer's own.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(self._pages.is_none() && offset.checked_add(bytes.len()).is_some_and(|end| end <= self.len));
        // SAFETY: inside the buffer (asserted); exclusive on the CPU by `&mut`, and on the GPU by the caller's promise.
        unsafe {
            let to = self.buffer.contents().cast::<u8>().as_ptr().add(offset);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// Copies from `offset`. The caller sees to it that no submitted work writes there.
    ///
    /// # Panics
    /// If the buffer has not that many bytes.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset.checked_add(into.len()).is_some_and(|end| end <= self.len));
        // SAFETY: inside the buffer (asserted); nothing writes it meanwhile by the caller's promise.
        unsafe {
            let from = self.buffer.contents().cast::<u8>().as_ptr().add(offset);
            from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len());
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Metal autoreleases objects while it frees a buffer, and the thread that drops it may have no pool.
        // SAFETY: dropped here only, and not used afterwards.
        autoreleasepool(|_| unsafe { ManuallyDrop::drop(&mut self.buffer) });
    }
}

/// Whole pages of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Address of the first byte.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

impl Pages {
    fn end(self) -> usize {
        self.start + self.len
    }
}

/// Bytes of a page: 16 KiB on Apple silicon.
pub fn page_size() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(16 << 10)
}
