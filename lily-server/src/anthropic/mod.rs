//! Anthropic's shapes: what requests hold and how replies look. Nothing here talks to the engine.

pub mod reply;
pub mod request;
