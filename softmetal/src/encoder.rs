//! `MTLComputeCommandEncoder`: records, and checks what can be checked before anything runs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::slice;
use std::sync::{Arc, Weak};

use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;
use objc2_metal::{MTLBarrierScope, MTLSize};
use shader_tool::{Access, BufferInfo};

use crate::buffer::{Memory, SoftBuffer};
use crate::device::THREADGROUP_MEMORY;
use crate::finding::FindingKind;
use crate::machine::Machine;
use crate::pipeline::{Compiled, SoftPipeline};

/// Buffer indices of an encoder.
const BINDINGS: usize = 31;
/// The most that `setBytes` takes.
const INLINE_BYTES: usize = 4096;

/// A buffer bound at an offset.
#[derive(Clone)]
pub(crate) struct BoundBuffer {
    pub memory: Arc<Memory>,
    /// Gone once the program has released the buffer.
    pub alive: Weak<()>,
    pub offset: usize,
}

/// What an index is bound to.
#[derive(Clone)]
pub(crate) enum Bound {
    Buffer(BoundBuffer),
    Bytes(Vec<u8>),
}

/// How many threadgroups.
pub(crate) enum Grid {
    Direct([u32; 3]),
    /// Three u32 in a buffer, read when the dispatch runs.
    Indirect(BoundBuffer),
}

pub(crate) struct Dispatch {
    pub pipeline: Arc<Compiled>,
    /// By index; only those that the kernel declares.
    pub bindings: Vec<(u32, Access, Bound)>,
    pub grid: Grid,
    pub threads: [u32; 3],
    /// Dynamic threadgroup memory: index, bytes.
    pub threadgroup_memory: Vec<(u32, u32)>,
}

/// A copy between buffers.
pub(crate) struct Copy {
    pub from: BoundBuffer,
    pub to: BoundBuffer,
    pub length: usize,
}

pub(crate) enum Command {
    Dispatch(Dispatch),
    Copy(Copy),
    Barrier,
}

/// What one encoder recorded.
pub(crate) struct Recording {
    /// Tells encoders of a machine apart.
    pub id: u64,
    /// Every dispatch waits for the one before it.
    pub serial: bool,
    pub ended: Cell<bool>,
    pub commands: RefCell<Vec<Command>>,
}

// SAFETY: an encoder is used by one thread at a time (Metal's rule), and after the commit only by the thread that runs the
// command buffer.
unsafe impl Send for Recording {}
// SAFETY: as above.
unsafe impl Sync for Recording {}

pub(crate) struct EncoderFields {
    machine: Arc<Machine>,
    recording: Arc<Recording>,
    pipeline: RefCell<Option<Arc<Compiled>>>,
    bindings: RefCell<BTreeMap<usize, Bound>>,
    threadgroup_memory: RefCell<BTreeMap<usize, usize>>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLComputeCommandEncoder"]
    #[ivars = EncoderFields]
    pub(crate) struct SoftEncoder;

    unsafe impl NSObjectProtocol for SoftEncoder {}

    impl SoftEncoder {
        #[unsafe(method(setLabel:))]
        fn set_label(&self, _label: Option<&NSString>) {}

        #[unsafe(method(pushDebugGroup:))]
        fn push_debug_group(&self, _label: &NSString) {}

        #[unsafe(method(popDebugGroup))]
        fn pop_debug_group(&self) {}

        #[unsafe(method(setComputePipelineState:))]
        fn set_pipeline(&self, pipeline: &SoftPipeline) {
            if self.is_open("setComputePipelineState") {
                self.ivars().pipeline.replace(Some(pipeline.ivars().clone()));
            }
        }

        #[unsafe(method(setBuffer:offset:atIndex:))]
        fn set_buffer(&self, buffer: Option<&SoftBuffer>, offset: usize, index: usize) {
            if !self.is_open("setBuffer") || !self.is_index(index) {
                return;
            }
            let Some(buffer) = buffer else {
                self.ivars().bindings.borrow_mut().remove(&index);
                return;
            };
            let fields = buffer.ivars();
            let bound =
                BoundBuffer { memory: fields.memory.clone(), alive: Arc::downgrade(&fields.alive), offset };
            if self.is_offset(&bound.memory, offset, index) {
                self.ivars().bindings.borrow_mut().insert(index, Bound::Buffer(bound));
            }
        }

        #[unsafe(method(setBufferOffset:atIndex:))]
        fn set_buffer_offset(&self, offset: usize, index: usize) {
            if !self.is_open("setBufferOffset") || !self.is_index(index) {
                return;
            }
            match self.ivars().bindings.borrow_mut().get_mut(&index) {
                Some(Bound::Buffer(bound)) if self.is_offset(&bound.memory, offset, index) => bound.offset = offset,
                Some(Bound::Buffer(_)) => {}
                _ => self.report(FindingKind::UnboundArgument, format!("setBufferOffset: no buffer at index {index}")),
            }
        }

        #[unsafe(method(setBytes:length:atIndex:))]
        fn set_bytes(&self, bytes: *const c_void, length: usize, index: usize) {
            if !self.is_open("setBytes") || !self.is_index(index) {
                return;
            }
            if length == 0 || length > INLINE_BYTES {
                self.report(FindingKind::BindingOutOfRange, format!("setBytes with {length} bytes at index {index}"));
                return;
            }
            // SAFETY: the caller passes that many bytes.
            let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) };
            self.ivars().bindings.borrow_mut().insert(index, Bound::Bytes(bytes.to_vec()));
        }

        #[unsafe(method(setThreadgroupMemoryLength:atIndex:))]
        fn set_threadgroup_memory(&self, length: usize, index: usize) {
            if !self.is_open("setThreadgroupMemoryLength") || !self.is_index(index) {
                return;
            }
            if !length.is_multiple_of(16) {
                self.report(
                    FindingKind::MisalignedOffset,
                    format!("{length} bytes of threadgroup memory at index {index}: not a multiple of 16"),
                );
            }
            self.ivars().threadgroup_memory.borrow_mut().insert(index, length);
        }

        #[unsafe(method(dispatchThreadgroups:threadsPerThreadgroup:))]
        fn dispatch(&self, groups: MTLSize, threads: MTLSize) {
            self.record(Grid::Direct(size(groups)), size(threads));
        }

        #[unsafe(method(dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:threadsPerThreadgroup:))]
        fn dispatch_indirect(&self, buffer: &SoftBuffer, offset: usize, threads: MTLSize) {
            let fields = buffer.ivars();
            if !offset.is_multiple_of(4) {
                self.report(FindingKind::MisalignedOffset, format!("an indirect dispatch at offset {offset}"));
            } else if offset + 12 > fields.memory.length {
                let buffer = fields.memory.describe();
                self.report(
                    FindingKind::BindingOutOfRange,
                    format!("an indirect dispatch at offset {offset} of {buffer}, {} bytes", fields.memory.length),
                );
            } else {
                let alive = Arc::downgrade(&fields.alive);
                let bound = BoundBuffer { memory: fields.memory.clone(), alive, offset };
                self.record(Grid::Indirect(bound), size(threads));
            }
        }

        #[unsafe(method(memoryBarrierWithScope:))]
        fn memory_barrier(&self, scope: MTLBarrierScope) {
            if self.is_open("memoryBarrierWithScope") && scope.contains(MTLBarrierScope::Buffers) {
                self.ivars().machine.state().statistics.barriers += 1;
                self.ivars().recording.commands.borrow_mut().push(Command::Barrier);
            }
        }

        #[unsafe(method(endEncoding))]
        fn end_encoding(&self) {
            if self.is_open("endEncoding") {
                self.ivars().recording.ended.set(true);
            }
        }
    }
);

impl SoftEncoder {
    pub fn new(machine: Arc<Machine>, recording: Arc<Recording>) -> Retained<Self> {
        let this = Self::alloc().set_ivars(EncoderFields {
            machine,
            recording,
            pipeline: RefCell::default(),
            bindings: RefCell::default(),
            threadgroup_memory: RefCell::default(),
        });
        // SAFETY: the super class's designated initializer.
        unsafe { msg_send![super(this), init] }
    }

    fn report(&self, kind: FindingKind, message: String) {
        self.ivars().machine.report(kind, message);
    }

    fn is_open(&self, call: &str) -> bool {
        let ended = self.ivars().recording.ended.get();
        if ended {
            self.report(
                FindingKind::EncodeAfterEnd,
                format!("{call} on an encoder that has ended"),
            );
        }
        !ended
    }

    fn is_index(&self, index: usize) -> bool {
        if index >= BINDINGS {
            self.report(
                FindingKind::BindingOutOfRange,
                format!("binding index {index}; the last is {}", BINDINGS - 1),
            );
        }
        index < BINDINGS
    }

    fn is_offset(&self, memory: &Memory, offset: usize, index: usize) -> bool {
        let inside = offset < memory.length;
        if !inside {
            self.report(
                FindingKind::BindingOutOfRange,
                format!(
                    "offset {offset} at index {index}: {} has {} bytes",
                    memory.describe(),
                    memory.length
                ),
            );
        }
        inside
    }

    /// Checks a dispatch and records it if it can run.
    fn record(&self, grid: Grid, threads: [u32; 3]) {
        if !self.is_open("a dispatch") {
            return;
        }
        let fields = self.ivars();
        let Some(pipeline) = fields.pipeline.borrow().clone() else {
            self.report(FindingKind::DispatchOverLimit, "a dispatch without a pipeline".into());
            return;
        };
        let threadgroup_memory: Vec<(u32, u32)> = fields
            .threadgroup_memory
            .borrow()
            .iter()
            .map(|(&index, &length)| (index as u32, length as u32))
            .collect();
        let kernel = &pipeline.info.name;
        let total: usize = threads.iter().map(|&n| n as usize).product();
        // What the kernel declares itself is added when it runs.
        let memory: usize = pipeline
            .info
            .threadgroup_arguments
            .iter()
            .filter_map(|argument| threadgroup_memory.iter().find(|(index, _)| *index == argument.index))
            .map(|(_, length)| *length as usize)
            .sum();
        if total == 0 || total > pipeline.max_threads || memory > THREADGROUP_MEMORY {
            self.report(
                FindingKind::DispatchOverLimit,
                format!(
                    "kernel {kernel}: {total} threads to a threadgroup (at most {}), {memory} bytes of threadgroup memory (at most {THREADGROUP_MEMORY})",
                    pipeline.max_threads
                ),
            );
            return;
        }
        let mut bindings = Vec::with_capacity(pipeline.info.buffers.len());
        for argument in &pipeline.info.buffers {
            match fields.bindings.borrow().get(&(argument.index as usize)) {
                Some(bound) => {
                    self.check_argument(kernel, argument, bound);
                    bindings.push((argument.index, argument.access, bound.clone()));
                }
                None if argument.optional => {}
                None => {
                    let BufferInfo { index, name, .. } = argument;
                    self.report(
                        FindingKind::UnboundArgument,
                        format!("kernel {kernel}: nothing is bound to {name}, index {index}"),
                    );
                    return;
                }
            }
        }
        let dispatch = Dispatch {
            pipeline: pipeline.clone(),
            bindings,
            grid,
            threads,
            threadgroup_memory,
        };
        fields.recording.commands.borrow_mut().push(Command::Dispatch(dispatch));
    }

    fn check_argument(&self, kernel: &str, argument: &BufferInfo, bound: &Bound) {
        let Bound::Buffer(BoundBuffer { memory, offset, .. }) = bound else {
            return;
        };
        let BufferInfo {
            index, name, element, ..
        } = argument;
        let space = if argument.constant_space { 4 } else { 1 };
        let alignment = alignment_of(element).unwrap_or(1).max(space);
        if !offset.is_multiple_of(alignment) {
            self.report(
                FindingKind::MisalignedOffset,
                format!(
                    "kernel {kernel}: offset {offset} of {name}, index {index}, whose type {element} needs {alignment}"
                ),
            );
        }
        if memory.read_only && argument.access == Access::ReadWrite {
            self.report(
                FindingKind::WriteToReadOnly,
                format!(
                    "kernel {kernel}: {name}, index {index}, may write {}, which is mapped read-only",
                    memory.describe()
                ),
            );
        }
    }
}

fn size(size: MTLSize) -> [u32; 3] {
    [size.width, size.height, size.depth].map(|n| u32::try_from(n).expect("a grid's side fits 32 bits"))
}

/// The alignment of a Metal type by its name; `None` for a struct or a template's parameter.
fn alignment_of(element: &str) -> Option<usize> {
    let packed = element.strip_prefix("packed_");
    let name = packed.unwrap_or(element);
    let (scalar, lanes) = match name.as_bytes().last()? {
        b'2' => (&name[..name.len() - 1], 2),
        b'3' | b'4' => (&name[..name.len() - 1], 4),
        _ => (name, 1),
    };
    let size = match scalar {
        "bool" | "char" | "uchar" | "int8_t" | "uint8_t" => 1,
        "short" | "ushort" | "half" | "bfloat" | "int16_t" | "uint16_t" => 2,
        "int" | "uint" | "float" | "int32_t" | "uint32_t" | "atomic_int" | "atomic_uint" | "atomic_float" => 4,
        "long" | "ulong" | "int64_t" | "uint64_t" | "atomic_ulong" => 8,
        _ => return None,
    };
    Some(if packed.is_some() { size } else { size * lanes })
}

#[cfg(test)]
mod tests {
    use super::alignment_of;

    #[test]
    fn alignments_are_those_of_the_language() {
        let expected = [
            ("float", 4),
            ("float3", 16),
            ("packed_float3", 4),
            ("half4", 8),
            ("uchar", 1),
            ("uint32_t", 4),
            ("bfloat2", 4),
        ];
        for (name, alignment) in expected {
            assert_eq!(alignment_of(name), Some(alignment), "{name}");
        }
        assert_eq!(alignment_of("Params"), None);
        assert_eq!(alignment_of("T"), None);
    }
}
