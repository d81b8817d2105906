//! Memory that kernels read and write.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Buffers begin at a multiple of this, as on Apple's GPUs at least.
const ALIGNMENT: usize = 256;
/// Zeroed bytes on both sides of owned memory, so that a kernel's small overrun hits nothing else.
const MARGIN: usize = 4096;

/// A block of memory of fixed size, shared by its clones.
///
/// A dispatch locks the buffers it is bound to (shared for those it can only read), so concurrent use is safe, but a
/// dispatch and a [`Buffer::write`] from another thread happen in either order.
#[derive(Clone)]
pub struct Buffer(Arc<Memory>);

pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    lock: RwLock<()>,
    owner: Owner,
}

enum Owner {
    /// Allocated here.
    Us(Layout),
    /// Someone else's, kept alive; never written.
    Theirs(#[allow(dead_code, reason = "held only so that the memory stays valid")] Box<dyn Any + Send + Sync>),
    /// Someone else's, kept alive, and lent for writing.
    Lent(#[allow(dead_code, reason = "held only so that the memory stays valid")] Box<dyn Any + Send + Sync>),
}

// SAFETY: the memory is reached only under `lock`: shared for reading, exclusive for writing.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Us(layout) = self.owner {
            // SAFETY: allocated in `Buffer::new` with this layout, MARGIN before `start`.
            unsafe { dealloc(self.start.as_ptr().sub(MARGIN), layout) }
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len())
            .field("read_only", &self.is_read_only())
            .finish()
    }
}

pub(crate) enum Guard<'a> {
    Read(#[allow(dead_code, reason = "held for its Drop")] RwLockReadGuard<'a, ()>),
    Write(#[allow(dead_code, reason = "held for its Drop")] RwLockWriteGuard<'a, ()>),
}

impl Buffer {
    /// `len` zero bytes, aligned to 256.
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.saturating_add(2 * MARGIN), ALIGNMENT.max(MARGIN)).map_err(|_| len);
        let Ok(layout) = layout else {
            panic!("a buffer of {len} bytes does not fit the address space")
        };
        // SAFETY: the layout's size is not zero.
        let allocation = unsafe { alloc_zeroed(layout) };
        let Some(allocation) = NonNull::new(allocation) else {
            handle_alloc_error(layout)
        };
        // SAFETY: the allocation is at least MARGIN bytes long.
        let start = unsafe { allocation.add(MARGIN) };
        Self(Arc::new(Memory {
            start,
            len,
            lock: RwLock::new(()),
            owner: Owner::Us(layout),
        }))
    }

    /// A copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let buffer = Self::new(bytes.len());
        buffer.write(0, bytes);
        buffer
    }

    /// Memory that someone else owns, such as a mapped file: kernels may only read it, and a dispatch that binds it to a
    /// `device T*` argument is refused.
    pub fn from_owner<T: AsRef<[u8]> + Send + Sync + 'static>(owner: T) -> Self {
        let owner = Box::new(owner);
        let bytes: &[u8] = (*owner).as_ref();
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        Self(Arc::new(Memory {
            start,
            len,
            lock: RwLock::new(()),
            owner: Owner::Theirs(owner),
        }))
    }

    /// Memory that someone else owns and that kernels may write too, such as a device's shared buffer.
    ///
    /// # Safety
    /// The `len` bytes at `start` are readable and writable for as long as `owner` lives, and nothing else touches them while
    /// a dispatch that binds them runs.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self(Arc::new(Memory {
            start,
            len,
            lock: RwLock::new(()),
            owner: Owner::Lent(owner),
        }))
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Whether it came from [`Buffer::from_owner`].
    pub fn is_read_only(&self) -> bool {
        matches!(self.0.owner, Owner::Theirs(_))
    }

    /// Whether two handles mean the same memory.
    pub fn same_memory(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they do not fit, or the buffer is read-only.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.assert_inside(offset, bytes.len());
        assert!(!self.is_read_only(), "writing to a read-only buffer");
        let _guard = self.lock(true);
        // SAFETY: inside the allocation (asserted), which is ours and locked for writing; `bytes` cannot overlap it, since no
        // reference to it is ever given out.
        unsafe {
            self.0
                .start
                .as_ptr()
                .add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        }
    }

    /// Copies `out.len()` bytes from `offset`.
    ///
    /// # Panics
    /// If the buffer has not that many.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.assert_inside(offset, out.len());
        let _guard = self.lock(false);
        // SAFETY: inside the allocation (asserted), locked for reading.
        unsafe {
            self.0
                .start
                .as_ptr()
                .add(offset)
                .copy_to_nonoverlapping(out.as_mut_ptr(), out.len())
        }
    }

    /// All its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        self.read(0, &mut out);
        out
    }

    /// Sets every byte.
    ///
    /// # Panics
    /// If the buffer is read-only.
    pub fn fill(&self, byte: u8) {
        assert!(!self.is_read_only(), "writing to a read-only buffer");
        let _guard = self.lock(true);
        // SAFETY: the whole allocation, which is ours and locked for writing.
        unsafe { self.0.start.as_ptr().write_bytes(byte, self.len()) }
    }

    fn assert_inside(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|e| e <= self.len()),
            "{len} bytes at {offset} of a buffer of {}",
            self.len()
        );
    }

    /// The first byte; also what identifies the memory.
    pub(crate) fn address(&self) -> usize {
        self.0.start.as_ptr() as usize
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    pub(crate) fn lock(&self, for_writing: bool) -> Guard<'_> {
        if for_writing {
            Guard::Write(self.0.lock.write().unwrap_or_else(PoisonError::into_inner))
        } else {
            Guard::Read(self.0.lock.read().unwrap_or_else(PoisonError::into_inner))
        }
    }
}
