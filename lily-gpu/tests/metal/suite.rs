//! The suite of whole models through the Metal device: on a Mac over Metal, elsewhere over the software Metal.

#[path = "../goldens/suite.rs"]
mod goldens;

pub use goldens::*;
use lily_gpu::GpuModel;
use lily_gpu::metal::{MetalDevice, MetalOptions};

/// The system's GPU.
pub fn open() -> MetalDevice {
    let options = MetalOptions {
        tensor_operations: true,
        cache: None,
        progress: &mut |_, _| {},
    };
    MetalDevice::open(options).unwrap()
}

/// The model of a fixture on the system's GPU.
pub fn model(name: &str) -> GpuModel<MetalDevice> {
    model_on(open(), name)
}
