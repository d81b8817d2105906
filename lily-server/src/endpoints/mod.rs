//! One file for each route, or for a few that belong together.

pub mod chat;
pub mod completions;
pub mod health;
pub mod metrics;
pub mod models;
pub mod status;
pub mod tokens;
