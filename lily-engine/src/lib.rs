//! Sequences, scheduling, sampling, the prefix cache and the generation loop, over any backend.
//!
//! [`Engine::start`] moves a [`Backend`] to a thread of its own. [`Engine::submit`] gives it a [`GenerateRequest`] and returns a
//! [`Generation`], a stream of [`Event`]s that can be read from plain and from asynchronous code. [`reply::ReplyBuilder`] makes a chat's reply
//! of these events.

pub mod backend;
mod cache;
mod disk;
pub mod engine;
pub mod error;
pub mod generation;
mod inbox;
mod marks;
mod outlet;
pub mod reply;
pub mod request;
pub mod sampling;
mod scheduler;
mod slot;
mod text;
pub mod vocabulary;

pub use backend::{Backend, BackendError, DecodeStep, DeviceInfo, LoadError, PrefillLogits, SaveState};
pub use disk::{DiskOptions, DiskStatus};
pub use engine::{Engine, EngineInfo, EngineOptions, EngineStatus};
pub use error::EngineError;
pub use generation::{Event, FinishReason, Generation, Token, TokenLogprobs, Usage};
pub use reply::{Markup, Part, Reply, ReplyBuilder, ReplyDelta};
pub use request::{GenerateRequest, ReasoningBudget, ReplyFormat, Sampling, TokenMask};
pub use vocabulary::{MarkupIds, Vocabulary};
