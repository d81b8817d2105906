//! The model as GPU passes, and the devices that run them.
//!
//! `graph` writes decode and prefill as dispatches of the kernels in `kernels/`; `policy` chooses kernels and tiles; `pass` computes which
//! dispatches must wait for which; a [`Device`] runs the result. [`GpuModel`] puts these together.

pub mod device;
pub mod error;
pub mod params;
pub mod pass;
pub mod switches;

pub use device::Device;
pub use error::GpuError;
pub use switches::Switches;
