//! One file for each route, or for a few that belong together.

pub mod chat;
pub mod completions;
pub mod health;
pub mod messages;
pub mod metrics;
pub mod models;
pub mod openapi;
pub mod page;
pub mod responses;
pub mod status;
pub mod tokens;
