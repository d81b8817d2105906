//! The Metal device: Apple silicon, M1 and later, macOS 14 and later.
//!
//! One ordinary command queue. A pass is one command buffer with one concurrent encoder, or a few where one would hold the
//! GPU too long; barriers stand between the pass's stages. Buffers are tracked, so Metal itself orders command buffers;
//! weights that are read in place are not, since nothing writes them. Everything `unsafe` is in this folder.

mod archive;
mod buffer;
mod commands;
mod layout_test;
mod mapped;
mod pipeline;
mod recording;
mod residency;
mod system;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lily_model::Bytes;
use objc2::rc::autoreleasepool;
use shader_tool::SourceFile;

use archive::Archive;
use buffer::Buffer;
use commands::{BlitEncoder, CommandBuffer, ComputeEncoder, INLINE_BYTES, Queue, SLOTS};
use mapped::{MappedFile, Mapping};
use pipeline::Kernels;
use recording::{Bound, Launch, Pacing, Recording, Shape, is_inside};
use residency::Residency;
pub use system::{ANY_GPU, KernelFamily, OsVersion, System};

use crate::device::{BufferId, Device, DeviceDescription, Event, Memory, RecordingId, Slice};
use crate::emulator::kernel_sources;
use crate::error::GpuError;
use crate::pass::{Argument, Dispatch, Pass};
use crate::self_test::{self, Check};

/// Passes that may be submitted and not yet done.
const MAX_IN_FLIGHT: usize = 2;
/// What stands in for a buffer in a slot that a kernel does not touch; each slot has its own.
const UNUSED_BYTES: usize = 256;
/// Kernels read weights in pieces of this many bytes, so a tensor that is used in place starts at a multiple of it.
const WEIGHT_ALIGNMENT: usize = 8;

/// How a Metal device is opened.
pub struct MetalOptions<'a> {
    /// Use tensor operations where the GPU has them.
    pub tensor_operations: bool,
    /// Where machine code is kept; `None` compiles it anew at every start.
    pub cache: Option<PathBuf>,
    /// Told how many of how many kernel sources are compiled.
    pub progress: &'a mut dyn FnMut(usize, usize),
}

/// The default cache: `LILY_CACHE`, else the user's cache directory.
pub fn default_cache() -> Option<PathBuf> {
    if let Some(cache) = std::env::var_os("LILY_CACHE") {
        return Some(PathBuf::from(cache).join("metal"));
    }
    std::env::home_dir().map(|home| home.join("Library/Caches/lily/metal"))
}

/// The system's GPU.
pub struct MetalDevice {
    system: System,
    queue: Queue,
    kernels: Kernels,
    family: KernelFamily,
    notices: Vec<String>,
    residency: Option<Residency>,
    /// Work has been submitted: from now on the residency set, which holds the weights, is left alone.
    residency_is_committed: bool,
    buffers: HashMap<BufferId, Allocated>,
    next_buffer: u32,
    allocated: usize,
    files: Vec<MappedFile>,
    unused: Buffer,
    recordings: HashMap<RecordingId, Recording>,
    next_recording: u32,
    pacing: Pacing,
    /// Copies that are encoded and not yet committed.
    copies: Option<(CommandBuffer, BlitEncoder)>,
    in_flight: VecDeque<Submission>,
    /// Released buffers, each with the last work that may use it.
    released: Vec<(u64, Buffer)>,
    submitted: u64,
    completed: u64,
    /// The last of the submissions that a failure has spoiled, and the failure.
    failure: Option<(u64, String)>,
}

struct Allocated {
    buffer: Buffer,
    resident: bool,
}

struct Submission {
    event: u64,
    parts: Vec<CommandBuffer>,
    /// The shape of a pass; copies have none.
    shape: Option<Shape>,
}

impl MetalDevice {
    /// Opens the system's GPU and compiles the kernels that ship.
    ///
    /// # Errors
    /// There is no GPU that Lily can use, or the kernels do not compile or do not compute correctly.
    pub fn open(options: MetalOptions<'_>) -> Result<Self, GpuError> {
        Self::with_sources(&kernel_sources(), options)
    }

    /// Opens the system's GPU with other kernel sources.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn with_sources(sources: &[SourceFile], options: MetalOptions<'_>) -> Result<Self, GpuError> {
        let MetalOptions {
            tensor_operations,
            cache,
            progress,
        } = options;
        let mut open = |family| Self::of_family(sources, family, cache.as_deref(), progress);
        if !(tensor_operations && System::detect()?.has_tensor_operations()) {
            return open(KernelFamily::Simdgroup);
        }
        open(KernelFamily::Tensor).or_else(|error| {
            // The system supplies the tensor headers, so an update of macOS can break them.
            let mut device = open(KernelFamily::Simdgroup)?;
            device.notices.push(format!(
                "tensor operations cannot be used here, so simdgroup_matrix is: {error}"
            ));
            Ok(device)
        })
    }

    /// The system's GPU with the kernels of one family, which are tried before they are trusted: the layout of a tile, and, where the system
    /// supplies what they are made of, every kernel with tiles.
    fn of_family(
        sources: &[SourceFile],
        family: KernelFamily,
        cache: Option<&Path>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, GpuError> {
        let system = System::detect()?;
        let queue = Queue::new(&system)?;
        layout_test::run(&system, &queue, sources, family)?;
        let archive = cache.and_then(|directory| Archive::open(&system, sources, family, directory));
        let kernels = Kernels::compile(&system, sources, family, archive, progress)?;
        let unused = Buffer::new(&system, "unused slots", SLOTS * UNUSED_BYTES)?;
        let mut device = Self {
            system,
            queue,
            kernels,
            family,
            notices: Vec::new(),
            residency: None,
            residency_is_committed: false,
            buffers: HashMap::new(),
            next_buffer: 0,
            allocated: 0,
            files: Vec::new(),
            unused,
            recordings: HashMap::new(),
            next_recording: 0,
            pacing: Pacing::default(),
            copies: None,
            in_flight: VecDeque::new(),
            released: Vec::new(),
            submitted: 0,
            completed: 0,
            failure: None,
        };
        if family == KernelFamily::Tensor {
            let mut checks = self_test::tile_kernels(&mut device);
            // Other sources need not have all of them.
            checks.retain(|check| device.kernels.has(&check.kernel));
            let wrong = |check: Check| Some(format!("{}: {}", check.kernel, check.problem?));
            let mut wrong = checks.into_iter().filter_map(wrong);
            if let Some(first) = wrong.next() {
                let others = wrong.count();
                return Err(GpuError::Device(format!("{first} ({others} other kernels fail, too)")));
            }
        }
        // The tests' work is done; the weights join the set before the first work with them.
        if device.system.has_residency_sets() {
            device.residency = Some(Residency::new(&device.system)?);
        }
        device.residency_is_committed = false;
        device.pacing = Pacing::default();
        Ok(device)
    }

    /// The GPU and the system.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// How the kernels multiply matrices.
    pub fn family(&self) -> KernelFamily {
        self.family
    }

    /// Refuses a model before it is loaded.
    ///
    /// # Errors
    /// `bytes` are more than the GPU may use; the message has the numbers and how to raise the limit.
    pub fn check_fits(&self, bytes: usize) -> Result<(), GpuError> {
        if bytes <= self.system.working_set() {
            return Ok(());
        }
        Err(GpuError::Device(self.system.too_large(bytes)))
    }

    /// The pages of a mapped file as a buffer; `None` where the bytes lie in none, or Metal cannot take them.
    fn in_place(&mut self, bytes: &Bytes) -> Option<Slice> {
        let map = bytes.mapping()?;
        let start = map.as_ptr() as usize;
        let offset = bytes.as_ptr() as usize - start;
        if bytes.is_empty() || !offset.is_multiple_of(WEIGHT_ALIGNMENT) {
            return None;
        }
        let known = self.files.iter().position(|file| file.is_at(start));
        let index = known.unwrap_or_else(|| {
            self.files
                .push(MappedFile::new(start, map.len(), self.system.max_buffer_length()));
            self.files.len() - 1
        });
        let (window, pages) = self.files[index].window_of(&(offset..offset + bytes.len()))?;
        let buffer = match self.files[index].buffer(window) {
            Some(buffer) => buffer,
            None => {
                let mapping = std::sync::Arc::new(Mapping(map.clone()));
                let buffer = Buffer::over_pages(&self.system, "weights", mapping, pages)?;
                let id = self.add(buffer, true);
                self.files[index].set_buffer(window, id);
                id
            }
        };
        Some(Slice {
            buffer,
            offset: start + offset - pages.start,
            len: bytes.len(),
        })
    }

    /// Takes a buffer into the device; `weights` join the residency set, if it is still open.
    fn add(&mut self, buffer: Buffer, weights: bool) -> BufferId {
        let resident = weights && !self.residency_is_committed;
        if let Some(residency) = self.residency.as_ref().filter(|_| resident) {
            residency.add(&buffer);
        }
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.allocated += buffer.len();
        self.buffers.insert(id, Allocated { buffer, resident });
        id
    }

    fn new_buffer(&self, label: &str, bytes: usize) -> Result<Buffer, GpuError> {
        if bytes > self.available() {
            return Err(GpuError::OutOfMemory {
                label: label.into(),
                needed: bytes,
                available: self.available(),
            });
        }
        Buffer::new(&self.system, label, bytes.max(4))
    }

    /// The buffer of a slice, which must lie inside it.
    fn buffer(&self, slice: &Slice) -> Result<&Buffer, GpuError> {
        let Allocated { buffer, .. } = self
            .buffers
            .get(&slice.buffer)
            .ok_or_else(|| missing("buffer", slice.buffer.0))?;
        if is_inside(slice, buffer.len()) {
            return Ok(buffer);
        }
        let Slice { offset, len, .. } = slice;
        Err(GpuError::Device(format!(
            "{len} bytes at {offset} of a buffer of {}",
            buffer.len()
        )))
    }

    fn launch(&mut self, dispatch: &Dispatch) -> Result<Launch, GpuError> {
        let Dispatch {
            kernel,
            constants,
            label,
            ..
        } = dispatch;
        let invalid = |what: &str| GpuError::Device(format!("{label} ({kernel}): {what}"));
        if dispatch.arguments.len() > SLOTS {
            return Err(invalid("more arguments than there are slots"));
        }
        if dispatch.threadgroup_bytes != 0 {
            return Err(invalid("no kernel that is chosen here has a threadgroup argument"));
        }
        let mut arguments = Vec::with_capacity(dispatch.arguments.len());
        for argument in &dispatch.arguments {
            arguments.push(match argument {
                Argument::Buffer(slice, _) => {
                    self.buffer(slice)?;
                    Bound::Buffer(slice.buffer, slice.offset)
                }
                Argument::Bytes(bytes) if (1..=INLINE_BYTES).contains(&bytes.len()) => Bound::Bytes(bytes.clone()),
                Argument::Bytes(_) => return Err(invalid("parameters of more than 4 KiB, or none")),
                Argument::Unused => Bound::Unused,
            });
        }
        let pipeline = self.kernels.pipeline(&self.system, kernel, constants)?;
        pipeline.check_threads(dispatch.threads)?;
        Ok(Launch {
            pipeline,
            arguments,
            threadgroups: dispatch.threadgroups,
            threads: dispatch.threads,
        })
    }

    /// Commits the residency set before the first work. Afterwards it is left alone.
    fn settle_residency(&mut self) {
        if let Some(residency) = self.residency.as_ref().filter(|_| !self.residency_is_committed) {
            residency.commit();
            self.queue.add_residency(residency);
            residency.request();
        }
        self.residency_is_committed = true;
    }

    /// Commits the copies that were encoded.
    fn flush_copies(&mut self) {
        if let Some((command_buffer, encoder)) = self.copies.take() {
            autoreleasepool(|_| {
                encoder.end();
                command_buffer.commit();
            });
            self.submitted += 1;
            self.in_flight.push_back(Submission {
                event: self.submitted,
                parts: vec![command_buffer],
                shape: None,
            });
        }
    }

    /// Waits for the oldest work in flight.
    fn finish_oldest(&mut self) {
        let Some(submission) = self.in_flight.pop_front() else {
            return;
        };
        let Submission { event, parts, shape } = submission;
        let count = parts.len();
        let mut longest: f64 = 0.0;
        // The pool takes what Metal autoreleases when it frees the command buffers.
        autoreleasepool(|_| {
            for part in parts {
                match part.wait() {
                    Ok(seconds) => longest = longest.max(seconds),
                    // What was submitted by now may have used what this work did not make.
                    Err(error) => self.failure = Some((self.submitted, error.to_string())),
                }
            }
        });
        self.completed = event;
        if let Some(shape) = shape {
            self.pacing.took(shape, count, longest);
        }
        let completed = self.completed;
        self.released.retain(|(event, _)| *event > completed);
    }

    /// Waits until `event` is done.
    fn wait_for(&mut self, event: u64) -> Result<(), GpuError> {
        if self.copies.is_some() && event > self.submitted {
            self.flush_copies();
        }
        while self.completed < event.min(self.submitted) {
            self.finish_oldest();
        }
        match &self.failure {
            Some((last, error)) if event <= *last => Err(GpuError::Device(error.clone())),
            _ => Ok(()),
        }
    }

    fn wait_for_all(&mut self) -> Result<(), GpuError> {
        self.flush_copies();
        self.wait_for(self.submitted)
    }

    fn encode(&self, encoder: &ComputeEncoder, stages: &[Vec<Launch>]) -> Result<(), GpuError> {
        for (index, stage) in stages.iter().enumerate() {
            if index > 0 {
                encoder.barrier();
            }
            for launch in stage {
                encoder.set_pipeline(&launch.pipeline);
                for (slot, argument) in launch.arguments.iter().enumerate() {
                    match argument {
                        Bound::Buffer(id, offset) => {
                            let allocated = self.buffers.get(id).ok_or_else(|| missing("buffer", id.0))?;
                            encoder.set_buffer(slot, &allocated.buffer, *offset);
                        }
                        Bound::Bytes(bytes) => encoder.set_bytes(slot, bytes),
                        Bound::Unused => encoder.set_buffer(slot, &self.unused, slot * UNUSED_BYTES),
                    }
                }
                encoder.dispatch(launch.threadgroups, launch.threads);
            }
        }
        Ok(())
    }

    /// Encodes and commits the parts of a recording.
    fn commit_parts(&self, recording: &Recording) -> Result<Vec<CommandBuffer>, GpuError> {
        autoreleasepool(|_| {
            let mut parts = Vec::new();
            for stages in self.pacing.cut(recording) {
                let command_buffer = self.queue.command_buffer()?;
                let encoder = command_buffer.compute()?;
                let encoded = self.encode(&encoder, &recording.stages[stages]);
                encoder.end();
                encoded?;
                parts.push(command_buffer);
            }
            parts.iter().for_each(CommandBuffer::commit);
            Ok(parts)
        })
    }
}

fn missing(what: &str, id: u32) -> GpuError {
    GpuError::Device(format!("{what} {id} does not exist"))
}

impl Device for MetalDevice {
    fn describe(&self) -> DeviceDescription {
        let description = format!("{}, {}", self.system.describe(), self.family.name());
        DeviceDescription {
            kind: "metal",
            description,
        }
    }

    fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }

    fn available(&self) -> usize {
        self.system.working_set().saturating_sub(self.allocated)
    }

    /// What the slowest GPU of the family (M1 or M5 with their fewest cores) is predicted to do in the time that a command buffer
    /// may take. Beyond that, passes are cut by the time that they took.
    fn pass_limit(&self) -> Option<u64> {
        Some(match self.family {
            KernelFamily::Simdgroup => 100_000_000_000,
            KernelFamily::Tensor => 650_000_000_000,
        })
    }

    fn allocate(&mut self, label: &str, bytes: usize, _memory: Memory) -> Result<BufferId, GpuError> {
        let buffer = self.new_buffer(label, bytes)?;
        Ok(self.add(buffer, false))
    }

    fn place(&mut self, label: &str, bytes: &Bytes) -> Result<Slice, GpuError> {
        if let Some(slice) = self.in_place(bytes) {
            return Ok(slice);
        }
        let mut buffer = self.new_buffer(label, bytes.len())?;
        buffer.write(0, bytes);
        Ok(Slice {
            buffer: self.add(buffer, true),
            offset: 0,
            len: bytes.len(),
        })
    }

    fn release(&mut self, buffer: BufferId) {
        let Some(Allocated { buffer, resident }) = self.buffers.remove(&buffer) else {
            return;
        };
        self.allocated -= buffer.len();
        if resident && self.residency_is_committed {
            // Part of the model itself goes: rare, and the set must not change under work. A failure is reported by the next
            // call that waits.
            let _ = self.wait_for_all();
        }
        if let Some(residency) = self.residency.as_ref().filter(|_| resident) {
            residency.remove(&buffer);
            if self.residency_is_committed {
                residency.commit();
            }
        }
        let last = self.submitted + u64::from(self.copies.is_some());
        if last > self.completed {
            self.released.push((last, buffer));
        }
    }

    fn write(&mut self, to: Slice, bytes: &[u8]) -> Result<(), GpuError> {
        self.buffer(&Slice { len: bytes.len(), ..to })?;
        self.wait_for_all()?;
        let allocated = self
            .buffers
            .get_mut(&to.buffer)
            .ok_or_else(|| missing("buffer", to.buffer.0))?;
        allocated.buffer.write(to.offset, bytes);
        Ok(())
    }

    fn read(&mut self, from: Slice, into: &mut [u8]) -> Result<(), GpuError> {
        self.wait_for_all()?;
        self.buffer(&from)?.read(from.offset, into);
        Ok(())
    }

    fn read_after(&mut self, event: Event, from: Slice, into: &mut [u8]) -> Result<(), GpuError> {
        self.wait_for(event.0)?;
        self.buffer(&from)?.read(from.offset, into);
        Ok(())
    }

    fn copy(&mut self, from: Slice, to: Slice) -> Result<(), GpuError> {
        self.buffer(&from)?;
        self.buffer(&Slice { len: from.len, ..to })?;
        if !(from.offset | to.offset | from.len).is_multiple_of(4) {
            let mut bytes = vec![0; from.len];
            self.read(from, &mut bytes)?;
            return self.write(to, &bytes);
        }
        self.settle_residency();
        if self.copies.is_none() {
            let opened = autoreleasepool(|_| {
                let command_buffer = self.queue.command_buffer()?;
                let encoder = command_buffer.blit()?;
                Ok::<_, GpuError>((command_buffer, encoder))
            })?;
            self.copies = Some(opened);
        }
        if let Some((_, encoder)) = &self.copies {
            encoder.copy(
                (self.buffer(&from)?, from.offset),
                (self.buffer(&to)?, to.offset),
                from.len,
            );
        }
        Ok(())
    }

    fn record(&mut self, pass: &Pass) -> Result<RecordingId, GpuError> {
        let mut stages = Vec::with_capacity(pass.stage_count());
        for stage in pass.by_stage() {
            let launches = stage.into_iter().map(|index| self.launch(&pass.dispatches()[index]));
            stages.push(launches.collect::<Result<Vec<_>, _>>()?);
        }
        self.kernels.save();
        let id = RecordingId(self.next_recording);
        self.next_recording += 1;
        self.recordings.insert(id, Recording::new(stages));
        Ok(id)
    }

    fn discard(&mut self, recording: RecordingId) {
        // What is in flight holds no part of it: command buffers use pipelines and buffers, which stay.
        self.recordings.remove(&recording);
    }

    fn submit(&mut self, recording: RecordingId) -> Result<Event, GpuError> {
        self.flush_copies();
        self.settle_residency();
        while self.in_flight.len() >= MAX_IN_FLIGHT {
            self.finish_oldest();
        }
        let found = self
            .recordings
            .get(&recording)
            .ok_or_else(|| missing("recording", recording.0))?;
        let (parts, shape) = (self.commit_parts(found)?, Some(found.shape));
        self.submitted += 1;
        self.in_flight.push_back(Submission {
            event: self.submitted,
            parts,
            shape,
        });
        Ok(Event(self.submitted))
    }

    /// Each dispatch in a command buffer of its own, whose time the GPU tells.
    fn time(&mut self, pass: &Pass) -> Result<Vec<Duration>, GpuError> {
        self.wait_for_all()?;
        self.settle_residency();
        let mut times = Vec::with_capacity(pass.dispatches().len());
        for dispatch in pass.dispatches() {
            let recording = Recording::new(vec![vec![self.launch(dispatch)?]]);
            let seconds = autoreleasepool(|_| {
                let parts = self.commit_parts(&recording)?;
                parts.iter().map(CommandBuffer::wait).sum::<Result<f64, GpuError>>()
            })?;
            times.push(Duration::from_secs_f64(seconds.max(0.0)));
        }
        Ok(times)
    }
}

impl Drop for MetalDevice {
    fn drop(&mut self) {
        // Command buffers do not retain what they use, so nothing may be freed before they are done. A failure has nobody left
        // to tell.
        let _ = self.wait_for_all();
    }
}
