//! This machine's NVIDIA GPU, where there is one: kernels against plain loops, and whole models.

#![cfg(not(target_os = "macos"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "../goldens/suite.rs"]
#[allow(dead_code, reason = "other devices take other parts")]
mod suite;

use lily_gpu::cuda::CudaDevice;
use lily_gpu::self_test::tile_kernels;

/// The GPU; `None`, with a word about it, where there is none.
fn open() -> Option<CudaDevice> {
    let device = CudaDevice::find().unwrap();
    if device.is_none() {
        eprintln!("no NVIDIA GPU here: nothing was run");
    }
    device
}

#[test]
fn kernels_with_matrix_tiles() {
    let Some(mut device) = open() else { return };
    let checks = tile_kernels(&mut device);
    assert!(!checks.is_empty());
    for check in checks {
        println!("{}", check.kernel);
        assert_eq!(check.problem, None, "{}", check.kernel);
    }
}

#[test]
fn whole_models() {
    if open().is_some() {
        suite::everything(|| open().unwrap());
    }
}
