//! One file for each route.

pub mod chat;
pub mod health;
pub mod models;
