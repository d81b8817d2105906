//! Whole models through the emulator against float64 logits.

mod common;

use common::{Golden, assert_close, decoded, model, prefilled};
use lily_gpu::Switches;
use lily_gpu::emulator::EmulatorOptions;

fn golden(name: &str) -> Golden {
    Golden::read(&format!("{name}/golden.safetensors"), "token_ids", "logits.numpy_f64")
}

#[test]
fn prefill_for_every_split_of_the_prompt() {
    for name in ["mini", "tiny"] {
        let golden = golden(name);
        let mut model = model(&format!("{name}/mlx-4bit"), Switches::default(), EmulatorOptions::default());
        let whole = prefilled(&mut model, &golden.inputs, 192);
        assert_close(name, &whole, &golden);
        for chunk in [7, 64] {
            assert_eq!(prefilled(&mut model, &golden.inputs, chunk), whole, "{name} in chunks of {chunk}");
        }
    }
}

#[test]
fn decode() {
    for name in ["mini", "tiny"] {
        let golden = golden(name).first(64);
        let mut model = model(&format!("{name}/mlx-4bit"), Switches::default(), EmulatorOptions::default());
        let rows = decoded(&mut model, &golden.inputs);
        assert_close(name, &rows, &golden);
    }
}
