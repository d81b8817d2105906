//! CPU threads that run threadgroups.

use super::abi::{self, Launch, Run, Worker};
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// The memory of one worker: stacks for 1024 fibers, and a threadgroup's memory.
pub(crate) struct WorkerMemory {
    mapping: NonNull<libc::c_void>,
    regions: *mut u8,
    /// Simdgroups whose stacks have their guard pages.
    guarded: usize,
    /// The threadgroup memory, aligned to 16.
    memory: Vec<u128>,
    state: Box<Worker>,
}

const MAPPING_BYTES: usize = (abi::MAX_SIMDGROUPS + 1) * abi::REGION_BYTES;

// SAFETY: the mapping and the state are this value's own.
unsafe impl Send for WorkerMemory {}

impl WorkerMemory {
    pub fn new() -> std::io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        // SAFETY: a fresh private mapping at an address of the system's choice. Pages cost memory only when touched.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MAPPING_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let mapping = NonNull::new(mapping).ok_or_else(|| std::io::Error::other("mmap returned null"))?;
        let skip = mapping.as_ptr().cast::<u8>().align_offset(abi::REGION_BYTES);
        // SAFETY: the mapping has one region more than is used, so the aligned start is inside.
        let regions = unsafe { mapping.as_ptr().cast::<u8>().add(skip) };
        let mut memory = vec![0_u128; abi::MEMORY_BYTES.div_ceil(16)];
        let state = Box::new(Worker::new(regions, memory.as_mut_ptr().cast()));
        Ok(Self {
            mapping,
            regions,
            guarded: 0,
            memory,
            state,
        })
    }

    /// Makes the lowest page of each lane's stack inaccessible: running out of stack stops the process, rather than
    /// changing another lane's variables.
    fn guard(&mut self, simdgroups: usize) -> std::io::Result<()> {
        // SAFETY: sysconf has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        for simdgroup in self.guarded..simdgroups {
            for lane in 0..32 {
                let at = simdgroup * abi::REGION_BYTES + abi::STACKS_AT + lane * abi::SLOT_BYTES;
                // SAFETY: inside the mapping, at a multiple of the page size, and no fiber is running.
                let result = unsafe { libc::mprotect(self.regions.add(at).cast(), page, libc::PROT_NONE) };
                if result != 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
        }
        self.guarded = self.guarded.max(simdgroups);
        Ok(())
    }

    pub fn memory_address(&self) -> usize {
        self.memory.as_ptr() as usize
    }

    pub fn state(&self) -> &Worker {
        &self.state
    }

    /// Runs threadgroups of `launch` until none is left.
    ///
    /// # Safety
    /// `launch` and everything it points to must be valid, `run` and its entry from the same object, and the buffers as
    /// large as the kernel takes them to be.
    pub unsafe fn run(&mut self, run: Run, launch: *const Launch) -> std::io::Result<()> {
        // SAFETY: given by the caller.
        let threads = unsafe { (*launch).threads } as usize;
        self.guard(threads.div_ceil(32).min(abi::MAX_SIMDGROUPS))?;
        // SAFETY: the caller vouches for `launch`; the worker's regions and memory are as large as the core expects.
        unsafe { run(&raw mut *self.state, launch) };
        Ok(())
    }
}

impl Drop for WorkerMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; nothing points into it any more. A failure would only leak it.
        unsafe { libc::munmap(self.mapping.as_ptr(), MAPPING_BYTES) };
    }
}

/// A launch on its way to a helper thread.
struct Job {
    run: Run,
    launch: *const Launch,
}

// SAFETY: `Helper::wait` is always called before what `launch` points to goes away.
unsafe impl Send for Job {}

/// What a helper found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    pub problem: u32,
    pub thread: u32,
    pub pc: usize,
    /// Bytes of threadgroup variables.
    pub variables: u32,
}

impl From<&Worker> for Outcome {
    fn from(w: &Worker) -> Self {
        Self {
            problem: w.problem,
            thread: w.problem_thread,
            pc: w.problem_pc,
            variables: w.variables_size,
        }
    }
}

/// A CPU thread beside the caller's.
pub(crate) struct Helper {
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<std::io::Result<Outcome>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    pub fn start() -> std::io::Result<Self> {
        let (jobs, inbox) = channel::<Job>();
        let (outbox, outcomes) = channel();
        let mut memory = WorkerMemory::new()?;
        let thread = std::thread::Builder::new().name("emulator".to_owned()).spawn(move || {
            for job in inbox {
                // SAFETY: the sender vouched for the launch in `give` and waits for the outcome.
                let result = unsafe { memory.run(job.run, job.launch) };
                if outbox.send(result.map(|()| Outcome::from(memory.state()))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            jobs: Some(jobs),
            outcomes,
            thread: Some(thread),
        })
    }

    /// Lets the helper take part in a launch. To be followed by [`Helper::wait`].
    ///
    /// # Safety
    /// As for [`WorkerMemory::run`], until `wait` has returned.
    pub unsafe fn give(&self, run: Run, launch: *const Launch) -> bool {
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(Job { run, launch }).is_ok())
    }

    pub fn wait(&self) -> std::io::Result<Outcome> {
        self.outcomes
            .recv()
            .unwrap_or_else(|_| Err(std::io::Error::other("an emulator thread has ended")))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
