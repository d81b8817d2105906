//! Each optimization turned off changes nothing beyond rounding.

use lily_gpu::Switches;
use lily_gpu::emulator::EmulatorOptions;

use crate::common::{Difference, Golden, decoded, model, prefilled};
use crate::golden;

#[test]
fn each_switch_off() {
    let golden = golden("tiny").first(48);
    let with = |switches| {
        let mut model = model("tiny/mlx-4bit", switches, EmulatorOptions::default());
        (prefilled(&mut model, &golden.inputs, 40), decoded(&mut model, &golden.inputs[..12]))
    };
    let (prefill, decode) = with(Switches::default());
    let as_golden = |rows: &[Vec<f32>]| Golden {
        inputs: golden.inputs[..rows.len()].to_vec(),
        targets: golden.targets[..rows.len()].to_vec(),
        logits: rows.to_vec(),
    };
    for (name, _) in Switches::ALL {
        let (without_prefill, without_decode) = with(Switches::default().without(name).unwrap());
        for (what, found, all_on) in [("prefill", without_prefill, &prefill), ("decode", without_decode, &decode)] {
            let against_golden = Difference::of(&found, &golden.first(found.len()));
            let against_all_on = Difference::of(&found, &as_golden(all_on));
            println!("without {name}: {what} {against_golden:?}, to all on {against_all_on:?}");
            assert!(against_golden.mean_kl <= 5e-3 && against_golden.top1_agreement >= 0.96, "without {name}: {what}");
            assert!(against_all_on.mean_kl <= 2e-3, "without {name}: {what} {against_all_on:?}");
        }
    }
}
