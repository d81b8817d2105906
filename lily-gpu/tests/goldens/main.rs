//! Whole models through the emulator against float64 logits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod checker;
mod demo;
mod hand_off;
mod state;
#[allow(dead_code, reason = "other devices take other parts")]
mod suite;
mod switches;

use lily_gpu::Switches;
use lily_gpu::emulator::EmulatorOptions;
use lily_gpu::policy::Family;
use suite::common;
use suite::common::{Difference, Golden, assert_close, decoded, model, prefilled};

fn golden(name: &str) -> Golden {
    Golden::read(&format!("{name}/golden.safetensors"), "token_ids", "logits.numpy_f64")
}

#[test]
fn prefill_for_every_split_of_the_prompt() {
    for name in ["mini", "tiny"] {
        let golden = golden(name);
        let mut model = model(
            &format!("{name}/mlx-4bit"),
            Switches::default(),
            EmulatorOptions::default(),
        );
        let whole = prefilled(&mut model, &golden.inputs, 192);
        assert_close(name, &whole, &golden);
        for chunk in [7, 64] {
            assert_eq!(
                prefilled(&mut model, &golden.inputs, chunk),
                whole,
                "{name} in chunks of {chunk}"
            );
        }
    }
    let golden = golden("mini").first(24);
    let mut model = model("mini/mlx-4bit", Switches::default(), EmulatorOptions::default());
    let whole = prefilled(&mut model, &golden.inputs, 24);
    assert_eq!(prefilled(&mut model, &golden.inputs, 1), whole, "token by token");
}

/// The kernels and tiles of the other family of GPUs, in prefill and decode.
#[test]
fn the_choices_for_nvidia() {
    let options = EmulatorOptions {
        family: Family::H200,
        ..EmulatorOptions::default()
    };
    for (name, rows) in [("mini", 192), ("tiny", 80)] {
        let golden = golden(name).first(rows);
        let mut model = model(&format!("{name}/mlx-4bit"), Switches::default(), options);
        let whole = prefilled(&mut model, &golden.inputs, 192);
        assert_close(name, &whole, &golden);
        assert_eq!(
            prefilled(&mut model, &golden.inputs, 33),
            whole,
            "{name} in chunks of 33"
        );
    }
}

#[test]
fn decode() {
    // mini has one routing decision at a near tie among its first 64 tokens, which all rows dilute
    for (name, rows) in [("mini", 192), ("tiny", 64)] {
        let golden = golden(name).first(rows);
        let mut model = model(
            &format!("{name}/mlx-4bit"),
            Switches::default(),
            EmulatorOptions::default(),
        );
        let rows = decoded(&mut model, &golden.inputs);
        assert_close(name, &rows, &golden);
    }
}

#[test]
fn every_encoding_of_a_checkpoint() {
    let names = [
        "affine-3-g64",
        "affine-4-g32",
        "affine-6-g64",
        "mixed_4_6",
        "mxfp4",
        "mxfp8",
        "nvfp4",
    ];
    for name in names {
        let golden = Golden::read("mini/variants/golden_logits.safetensors", "token_ids", name);
        let mut model = model(
            &format!("mini/variants/{name}"),
            Switches::default(),
            EmulatorOptions::default(),
        );
        let prefill = Difference::of(&prefilled(&mut model, &golden.inputs, 192), &golden);
        let first = golden.first(24);
        let decode = Difference::of(&decoded(&mut model, &first.inputs), &first);
        println!("{name}: prefill {prefill:?}, decode {decode:?}");
        // Coarse random weights make near ties in the routing; a wrongly read code gives a divergence of 1 and more.
        for difference in [prefill, decode] {
            assert!(
                difference.mean_kl <= 2.5e-2 && difference.top1_agreement >= 0.94,
                "{name}: {difference:?}"
            );
        }
    }
}
