//! What a GPU (or the emulator) offers: buffers, recorded passes, events.

use std::time::Duration;

use lily_model::Bytes;

use crate::error::GpuError;
use crate::pass::Pass;
use crate::policy::Family;

/// A buffer of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Slice {
    /// The part `[offset, offset + len)` of this slice.
    ///
    /// # Panics
    /// Where the part does not lie inside: the graph asked for more than it allocated.
    pub fn part(self, offset: usize, len: usize) -> Slice {
        assert!(
            offset + len <= self.len,
            "part {offset}+{len} of a slice of {} bytes",
            self.len
        );
        Slice {
            buffer: self.buffer,
            offset: self.offset + offset,
            len,
        }
    }

    /// Whether the two share a byte.
    pub fn overlaps(self, other: Slice) -> bool {
        self.buffer == other.buffer && self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }
}

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Read and written by kernels.
    Device,
    /// Also read by the host while later passes run ([`Device::read_after`]).
    HostVisible,
}

/// A pass that a device has prepared for running, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordingId(pub u32);

/// A point in the order of submitted work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event(pub u64);

/// What a device is, for people and for the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDescription {
    /// `emulator`, `cuda` or `metal`.
    pub kind: &'static str,
    /// Name and kernel family, for people.
    pub description: String,
}

/// A device runs what it is given in the order of the calls: writes, copies and passes each see all that came before. Only
/// [`Device::submit`] and [`Device::copy`] may return before their work is done.
pub trait Device: Send + 'static {
    /// What the device is.
    fn describe(&self) -> DeviceDescription;

    /// The kind of GPU that kernels and tiles are chosen for.
    fn family(&self) -> Family {
        Family::Apple
    }

    /// What the user should know: a fallback that was taken.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Bytes that can still be allocated.
    fn available(&self) -> usize;

    /// Multiply-adds that one pass may hold, where a longer one would keep the GPU from drawing the screen or be killed by its watchdog.
    fn pass_limit(&self) -> Option<u64> {
        None
    }

    /// A buffer of `bytes` zero bytes, aligned to at least 256.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`]
    fn allocate(&mut self, label: &str, bytes: usize, memory: Memory) -> Result<BufferId, GpuError>;

    /// Puts bytes where kernels can read them: in place where they lie in a mapped file and the device can, else as a copy.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`]
    fn place(&mut self, label: &str, bytes: &Bytes) -> Result<Slice, GpuError> {
        let buffer = self.allocate(label, bytes.len(), Memory::Device)?;
        let slice = Slice {
            buffer,
            offset: 0,
            len: bytes.len(),
        };
        self.write(slice, bytes)?;
        Ok(slice)
    }

    /// Gives a buffer back once the work submitted so far is done. Its id is not used again.
    fn release(&mut self, buffer: BufferId);

    /// Copies `bytes` into the start of `to`.
    ///
    /// # Errors
    /// Where the device failed.
    fn write(&mut self, to: Slice, bytes: &[u8]) -> Result<(), GpuError>;

    /// Copies `from` into `into`, of the same length, after all submitted work.
    ///
    /// # Errors
    /// Where the device failed.
    fn read(&mut self, from: Slice, into: &mut [u8]) -> Result<(), GpuError>;

    /// Copies `from` out of a [`Memory::HostVisible`] buffer once `event` is reached, without waiting for later work.
    ///
    /// # Errors
    /// Where the device failed.
    fn read_after(&mut self, event: Event, from: Slice, into: &mut [u8]) -> Result<(), GpuError>;

    /// Copies between buffers; the two are of the same length and do not overlap.
    ///
    /// # Errors
    /// Where the device failed.
    fn copy(&mut self, from: Slice, to: Slice) -> Result<(), GpuError>;

    /// Prepares a pass: makes its pipelines, and whatever lets it run again quickly.
    ///
    /// # Errors
    /// Where a kernel does not exist or does not compile.
    fn record(&mut self, pass: &Pass) -> Result<RecordingId, GpuError>;

    /// Forgets a recording once the work submitted so far is done.
    fn discard(&mut self, recording: RecordingId);

    /// Runs a recording.
    ///
    /// # Errors
    /// Where the device failed.
    fn submit(&mut self, recording: RecordingId) -> Result<Event, GpuError>;

    /// Runs a pass one dispatch after the other, waiting for each, and tells how long each took.
    ///
    /// # Errors
    /// As [`Device::record`] and [`Device::submit`].
    fn time(&mut self, pass: &Pass) -> Result<Vec<Duration>, GpuError>;

    /// Runs a pass that is not run again.
    ///
    /// # Errors
    /// As [`Device::record`] and [`Device::submit`].
    fn run_once(&mut self, pass: &Pass) -> Result<Event, GpuError> {
        let recording = self.record(pass)?;
        let event = self.submit(recording);
        self.discard(recording);
        event
    }
}

/// Any device behind one type, so that a program can choose one when it runs.
impl Device for Box<dyn Device> {
    fn describe(&self) -> DeviceDescription {
        (**self).describe()
    }

    fn family(&self) -> Family {
        (**self).family()
    }

    fn notices(&self) -> Vec<String> {
        (**self).notices()
    }

    fn available(&self) -> usize {
        (**self).available()
    }

    fn pass_limit(&self) -> Option<u64> {
        (**self).pass_limit()
    }

    fn allocate(&mut self, label: &str, bytes: usize, memory: Memory) -> Result<BufferId, GpuError> {
        (**self).allocate(label, bytes, memory)
    }

    fn place(&mut self, label: &str, bytes: &Bytes) -> Result<Slice, GpuError> {
        (**self).place(label, bytes)
    }

    fn release(&mut self, buffer: BufferId) {
        (**self).release(buffer);
    }

    fn write(&mut self, to: Slice, bytes: &[u8]) -> Result<(), GpuError> {
        (**self).write(to, bytes)
    }

    fn read(&mut self, from: Slice, into: &mut [u8]) -> Result<(), GpuError> {
        (**self).read(from, into)
    }

    fn read_after(&mut self, event: Event, from: Slice, into: &mut [u8]) -> Result<(), GpuError> {
        (**self).read_after(event, from, into)
    }

    fn copy(&mut self, from: Slice, to: Slice) -> Result<(), GpuError> {
        (**self).copy(from, to)
    }

    fn record(&mut self, pass: &Pass) -> Result<RecordingId, GpuError> {
        (**self).record(pass)
    }

    fn discard(&mut self, recording: RecordingId) {
        (**self).discard(recording);
    }

    fn submit(&mut self, recording: RecordingId) -> Result<Event, GpuError> {
        (**self).submit(recording)
    }

    fn time(&mut self, pass: &Pass) -> Result<Vec<Duration>, GpuError> {
        (**self).time(pass)
    }

    fn run_once(&mut self, pass: &Pass) -> Result<Event, GpuError> {
        (**self).run_once(pass)
    }
}
