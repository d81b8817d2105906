//! The GPU of this system, of whichever kind.

use crate::device::{Device, DeviceDescription};
use crate::error::GpuError;

/// The GPU of a Mac with its kernels compiled. `weight_bytes` is what a model needs, so that one that does not fit is refused before it
/// is loaded; `progress` is told how many of how many kernel sources are compiled.
///
/// # Errors
/// The GPU cannot run the kernels, or has no room for the model; the message says what to do.
#[cfg(any(target_os = "macos", feature = "softmetal"))]
pub fn metal(weight_bytes: usize, progress: &mut dyn FnMut(usize, usize)) -> Result<Box<dyn Device>, GpuError> {
    use crate::metal::{MetalDevice, MetalOptions, default_cache};
    let options = MetalOptions {
        tensor_operations: true,
        cache: default_cache(),
        progress,
    };
    let device = MetalDevice::open(options)?;
    device.check_fits(weight_bytes)?;
    Ok(Box::new(device))
}

/// The GPU of a Mac.
///
/// # Errors
/// This program was not built for a Mac.
#[cfg(not(any(target_os = "macos", feature = "softmetal")))]
pub fn metal(_weight_bytes: usize, _progress: &mut dyn FnMut(usize, usize)) -> Result<Box<dyn Device>, GpuError> {
    Err(GpuError::Device("Metal: this program was not built for a Mac".into()))
}

/// An NVIDIA GPU.
///
/// # Errors
/// There is none that Lily can use; the message says what to do.
#[cfg(not(target_os = "macos"))]
pub fn cuda() -> Result<Box<dyn Device>, GpuError> {
    Ok(Box::new(crate::cuda::CudaDevice::open()?))
}

/// An NVIDIA GPU.
///
/// # Errors
/// Macs have none.
#[cfg(target_os = "macos")]
pub fn cuda() -> Result<Box<dyn Device>, GpuError> {
    Err(GpuError::Device(
        "CUDA: there is none on a Mac; --device metal uses its GPU".into(),
    ))
}

/// Whatever GPU there is, or `None`.
///
/// # Errors
/// There is one, but it cannot be used, or has no room for the model; the message says why.
#[cfg(any(target_os = "macos", feature = "softmetal"))]
pub fn gpu(weight_bytes: usize, progress: &mut dyn FnMut(usize, usize)) -> Result<Option<Box<dyn Device>>, GpuError> {
    metal(weight_bytes, progress).map(Some)
}

/// Whatever GPU there is, or `None`.
///
/// # Errors
/// There is one, but it cannot be used; the message says why.
#[cfg(not(any(target_os = "macos", feature = "softmetal")))]
pub fn gpu(_weight_bytes: usize, _progress: &mut dyn FnMut(usize, usize)) -> Result<Option<Box<dyn Device>>, GpuError> {
    let found = crate::cuda::CudaDevice::find()?;
    Ok(found.map(|device| Box::new(device) as Box<dyn Device>))
}

/// What this system's GPU is, and the bytes that a model may take on it; `None` where there is no GPU that Lily can use.
#[cfg(any(target_os = "macos", feature = "softmetal"))]
pub fn describe() -> Option<(DeviceDescription, usize)> {
    let system = crate::metal::System::detect().ok()?;
    let description = DeviceDescription {
        kind: "metal",
        description: system.describe(),
    };
    Some((description, system.working_set()))
}

/// What this system's GPU is, and the bytes that a model may take on it; `None` where there is no GPU that Lily can use.
#[cfg(not(any(target_os = "macos", feature = "softmetal")))]
pub fn describe() -> Option<(DeviceDescription, usize)> {
    let device = crate::cuda::CudaDevice::find().ok()??;
    Some((device.describe(), device.available()))
}
