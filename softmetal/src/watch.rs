//! Notices when the host touches a buffer that a command buffer in flight uses.
//!
//! While a command buffer is in flight, the pages of the buffers that it may write are closed to the host, and those of the
//! buffers that it may read are closed to writing. A touch faults; the handler notes the address, opens the page and lets the
//! program go on. Whether the touch was wrong is known once the command buffer has run, when the bytes that it read and
//! wrote are known: touching another part of the same page is allowed.

use std::ffi::{c_int, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// One touch of watched memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub address: usize,
    pub write: bool,
}

/// How much of watched memory the host may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Neither read nor write.
    Nothing,
    /// Read.
    Reading,
}

/// Touches that a watch remembers; the first few are enough to report.
const TOUCHES: usize = 8;

/// A watched range. The fault handler may run on any thread at any time, so it sees nothing but atomics.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    touched: AtomicUsize,
    /// Address, its lowest bit replaced by "was a write".
    touches: [AtomicUsize; TOUCHES],
}

/// Ranges that can be watched at once in this process.
const SLOTS: usize = 1024;

static WATCHED: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        touched: AtomicUsize::new(0),
        touches: [const { AtomicUsize::new(0) }; TOUCHES],
    }
}; SLOTS];

/// Guards the choice of a slot; the handler does not take it.
static CHOICE: Mutex<()> = Mutex::new(());

/// Keeps a range of whole pages closed until it is dropped.
pub(crate) struct Watch {
    slot: &'static Slot,
}

impl Watch {
    /// Closes the pages from `start` to `end`. `None` where too many ranges are watched already.
    pub fn new((start, end): (usize, usize), allowed: Allowed) -> Option<Self> {
        install_handler();
        let _choice = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = WATCHED.iter().find(|slot| slot.start.load(Ordering::Acquire) == 0)?;
        slot.touched.store(0, Ordering::Release);
        slot.end.store(end, Ordering::Release);
        slot.start.store(start, Ordering::Release);
        protect(
            start,
            end,
            if allowed == Allowed::Reading {
                libc::PROT_READ
            } else {
                libc::PROT_NONE
            },
        );
        Some(Self { slot })
    }

    /// Opens the pages again and returns the touches so far.
    pub fn end(self) -> Vec<Touch> {
        let count = self.slot.touched.load(Ordering::Acquire).min(TOUCHES);
        self.slot.touches[..count]
            .iter()
            .map(|touch| touch.load(Ordering::Acquire))
            .map(|touch| Touch {
                address: touch & !1,
                write: touch & 1 == 1,
            })
            .collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (start, end) = (
            self.slot.start.load(Ordering::Acquire),
            self.slot.end.load(Ordering::Acquire),
        );
        protect(start, end, libc::PROT_READ | libc::PROT_WRITE);
        self.slot.start.store(0, Ordering::Release);
    }
}

fn protect(start: usize, end: usize, protection: c_int) {
    // SAFETY: the range is whole pages that a buffer owns; a fault on them is handled by `on_fault`.
    unsafe { libc::mprotect(start as *mut c_void, end - start, protection) };
}

/// Bytes of a page on this system.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: asks for a number.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.try_into().unwrap_or(4096))
}

/// Whether the page at `address` is mapped with the right to write.
pub(crate) fn is_writable(address: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines()
        .find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
            range.contains(&address).then(|| rest.as_bytes().get(1) == Some(&b'w'))
        })
        .unwrap_or(true)
}

/// What handled faults before; it gets those that are none of ours.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

fn install_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the structures are plain data, zero is a valid value of each field, and `on_fault` has the signature that
        // SA_SIGINFO asks for. The program's other handlers keep getting the faults outside watched memory.
        unsafe {
            let mut previous = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            libc::sigaction(libc::SIGSEGV, ptr::null(), &mut previous);
            let _ = PREVIOUS.set(previous);
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
        }
    });
}

/// Only calls functions that are safe in a signal handler: atomics, `mprotect`, `sigaction`.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes valid structures to a handler that was installed with SA_SIGINFO.
    let (address, write) = unsafe { ((*info).si_addr() as usize, was_write(context)) };
    let found = WATCHED.iter().find(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        start != 0 && start <= address && address < slot.end.load(Ordering::Acquire)
    });
    if let Some(slot) = found {
        let index = slot.touched.fetch_add(1, Ordering::AcqRel);
        if let Some(touch) = slot.touches.get(index) {
            touch.store(address & !1 | usize::from(write), Ordering::Release);
        }
        let page = address & !(page_size() - 1);
        protect(page, page + page_size(), libc::PROT_READ | libc::PROT_WRITE);
        return;
    }
    // Not ours: the previous handler takes over, and the access faults again.
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: restores what `install_handler` replaced.
        unsafe { libc::sigaction(signal, previous, ptr::null_mut()) };
    }
}

/// Whether the access that faulted was a write.
///
/// # Safety
/// `context` is what the system passed to the handler.
#[cfg(target_arch = "x86_64")]
unsafe fn was_write(context: *mut c_void) -> bool {
    // SAFETY: the caller's promise. Bit 1 of the page fault's error code says so.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0 }
}

/// Elsewhere every touch counts as a read.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn was_write(_context: *mut c_void) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_are_noted_and_let_through() {
        let length = 2 * page_size();
        // SAFETY: new pages of this test's own.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let (start, end) = (base as usize, base as usize + length);
        let watch = Watch::new((start, end), Allowed::Nothing).unwrap();
        // SAFETY: both addresses lie in the pages above; the handler opens them.
        unsafe {
            base.cast::<u8>().add(12).write_volatile(7);
            assert_eq!(base.cast::<u8>().add(page_size() + 4).read_volatile(), 0);
            assert_eq!(base.cast::<u8>().add(12).read_volatile(), 7);
        }
        let expected = [
            Touch {
                address: start + 12,
                write: true,
            },
            Touch {
                address: start + page_size() + 4,
                write: false,
            },
        ];
        assert_eq!(watch.end(), expected);
    }
}
