//! Sequences, scheduling, sampling and the generation loop, over any backend.

pub mod backend;

pub use backend::{Backend, BackendError, DecodeStep, DeviceInfo, PrefillLogits};
