//! Tool calls: the functions that a request declares, and the calls that the model writes.

pub mod argument;
pub mod definition;
pub mod parser;
