//! Each optimization turned off changes nothing beyond rounding.

use lily_gpu::emulator::{EmulatorDevice, EmulatorOptions};

use crate::suite;

#[test]
fn each_switch_off() {
    let device = || EmulatorDevice::new(EmulatorOptions::default()).unwrap();
    suite::each_switch_off(device, "tiny", 192, 12);
}
