//! A software Metal device, so that the real Metal host code runs in the tests where there is no Mac.
//!
//! The program under test calls `objc2-metal` as on macOS. This crate is the Objective-C runtime below it ([`runtime`]), the
//! few Foundation classes that it needs, and the Metal classes; a dispatch is executed by the emulator of `shader-tool`.
//! A mistake that Apple's GPU would answer with wrong results, a hang or a crash becomes a [`Finding`].
//!
//! A command buffer runs as late as Metal permits: when the program waits for it, or asks for its status. Whoever
//! reads results before that reads old ones.
//!
//! ```no_run
//! use softmetal::{MachineSpec, SoftMetal};
//!
//! let mac = SoftMetal::install(MachineSpec::m4_max().checked());
//! let device = objc2_metal::MTLCreateSystemDefaultDevice();
//! // … the code under test …
//! mac.assert_clean();
//! ```
//!
//! What it does not play: Metal's weaker memory order between threadgroups of one dispatch, time, textures, rendering,
//! argument buffers, heaps, events, and anything else that Lily does not use: such a call panics with its name.

#![cfg(not(target_vendor = "apple"))]

mod archive;
mod blit;
mod buffer;
mod command_buffer;
mod device;
mod encoder;
mod execute;
mod finding;
mod foundation;
mod library;
mod machine;
mod pipeline;
mod queue;
mod residency;
mod runtime;
mod watch;

use std::ffi::CStr;

use objc2::ClassType;

pub use finding::{Finding, FindingKind};
pub use machine::{MachineSpec, NoCopy, SoftMetal, Statistics, TensorOperations};

/// Makes the class of that name known to the runtime, if this crate has it.
fn register_class(name: &CStr) {
    match name.to_bytes() {
        b"NSString" => drop(foundation::SoftString::class()),
        b"NSError" => drop(foundation::SoftError::class()),
        b"NSArray" => drop(foundation::SoftArray::class()),
        b"NSURL" => drop(foundation::SoftUrl::class()),
        b"NSProcessInfo" => drop(foundation::SoftProcessInfo::class()),
        b"MTLCompileOptions" => drop(library::SoftCompileOptions::class()),
        b"MTLFunctionConstantValues" => drop(library::SoftConstantValues::class()),
        b"MTLComputePipelineDescriptor" => drop(pipeline::SoftPipelineDescriptor::class()),
        b"MTLBinaryArchiveDescriptor" => drop(archive::SoftArchiveDescriptor::class()),
        b"MTLResidencySetDescriptor" => drop(residency::SoftResidencyDescriptor::class()),
        _ => {}
    }
}

/// Reports to this thread's machine, if it has one.
fn report(kind: FindingKind, message: impl FnOnce() -> String) {
    if let Some(machine) = machine::current() {
        machine.report(kind, message());
    }
}
