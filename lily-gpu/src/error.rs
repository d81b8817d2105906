//! The crate's one error type.

use thiserror::Error;

/// Why the GPU could not do what it was asked.
#[derive(Debug, Error)]
pub enum GpuError {
    /// The model has a shape that no kernel takes.
    #[error("{what}: the GPU kernels take {expected}, found {found}")]
    Unsupported {
        /// The part of the model.
        what: String,
        /// What is supported.
        expected: String,
        /// What the model has.
        found: String,
    },
    /// A call that breaks the model's contract.
    #[error("{0}")]
    Invalid(String),
    /// The device has no room.
    #[error("{label}: {needed} bytes are needed, {available} are left on the device")]
    OutOfMemory {
        /// What was to be allocated.
        label: String,
        /// Bytes asked for.
        needed: usize,
        /// Bytes left.
        available: usize,
    },
    /// The device or its compiler failed; sequences that were in use are lost.
    #[error("{0}")]
    Device(String),
    /// The model's logits are not numbers.
    #[error("the logits at position {position} are not finite")]
    NotFinite {
        /// Tokens before the one that could not be told.
        position: usize,
    },
    /// No switch has this name.
    #[error("no switch named {name:?}; the switches are {known}")]
    UnknownSwitch {
        /// The name given.
        name: String,
        /// All names.
        known: String,
    },
}
