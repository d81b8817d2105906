//! What Rust and the emulator's C++ core (`shim/msl/emulator.h`) agree on. Sizes are asserted when an object is loaded.

use std::ffi::{c_char, c_void};

/// A kernel's entry function: takes the table of buffer addresses, by index.
pub(crate) type Entry = unsafe extern "C" fn(*const *mut c_void);

/// Runs threadgroups on the calling CPU thread until none is left.
pub(crate) type Run = unsafe extern "C" fn(*mut Worker, *const Launch);

/// Address space of one simdgroup: its header and 32 stacks. Aligned to its own size.
pub(crate) const REGION_BYTES: usize = 8 << 20;
/// Where the stacks begin in a region.
pub(crate) const STACKS_AT: usize = 4 << 20;
/// One lane's stack.
pub(crate) const SLOT_BYTES: usize = 1 << 17;
pub(crate) const MAX_SIMDGROUPS: usize = 32;
/// Room for a threadgroup's variables: Metal's 32 KiB and the gaps that the checked mode leaves between them.
pub(crate) const VARIABLES_BYTES: usize = 40960;
/// Gap before each threadgroup argument.
pub(crate) const ARGUMENT_GAP: usize = 64;
pub(crate) const ARGUMENTS: usize = 4;
/// Threadgroup memory that Metal has.
pub(crate) const METAL_BYTES: u32 = 32768;
/// The most that any GPU has: 227 KiB, compute capability 9.0.
pub(crate) const MOST_BYTES: u32 = 232_448;
/// A worker's threadgroup memory: variables, then arguments.
pub(crate) const MEMORY_BYTES: usize = VARIABLES_BYTES + MOST_BYTES as usize + (ARGUMENTS + 1) * (ARGUMENT_GAP + 16);

/// `enum Problem`.
pub(crate) mod problem {
    pub(crate) const FINE: u32 = 0;
    pub(crate) const DIVERGED: u32 = 1;
    pub(crate) const LANES_MISSING: u32 = 2;
    pub(crate) const BARRIER_MISSED: u32 = 3;
}

/// `enum AccessKind`.
pub(crate) mod access {
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const ATOMIC: u32 = 2;
}

/// `Operation::THREADGROUP_BARRIER`.
pub(crate) const THREADGROUP_BARRIER: u32 = 1;

#[repr(C)]
pub(crate) struct Launch {
    pub entry: Entry,
    pub buffers: *const *mut c_void,
    pub constants: *const u32,
    pub constants_defined: u64,
    pub grid: [u32; 3],
    pub size: [u32; 3],
    pub threads: u32,
    pub arguments_at: u32,
    pub arguments_end: u32,
    pub argument_at: [u32; ARGUMENTS],
    pub uses_variables: u32,
    pub next: *mut u32,
    pub order: *const u32,
    pub seed: u64,
    pub checker: *mut c_void,
    pub begin: Option<unsafe extern "C" fn(*mut c_void, u32)>,
    pub access: Option<unsafe extern "C" fn(*mut c_void, &AccessEvent) -> u32>,
    pub variable: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize, u64)>,
    pub call_site: Option<unsafe extern "C" fn(*mut c_void, u32, u32, u32, usize)>,
    pub problem: Option<unsafe extern "C" fn(*mut c_void, u32, u32, usize)>,
}

/// One memory access of a kernel in checked mode.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessEvent {
    pub address: usize,
    pub bytes: u64,
    pub kind: u32,
    pub thread: u32,
    /// Threadgroup barriers passed.
    pub epoch: u32,
    /// Simdgroup barriers passed.
    pub simd_epoch: u32,
    pub pc: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Context {
    stack: *mut c_void,
    resume: *mut c_void,
}

#[repr(C)]
pub(crate) struct Worker {
    pub regions: *mut u8,
    pub memory: *mut u8,
    pub caller: Context,
    pub todo: u32,
    pub alive: u32,
    pub all: u32,
    pub epoch: u32,
    pub group: u32,
    pub position: [u32; 3],
    pub variables_end: u32,
    pub variables_size: u32,
    pub problem: u32,
    pub problem_thread: u32,
    pub problem_pc: usize,
    pub barrier_pc: usize,
    pub random: u64,
}

impl Worker {
    pub fn new(regions: *mut u8, memory: *mut u8) -> Self {
        let caller = Context {
            stack: std::ptr::null_mut(),
            resume: std::ptr::null_mut(),
        };
        Self {
            regions,
            memory,
            caller,
            todo: 0,
            alive: 0,
            all: 0,
            epoch: 0,
            group: 0,
            position: [0; 3],
            variables_end: 0,
            variables_size: 0,
            problem: problem::FINE,
            problem_thread: 0,
            problem_pc: 0,
            barrier_pc: 0,
            random: 0,
        }
    }
}
