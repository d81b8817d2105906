//! The CUDA device: NVIDIA GPUs from Ampere on, through the driver alone.
//!
//! One stream. A pass is a graph whose edges are the pass's dependencies, so that independent dispatches overlap; on Hopper and later
//! a kernel starts before those that it depends on are done, and waits itself. Weights travel through pinned memory. Everything `unsafe`
//! is in `driver`.

mod driver;
mod kernels;
mod recording;
mod staging;
mod trace;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use lily_model::Bytes;

use driver::{Absent, Gpu, Mark, Pinned, Stream};
use kernels::Kernels;
use recording::{Launch, Recording};
use staging::Staging;
use trace::Trace;

use crate::device::{BufferId, Device, DeviceDescription, Event, Memory, RecordingId, Slice};
use crate::error::GpuError;
use crate::pass::Pass;
use crate::policy::Family;

/// Passes that may be submitted and not yet done.
const MAX_IN_FLIGHT: usize = 4;
/// What stands in for a buffer in a slot that a kernel does not touch; each slot has its own.
const UNUSED_BYTES: usize = 256;
const SLOTS: usize = 31;
/// Every buffer and tensor starts at a multiple of this.
const ALIGNMENT: usize = 256;
/// Tensors share allocations of this many bytes.
const ARENA_BYTES: usize = 64 << 20;
/// Freed memory that stays with the process at most, so that making and dropping sequences costs nothing.
const MOST_SPARE_BYTES: usize = 512 << 20;
/// From here on a buffer that is freed is looked at whether it leaves too much.
const LARGE_BYTES: usize = 32 << 20;
/// What the driver needs beside our buffers: machine code, graphs, the kernels' stacks.
const FOR_THE_DRIVER: usize = 512 << 20;
/// Set to `1`, every launch runs on its own and is timed; a table is printed at the end.
pub const TRACE: &str = "LILY_CUDA_TRACE";
/// Set to `0`, no kernel starts before those that it depends on are done, to measure what starting early gains.
pub const EARLY: &str = "LILY_CUDA_EARLY";

/// An NVIDIA GPU.
pub struct CudaDevice {
    recordings: HashMap<RecordingId, Recording>,
    next_recording: u32,
    /// Recordings that are not wanted any more, each with the last work that may use it.
    discarded: Vec<(u64, Recording)>,
    in_flight: VecDeque<(u64, Mark)>,
    spare_marks: Vec<Mark>,
    submitted: u64,
    completed: u64,
    /// The first failure: the driver does nothing after one.
    failure: Option<String>,
    buffers: HashMap<BufferId, Allocated>,
    next_buffer: u32,
    /// Pinned memory of released buffers, each with the last work that may use it.
    spare_pinned: Vec<(u64, Pinned)>,
    arena: Arena,
    unused: u64,
    staging: Staging,
    trace: Option<Trace>,
    /// Kernels start before those that they depend on are done, and wait themselves.
    early: bool,
    kernels: Kernels,
    stream: Stream,
    // The last to be dropped: everything above belongs to its context.
    gpu: Gpu,
}

enum Allocated {
    Device { address: u64, len: usize },
    Pinned(Pinned),
}

impl Allocated {
    fn address(&self) -> u64 {
        match self {
            Allocated::Device { address, .. } => *address,
            Allocated::Pinned(pinned) => pinned.address(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Allocated::Device { len, .. } => *len,
            Allocated::Pinned(pinned) => pinned.len(),
        }
    }
}

/// An allocation that tensors are put into one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Arena {
    buffer: Option<BufferId>,
    used: usize,
}

impl CudaDevice {
    /// The first GPU that the driver shows (`CUDA_VISIBLE_DEVICES` chooses another); `None` where there is no driver or no GPU.
    ///
    /// # Errors
    /// There is a GPU, but it or its driver is too old, or it fails.
    pub fn find() -> Result<Option<CudaDevice>, GpuError> {
        match Gpu::open() {
            Ok(gpu) => Self::new(gpu).map(Some),
            Err(Absent::Nothing(_)) => Ok(None),
            Err(Absent::Unusable(why)) => Err(GpuError::Device(why)),
        }
    }

    /// As [`CudaDevice::find`].
    ///
    /// # Errors
    /// There is no GPU that Lily can use; the message says what to do.
    pub fn open() -> Result<CudaDevice, GpuError> {
        match Gpu::open() {
            Ok(gpu) => Self::new(gpu),
            Err(Absent::Nothing(why) | Absent::Unusable(why)) => Err(GpuError::Device(why)),
        }
    }

    fn new(gpu: Gpu) -> Result<CudaDevice, GpuError> {
        gpu.enter()?;
        let stream = Stream::new()?;
        let full = GpuError::Device("the GPU's memory is full".into());
        let unused = stream.allocate(SLOTS * UNUSED_BYTES)?.ok_or(full)?;
        stream.clear(unused, SLOTS * UNUSED_BYTES)?;
        let kernels = Kernels::for_gpu(&gpu)?;
        Ok(CudaDevice {
            early: kernels.start_early() && std::env::var_os(EARLY).is_none_or(|value| value != "0"),
            kernels,
            recordings: HashMap::new(),
            next_recording: 0,
            discarded: Vec::new(),
            in_flight: VecDeque::new(),
            spare_marks: Vec::new(),
            submitted: 0,
            completed: 0,
            failure: None,
            buffers: HashMap::new(),
            next_buffer: 0,
            spare_pinned: Vec::new(),
            arena: Arena::default(),
            unused,
            staging: Staging::new(),
            trace: std::env::var_os(TRACE)
                .is_some_and(|value| value == "1")
                .then(Trace::default),
            stream,
            gpu,
        })
    }

    /// Registers, threadgroup memory and stack of every kernel that is compiled so far, a line each.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn resources(&self) -> Result<Vec<String>, GpuError> {
        let lines = self.kernels.compiled().map(|((name, constants), pipeline)| {
            let [registers, shared, local] = pipeline.function.resources()?;
            let constants: Vec<String> = constants
                .iter()
                .map(|(index, value)| format!("{index}={value}"))
                .collect();
            Ok(format!(
                "{name} [{}]: {registers} registers, {shared} bytes of threadgroup memory, {local} bytes of stack",
                constants.join(" ")
            ))
        });
        let mut lines = lines.collect::<Result<Vec<_>, GpuError>>()?;
        lines.sort_unstable();
        Ok(lines)
    }

    /// Every call begins here: the context is made current, and a failed device fails again.
    fn enter(&self) -> Result<(), GpuError> {
        match &self.failure {
            Some(why) => Err(GpuError::Device(why.clone())),
            None => self.gpu.enter(),
        }
    }

    /// Remembers a failure.
    fn note<T>(&mut self, result: Result<T, GpuError>) -> Result<T, GpuError> {
        if let Err(error) = &result {
            self.failure.get_or_insert_with(|| error.to_string());
        }
        result
    }

    fn buffer(&self, slice: &Slice) -> Result<&Allocated, GpuError> {
        let found = self
            .buffers
            .get(&slice.buffer)
            .ok_or_else(|| missing("buffer", slice.buffer.0))?;
        if slice
            .offset
            .checked_add(slice.len)
            .is_some_and(|end| end <= found.len())
        {
            return Ok(found);
        }
        let Slice { offset, len, .. } = slice;
        Err(GpuError::Device(format!(
            "{len} bytes at {offset} of a buffer of {}",
            found.len()
        )))
    }

    fn address(&self, slice: &Slice) -> Result<u64, GpuError> {
        Ok(self.buffer(slice)?.address() + slice.offset as u64)
    }

    fn add(&mut self, buffer: Allocated) -> BufferId {
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.buffers.insert(id, buffer);
        id
    }

    /// Device memory with whatever was there before.
    fn raw(&mut self, label: &str, len: usize) -> Result<BufferId, GpuError> {
        self.enter()?;
        let len = len.max(4);
        let bytes = len.next_multiple_of(ALIGNMENT);
        let mut found = self.stream.allocate(bytes)?;
        if found.is_none() {
            // The pool may keep enough, in pieces.
            self.stream.wait()?;
            self.gpu.trim()?;
            found = self.stream.allocate(bytes)?;
        }
        let address = found.ok_or(GpuError::OutOfMemory {
            label: label.into(),
            needed: bytes,
            available: self.available(),
        })?;
        Ok(self.add(Allocated::Device { address, len }))
    }

    /// Frees device memory, and gives it to the system where much is spare: a KV cache that grows leaves ever larger pieces behind.
    fn free(&self, address: u64, len: usize) -> Result<(), GpuError> {
        self.stream.free(address)?;
        if len < LARGE_BYTES {
            return Ok(());
        }
        self.stream.wait()?;
        if self.gpu.spare_memory()? > MOST_SPARE_BYTES {
            self.gpu.trim()?;
        }
        Ok(())
    }

    fn pinned(&mut self, len: usize) -> Result<Pinned, GpuError> {
        let len = len.max(4);
        let completed = self.completed;
        let found = self
            .spare_pinned
            .iter()
            .position(|(last, pinned)| *last <= completed && pinned.len() == len);
        match found {
            Some(index) => {
                let (_, mut pinned) = self.spare_pinned.swap_remove(index);
                pinned.bytes().fill(0);
                Ok(pinned)
            }
            None => Pinned::new(len),
        }
    }

    /// Waits for the oldest work in flight.
    fn finish_oldest(&mut self) -> Result<(), GpuError> {
        let Some((event, mark)) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let waited = mark.wait();
        self.note(waited)?;
        self.spare_marks.push(mark);
        self.completed = event;
        let completed = self.completed;
        self.discarded.retain(|(last, _)| *last > completed);
        Ok(())
    }

    fn wait_for(&mut self, event: u64) -> Result<(), GpuError> {
        while self.completed < event.min(self.submitted) {
            self.finish_oldest()?;
        }
        Ok(())
    }

    /// The launches of a pass, whose kernels are compiled now where they are not yet.
    fn launches(&mut self, pass: &Pass) -> Result<Vec<Launch>, GpuError> {
        self.enter()?;
        self.kernels.prepare(&self.gpu, pass.dispatches())?;
        let address = |slice: &Slice| self.address(slice);
        let unused = |slot: usize| self.unused + (slot.min(SLOTS - 1) * UNUSED_BYTES) as u64;
        let launches = pass.dispatches().iter().map(|dispatch| {
            let pipeline = self.kernels.pipeline(dispatch)?;
            Launch::new(dispatch, pipeline, &address, &unused)
        });
        launches.collect()
    }

    /// Waits while too much is in flight.
    fn make_way(&mut self) -> Result<(), GpuError> {
        while self.in_flight.len() >= MAX_IN_FLIGHT {
            self.finish_oldest()?;
        }
        Ok(())
    }

    /// Marks the end of what was queued.
    fn mark_end(&mut self) -> Result<Event, GpuError> {
        let mark = match self.spare_marks.pop() {
            Some(mark) => mark,
            None => Mark::new(false)?,
        };
        mark.set(&self.stream)?;
        self.submitted += 1;
        self.in_flight.push_back((self.submitted, mark));
        Ok(Event(self.submitted))
    }

    fn wait_for_all(&mut self) -> Result<(), GpuError> {
        let waited = self.stream.wait();
        self.note(waited)
    }

    fn run(&mut self, id: RecordingId) -> Result<(), GpuError> {
        let recording = self.recordings.get_mut(&id).ok_or_else(|| missing("recording", id.0))?;
        match (recording, &mut self.trace) {
            (Recording::Graph { graph, .. }, _) => graph.launch(&self.stream),
            (Recording::Traced(launches), Some(trace)) => trace.run(&self.stream, launches).map(drop),
            (Recording::Traced(_), None) => Err(GpuError::Device("a recording to be traced, and no trace".into())),
        }
    }
}

fn missing(what: &str, id: u32) -> GpuError {
    GpuError::Device(format!("{what} {id} does not exist"))
}

impl Device for CudaDevice {
    fn describe(&self) -> DeviceDescription {
        DeviceDescription {
            kind: "cuda",
            description: self.gpu.describe(),
        }
    }

    fn family(&self) -> Family {
        self.gpu.family
    }

    fn available(&self) -> usize {
        self.gpu
            .free_memory()
            .map_or(0, |free| free.saturating_sub(FOR_THE_DRIVER))
    }

    fn allocate(&mut self, label: &str, bytes: usize, memory: Memory) -> Result<BufferId, GpuError> {
        self.enter()?;
        match memory {
            Memory::Device => {
                let id = self.raw(label, bytes)?;
                let address = self.address(&whole(id, bytes))?;
                self.stream.clear(address, bytes.max(4))?;
                Ok(id)
            }
            Memory::HostVisible => {
                let pinned = self.pinned(bytes)?;
                Ok(self.add(Allocated::Pinned(pinned)))
            }
        }
    }

    fn place(&mut self, label: &str, bytes: &Bytes) -> Result<Slice, GpuError> {
        let len = bytes.len().next_multiple_of(ALIGNMENT);
        let slice = if len > ARENA_BYTES / 4 {
            whole(self.raw(label, bytes.len())?, bytes.len())
        } else {
            let buffer = match self.arena.buffer.filter(|_| self.arena.used + len <= ARENA_BYTES) {
                Some(buffer) => buffer,
                None => {
                    let buffer = self.raw("weights", ARENA_BYTES)?;
                    self.arena = Arena {
                        buffer: Some(buffer),
                        used: 0,
                    };
                    buffer
                }
            };
            let offset = self.arena.used;
            self.arena.used += len;
            Slice {
                buffer,
                offset,
                len: bytes.len(),
            }
        };
        self.write(slice, bytes)?;
        Ok(slice)
    }

    fn release(&mut self, buffer: BufferId) {
        match self.buffers.remove(&buffer) {
            // A failure is reported by the next call.
            Some(Allocated::Device { address, len }) => {
                let freed = self.enter().and_then(|()| self.free(address, len));
                let _ = self.note(freed);
            }
            Some(Allocated::Pinned(pinned)) => self.spare_pinned.push((self.submitted, pinned)),
            None => {}
        }
        if self.arena.buffer == Some(buffer) {
            self.arena = Arena::default();
        }
    }

    fn write(&mut self, to: Slice, bytes: &[u8]) -> Result<(), GpuError> {
        self.enter()?;
        let to = Slice { len: bytes.len(), ..to };
        let address = self.address(&to)?;
        if matches!(self.buffer(&to)?, Allocated::Pinned(_)) {
            self.wait_for_all()?;
        }
        match self.buffers.get_mut(&to.buffer) {
            Some(Allocated::Pinned(pinned)) => {
                pinned.bytes()[to.offset..to.offset + to.len].copy_from_slice(bytes);
                Ok(())
            }
            _ => {
                let written = self.staging.upload(&self.stream, address, bytes);
                self.note(written)
            }
        }
    }

    fn read(&mut self, from: Slice, into: &mut [u8]) -> Result<(), GpuError> {
        self.enter()?;
        let address = self.address(&from)?;
        if matches!(self.buffer(&from)?, Allocated::Pinned(_)) {
            self.wait_for_all()?;
        }
        match self.buffer(&from)? {
            Allocated::Pinned(pinned) => {
                pinned.read(from.offset, into);
                Ok(())
            }
            Allocated::Device { .. } => {
                let read = self.staging.download(&self.stream, into, address);
                self.note(read)
            }
        }
    }

    fn read_after(&mut self, event: Event, from: Slice, into: &mut [u8]) -> Result<(), GpuError> {
        self.enter()?;
        self.wait_for(event.0)?;
        match self.buffer(&from)? {
            Allocated::Pinned(pinned) => {
                pinned.read(from.offset, into);
                Ok(())
            }
            Allocated::Device { .. } => Err(GpuError::Invalid(
                "read_after of a buffer that the host does not see".into(),
            )),
        }
    }

    fn copy(&mut self, from: Slice, to: Slice) -> Result<(), GpuError> {
        self.enter()?;
        let source = self.address(&from)?;
        let target = self.address(&Slice { len: from.len, ..to })?;
        let copied = self.stream.copy(target, source, from.len);
        self.note(copied)
    }

    fn record(&mut self, pass: &Pass) -> Result<RecordingId, GpuError> {
        let launches = self.launches(pass)?;
        let recording = match self.trace {
            Some(_) => Recording::Traced(launches),
            None => Recording::graph(launches, &pass.edges(), self.early)?,
        };
        let id = RecordingId(self.next_recording);
        self.next_recording += 1;
        self.recordings.insert(id, recording);
        Ok(id)
    }

    fn discard(&mut self, recording: RecordingId) {
        if let Some(recording) = self.recordings.remove(&recording) {
            self.discarded.push((self.submitted, recording));
        }
    }

    fn submit(&mut self, recording: RecordingId) -> Result<Event, GpuError> {
        self.enter()?;
        self.make_way()?;
        let ran = self.run(recording);
        self.note(ran)?;
        self.mark_end()
    }

    /// Between two events, which add a few microseconds to each.
    fn time(&mut self, pass: &Pass) -> Result<Vec<Duration>, GpuError> {
        let mut launches = self.launches(pass)?;
        let ran = Trace::default().run(&self.stream, &mut launches);
        let times = self.note(ran)?;
        Ok(times
            .into_iter()
            .map(|milliseconds| Duration::from_secs_f64(milliseconds.max(0.0) / 1e3))
            .collect())
    }

    /// Launch by launch: the GPU starts at once, and making a graph would take longer than it saves. None starts early: what waits
    /// would take room from what runs (H200, prefill of 4,096 tokens: 21,600 tokens/s without, 20,000 with; 2026-11-29).
    fn run_once(&mut self, pass: &Pass) -> Result<Event, GpuError> {
        let mut launches = self.launches(pass)?;
        self.make_way()?;
        let stream = &self.stream;
        let ran = match &mut self.trace {
            Some(trace) => trace.run(stream, &mut launches).map(drop),
            None => launches.iter_mut().try_for_each(|launch| launch.run(stream)),
        };
        self.note(ran)?;
        self.mark_end()
    }
}

/// All of a buffer.
fn whole(buffer: BufferId, len: usize) -> Slice {
    Slice { buffer, offset: 0, len }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Nothing may be freed before the work is done. A failure has nobody left to tell.
        let _ = self.gpu.enter();
        let _ = self.stream.wait();
        // the pool belongs to the process and outlives the context
        let device = self.buffers.values().filter_map(|buffer| match buffer {
            Allocated::Device { address, .. } => Some(*address),
            Allocated::Pinned(_) => None,
        });
        for address in device.chain([self.unused]) {
            let _ = self.stream.free(address);
        }
        let _ = self.stream.wait();
        let _ = self.gpu.trim();
        if let Some(trace) = &self.trace {
            eprintln!("{}", trace.report());
            for line in self.resources().unwrap_or_default() {
                eprintln!("{line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_the_message_says_what_to_install() {
        // Where there is a GPU, as on a developer's machine, it must open.
        match CudaDevice::open() {
            Ok(device) => assert_eq!(device.describe().kind, "cuda"),
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains("driver"), "{message}");
                assert!(!message.contains('\n'), "{message}");
                assert!(
                    CudaDevice::find().is_ok_and(|found| found.is_none()) || message.contains("needs"),
                    "{message}"
                );
            }
        }
    }
}
