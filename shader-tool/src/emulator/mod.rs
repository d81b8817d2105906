//! Running dispatches on the CPU.

pub(crate) mod abi;
mod buffer;
pub(crate) mod object;
mod worker;

pub use buffer::Buffer;

use crate::checker::{Checker, Finding, FindingKind, RangeSet, Site};
use crate::library::Mode;
use crate::manifest::Access;
use crate::{Pipeline, ShaderError};
use abi::{Launch, problem};
use std::ffi::c_void;
use std::time::{Duration, Instant};
use worker::{Helper, Outcome, WorkerMemory};

/// The order in which threadgroups, simdgroups and lanes take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Ascending. Kernels with atomics in device memory run on one core, so results are always the same.
    #[default]
    Fixed,
    /// Shuffled by a seed: a kernel that depends on an order that nothing promises will show it.
    Random(u64),
}

/// What an argument index is bound to.
#[derive(Debug, Clone, Copy)]
pub enum Argument<'a> {
    /// A part of a buffer.
    Buffer {
        /// The memory.
        buffer: &'a Buffer,
        /// Where the argument begins.
        offset: usize,
        /// How many bytes the kernel may touch; to the buffer's end if `None`. The checked mode holds it to this.
        len: Option<usize>,
    },
    /// A few bytes copied at dispatch, as Metal's `setBytes`: parameter structures.
    Bytes(&'a [u8]),
}

/// One buffer argument.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    /// `n` of `[[buffer(n)]]`.
    pub index: u32,
    /// What it is bound to.
    pub argument: Argument<'a>,
}

impl<'a> Binding<'a> {
    /// A whole buffer.
    pub fn buffer(index: u32, buffer: &'a Buffer) -> Self {
        Self {
            index,
            argument: Argument::Buffer {
                buffer,
                offset: 0,
                len: None,
            },
        }
    }

    /// Bytes copied at dispatch.
    pub fn bytes(index: u32, bytes: &'a [u8]) -> Self {
        Self {
            index,
            argument: Argument::Bytes(bytes),
        }
    }

    /// The same from byte `offset` on.
    #[must_use]
    pub fn offset(mut self, offset: usize) -> Self {
        if let Argument::Buffer { offset: at, .. } = &mut self.argument {
            *at = offset;
        }
        self
    }

    /// The same, but no more than `len` bytes of it.
    #[must_use]
    pub fn len(mut self, len: usize) -> Self {
        if let Argument::Buffer { len: at, .. } = &mut self.argument {
            *at = Some(len);
        }
        self
    }
}

/// One dispatch, as `dispatchThreadgroups:threadsPerThreadgroup:` would be told.
#[derive(Debug, Clone, Copy)]
pub struct Dispatch<'a> {
    /// The kernel with its function constants.
    pub pipeline: &'a Pipeline,
    /// One for each buffer that the kernel takes.
    pub bindings: &'a [Binding<'a>],
    /// The grid, in threadgroups. A zero makes the dispatch do nothing.
    pub threadgroups: [u32; 3],
    /// At most 1024 in all.
    pub threads_per_threadgroup: [u32; 3],
    /// Index and size in bytes of each `[[threadgroup(n)]]` argument.
    pub threadgroup_memory: &'a [(u32, u32)],
}

/// What a dispatch did to one buffer argument. Byte ranges count from the start of the whole buffer, not of the binding.
#[derive(Debug, Clone)]
pub struct BufferAccess {
    /// `n` of `[[buffer(n)]]`.
    pub index: u32,
    /// The parameter's name.
    pub name: String,
    /// Bytes read; atomics count as both.
    pub reads: RangeSet,
    /// Bytes written.
    pub writes: RangeSet,
}

/// What is known after a dispatch.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Checked mode: everything that is wrong. Always empty in plain mode, where a problem is an error instead.
    pub findings: Vec<Finding>,
    /// Checked mode: what was really read and written, of each buffer argument in order of index.
    pub accesses: Vec<BufferAccess>,
    /// Bytes of threadgroup memory that the kernel used, variables and arguments.
    pub threadgroup_memory: u32,
    /// How long the threads ran.
    pub time: Duration,
}

/// A software GPU: runs one dispatch at a time, to its end.
///
/// In checked mode it also behaves like a concurrent encoder: dispatches since the last [`Emulator::barrier`] count as
/// unordered, and a dispatch that touches what another of them writes is a finding.
pub struct Emulator {
    order: Order,
    own: Option<WorkerMemory>,
    helpers: Vec<Helper>,
    threads: usize,
    threadgroup_bytes: u32,
    checker: Checker,
    dispatches: u64,
}

impl std::fmt::Debug for Emulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Emulator")
            .field("order", &self.order)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Default for Emulator {
    fn default() -> Self {
        Self::new()
    }
}

impl Emulator {
    /// On all CPU cores, in fixed order.
    pub fn new() -> Self {
        Self {
            order: Order::Fixed,
            own: None,
            helpers: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            threadgroup_bytes: abi::METAL_BYTES,
            checker: Checker::default(),
            dispatches: 0,
        }
    }

    /// In another order.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// On at most so many CPU cores (at least one).
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// With so much threadgroup memory for the arguments of a dispatch, up to 227 KiB, instead of Metal's 32 KiB.
    #[must_use]
    pub fn with_threadgroup_memory(mut self, bytes: u32) -> Self {
        self.threadgroup_bytes = bytes.min(abi::MOST_BYTES);
        self
    }

    /// Everything dispatched so far is finished and visible to what follows. In checked mode it says whether the dispatches since the barrier before
    /// this one needed that one: whether it kept them from a hazard with those since the barrier before it.
    pub fn barrier(&mut self) -> bool {
        self.checker.barrier()
    }

    /// Runs a dispatch to its end.
    ///
    /// # Errors
    /// [`ShaderError::Dispatch`] for what Metal would refuse; [`ShaderError::Diverged`] in plain mode.
    pub fn dispatch(&mut self, dispatch: &Dispatch<'_>) -> Result<Report, ShaderError> {
        let bound = Bound::new(dispatch, self.threadgroup_bytes)?;
        let threadgroups = dispatch.threadgroups.iter().try_fold(1_u32, |n, &d| n.checked_mul(d));
        let threadgroups = threadgroups
            .filter(|&n| n < 1 << 31)
            .ok_or_else(|| bound.error("the grid is too large"))?;
        if threadgroups == 0 {
            return Ok(Report::default());
        }
        let checked = dispatch.pipeline.object.mode == Mode::Checked;
        let guards = bound.lock();
        self.dispatches += 1;
        let seed = match self.order {
            Order::Fixed => 0,
            Order::Random(seed) => mix(seed ^ self.dispatches) | 1,
        };
        let order = (seed != 0).then(|| shuffled(threadgroups, seed));
        let (constants, constants_defined) = dispatch.pipeline.constants.words();
        let mut next = 0_u32;
        let mut launch = Launch {
            entry: dispatch.pipeline.entry,
            buffers: bound.table.as_ptr(),
            constants: constants.as_ptr(),
            constants_defined,
            grid: dispatch.threadgroups,
            size: dispatch.threads_per_threadgroup,
            threads: bound.threads,
            arguments_at: bound.arguments_at,
            arguments_end: bound.arguments_end,
            argument_at: bound.argument_at,
            uses_variables: u32::from(dispatch.pipeline.info.uses_threadgroup_memory),
            next: &raw mut next,
            order: order.as_ref().map_or(std::ptr::null(), |o| o.as_ptr()),
            seed,
            checker: std::ptr::null_mut(),
            begin: None,
            access: None,
            variable: None,
            call_site: None,
            problem: None,
        };
        let mut own = match self.own.take() {
            Some(own) => own,
            None => WorkerMemory::new().map_err(|e| bound.error(&format!("no memory for stacks: {e}")))?,
        };
        if checked {
            self.checker.begin_dispatch(&bound, dispatch, own.memory_address());
            self.checker.attach(&mut launch);
        }
        let start = Instant::now();
        let alone = checked || threadgroups == 1 || self.threads == 1 || self.order_matters(dispatch);
        let result = if alone {
            // SAFETY: `launch` and what it points to live until the end of this function, and the buffers are locked. A
            // kernel that reaches outside its buffers is a bug that the checked mode finds; the plain mode trusts kernels.
            unsafe { own.run(dispatch.pipeline.object.run, &raw const launch) }
                .map(|()| vec![Outcome::from(own.state())])
        } else {
            self.run_on_all(&mut own, dispatch, &launch, threadgroups)
        };
        let time = start.elapsed();
        self.own = Some(own);
        drop(guards);
        let outcomes = result.map_err(|e| bound.error(&e.to_string()))?;
        let variables = outcomes.iter().map(|o| o.variables).max().unwrap_or(0);
        let threadgroup_memory = variables + bound.arguments_size;
        let bad = outcomes.iter().find(|o| o.problem != problem::FINE);
        let mut report = Report {
            time,
            threadgroup_memory,
            ..Report::default()
        };
        if checked {
            if let Some(bad) = bad {
                self.checker.problem(bad.problem, bad.thread, bad.pc);
            }
            (report.findings, report.accesses) = self.checker.end_dispatch(dispatch.pipeline);
        } else if let Some(bad) = bad {
            let site = Site {
                pc: bad.pc,
                thread: bad.thread,
            };
            let finding = Finding::divergence(dispatch.pipeline, bad.problem, site);
            return Err(ShaderError::Diverged(Box::new(finding)));
        }
        if threadgroup_memory > self.threadgroup_bytes {
            let text = format!(
                "{threadgroup_memory} bytes of threadgroup memory, but there are {}",
                self.threadgroup_bytes
            );
            if !checked {
                return Err(bound.error(&text));
            }
            report.findings.push(Finding::of_kernel(
                dispatch.pipeline,
                FindingKind::ThreadgroupMemory,
                text,
            ));
        }
        Ok(report)
    }

    /// In fixed order, threadgroups that meet in an atomic must come one after the other.
    fn order_matters(&self, dispatch: &Dispatch<'_>) -> bool {
        self.order == Order::Fixed && dispatch.pipeline.info.has_device_atomics
    }

    fn run_on_all(
        &mut self,
        own: &mut WorkerMemory,
        dispatch: &Dispatch<'_>,
        launch: &Launch,
        threadgroups: u32,
    ) -> std::io::Result<Vec<Outcome>> {
        let run = dispatch.pipeline.object.run;
        let wanted = (self.threads - 1).min(threadgroups as usize - 1);
        while self.helpers.len() < wanted {
            self.helpers.push(Helper::start()?);
        }
        // SAFETY: as in `dispatch`; each helper that was given the launch is waited for below.
        let given: Vec<&Helper> = self.helpers[..wanted]
            .iter()
            .filter(|h| unsafe { h.give(run, launch) })
            .collect();
        // SAFETY: as in `dispatch`.
        let mine = unsafe { own.run(run, launch) };
        // Every helper is waited for before any error is passed on: they hold pointers into this dispatch.
        let theirs: Vec<std::io::Result<Outcome>> = given.iter().map(|h| h.wait()).collect();
        mine?;
        std::iter::once(Ok(Outcome::from(own.state()))).chain(theirs).collect()
    }
}

/// A dispatch's arguments, checked and laid out.
pub(crate) struct Bound<'a> {
    kernel: &'a str,
    /// Buffer addresses by index.
    table: [*mut c_void; 32],
    pub buffers: Vec<BoundBuffer<'a>>,
    /// Copies of [`Argument::Bytes`], aligned to 16.
    _bytes: Vec<Vec<u128>>,
    threads: u32,
    pub arguments_at: u32,
    arguments_end: u32,
    pub argument_at: [u32; abi::ARGUMENTS],
    arguments_size: u32,
}

/// One argument's memory.
pub(crate) struct BoundBuffer<'a> {
    pub index: u32,
    pub name: &'a str,
    pub start: usize,
    pub len: usize,
    pub writable: bool,
    /// `None` for bytes copied at dispatch.
    pub buffer: Option<&'a Buffer>,
}

impl<'a> Bound<'a> {
    fn new(dispatch: &Dispatch<'a>, threadgroup_bytes: u32) -> Result<Self, ShaderError> {
        let info = &*dispatch.pipeline.info;
        let mut bound = Self {
            kernel: &info.name,
            table: [std::ptr::null_mut(); 32],
            buffers: Vec::new(),
            _bytes: Vec::new(),
            threads: 0,
            arguments_at: abi::VARIABLES_BYTES as u32,
            arguments_end: abi::VARIABLES_BYTES as u32,
            argument_at: [0; abi::ARGUMENTS],
            arguments_size: 0,
        };
        let threads = dispatch
            .threads_per_threadgroup
            .iter()
            .try_fold(1_u32, |n, &d| n.checked_mul(d))
            .unwrap_or(0);
        bound.threads = threads;
        if threads == 0 || threads > 1024 {
            let [x, y, z] = dispatch.threads_per_threadgroup;
            return Err(bound.error(&format!(
                "{x} x {y} x {z} threads in a threadgroup; Metal allows 1 to 1024"
            )));
        }
        let limit = info.max_threads.as_ref().and_then(|n| n.parse::<u32>().ok());
        if let Some(limit) = limit.filter(|&limit| threads > limit) {
            return Err(bound.error(&format!(
                "{threads} threads, but max_total_threads_per_threadgroup is {limit}"
            )));
        }
        bound.bind(dispatch)?;
        bound.lay_out_arguments(dispatch, threadgroup_bytes)?;
        Ok(bound)
    }

    pub fn error(&self, message: &str) -> ShaderError {
        ShaderError::Dispatch {
            kernel: self.kernel.to_owned(),
            message: message.to_owned(),
        }
    }

    fn bind(&mut self, dispatch: &Dispatch<'a>) -> Result<(), ShaderError> {
        let info: &'a crate::KernelInfo = &dispatch.pipeline.info;
        for binding in dispatch.bindings {
            if !info.buffers.iter().any(|b| b.index == binding.index) {
                return Err(self.error(&format!("nothing takes buffer {}", binding.index)));
            }
        }
        for declared in &info.buffers {
            let (index, name) = (declared.index, declared.name.as_str());
            let mut given = dispatch.bindings.iter().filter(|b| b.index == index);
            let binding = match (given.next(), given.next()) {
                (Some(binding), None) => binding,
                (None, _) if declared.optional => continue,
                (None, _) => return Err(self.error(&format!("buffer {index} ({name}) is not bound"))),
                _ => return Err(self.error(&format!("buffer {index} ({name}) is bound twice"))),
            };
            let writable = declared.access == Access::ReadWrite;
            let bound = match binding.argument {
                Argument::Bytes(bytes) => {
                    if writable {
                        return Err(self.error(&format!(
                            "buffer {index} ({name}) is written, but bound to copied bytes"
                        )));
                    }
                    let mut copy = vec![0_u128; bytes.len().div_ceil(16).max(1)];
                    // SAFETY: the copy is at least as long as the bytes, and freshly allocated.
                    unsafe {
                        copy.as_mut_ptr()
                            .cast::<u8>()
                            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
                    };
                    let start = copy.as_ptr() as usize;
                    self.table[index as usize & 31] = copy.as_mut_ptr().cast();
                    self._bytes.push(copy);
                    BoundBuffer {
                        index,
                        name,
                        start,
                        len: bytes.len(),
                        writable,
                        buffer: None,
                    }
                }
                Argument::Buffer { buffer, offset, len } => {
                    let len = len.or_else(|| buffer.len().checked_sub(offset));
                    let fits = |&len: &usize| offset.checked_add(len).is_some_and(|end| end <= buffer.len());
                    let Some(len) = len.filter(fits) else {
                        let size = buffer.len();
                        return Err(self.error(&format!("buffer {index} ({name}): offset {offset} of {size} bytes")));
                    };
                    if writable && buffer.is_read_only() {
                        return Err(self.error(&format!(
                            "buffer {index} ({name}) is written, but bound to read-only memory"
                        )));
                    }
                    self.table[index as usize & 31] = buffer.as_ptr().wrapping_add(offset).cast();
                    let start = buffer.address() + offset;
                    BoundBuffer {
                        index,
                        name,
                        start,
                        len,
                        writable,
                        buffer: Some(buffer),
                    }
                }
            };
            self.buffers.push(bound);
        }
        self.refuse_overlap(dispatch)
    }

    /// PTX is compiled on the promise that what one argument writes, no other argument touches.
    fn refuse_overlap(&self, dispatch: &Dispatch<'_>) -> Result<(), ShaderError> {
        // Without a stated length, an argument that reaches to the end of a shared buffer is counted as one byte.
        let extent = |b: &BoundBuffer<'_>| {
            let stated = dispatch.bindings.iter().any(|binding| {
                binding.index == b.index && !matches!(binding.argument, Argument::Buffer { len: None, .. })
            });
            b.start..b.start + if stated { b.len } else { b.len.min(1) }
        };
        for (i, a) in self.buffers.iter().enumerate() {
            for b in &self.buffers[i + 1..] {
                let (x, y) = (extent(a), extent(b));
                if (a.writable || b.writable) && x.start < y.end && y.start < x.end {
                    let text = format!(
                        "buffers {} ({}) and {} ({}) overlap, and one is written",
                        a.index, a.name, b.index, b.name
                    );
                    return Err(self.error(&text));
                }
            }
        }
        Ok(())
    }

    fn lay_out_arguments(&mut self, dispatch: &Dispatch<'_>, most: u32) -> Result<(), ShaderError> {
        let declared = &dispatch.pipeline.info.threadgroup_arguments;
        let gap = if dispatch.pipeline.object.mode == Mode::Checked {
            abi::ARGUMENT_GAP as u32
        } else {
            0
        };
        for argument in declared {
            let given = dispatch
                .threadgroup_memory
                .iter()
                .find(|(index, _)| *index == argument.index);
            let (index, name) = (argument.index, &argument.name);
            let Some(&(_, bytes)) = given else {
                return Err(self.error(&format!("threadgroup argument {index} ({name}) has no size")));
            };
            if bytes > most || index as usize >= abi::ARGUMENTS {
                return Err(self.error(&format!("threadgroup argument {index} ({name}) of {bytes} bytes")));
            }
            self.arguments_end += gap;
            self.argument_at[index as usize] = self.arguments_end;
            self.arguments_end += bytes.next_multiple_of(16);
            self.arguments_size += bytes.next_multiple_of(16);
        }
        if self.arguments_size > most {
            return Err(self.error(&format!(
                "{} bytes of threadgroup arguments; there are {most}",
                self.arguments_size
            )));
        }
        Ok(())
    }

    /// Locks every buffer once, in one order for all threads.
    fn lock(&self) -> Vec<buffer::Guard<'a>> {
        let mut wanted: Vec<(&'a Buffer, bool)> = Vec::new();
        for bound in &self.buffers {
            let Some(buffer) = bound.buffer else { continue };
            match wanted.iter_mut().find(|(b, _)| b.same_memory(buffer)) {
                Some((_, writable)) => *writable |= bound.writable,
                None => wanted.push((buffer, bound.writable)),
            }
        }
        wanted.sort_by_key(|(buffer, _)| buffer.address());
        wanted
            .into_iter()
            .map(|(buffer, writable)| buffer.lock(writable))
            .collect()
    }
}

/// SplitMix64's finalizer.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    for i in (1..order.len()).rev() {
        let j = mix(seed.wrapping_add(i as u64)) % (i as u64 + 1);
        order.swap(i, j as usize);
    }
    order
}
