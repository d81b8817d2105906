//! The checked mode: what every memory access of a dispatch tells.

mod finding;
mod pages;
mod ranges;
mod shadow;

pub use finding::{Finding, FindingKind};
pub use ranges::RangeSet;

pub(crate) use finding::Site;

use crate::emulator::abi::{self, AccessEvent, Launch, access, problem};
use crate::emulator::object::KernelObject;
use crate::emulator::{Bound, BufferAccess, Dispatch};
use crate::{Buffer, Pipeline};
use finding::Raw;
use pages::Bits;
use shadow::{Cells, Stamp};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

/// Findings beyond this many are dropped: one mistake can show in millions of accesses.
const MOST_FINDINGS: usize = 200;

/// What the checker knows across dispatches, and about the current one.
#[derive(Default)]
pub(crate) struct Checker {
    /// Dispatches since the last barrier.
    recent: Vec<Recent>,
    /// The memory that they touched, by its address.
    touched: HashMap<usize, Touched>,
    /// The memory that those before the last barrier touched, from the one before it on.
    before: HashMap<usize, Touched>,
    current: Option<Current>,
}

/// A dispatch that no barrier separates from the next.
struct Recent {
    kernel: String,
    touched: HashMap<usize, Touched>,
}

/// Bytes of one buffer's memory.
struct Touched {
    reads: Bits,
    writes: Bits,
    /// Keeps the address from being given to another buffer.
    _memory: Buffer,
}

impl Touched {
    fn new(buffer: &Buffer) -> Self {
        Self {
            reads: Bits::new(buffer.len()),
            writes: Bits::new(buffer.len()),
            _memory: buffer.clone(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
    }
}

struct Argument {
    index: u32,
    name: String,
    start: usize,
    end: usize,
    /// Offset of `start` in the memory.
    offset: usize,
    /// Which entry of `Current::memories` it is part of; `None` for copied bytes.
    memory: Option<usize>,
}

/// One buffer's memory in the current dispatch, which may be bound to several arguments.
struct MemoryUse {
    address: usize,
    /// Per argument that is bound to it, in order of `Current::arguments`: so that reads through one are not blamed on another.
    by_argument: Vec<(usize, Touched)>,
    /// Who touched which byte; only for memory that the dispatch may write.
    cells: Option<Cells>,
}

struct Variable {
    name: String,
    start: usize,
    end: usize,
}

struct Current {
    object: Arc<KernelObject>,
    arguments: Vec<Argument>,
    memories: Vec<MemoryUse>,
    /// Threadgroup variables and arguments of the current threadgroup.
    variables: Vec<Variable>,
    /// Threadgroup arguments, which every threadgroup has from its start.
    fixed_variables: usize,
    group_memory: usize,
    group_cells: Cells,
    group: u32,
    /// Which argument the last access fell into: the next most likely does too.
    last: usize,
    findings: Vec<Raw>,
    seen: HashMap<(FindingKind, usize), ()>,
    /// Per simdgroup: the call site of the SIMD operation in progress, and how many lanes have come to it.
    sites: [(usize, u32); abi::MAX_SIMDGROUPS],
    /// The barrier that this epoch's threads wait at.
    barrier: Option<(u32, usize)>,
    table: std::ops::Range<usize>,
}

impl Checker {
    /// Whether the dispatches since the last barrier conflict with those before it, so that they needed it. By the same bits and the same condition
    /// as [`FindingKind::Hazard`], which is what its absence would have given.
    pub fn barrier(&mut self) -> bool {
        self.recent.clear();
        let needed = self.touched.iter().any(|(address, after)| {
            let before = self.before.get(address);
            before.is_some_and(|before| {
                before.writes.meets(&after.writes)
                    || before.writes.meets(&after.reads)
                    || before.reads.meets(&after.writes)
            })
        });
        self.before = std::mem::take(&mut self.touched);
        needed
    }

    pub fn begin_dispatch(&mut self, bound: &Bound<'_>, dispatch: &Dispatch<'_>, group_memory: usize) {
        let mut memories: Vec<MemoryUse> = Vec::new();
        let mut arguments = Vec::new();
        for (i, b) in bound.buffers.iter().enumerate() {
            let memory = b.buffer.map(|buffer| {
                let address = buffer.address();
                let at = memories.iter().position(|m| m.address == address).unwrap_or_else(|| {
                    memories.push(MemoryUse {
                        address,
                        by_argument: Vec::new(),
                        cells: None,
                    });
                    memories.len() - 1
                });
                memories[at].by_argument.push((i, Touched::new(buffer)));
                if b.writable && memories[at].cells.is_none() {
                    memories[at].cells = Some(Cells::new(buffer.len()));
                }
                at
            });
            let offset = b.buffer.map_or(0, |buffer| b.start - buffer.address());
            let (start, end, name) = (b.start, b.start + b.len, b.name.to_owned());
            arguments.push(Argument {
                index: b.index,
                name,
                start,
                end,
                offset,
                memory,
            });
        }
        let declared = dispatch.pipeline.kernel().threadgroup_arguments.iter();
        let variables: Vec<Variable> = declared
            .map(|argument| {
                let start = group_memory + bound.argument_at[argument.index as usize & 3] as usize;
                let given = dispatch
                    .threadgroup_memory
                    .iter()
                    .find(|(index, _)| *index == argument.index);
                let bytes = given.map_or(0, |&(_, bytes)| bytes as usize);
                Variable {
                    name: argument.name.clone(),
                    start,
                    end: start + bytes,
                }
            })
            .collect();
        self.current = Some(Current {
            object: dispatch.pipeline.object.clone(),
            arguments,
            memories,
            fixed_variables: variables.len(),
            variables,
            group_memory,
            group_cells: Cells::new(abi::MEMORY_BYTES),
            group: 0,
            last: 0,
            findings: Vec::new(),
            seen: HashMap::new(),
            sites: [(0, 0); abi::MAX_SIMDGROUPS],
            barrier: None,
            table: 0..0,
        });
    }

    /// Lets the launch call back. `self` must not move until the launch is over.
    pub fn attach(&mut self, launch: &mut Launch) {
        if let Some(current) = &mut self.current {
            let start = launch.buffers as usize;
            current.table = start..start + 32 * size_of::<usize>();
        }
        launch.checker = std::ptr::from_mut(self).cast();
        launch.begin = Some(begin);
        launch.access = Some(on_access);
        launch.variable = Some(variable);
        launch.call_site = Some(call_site);
        launch.problem = Some(on_problem);
    }

    /// Notes that the launch could not finish.
    pub fn problem(&mut self, problem: u32, thread: u32, pc: usize) {
        if let (Some(current), Some(kind)) = (&mut self.current, FindingKind::of_problem(problem)) {
            let waiting_at = current.sites[thread as usize / 32].0;
            let pc = if kind == FindingKind::DivergentSimd && waiting_at != 0 {
                waiting_at
            } else {
                pc
            };
            let text = finding::explain(problem).to_owned();
            current.report(kind, Site { pc, thread }, None, None, text);
        }
    }

    pub fn end_dispatch(&mut self, pipeline: &Pipeline) -> (Vec<Finding>, Vec<BufferAccess>) {
        let Some(current) = self.current.take() else {
            return Default::default();
        };
        let mut accesses = Vec::new();
        let mut touched: HashMap<usize, Touched> = HashMap::new();
        for memory in current.memories {
            for (argument, bits) in memory.by_argument {
                accesses.push(BufferAccess {
                    index: current.arguments[argument].index,
                    name: current.arguments[argument].name.clone(),
                    reads: bits.reads.ranges(),
                    writes: bits.writes.ranges(),
                });
                for all in [&mut touched, &mut self.touched] {
                    all.entry(memory.address)
                        .or_insert_with(|| Touched::new(&bits._memory))
                        .add(&bits);
                }
            }
        }
        accesses.sort_by_key(|a| a.index);
        self.recent.push(Recent {
            kernel: pipeline.kernel().name.clone(),
            touched,
        });
        (finding::resolve(current.findings, pipeline), accesses)
    }

    /// The kernel among the recent dispatches that touched these bytes in a way that conflicts.
    fn who(&self, address: usize, range: (usize, usize), for_writing: bool) -> &str {
        let conflict = |recent: &&Recent| {
            recent
                .touched
                .get(&address)
                .is_some_and(|t| t.writes.any(range.0, range.1) || for_writing && t.reads.any(range.0, range.1))
        };
        self.recent
            .iter()
            .rev()
            .find(conflict)
            .map_or("another dispatch", |r| r.kernel.as_str())
    }

    /// Returns false where the access must not happen.
    fn access(&mut self, event: &AccessEvent) -> bool {
        let Some(current) = &mut self.current else { return true };
        let address = event.address;
        let bytes = event.bytes as usize;
        if let Some(i) = current.argument_at(address) {
            let argument = &current.arguments[i];
            let (start, end, offset, memory) = (argument.start, argument.end, argument.offset, argument.memory);
            let site = Site {
                pc: event.pc,
                thread: event.thread,
            };
            if address + bytes > end {
                let past = address + bytes - end;
                let text = format!("{} {} bytes past its end", verb(event.kind), past);
                current.report(FindingKind::OutOfBounds, site, Some(i), None, text);
                return false;
            }
            current.check_alignment(event, Some(i), address - start);
            let Some(memory) = memory else { return true };
            let at = offset + (address - start);
            let writes = event.kind != 0;
            let use_ = &mut current.memories[memory];
            // Hazards with dispatches that may still be running.
            if let Some(before) = self.touched.get(&use_.address)
                && (before.writes.any(at, bytes) || writes && before.reads.any(at, bytes))
            {
                let (memory_address, range) = (use_.address, (at, bytes));
                let earlier = self.who(memory_address, range, writes).to_owned();
                let text = format!(
                    "{} byte {at}, which {earlier} touches with no barrier between",
                    verb(event.kind)
                );
                if let Some(current) = &mut self.current {
                    current.report(FindingKind::Hazard, site, Some(i), None, text);
                }
            }
            let Some(current) = &mut self.current else { return true };
            let use_ = &mut current.memories[memory];
            if let Some((_, touched)) = use_.by_argument.iter_mut().find(|(argument, _)| *argument == i) {
                if event.kind != access::WRITE {
                    touched.reads.set(at, bytes);
                }
                if writes {
                    touched.writes.set(at, bytes);
                }
            }
            if let Some(cells) = &mut use_.cells {
                let stamp = Stamp::new(event, current.group);
                if let Some(race) = cells.check(at, bytes, event.kind, stamp, true) {
                    let text = format!("{} byte {at}: {}", verb(event.kind), race.text(event.thread));
                    current.report(FindingKind::Race, site, Some(i), Some(race.other_pc()), text);
                }
            }
            return true;
        }
        self.current
            .as_mut()
            .is_none_or(|current| current.access_elsewhere(event))
    }
}

fn verb(kind: u32) -> &'static str {
    match kind {
        access::WRITE => "writes",
        access::ATOMIC => "updates",
        _ => "reads",
    }
}

impl Current {
    /// The argument whose memory `address` is in: of those that contain it, the one that begins last.
    fn argument_at(&mut self, address: usize) -> Option<usize> {
        let contains = |a: &Argument| a.start <= address && address < a.end;
        let overlapping = |a: &Argument, b: &Argument| a.memory.is_some() && a.memory == b.memory && a.end == b.end;
        if let Some(last) = self.arguments.get(self.last)
            && contains(last)
            && !self
                .arguments
                .iter()
                .any(|a| overlapping(a, last) && a.start > last.start && a.start <= address)
        {
            return Some(self.last);
        }
        let found = self
            .arguments
            .iter()
            .enumerate()
            .filter(|(_, a)| contains(a))
            .max_by_key(|(_, a)| a.start)?
            .0;
        self.last = found;
        Some(found)
    }

    /// Threadgroup memory, or a table of constants, or nothing that the kernel may touch.
    fn access_elsewhere(&mut self, event: &AccessEvent) -> bool {
        let (address, bytes) = (event.address, event.bytes as usize);
        let site = Site {
            pc: event.pc,
            thread: event.thread,
        };
        if self.table.contains(&address) {
            return true; // The entry function fetching its arguments.
        }
        if (self.group_memory..self.group_memory + abi::MEMORY_BYTES).contains(&address) {
            let Some(variable) = self.variables.iter().find(|v| v.start <= address && address < v.end) else {
                let text = format!("{} threadgroup memory outside every variable", verb(event.kind));
                self.report(FindingKind::OutOfBounds, site, None, None, text);
                return false;
            };
            let name = variable.name.clone();
            if address + bytes > variable.end {
                let text = format!("{} past the end of threadgroup variable {name}", verb(event.kind));
                self.report(FindingKind::OutOfBounds, site, None, None, text);
                return false;
            }
            let within = address - variable.start;
            self.check_alignment(event, None, within);
            let at = address - self.group_memory;
            if event.kind == 0 && !self.group_cells.written(at, bytes, self.group) {
                let text = format!("reads byte {within} of threadgroup variable {name}, which no thread has written");
                self.report(FindingKind::UninitializedRead, site, None, None, text);
            }
            let stamp = Stamp::new(event, self.group);
            if let Some(race) = self.group_cells.check(at, bytes, event.kind, stamp, false) {
                let text = format!(
                    "{} byte {within} of threadgroup variable {name}: {}",
                    verb(event.kind),
                    race.text(event.thread)
                );
                self.report(FindingKind::Race, site, None, Some(race.other_pc()), text);
            }
            return true;
        }
        if event.kind == 0 && self.object.contains(address) {
            return true;
        }
        let distance = |a: &Argument| address.abs_diff(if address < a.start { a.start } else { a.end });
        let nearest = self.arguments.iter().enumerate().min_by_key(|(_, a)| distance(a));
        let (argument, text) = match nearest {
            Some((i, a)) if distance(a) < 1 << 30 => {
                let side = if address < a.start {
                    "before its start"
                } else {
                    "past its end"
                };
                (
                    Some(i),
                    format!("{} {bytes} bytes, {} bytes {side}", verb(event.kind), distance(a)),
                )
            }
            _ => (
                None,
                format!(
                    "{} {bytes} bytes at an address that belongs to no buffer",
                    verb(event.kind)
                ),
            ),
        };
        self.report(FindingKind::OutOfBounds, site, argument, None, text);
        false
    }

    fn check_alignment(&mut self, event: &AccessEvent, argument: Option<usize>, within: usize) {
        if event.bytes.is_power_of_two() && event.bytes <= 16 && event.address as u64 & (event.bytes - 1) != 0 {
            let text = format!(
                "{} {} bytes at offset {within}, which is no multiple of that",
                verb(event.kind),
                event.bytes
            );
            self.report(
                FindingKind::Misaligned,
                Site {
                    pc: event.pc,
                    thread: event.thread,
                },
                argument,
                None,
                text,
            );
        }
    }

    fn report(
        &mut self,
        kind: FindingKind,
        site: Site,
        argument: Option<usize>,
        other_pc: Option<usize>,
        detail: String,
    ) {
        if self.findings.len() < MOST_FINDINGS && self.seen.insert((kind, site.pc), ()).is_none() {
            let buffer = argument.map(|i| self.arguments[i].name.clone());
            self.findings.push(Raw {
                kind,
                site,
                buffer,
                other_pc,
                group: self.group,
                detail,
            });
        }
    }

    /// Whether two call sites are the same in the source is decided when the dispatch is over: reading debug information
    /// takes more stack than a fiber has, and the compiler may have duplicated a call.
    fn call_site(&mut self, operation: u32, thread: u32, epoch: u32, pc: usize) {
        let site = Site { pc, thread };
        if operation == abi::THREADGROUP_BARRIER {
            match self.barrier {
                Some((at, first)) if at == epoch => {
                    if first != pc {
                        let text = "threads of one threadgroup wait at different barriers".to_owned();
                        self.report(FindingKind::DivergentBarrier, site, None, Some(first), text);
                    }
                }
                _ => self.barrier = Some((epoch, pc)),
            }
            return;
        }
        let (first, count) = &mut self.sites[thread as usize / 32];
        if *count == 0 {
            *first = pc;
        }
        *count = (*count + 1) % 32;
        let first = *first;
        if first != pc {
            let text = "lanes of one simdgroup meet in different SIMD operations".to_owned();
            self.report(FindingKind::DivergentSimd, site, None, Some(first), text);
        }
    }
}

/// # Safety
/// `checker` must be what [`Checker::attach`] stored, and the checker still be there.
unsafe fn checker<'a>(checker: *mut c_void) -> &'a mut Checker {
    // SAFETY: given by the caller; a checked dispatch runs on one thread, so there is no other reference.
    unsafe { &mut *checker.cast::<Checker>() }
}

unsafe extern "C" fn begin(this: *mut c_void, group: u32) {
    // SAFETY: called by the core with the launch's checker.
    if let Some(current) = unsafe { checker(this) }.current.as_mut() {
        current.group = group;
        current.variables.truncate(current.fixed_variables);
        current.group_cells.clear();
        current.sites = [(0, 0); abi::MAX_SIMDGROUPS];
        current.barrier = None;
    }
}

unsafe extern "C" fn on_access(this: *mut c_void, event: &AccessEvent) -> u32 {
    // SAFETY: called by the core with the launch's checker.
    u32::from(!unsafe { checker(this) }.access(event))
}

unsafe extern "C" fn variable(this: *mut c_void, name: *const c_char, address: usize, bytes: u64) {
    // SAFETY: called by the core with the launch's checker.
    let Some(current) = unsafe { checker(this) }.current.as_mut() else {
        return;
    };
    if current.variables.iter().all(|v| v.start != address) {
        // SAFETY: the core passes a string literal.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        current.variables.push(Variable {
            name,
            start: address,
            end: address + bytes as usize,
        });
    }
}

unsafe extern "C" fn call_site(this: *mut c_void, operation: u32, thread: u32, epoch: u32, pc: usize) {
    // SAFETY: called by the core with the launch's checker.
    if let Some(current) = unsafe { checker(this) }.current.as_mut() {
        current.call_site(operation, thread, epoch, pc);
    }
}

unsafe extern "C" fn on_problem(this: *mut c_void, what: u32, thread: u32, pc: usize) {
    debug_assert_eq!(what, problem::BARRIER_MISSED);
    // SAFETY: called by the core with the launch's checker.
    unsafe { checker(this) }.problem(what, thread, pc);
}
