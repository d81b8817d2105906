//! Runs recorded encoders in the emulator.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use shader_tool::{Argument, Binding, Buffer, Emulator, RangeSet, Report};

use crate::buffer::Memory;
use crate::encoder::{Bound, BoundBuffer, Command, Copy, Dispatch, Grid, Recording};
use crate::finding::FindingKind;
use crate::machine::Machine;

/// What a command buffer did to one byte.
pub(crate) struct Access {
    /// The byte's position in its buffer.
    pub offset: usize,
    /// The buffer, for messages.
    pub buffer: String,
    pub writes: bool,
}

/// What a command buffer read and wrote; empty in plain mode, where the emulator does not watch.
#[derive(Default)]
pub(crate) struct Accesses {
    /// By buffer id.
    buffers: BTreeMap<u64, Touched>,
}

struct Touched {
    memory: Arc<Memory>,
    reads: Vec<RangeSet>,
    writes: Vec<RangeSet>,
}

impl Accesses {
    /// What was done to the byte at `address`.
    pub fn at(&self, address: usize) -> Option<Access> {
        self.buffers.values().find_map(|touched| {
            let (start, end) = touched.memory.pages();
            if !(start..end).contains(&address) {
                return None;
            }
            let offset = address - start;
            // A fault reports an access's first byte; the widest that a CPU makes at once is a cache line.
            let near = |set: &RangeSet| set.overlaps(&(offset..offset + 1));
            let writes = touched.writes.iter().any(near);
            (writes || touched.reads.iter().any(near)).then(|| Access {
                offset,
                buffer: touched.memory.describe(),
                writes,
            })
        })
    }

    fn of(&mut self, memory: &Arc<Memory>) -> &mut Touched {
        self.buffers.entry(memory.id).or_insert_with(|| Touched {
            memory: memory.clone(),
            reads: Vec::new(),
            writes: Vec::new(),
        })
    }
}

/// Runs the encoders of a command buffer one after the other.
pub(crate) fn run(machine: &Machine, encoders: &[Arc<Recording>]) -> Accesses {
    let mut accesses = Accesses::default();
    for encoder in encoders {
        // The hazards that the checker looks for are those between dispatches of one encoder: buffers are tracked, so Metal
        // itself orders encoders.
        let mut emulator = Emulator::new();
        let mut unordered: Vec<(u64, RangeSet)> = Vec::new();
        for command in encoder.commands.borrow().iter() {
            match command {
                Command::Barrier => {
                    emulator.barrier();
                    unordered.clear();
                }
                Command::Copy(copy) => copy_bytes(copy, &mut accesses),
                Command::Dispatch(dispatch) => {
                    let threadgroups = threadgroups(machine, dispatch, &unordered);
                    match run_dispatch(&mut emulator, dispatch, threadgroups) {
                        Ok(report) => take(machine, dispatch, report, &mut accesses, &mut unordered),
                        Err(error) => machine.report(FindingKind::Kernel, error),
                    }
                    machine.state().statistics.dispatches += 1;
                    if encoder.serial {
                        emulator.barrier();
                        unordered.clear();
                    }
                }
            }
        }
    }
    accesses
}

/// The grid; an indirect one is read now, and must have been written before a barrier.
fn threadgroups(machine: &Machine, dispatch: &Dispatch, unordered: &[(u64, RangeSet)]) -> [u32; 3] {
    let buffer = match &dispatch.grid {
        Grid::Direct(threadgroups) => return *threadgroups,
        Grid::Indirect(buffer) => buffer,
    };
    let range = buffer.offset..buffer.offset + 12;
    if unordered
        .iter()
        .any(|(id, writes)| *id == buffer.memory.id && writes.overlaps(&range))
    {
        machine.report(
            FindingKind::MissingBarrier,
            format!(
                "kernel {}: its grid is written by a dispatch with no barrier between",
                dispatch.pipeline.info.name
            ),
        );
    }
    // SAFETY: the encoder checked that 12 bytes at this 4-byte aligned offset lie inside; the memory is kept alive.
    unsafe { buffer.memory.pointer.byte_add(buffer.offset).cast::<[u32; 3]>().read() }
}

fn run_dispatch(emulator: &mut Emulator, dispatch: &Dispatch, threadgroups: [u32; 3]) -> Result<Report, String> {
    // One handle for each memory, so that the emulator sees which arguments share it.
    let mut handles: BTreeMap<u64, Buffer> = BTreeMap::new();
    for (_, _, bound) in &dispatch.bindings {
        if let Bound::Buffer(BoundBuffer { memory, .. }) = bound {
            handles.entry(memory.id).or_insert_with(|| memory.handle());
        }
    }
    let bindings: Vec<Binding<'_>> = dispatch
        .bindings
        .iter()
        .map(|(index, _, bound)| {
            let argument = match bound {
                Bound::Bytes(bytes) => Argument::Bytes(bytes),
                Bound::Buffer(BoundBuffer { memory, offset, .. }) => Argument::Buffer {
                    buffer: &handles[&memory.id],
                    offset: *offset,
                    len: None,
                },
            };
            Binding {
                index: *index,
                argument,
            }
        })
        .collect();
    let dispatch = shader_tool::Dispatch {
        pipeline: &dispatch.pipeline.pipeline,
        bindings: &bindings,
        threadgroups,
        threads_per_threadgroup: dispatch.threads,
        threadgroup_memory: &dispatch.threadgroup_memory,
    };
    emulator.dispatch(&dispatch).map_err(|error| error.to_string())
}

/// Passes on what the checker found and saw.
fn take(
    machine: &Machine,
    dispatch: &Dispatch,
    report: Report,
    accesses: &mut Accesses,
    unordered: &mut Vec<(u64, RangeSet)>,
) {
    for finding in report.findings {
        let kind = match finding.kind {
            shader_tool::FindingKind::Hazard => FindingKind::MissingBarrier,
            shader_tool::FindingKind::ThreadgroupMemory => FindingKind::DispatchOverLimit,
            _ => FindingKind::Kernel,
        };
        machine.report(kind, finding.to_string());
    }
    for access in report.accesses {
        let bound = dispatch.bindings.iter().find(|(index, ..)| *index == access.index);
        if let Some((_, _, Bound::Buffer(BoundBuffer { memory, .. }))) = bound {
            unordered.push((memory.id, access.writes.clone()));
            let touched = accesses.of(memory);
            touched.reads.push(access.reads);
            touched.writes.push(access.writes);
        }
    }
}

fn copy_bytes(copy: &Copy, accesses: &mut Accesses) {
    let address =
        |buffer: &BoundBuffer| -> *mut c_void { buffer.memory.pointer.as_ptr().wrapping_byte_add(buffer.offset) };
    // SAFETY: the encoder checked both ranges; the memories are kept alive. `copy` allows them to overlap.
    unsafe { ptr::copy(address(&copy.from), address(&copy.to), copy.length) };
    let range =
        |buffer: &BoundBuffer| std::iter::once(buffer.offset..buffer.offset + copy.length).collect::<RangeSet>();
    accesses.of(&copy.from.memory).reads.push(range(&copy.from));
    accesses.of(&copy.to.memory).writes.push(range(&copy.to));
}
