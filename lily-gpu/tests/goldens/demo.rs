//! The trained demo model: quality, and text.

use lily_gpu::emulator::{EmulatorDevice, EmulatorOptions};

use crate::suite;

fn device() -> EmulatorDevice {
    EmulatorDevice::new(EmulatorOptions::default()).unwrap()
}

#[test]
fn quality() {
    suite::demo_quality(device(), None, 24);
}

#[test]
fn greedy_text_is_that_of_the_cpu() {
    suite::greedy_text(device(), 5, 64);
}
