//! The software device: kernels run on the CPU, in plain mode or under the checker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shader_tool::{
    Argument as Bound, Binding, Buffer, Constants, Dispatch as Launch, Emulator, Finding, Library, Mode, Options,
    Order, Pipeline, ShaderError, SourceFile,
};

pub use shader_tool::TileBackend;

use crate::device::{BufferId, Device, DeviceDescription, Event, Memory, RecordingId, Slice};
use crate::error::GpuError;
use crate::pass::{Access, Argument, Dispatch, Pass};
use crate::policy::Family;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// What stands in for a buffer in a slot that a kernel does not touch.
const UNUSED_BYTES: usize = 256;
const SLOTS: usize = 31;

impl From<ShaderError> for GpuError {
    fn from(error: ShaderError) -> Self {
        GpuError::Device(error.to_string())
    }
}

/// The kernel sources that ship, by name.
pub fn kernel_sources() -> Vec<SourceFile> {
    SOURCES
        .iter()
        .map(|(name, text)| SourceFile::new(*name, *text))
        .collect()
}

/// How the emulator runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulatorOptions {
    /// Watch every access; problems are collected in [`EmulatorDevice::findings`]. About 15 times slower.
    pub checked: bool,
    /// Shuffle the order of threadgroups and threads by this seed.
    pub shuffle: Option<u64>,
    /// Processor cores; all for `None`.
    pub threads: Option<usize>,
    /// [`Device::pass_limit`]
    pub pass_limit: Option<u64>,
    /// The implementation of the tile vocabulary that kernels are compiled with.
    pub tiles: TileBackend,
    /// The kind of GPU whose kernels are chosen.
    pub family: Family,
}

/// A device that runs kernels on the CPU.
pub struct EmulatorDevice {
    library: Arc<Library>,
    emulator: Emulator,
    checked: bool,
    pass_limit: Option<u64>,
    family: Family,
    buffers: HashMap<BufferId, Buffer>,
    next_buffer: u32,
    unused: Buffer,
    pipelines: HashMap<PipelineKey, Arc<Pipeline>>,
    recordings: HashMap<RecordingId, Recording>,
    next_recording: u32,
    submitted: u64,
    findings: Vec<Finding>,
    undeclared: Vec<String>,
    skipped_barrier: Option<usize>,
    superfluous_barriers: Vec<usize>,
}

/// A kernel's name and its function constants.
type PipelineKey = (String, Vec<(u32, bool)>);

struct Recording {
    stages: Vec<Vec<(Dispatch, Arc<Pipeline>)>>,
}

impl EmulatorDevice {
    /// A device with the kernels that ship.
    ///
    /// # Errors
    /// Where no clang is found.
    pub fn new(options: EmulatorOptions) -> Result<EmulatorDevice, GpuError> {
        Self::with_sources(&kernel_sources(), options)
    }

    /// A device with other kernel sources.
    ///
    /// # Errors
    /// Where no clang is found or a source cannot be read.
    pub fn with_sources(sources: &[SourceFile], options: EmulatorOptions) -> Result<EmulatorDevice, GpuError> {
        let mode = if options.checked { Mode::Checked } else { Mode::Plain };
        let library = Library::build(
            sources,
            Options {
                mode,
                tiles: options.tiles,
                ..Options::default()
            },
        )?;
        let mut emulator = Emulator::new().with_order(options.shuffle.map_or(Order::Fixed, Order::Random));
        if let Family::Nvidia { threadgroup_bytes, .. } = options.family {
            emulator = emulator.with_threadgroup_memory(threadgroup_bytes);
        }
        if let Some(threads) = options.threads {
            emulator = emulator.with_threads(threads);
        }
        Ok(EmulatorDevice {
            library: Arc::new(library),
            emulator,
            checked: options.checked,
            pass_limit: options.pass_limit,
            family: options.family,
            buffers: HashMap::new(),
            next_buffer: 0,
            unused: Buffer::new(SLOTS * UNUSED_BYTES),
            pipelines: HashMap::new(),
            recordings: HashMap::new(),
            next_recording: 0,
            submitted: 0,
            findings: Vec::new(),
            undeclared: Vec::new(),
            skipped_barrier: None,
            superfluous_barriers: Vec::new(),
        })
    }

    /// What the checker has found so far.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Checked mode: dispatches that touched more of a buffer than they declared.
    pub fn undeclared(&self) -> &[String] {
        &self.undeclared
    }

    /// Forgets what was found.
    pub fn clear_findings(&mut self) {
        self.findings.clear();
        self.undeclared.clear();
    }

    /// Leaves out the barrier after stage `stage` of every pass, to show that the checker notices.
    pub fn skip_barrier(&mut self, stage: Option<usize>) {
        self.skipped_barrier = stage;
    }

    /// Checked mode: the stages of the last pass whose following barrier kept nothing apart, so that the checker would not miss it.
    pub fn superfluous_barriers(&self) -> &[usize] {
        &self.superfluous_barriers
    }

    /// Fills every byte of a buffer: tests fill scratch with NaN.
    ///
    /// # Errors
    /// Where the buffer does not exist.
    pub fn fill(&mut self, buffer: BufferId, byte: u8) -> Result<(), GpuError> {
        find(&self.buffers, buffer)?.fill(byte);
        Ok(())
    }

    fn pipeline(&mut self, dispatch: &Dispatch) -> Result<Arc<Pipeline>, GpuError> {
        let key = (dispatch.kernel.clone(), dispatch.constants.clone());
        if let Some(pipeline) = self.pipelines.get(&key) {
            return Ok(pipeline.clone());
        }
        let constants = dispatch
            .constants
            .iter()
            .fold(Constants::new(), |c, &(index, value)| c.bool(index, value));
        let pipeline = Arc::new(self.library.pipeline(&dispatch.kernel, &constants)?);
        self.pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    fn run(&mut self, dispatch: &Dispatch, pipeline: &Pipeline) -> Result<(), GpuError> {
        let mut bindings = Vec::with_capacity(dispatch.arguments.len());
        for (index, argument) in dispatch.arguments.iter().enumerate() {
            let argument = match argument {
                Argument::Buffer(slice, _) => Bound::Buffer {
                    buffer: checked(&self.buffers, *slice)?,
                    offset: slice.offset,
                    len: Some(slice.len),
                },
                Argument::Bytes(bytes) => Bound::Bytes(bytes),
                // each slot its own bytes, since arguments that are written must not overlap
                Argument::Unused => Bound::Buffer {
                    buffer: &self.unused,
                    offset: index * UNUSED_BYTES,
                    len: Some(UNUSED_BYTES),
                },
            };
            bindings.push(Binding {
                index: index as u32,
                argument,
            });
        }
        let launch = Launch {
            pipeline,
            bindings: &bindings,
            threadgroups: dispatch.threadgroups,
            threads_per_threadgroup: dispatch.threads,
            threadgroup_memory: match dispatch.threadgroup_bytes {
                0 => &[],
                bytes => &[(0, bytes)],
            },
        };
        let failed = |e: ShaderError| GpuError::Device(format!("{}: {e}", dispatch.label));
        let report = self.emulator.dispatch(&launch).map_err(failed)?;
        self.findings.extend(report.findings);
        for access in report.accesses {
            let declared = match dispatch.arguments.get(access.index as usize) {
                Some(Argument::Buffer(_, Access::Read)) => access.writes.is_empty(),
                Some(Argument::Buffer(_, Access::Write | Access::ReadWrite)) => true,
                Some(Argument::Unused) => access.writes.is_empty() && access.reads.is_empty(),
                _ => true,
            };
            if !declared {
                self.undeclared
                    .push(format!("{}: {} ({})", dispatch.label, access.name, dispatch.kernel));
            }
        }
        Ok(())
    }
}

fn find(buffers: &HashMap<BufferId, Buffer>, id: BufferId) -> Result<&Buffer, GpuError> {
    buffers
        .get(&id)
        .ok_or_else(|| GpuError::Device(format!("buffer {} does not exist", id.0)))
}

/// The buffer of a slice, which must lie inside it.
fn checked(buffers: &HashMap<BufferId, Buffer>, slice: Slice) -> Result<&Buffer, GpuError> {
    let buffer = find(buffers, slice.buffer)?;
    if slice.offset + slice.len > buffer.len() {
        let Slice { offset, len, .. } = slice;
        return Err(GpuError::Device(format!(
            "{len} bytes at {offset} of a buffer of {}",
            buffer.len()
        )));
    }
    Ok(buffer)
}

impl Device for EmulatorDevice {
    fn describe(&self) -> DeviceDescription {
        let checked = if self.checked { ", checked" } else { "" };
        DeviceDescription {
            kind: "emulator",
            description: format!("software GPU on the CPU{checked}"),
        }
    }

    fn pass_limit(&self) -> Option<u64> {
        self.pass_limit
    }

    fn family(&self) -> Family {
        self.family
    }

    fn available(&self) -> usize {
        // The host's memory is the engine's to plan.
        usize::MAX
    }

    fn allocate(&mut self, _label: &str, bytes: usize, _memory: Memory) -> Result<BufferId, GpuError> {
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.buffers.insert(id, Buffer::new(bytes.max(4)));
        Ok(id)
    }

    fn release(&mut self, buffer: BufferId) {
        self.buffers.remove(&buffer);
    }

    fn write(&mut self, to: Slice, bytes: &[u8]) -> Result<(), GpuError> {
        let buffer = checked(&self.buffers, Slice { len: bytes.len(), ..to })?;
        buffer.write(to.offset, bytes);
        Ok(())
    }

    fn read(&mut self, from: Slice, into: &mut [u8]) -> Result<(), GpuError> {
        checked(&self.buffers, from)?.read(from.offset, into);
        Ok(())
    }

    fn read_after(&mut self, _event: Event, from: Slice, into: &mut [u8]) -> Result<(), GpuError> {
        self.read(from, into)
    }

    fn copy(&mut self, from: Slice, to: Slice) -> Result<(), GpuError> {
        let mut bytes = vec![0; from.len];
        self.read(from, &mut bytes)?;
        self.write(to, &bytes)
    }

    fn record(&mut self, pass: &Pass) -> Result<RecordingId, GpuError> {
        let mut stages = Vec::new();
        for stage in pass.by_stage() {
            let dispatches = stage.into_iter().map(|index| {
                let dispatch = pass.dispatches()[index].clone();
                self.pipeline(&dispatch).map(|pipeline| (dispatch, pipeline))
            });
            stages.push(dispatches.collect::<Result<Vec<_>, _>>()?);
        }
        let id = RecordingId(self.next_recording);
        self.next_recording += 1;
        self.recordings.insert(id, Recording { stages });
        Ok(id)
    }

    fn discard(&mut self, recording: RecordingId) {
        self.recordings.remove(&recording);
    }

    fn submit(&mut self, recording: RecordingId) -> Result<Event, GpuError> {
        let missing = || GpuError::Device(format!("recording {} does not exist", recording.0));
        let Recording { stages } = self.recordings.remove(&recording).ok_or_else(missing)?;
        let mut result = Ok(());
        self.superfluous_barriers.clear();
        'stages: for (index, stage) in stages.iter().enumerate() {
            for (dispatch, pipeline) in stage {
                result = self.run(dispatch, pipeline);
                if result.is_err() {
                    break 'stages;
                }
            }
            if self.skipped_barrier == Some(index) {
                continue;
            }
            let needed_the_last = self.emulator.barrier();
            if self.checked && index > 0 && !needed_the_last {
                self.superfluous_barriers.push(index - 1);
            }
        }
        self.emulator.barrier();
        self.recordings.insert(recording, Recording { stages });
        result?;
        self.submitted += 1;
        Ok(Event(self.submitted))
    }

    /// Times of the software on the processor.
    fn time(&mut self, pass: &Pass) -> Result<Vec<Duration>, GpuError> {
        let mut times = Vec::with_capacity(pass.dispatches().len());
        for dispatch in pass.dispatches() {
            let pipeline = self.pipeline(dispatch)?;
            let started = Instant::now();
            self.run(dispatch, &pipeline)?;
            self.emulator.barrier();
            times.push(started.elapsed());
        }
        Ok(times)
    }
}
