//! The suite on this Mac's GPU.

#![cfg(target_os = "macos")]

mod suite;

#[test]
fn whole_models() {
    for name in ["mini", "tiny"] {
        let mut model = suite::model(name);
        println!("{}", model.describe().description);
        suite::prefill(&mut model, name, 192, &[192, 64, 7]);
        suite::decode(&mut model, name, 64);
        suite::snapshot_and_restore(&mut model, name);
    }
}
