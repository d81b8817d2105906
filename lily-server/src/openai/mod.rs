//! OpenAI's shapes: what requests hold and how replies look. Nothing here talks to the engine.

pub mod chat_reply;
pub mod chat_request;
pub mod completion;
pub mod message;
pub mod responses_reply;
pub mod responses_request;
pub mod sampling;
