//! What the tests share: a few kernels, and shorthand for Metal's calls.

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
    MTLComputePipelineDescriptor, MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDevice, MTLDispatchType,
    MTLFunctionConstantValues, MTLLibrary, MTLPipelineOption, MTLResourceOptions, MTLSize,
};
use softmetal::{FindingKind, MachineSpec, SoftMetal};

pub type Device = Retained<ProtocolObject<dyn MTLDevice>>;
pub type Queue = Retained<ProtocolObject<dyn MTLCommandQueue>>;
pub type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;
pub type CommandBuffer = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
pub type Encoder = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;
pub type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

pub const KERNELS: &str = r#"
#include <metal_stdlib>
using namespace metal;

kernel void add_one(
    device float* values [[buffer(0)]],
    constant uint& count [[buffer(1)]],
    uint id [[thread_position_in_grid]])
{
    if (id < count) values[id] = values[id] + 1.0f;
}

kernel void double_into(
    device const float* from [[buffer(0)]],
    device float* to [[buffer(1)]],
    uint id [[thread_position_in_grid]])
{
    to[id] = 2.0f * from[id];
}
"#;

/// Floats that a buffer of the tests holds, and threads of a dispatch.
pub const COUNT: usize = 64;

/// A Mac with its device, a queue, and the kernels above.
pub struct Bench {
    pub mac: SoftMetal,
    pub device: Device,
    pub queue: Queue,
    pub add_one: Pipeline,
    pub double_into: Pipeline,
}

impl Bench {
    pub fn new(spec: MachineSpec) -> Self {
        let mac = SoftMetal::install(spec);
        let device = MTLCreateSystemDefaultDevice().unwrap();
        let queue = device.newCommandQueue().unwrap();
        let add_one = pipeline(&device, KERNELS, "add_one");
        let double_into = pipeline(&device, KERNELS, "double_into");
        Self {
            mac,
            device,
            queue,
            add_one,
            double_into,
        }
    }

    /// A buffer of [`COUNT`] floats: 0, 1, 2 and so on.
    pub fn buffer(&self) -> Buffer {
        let buffer = self
            .device
            .newBufferWithLength_options(COUNT * 4, MTLResourceOptions::StorageModeShared)
            .unwrap();
        for i in 0..COUNT {
            write(&buffer, i, i as f32);
        }
        buffer
    }

    pub fn begin(&self) -> (CommandBuffer, Encoder) {
        let command_buffer = self.queue.commandBuffer().unwrap();
        let encoder = command_buffer
            .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
            .unwrap();
        (command_buffer, encoder)
    }

    /// Encodes `add_one` over the whole buffer.
    pub fn encode_add_one(&self, encoder: &Encoder, buffer: &Buffer) {
        encoder.setComputePipelineState(&self.add_one);
        bind(encoder, buffer, 0, 0);
        bind_count(encoder, COUNT as u32, 1);
        dispatch(encoder, 1, COUNT);
    }

    /// Encodes `double_into`.
    pub fn encode_double(&self, encoder: &Encoder, from: &Buffer, to: &Buffer) {
        encoder.setComputePipelineState(&self.double_into);
        bind(encoder, from, 0, 0);
        bind(encoder, to, 0, 1);
        dispatch(encoder, 1, COUNT);
    }

    /// That exactly the mistake `kind` was reported.
    pub fn assert_only(&self, kind: FindingKind) {
        let findings = self.mac.findings();
        assert!(!findings.is_empty(), "{kind:?} was not noticed");
        for finding in findings {
            assert_eq!(finding.kind, kind, "{finding}");
        }
    }
}

pub fn finish(command_buffer: &CommandBuffer, encoder: &Encoder) {
    encoder.endEncoding();
    command_buffer.commit();
    command_buffer.waitUntilCompleted();
}

pub fn pipeline(device: &Device, source: &str, name: &str) -> Pipeline {
    pipeline_with(device, source, name, |_| {})
}

/// A pipeline from a descriptor that `change` has changed.
pub fn pipeline_with(
    device: &Device,
    source: &str,
    name: &str,
    change: impl FnOnce(&MTLComputePipelineDescriptor),
) -> Pipeline {
    let library = device
        .newLibraryWithSource_options_error(&NSString::from_str(source), None)
        .unwrap();
    let constants = MTLFunctionConstantValues::new();
    let function = library
        .newFunctionWithName_constantValues_error(&NSString::from_str(name), &constants)
        .unwrap();
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setComputeFunction(Some(&function));
    change(&descriptor);
    device
        .newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, MTLPipelineOption::None, None)
        .unwrap()
}

pub fn bind(encoder: &Encoder, buffer: &Buffer, offset: usize, index: usize) {
    // SAFETY: the software device checks what Metal leaves to the caller.
    unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), offset, index) };
}

pub fn bind_count(encoder: &Encoder, count: u32, index: usize) {
    let bytes = NonNull::from(&count).cast::<c_void>();
    // SAFETY: four bytes are read, and there are four.
    unsafe { encoder.setBytes_length_atIndex(bytes, 4, index) };
}

pub fn dispatch(encoder: &Encoder, groups: usize, threads: usize) {
    let size = |width| MTLSize {
        width,
        height: 1,
        depth: 1,
    };
    encoder.dispatchThreadgroups_threadsPerThreadgroup(size(groups), size(threads));
}

pub fn read(buffer: &Buffer, index: usize) -> f32 {
    // SAFETY: every buffer of the tests holds COUNT floats.
    unsafe { buffer.contents().cast::<f32>().add(index).read_volatile() }
}

pub fn write(buffer: &Buffer, index: usize, value: f32) {
    // SAFETY: every buffer of the tests holds COUNT floats.
    unsafe { buffer.contents().cast::<f32>().add(index).write_volatile(value) };
}
