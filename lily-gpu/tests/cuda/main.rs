//! Whole models on this machine's NVIDIA GPU, where there is one.

#![cfg(not(target_os = "macos"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "../goldens/suite.rs"]
#[allow(dead_code)]
mod suite;

use lily_gpu::cuda::CudaDevice;

#[test]
fn whole_models() {
    for name in ["mini", "tiny"] {
        let Some(device) = CudaDevice::find().unwrap() else {
            eprintln!("no NVIDIA GPU here: nothing was run");
            return;
        };
        let mut model = suite::model_on(device, name);
        println!("{}", model.describe().description);
        suite::prefill(&mut model, name, 192, &[192, 64, 7]);
        suite::decode(&mut model, name, 64);
        suite::snapshot_and_restore(&mut model, name);
    }
}
