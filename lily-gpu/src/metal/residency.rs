//! The residency set: the weights, which stay wired for the GPU.
//!
//! It is filled while the model is loaded, committed before the first work, and left alone: changing a set while work is in
//! flight has brought whole systems down. Everything else comes and goes, and is made resident by being bound.

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLAllocation, MTLBuffer, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor};

use super::buffer::Buffer;
use super::system::System;
use crate::error::GpuError;

/// A residency set (macOS 15).
pub struct Residency {
    set: Retained<ProtocolObject<dyn MTLResidencySet>>,
}

// SAFETY: used through the device, which has one owner; Metal only asks that calls do not overlap.
unsafe impl Send for Residency {}

impl Residency {
    /// An empty set.
    ///
    /// # Errors
    /// Metal gives none.
    pub fn new(system: &System) -> Result<Self, GpuError> {
        autoreleasepool(|_| {
            let descriptor = MTLResidencySetDescriptor::new();
            descriptor.setLabel(Some(&NSString::from_str("lily")));
            let set = system
                .device()
                .newResidencySetWithDescriptor_error(&descriptor)
                .map_err(|error| GpuError::Device(format!("Metal gives no residency set: {error}")))?;
            Ok(Self { set })
        })
    }

    /// Metal's set.
    pub fn metal(&self) -> &ProtocolObject<dyn MTLResidencySet> {
        &self.set
    }

    /// Adds a buffer; it counts from the next commit on.
    pub fn add(&self, buffer: &Buffer) {
        self.set.addAllocation(allocation(buffer));
    }

    /// Removes a buffer; it counts from the next commit on.
    pub fn remove(&self, buffer: &Buffer) {
        self.set.removeAllocation(allocation(buffer));
    }

    /// Makes the changes count. No work may be in flight.
    pub fn commit(&self) {
        autoreleasepool(|_| self.set.commit());
    }

    /// Wires what was committed now, rather than with the first work.
    pub fn request(&self) {
        autoreleasepool(|_| self.set.requestResidency());
    }
}

fn allocation(buffer: &Buffer) -> &ProtocolObject<dyn MTLAllocation> {
    let buffer: &ProtocolObject<dyn MTLBuffer> = buffer.metal();
    ProtocolObject::from_ref(buffer)
}
