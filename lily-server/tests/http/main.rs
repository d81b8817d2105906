//! The server over its router: requests in, responses out, a scripted model under the real engine.

mod chat;
mod common;
mod completions;
mod connections;
mod messages;
mod responses;
mod structured;
mod tools;
