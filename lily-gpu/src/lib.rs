//! The model as GPU passes, and the devices that run them.
//!
//! `graph` writes decode and prefill as dispatches of the kernels in `kernels/`; `policy` chooses kernels and tiles; `pass` computes which
//! dispatches must wait for which; a [`Device`] runs the result. [`GpuModel`] puts these together.

#[cfg(not(target_os = "macos"))]
pub mod cuda;
pub mod device;
pub mod emulator;
pub mod error;
pub mod graph;
mod hand_off;
mod memory;
#[cfg(any(target_os = "macos", feature = "softmetal"))]
pub mod metal;
mod model;
pub mod params;
pub mod pass;
pub mod plan;
pub mod policy;
pub mod roofline;
mod routing;
mod saved;
pub mod self_test;
mod state;
pub mod switches;
pub mod system;
pub mod weights;

pub use device::Device;
pub use error::GpuError;
pub use memory::MemoryPlan;
pub use model::{GpuModel, GpuOptions, LogitRows, Sequence, Snapshot, TimedDispatch};
pub use saved::LoadError;
pub use switches::Switches;
