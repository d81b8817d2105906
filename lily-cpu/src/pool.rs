//! The worker threads: one parallel region at a time. Each thread has a share of the tasks, which it takes in order, so that it walks
//! through memory; when its share is done it takes from the end of another's.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::CpuError;

/// How long a worker looks for the next region before it sleeps. Regions of one step follow each other within a few microseconds.
const SPIN: Duration = Duration::from_micros(50);

/// A thread takes one in so many of the tasks that are left in its share.
const PARTS: usize = 8;

/// Set in [`Control::state`] while threads may join the region.
const OPEN: u64 = 1 << 31;
/// One region, in the upper half of [`Control::state`]; the lower half counts the workers inside.
const EPOCH: u64 = 1 << 32;
const STOP: u64 = 1 << 30;
const ACTIVE: u64 = STOP - 1;

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A fixed set of threads, the caller among them.
pub(crate) struct Pool {
    control: Arc<Control>,
    workers: Vec<JoinHandle<()>>,
}

struct Control {
    /// Epoch, open flag, stop flag, number of workers inside.
    state: AtomicU64,
    /// What is left of each thread's tasks.
    shares: Vec<Share>,
    region: UnsafeCell<Region>,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

struct Region {
    task: Option<*const Task<'static>>,
}

/// Tasks `first..end`, both in one word: `end` in the upper half. In a cache line of its own.
#[repr(align(64))]
struct Share(AtomicU64);

impl Share {
    fn set(&self, tasks: Range<usize>) {
        // Read after `Control::state`, which orders it.
        self.0.store(word(&tasks), Ordering::Relaxed);
    }

    /// Some of the first tasks: fewer and fewer, since an atomic operation keeps a processor from reading ahead.
    fn take_first(&self) -> Option<Range<usize>> {
        self.take(|first, end| {
            let taken = first..first + (end - first).div_ceil(PARTS);
            (taken.clone(), taken.end..end)
        })
    }

    /// The last task.
    fn take_last(&self) -> Option<usize> {
        let taken = self.take(|first, end| (end - 1..end, first..end - 1));
        taken.map(|taken| taken.start)
    }

    /// What `split` takes of the tasks that are left, if there are any; what it leaves is its second answer.
    fn take(&self, split: impl Fn(usize, usize) -> (Range<usize>, Range<usize>)) -> Option<Range<usize>> {
        let mut share = self.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = ((share & u64::from(u32::MAX)) as usize, (share >> 32) as usize);
            if first >= end {
                return None;
            }
            let (taken, left) = split(first, end);
            match self
                .0
                .compare_exchange_weak(share, word(&left), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(taken),
                Err(changed) => share = changed,
            }
        }
    }
}

fn word(tasks: &Range<usize>) -> u64 {
    (tasks.end as u64) << 32 | tasks.start as u64
}

// SAFETY: `region` is written only while no region is open and no worker is inside (`Pool::run` takes `&mut self` and waits for
// both), and read only by workers that joined an open region; joining (an acquire of `state`) orders the read after the write.
unsafe impl Sync for Control {}
// SAFETY: the pointer in `region` points to a `Sync` closure that outlives the region.
unsafe impl Send for Control {}

impl Pool {
    /// A pool of `threads` threads, the caller included.
    pub(crate) fn new(threads: usize) -> Result<Pool, CpuError> {
        let control = Arc::new(Control {
            state: AtomicU64::new(0),
            shares: (0..threads).map(|_| Share(AtomicU64::new(0))).collect(),
            region: UnsafeCell::new(Region { task: None }),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Pool {
            control,
            workers: Vec::new(),
        };
        for thread in 1..threads {
            let control = Arc::clone(&pool.control);
            let worker = std::thread::Builder::new()
                .name(format!("lily-cpu-{thread}"))
                .spawn(move || control.work(thread))
                .map_err(|source| CpuError::Threads { threads, source })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(index, thread)` once for each `index` below `tasks` (at most 2^32 - 1), on any of the threads
    /// (`thread` < [`Pool::threads`], never the same number twice at once). Panics where a task does.
    pub(crate) fn run(&mut self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|index| task(index, 0));
            return;
        }
        let control = &*self.control;
        let erased: *const Task<'_> = task;
        // SAFETY: only the lifetime changes; the pointer is not used after this function, which outwaits every worker inside.
        let erased: *const Task<'static> = unsafe { std::mem::transmute(erased) };
        // SAFETY: the last region was closed and empty when the previous call returned, so no worker reads this now.
        unsafe {
            *control.region.get() = Region { task: Some(erased) };
        }
        let threads = self.threads();
        for (thread, share) in control.shares.iter().enumerate() {
            share.set(tasks * thread / threads..tasks * (thread + 1) / threads);
        }
        control.state.fetch_add(EPOCH | OPEN, Ordering::SeqCst);
        if control.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = control.guard();
            control.wake.notify_all();
        }
        control.take_tasks(task, 0);
        control.state.fetch_and(!OPEN, Ordering::SeqCst);
        let mut waited = 0u32;
        while control.state.load(Ordering::Acquire) & ACTIVE != 0 {
            waited += 1;
            if !waited.is_multiple_of(64) {
                std::hint::spin_loop();
            } else {
                // The worker may have lost its processor to another program: let it have this one.
                std::thread::yield_now();
            }
        }
        let panic = control.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.control.state.fetch_or(STOP, Ordering::SeqCst);
        {
            let _guard = self.control.guard();
            self.control.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so there is nothing to learn from how it ended.
            let _ = worker.join();
        }
    }
}

impl Control {
    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_tasks(&self, task: &Task<'_>, thread: usize) {
        let (before, own) = self.shares.split_at(thread);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while let Some(indices) = own[0].take_first() {
                indices.for_each(|index| task(index, thread));
            }
            for other in own[1..].iter().chain(before) {
                while let Some(index) = other.take_last() {
                    task(index, thread);
                }
            }
        }));
        if let Err(panic) = outcome {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }

    fn work(&self, thread: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.join_region(seen) {
            seen = epoch;
            // SAFETY: this worker is inside an open region (see `Sync`).
            let task = unsafe { (*self.region.get()).task };
            if let Some(task) = task {
                // SAFETY: `Pool::run` keeps the closure alive until this worker has left.
                self.take_tasks(unsafe { &*task }, thread);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a region newer than `seen` and enters it; `None` when the pool ends.
    fn join_region(&self, seen: u64) -> Option<u64> {
        let mut state = self.state.load(Ordering::SeqCst);
        let mut idle_since: Option<Instant> = None;
        let mut spins = 0u32;
        loop {
            if state & STOP != 0 {
                return None;
            }
            if Self::joinable(state, seen) {
                match self
                    .state
                    .compare_exchange_weak(state, state + 1, Ordering::SeqCst, Ordering::SeqCst)
                {
                    Ok(_) => return Some(state >> 32),
                    Err(changed) => {
                        state = changed;
                        continue;
                    }
                }
            }
            std::hint::spin_loop();
            spins += 1;
            // Reading the clock costs as much as many looks at the state.
            if spins.is_multiple_of(64) {
                if idle_since.get_or_insert_with(Instant::now).elapsed() > SPIN {
                    self.sleep(seen);
                    idle_since = None;
                } else {
                    // Whoever waits for this processor, such as the thread of a server, gets it now rather than in the middle of a task, for which
                    // the other threads would have to wait.
                    std::thread::yield_now();
                }
            }
            state = self.state.load(Ordering::SeqCst);
        }
    }

    fn joinable(state: u64, seen: u64) -> bool {
        state & OPEN != 0 && state >> 32 != seen
    }

    fn sleep(&self, seen: u64) {
        let mut guard = self.guard();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if state & STOP != 0 || Self::joinable(state, seen) {
                break;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_every_region() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for round in 0..300 {
                let tasks = round % 37;
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|index, thread| {
                    assert!(thread < threads);
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                if round % 100 == 99 {
                    // Long enough for the workers to fall asleep.
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, &|index, _| assert!(index != 5, "task 5"));
        }));
        assert!(outcome.is_err());
        let done = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn idle_workers_do_not_burn_processor_time() {
        let mut pool = Pool::new(2).unwrap();
        pool.run(2, &|_, _| {});
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pool.control.sleepers.load(Ordering::SeqCst), 1);
    }
}
