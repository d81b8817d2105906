//! Each optimization turned off changes nothing beyond rounding.

use lily_gpu::Switches;
use lily_gpu::emulator::EmulatorOptions;

use crate::common::{Difference, Golden, decoded, model, prefilled};
use crate::golden;

/// Switches that change prefill.
const PREFILL: [&str; 7] = [
    "fused-dequant",
    "gpu-routing",
    "wide-tiles",
    "register-scan",
    "merged-projections",
    "fused-swiglu",
    "sparse-barriers",
];

fn assert_same(what: &str, found: &[Vec<f32>], all_on: &[Vec<f32>], golden: &Golden) {
    let golden = golden.first(found.len());
    let against_all_on = Difference::of(
        found,
        &Golden {
            logits: all_on.to_vec(),
            ..golden.first(found.len())
        },
    );
    let against_golden = Difference::of(found, &golden);
    println!("{what}: to golden {against_golden:?}, to all on {against_all_on:?}");
    assert!(
        against_golden.mean_kl <= 5e-3 && against_golden.top1_agreement >= 0.96,
        "{what}: {against_golden:?}"
    );
    assert!(against_all_on.mean_kl <= 2e-3, "{what}: {against_all_on:?}");
}

#[test]
fn each_switch_off_in_prefill() {
    let golden = golden("tiny");
    let with = |switches| {
        let mut model = model("tiny/mlx-4bit", switches, EmulatorOptions::default());
        prefilled(&mut model, &golden.inputs, 192)
    };
    let all_on = with(Switches::default());
    for name in PREFILL {
        let found = with(Switches::default().without(name).unwrap());
        assert_same(&format!("prefill without {name}"), &found, &all_on, &golden);
    }
}

#[test]
fn each_switch_off_in_decode() {
    let golden = golden("tiny");
    let with = |switches| {
        let mut model = model("tiny/mlx-4bit", switches, EmulatorOptions::default());
        decoded(&mut model, &golden.inputs[..12])
    };
    let all_on = with(Switches::default());
    for (name, _) in Switches::ALL {
        let found = with(Switches::default().without(name).unwrap());
        assert_same(&format!("decode without {name}"), &found, &all_on, &golden);
    }
}
