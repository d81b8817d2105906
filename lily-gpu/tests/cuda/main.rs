//! This machine's NVIDIA GPU, where there is one: kernels against plain loops, and whole models.

#![cfg(not(target_os = "macos"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "../goldens/suite.rs"]
#[allow(dead_code, reason = "other devices take other parts")]
mod suite;

use lily_gpu::Device;
use lily_gpu::cuda::CudaDevice;
use lily_gpu::device::Memory;
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

/// All devices of a process share a context: memory that one of them leaves behind would be lost until the last is gone.
#[test]
fn a_device_that_is_dropped_gives_its_memory_back() {
    const BYTES: usize = 4 << 30;
    let Some(stays) = open() else { return };
    let before = stays.available();
    let mut goes = open().unwrap();
    goes.allocate("room", BYTES, Memory::Device).unwrap();
    assert!(stays.available() + BYTES / 2 < before);
    drop(goes);
    // Other tests may allocate at the same time, but not so much.
    assert!(stays.available() + BYTES / 2 > before);
}

#[test]
fn whole_models() {
    if open().is_some() {
        suite::everything(|| open().unwrap());
    }
}
