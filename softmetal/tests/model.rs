//! The suite of `lily-gpu/tests/metal` over the software Metal: whole models through the real Metal host code.

#[path = "../../lily-gpu/tests/metal/suite.rs"]
#[allow(dead_code, reason = "other devices take other parts")]
mod suite;

use lily_gpu::emulator::{EmulatorDevice, EmulatorOptions};
use softmetal::{MachineSpec, SoftMetal};

/// A GPU that is fast enough for whole passes, so that each is one command buffer.
fn fast() -> MachineSpec {
    MachineSpec {
        seconds_per_dispatch: Some(1e-5),
        ..MachineSpec::m1()
    }
}

/// M1 to M4 multiply through `simdgroup_matrix`.
#[test]
fn prefill_through_simdgroup_matrix() {
    let mac = SoftMetal::install(MachineSpec::m4_max());
    suite::prefill(&mut suite::model("tiny"), "tiny", 64, &[64, 24]);
    mac.assert_clean();
}

/// M5 multiplies through tensor operations.
#[test]
fn prefill_through_tensor_operations() {
    let mac = SoftMetal::install(MachineSpec::m5_max());
    suite::prefill(&mut suite::model("tiny"), "tiny", 64, &[64]);
    mac.assert_clean();
}

/// Decode has no matrix tiles, so the emulator device runs the very same code: every logit must be the same.
#[test]
fn decode_is_what_the_emulator_device_computes() {
    let mac = SoftMetal::install(fast());
    for name in ["mini", "tiny"] {
        let on_metal = suite::decode(&mut suite::model(name), name, 12);
        let emulator = EmulatorDevice::new(EmulatorOptions::default()).unwrap();
        assert_eq!(
            on_metal,
            suite::decode(&mut suite::model_on(emulator, name), name, 12),
            "{name}"
        );
    }
    mac.assert_clean();
    let statistics = mac.statistics();
    assert!(
        statistics.dispatches > 0 && statistics.most_in_flight <= 2,
        "{statistics:?}"
    );
}

/// Every dispatch in a command buffer of its own, with the time that the GPU tells.
#[test]
fn a_profile_computes_the_same() {
    let mac = SoftMetal::install(fast());
    suite::profile(&mut suite::model("tiny"), "tiny");
    mac.assert_clean();
}

/// What the program does with whatever GPU the system has.
#[test]
fn the_system_gpu() {
    // SAFETY: all readers in this program go through the standard library, which guards the environment.
    unsafe { std::env::set_var("LILY_CACHE", std::env::temp_dir().join("lily-softmetal")) };
    let mac = SoftMetal::install(MachineSpec::m4_max());
    let error = lily_gpu::system::gpu(1 << 40, &mut |_, _| {}).err().unwrap();
    assert!(error.to_string().contains("1024.0 GiB are needed"), "{error}");
    let mut seen = Vec::new();
    let device = lily_gpu::system::gpu(1 << 20, &mut |done, all| seen.push((done, all)))
        .unwrap()
        .unwrap();
    assert!(device.describe().description.contains("Apple M4 Max"));
    assert!(
        seen.len() > 2 && seen.windows(2).all(|pair| pair[0].0 <= pair[1].0),
        "{seen:?}"
    );
    suite::few_tokens(&mut suite::model_on(device, "tiny"), "tiny");
    mac.assert_clean();
}

/// The trained model: quality on some rows of its goldens, and text as the CPU writes it.
#[test]
fn the_demo_model() {
    let mac = SoftMetal::install(MachineSpec::m5_max());
    suite::demo_quality(suite::open(), Some(64), 4);
    mac.assert_clean();
    let mac = SoftMetal::install(MachineSpec::m4_max());
    suite::greedy_text(suite::open(), 2, 24);
    mac.assert_clean();
}

#[test]
fn every_switch_off() {
    let mac = SoftMetal::install(MachineSpec::m4_max());
    suite::each_switch_off(suite::open, "tiny", 33, 2);
    mac.assert_clean();
}

#[test]
fn tokens_that_the_device_chooses() {
    let mac = SoftMetal::install(fast());
    suite::hand_off(&mut suite::model("mini"), "mini", 12);
    mac.assert_clean();
    assert!(mac.statistics().most_in_flight <= 2);
}

#[test]
fn snapshots() {
    let mac = SoftMetal::install(MachineSpec::m4_max());
    suite::snapshot_and_restore(&mut suite::model("mini"), "mini");
    mac.assert_clean();
}

/// Every access of every kernel and of the host is watched: no race, no missing barrier, nothing read too early.
#[test]
fn a_few_tokens_under_the_checker() {
    for spec in [MachineSpec::m4_max(), MachineSpec::m5_max()] {
        let mac = SoftMetal::install(spec.checked());
        suite::few_tokens(&mut suite::model("tiny"), "tiny");
        mac.assert_clean();
    }
}
