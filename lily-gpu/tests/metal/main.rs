//! The suite on this Mac's GPU.

#![cfg(target_os = "macos")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[allow(dead_code, reason = "other devices take other parts")]
mod suite;

#[test]
fn whole_models() {
    suite::everything(suite::open);
}
