//! The command queue, command buffers and encoders.
//!
//! Command buffers do not retain what they use: the device keeps every buffer and pipeline until the work that uses it is
//! done. An encoder is used up by [`ComputeEncoder::end`], so nothing can be encoded after the end.

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::msg_send;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder,
    MTLCommandQueue, MTLComputeCommandEncoder, MTLDevice, MTLDispatchType, MTLResidencySet, MTLSize,
};

use super::buffer::Buffer;
use super::pipeline::Pipeline;
use super::residency::Residency;
use super::system::System;
use crate::error::GpuError;

/// The most bytes that an encoder copies into a command buffer for one argument.
pub const INLINE_BYTES: usize = 4096;
/// Argument slots of an encoder.
pub const SLOTS: usize = 31;

/// An ordinary command queue: command buffers run in the order of their commits.
pub struct Queue {
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
}

impl Queue {
    /// A queue of the device.
    ///
    /// # Errors
    /// Metal gives none.
    pub fn new(system: &System) -> Result<Self, GpuError> {
        autoreleasepool(|_| {
            let queue = system.device().newCommandQueue().ok_or_else(|| no("command queue"))?;
            queue.setLabel(Some(&NSString::from_str("lily")));
            Ok(Self { queue })
        })
    }

    /// Makes the set's memory resident for every command buffer from now on.
    pub fn add_residency(&self, residency: &Residency) {
        let set: &ProtocolObject<dyn MTLResidencySet> = residency.metal();
        self.queue.addResidencySet(set);
    }

    /// An empty command buffer. Call inside an autorelease pool.
    ///
    /// # Errors
    /// Metal gives none.
    pub fn command_buffer(&self) -> Result<CommandBuffer, GpuError> {
        let buffer = self
            .queue
            .commandBufferWithUnretainedReferences()
            .ok_or_else(|| no("command buffer"))?;
        Ok(CommandBuffer { buffer })
    }
}

fn no(what: &str) -> GpuError {
    GpuError::Device(format!("Metal gives no {what}"))
}

/// A command buffer.
pub struct CommandBuffer {
    buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
}

// SAFETY: Metal lets any thread use a command buffer, one at a time; it is used through the device, which has one owner.
unsafe impl Send for CommandBuffer {}

impl CommandBuffer {
    /// An encoder whose dispatches may run at the same time, but for barriers. Call inside an autorelease pool.
    ///
    /// # Errors
    /// Metal gives none.
    pub fn compute(&self) -> Result<ComputeEncoder, GpuError> {
        let encoder = self
            .buffer
            .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
            .ok_or_else(|| no("compute encoder"))?;
        Ok(ComputeEncoder { encoder })
    }

    /// An encoder of copies. Call inside an autorelease pool.
    ///
    /// # Errors
    /// Metal gives none.
    pub fn blit(&self) -> Result<BlitEncoder, GpuError> {
        let encoder = self.buffer.blitCommandEncoder().ok_or_else(|| no("blit encoder"))?;
        Ok(BlitEncoder { encoder })
    }

    /// Hands the work to the GPU.
    pub fn commit(&self) {
        self.buffer.commit();
    }

    /// Waits for the end of the committed work and returns the seconds that the GPU took.
    ///
    /// The end is read from the status: a command buffer that macOS kills never signals anything else.
    ///
    /// # Errors
    /// The GPU did not finish the work, with Metal's reason.
    pub fn wait(&self) -> Result<f64, GpuError> {
        autoreleasepool(|_| {
            self.buffer.waitUntilCompleted();
            if self.buffer.status() == MTLCommandBufferStatus::Completed {
                // SAFETY: two properties of a completed command buffer, both of type CFTimeInterval, a double.
                let (start, end): (f64, f64) = unsafe {
                    (
                        msg_send![&*self.buffer, GPUStartTime],
                        msg_send![&*self.buffer, GPUEndTime],
                    )
                };
                return Ok(end - start);
            }
            let reason = self
                .buffer
                .error()
                .map(|error| error.localizedDescription().to_string());
            Err(GpuError::Device(format!(
                "the GPU did not finish its work: {}",
                reason.as_deref().unwrap_or("Metal gives no reason")
            )))
        })
    }
}

/// An open compute encoder.
pub struct ComputeEncoder {
    encoder: Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>,
}

impl ComputeEncoder {
    /// The kernel of the following dispatches.
    pub fn set_pipeline(&self, pipeline: &Pipeline) {
        self.encoder.setComputePipelineState(pipeline.metal());
    }

    /// Binds a buffer from `offset` on to a slot.
    ///
    /// # Panics
    /// Where the slot does not exist or the offset lies outside.
    pub fn set_buffer(&self, slot: usize, buffer: &Buffer, offset: usize) {
        assert!(slot < SLOTS && offset < buffer.len());
        // SAFETY: slot and offset exist (asserted); the device keeps the buffer until the work is done.
        unsafe {
            self.encoder
                .setBuffer_offset_atIndex(Some(buffer.metal()), offset, slot)
        };
    }

    /// Binds a copy of a few bytes to a slot.
    ///
    /// # Panics
    /// Where the slot does not exist, or there are no bytes or more than [`INLINE_BYTES`].
    pub fn set_bytes(&self, slot: usize, bytes: &[u8]) {
        assert!(slot < SLOTS && (1..=INLINE_BYTES).contains(&bytes.len()));
        let pointer = NonNull::from(bytes).cast::<c_void>();
        // SAFETY: slot and length are allowed (asserted); Metal copies the bytes before it returns.
        unsafe { self.encoder.setBytes_length_atIndex(pointer, bytes.len(), slot) };
    }

    /// Runs the kernel.
    pub fn dispatch(&self, threadgroups: [u32; 3], threads: [u32; 3]) {
        let size = |[width, height, depth]: [u32; 3]| MTLSize {
            width: width as usize,
            height: height as usize,
            depth: depth as usize,
        };
        self.encoder
            .dispatchThreadgroups_threadsPerThreadgroup(size(threadgroups), size(threads));
    }

    /// What follows waits for all dispatches so far and sees what they wrote.
    pub fn barrier(&self) {
        self.encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
    }

    /// Ends the encoding.
    pub fn end(self) {
        self.encoder.endEncoding();
    }
}

/// An open encoder of copies.
pub struct BlitEncoder {
    encoder: Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>,
}

// SAFETY: as for `CommandBuffer`.
unsafe impl Send for BlitEncoder {}

impl BlitEncoder {
    /// Copies `len` bytes; offsets and length are multiples of 4.
    ///
    /// # Panics
    /// Where they are not, or do not lie in the buffers.
    pub fn copy(&self, (from, from_offset): (&Buffer, usize), (to, to_offset): (&Buffer, usize), len: usize) {
        assert!((from_offset | to_offset | len).is_multiple_of(4));
        assert!(from_offset + len <= from.len() && to_offset + len <= to.len());
        // SAFETY: both ranges exist (asserted); the device keeps the buffers until the work is done.
        unsafe {
            self.encoder
                .copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                    from.metal(),
                    from_offset,
                    to.metal(),
                    to_offset,
                    len,
                );
        }
    }

    /// Ends the encoding.
    pub fn end(self) {
        self.encoder.endEncoding();
    }
}
