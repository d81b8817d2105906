//! `MTLBuffer` and the memory behind it.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;
use objc2_metal::{MTLHazardTrackingMode, MTLResourceOptions};
use shader_tool::Buffer;

use crate::machine::Machine;
use crate::watch;

/// The memory of a buffer. It lives as long as a command buffer that uses it, even when the program has released the buffer:
/// that misuse is to be reported, not to be played.
pub(crate) struct Memory {
    pub id: u64,
    pub pointer: NonNull<c_void>,
    pub length: usize,
    pub tracked: bool,
    /// The pages are mapped without the right to write.
    pub read_only: bool,
    /// The pages belong to this object, rather than to the program.
    owned: bool,
    label: RefCell<String>,
    machine: Arc<Machine>,
}

// SAFETY: plain memory that the device and the program share by Metal's rules; the label is only touched through the
// buffer's methods, which the program calls from one thread at a time.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory on pages of its own, so that access to it can be watched.
    pub fn allocate(machine: Arc<Machine>, length: usize, tracked: bool) -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: asks for new pages; touches no existing memory.
        let pointer = unsafe { libc::mmap(ptr::null_mut(), pages(length), protection, flags, -1, 0) };
        if pointer == libc::MAP_FAILED {
            return None;
        }
        let mut state = machine.state();
        state.statistics.buffers += 1;
        state.statistics.allocated_bytes += pages(length) as u64;
        drop(state);
        Some(Self {
            id: machine.new_id(),
            pointer: NonNull::new(pointer)?,
            length,
            tracked,
            read_only: false,
            owned: true,
            label: RefCell::default(),
            machine,
        })
    }

    /// The program's own pages.
    pub fn wrap(machine: Arc<Machine>, pointer: NonNull<c_void>, length: usize, tracked: bool) -> Self {
        machine.state().statistics.buffers += 1;
        Self {
            id: machine.new_id(),
            pointer,
            length,
            tracked,
            read_only: !watch::is_writable(pointer.as_ptr() as usize),
            owned: false,
            label: RefCell::default(),
            machine,
        }
    }

    /// The memory as the emulator takes it.
    pub fn handle(self: &Arc<Self>) -> Buffer {
        if self.read_only {
            return Buffer::from_owner(ReadOnly(self.clone()));
        }
        // SAFETY: the memory lives as long as the clone; while a dispatch runs, the program waits for it, or touches other
        // bytes by Metal's rules, or is to be reported.
        unsafe { Buffer::from_raw(self.pointer.cast(), self.length, Box::new(self.clone())) }
    }

    /// For messages.
    pub fn describe(&self) -> String {
        let label = self.label.borrow();
        if label.is_empty() {
            format!("buffer {}", self.id)
        } else {
            format!("buffer {} ({label})", self.id)
        }
    }

    /// The pages that hold it.
    pub fn pages(&self) -> (usize, usize) {
        let start = self.pointer.as_ptr() as usize;
        (start, start + pages(self.length))
    }

    /// The pages belong to the program.
    pub fn is_wrapped(&self) -> bool {
        !self.owned
    }

    /// The pages may be protected while a command buffer uses them.
    pub fn can_be_watched(&self) -> bool {
        self.owned
    }
}

/// Memory that nobody can write.
struct ReadOnly(Arc<Memory>);

impl AsRef<[u8]> for ReadOnly {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the program keeps the pages mapped while a buffer wraps them, and they cannot be written.
        unsafe { slice::from_raw_parts(self.0.pointer.as_ptr().cast(), self.0.length) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut state = self.machine.state();
        state.statistics.buffers -= 1;
        if self.owned {
            state.statistics.allocated_bytes -= pages(self.length) as u64;
            // SAFETY: these pages were mapped by `allocate`, and this is their only owner.
            unsafe { libc::munmap(self.pointer.as_ptr(), pages(self.length)) };
        }
    }
}

/// Bytes of the whole pages that `length` bytes take.
pub(crate) fn pages(length: usize) -> usize {
    length.max(1).next_multiple_of(watch::page_size())
}

/// Fields of a [`SoftBuffer`].
pub(crate) struct BufferFields {
    pub memory: Arc<Memory>,
    /// Dies with the buffer object: who holds a `Weak` of it sees that the program released the buffer.
    pub alive: Arc<()>,
    /// What the program sees; 0 where the machine cannot wrap memory.
    visible_length: usize,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLBuffer"]
    #[ivars = BufferFields]
    pub(crate) struct SoftBuffer;

    unsafe impl NSObjectProtocol for SoftBuffer {}

    impl SoftBuffer {
        #[unsafe(method(length))]
        fn length(&self) -> usize {
            self.ivars().visible_length
        }

        #[unsafe(method(contents))]
        fn contents(&self) -> *mut c_void {
            self.ivars().memory.pointer.as_ptr()
        }

        #[unsafe(method(allocatedSize))]
        fn allocated_size(&self) -> usize {
            pages(self.ivars().memory.length)
        }

        #[unsafe(method(setLabel:))]
        fn set_label(&self, label: Option<&NSString>) {
            self.ivars().memory.label.replace(label.map(ToString::to_string).unwrap_or_default());
        }
    }
);

impl SoftBuffer {
    pub fn new(memory: Memory, visible_length: usize) -> Retained<Self> {
        let fields = BufferFields {
            memory: Arc::new(memory),
            alive: Arc::new(()),
            visible_length,
        };
        let this = Self::alloc().set_ivars(fields);
        // SAFETY: the super class's designated initializer.
        unsafe { msg_send![super(this), init] }
    }
}

/// Whether the options leave hazard tracking on, which is the default for buffers.
pub(crate) fn is_tracked(options: MTLResourceOptions) -> bool {
    options.0 >> objc2_metal::MTLResourceHazardTrackingModeShift & 3 != MTLHazardTrackingMode::Untracked.0
}
