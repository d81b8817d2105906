//! The server over its router: requests in, responses out, a scripted model under the real engine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod chat;
mod common;
mod completions;
mod connections;
mod messages;
mod openapi;
mod responses;
mod structured;
mod tools;
