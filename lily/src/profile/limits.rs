//! The limits that operations are compared with.

use std::time::Instant;

use lily_cpu::Limits as CpuLimits;
use lily_gpu::device::{Memory, Slice};
use lily_gpu::{Device as _, GpuError};
use serde::Serialize;

use crate::backend::AnyBackend;
use crate::error::CliError;

/// Rounds of a copy, of which the fastest counts.
const ROUNDS: usize = 5;
/// Bytes of a copy on a GPU, and in the emulator.
const GPU_BYTES: usize = 512 << 20;
const EMULATOR_BYTES: usize = 32 << 20;

/// Limits of a device.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Bytes that can be read in a second.
    pub bytes_per_second: f64,
    /// Floating-point operations in a second; `None` where nobody knows.
    pub flops_per_second: Option<f64>,
    /// How they are known.
    pub source: &'static str,
}

impl Limits {
    /// Measures what can be measured: on the CPU the memory's bandwidth and multiply-adds in f32, on a GPU a copy.
    pub fn measure(backend: &mut AnyBackend, threads: Option<usize>) -> Result<Limits, CliError> {
        match backend {
            AnyBackend::Cpu(_) => {
                let limits = CpuLimits::measure(threads)?;
                Ok(Limits {
                    bytes_per_second: limits.bytes_per_second,
                    flops_per_second: Some(limits.flops_per_second),
                    source: "measured: reading memory, multiply-adds in f32",
                })
            }
            AnyBackend::Gpu(model) => {
                let bytes = match model.describe().kind {
                    "emulator" => EMULATOR_BYTES,
                    _ => GPU_BYTES,
                };
                Ok(Limits {
                    bytes_per_second: copy_rate(model.device(), bytes)?,
                    flops_per_second: None,
                    source: "measured: a copy on the device",
                })
            }
        }
    }

    /// The least seconds that some work takes; `None` for work of nothing.
    pub fn least_seconds(&self, bytes: f64, flops: f64) -> Option<f64> {
        let multiplying = self.flops_per_second.map_or(0.0, |limit| flops / limit);
        Some((bytes / self.bytes_per_second).max(multiplying)).filter(|&seconds| seconds > 0.0)
    }
}

/// Bytes read and written in a second by a copy of `bytes` bytes.
fn copy_rate(device: &mut Box<dyn lily_gpu::Device>, bytes: usize) -> Result<f64, GpuError> {
    let mut slice = || {
        let buffer = device.allocate("bandwidth", bytes, Memory::Device)?;
        Ok::<_, GpuError>(Slice {
            buffer,
            offset: 0,
            len: bytes,
        })
    };
    let (from, to) = (slice()?, slice()?);
    let mut fastest = f64::INFINITY;
    let mut result = Ok(());
    for _ in 0..ROUNDS {
        let started = Instant::now();
        // Reading waits for the copy.
        result = device
            .copy(from, to)
            .and_then(|()| device.read(to.part(bytes - 4, 4), &mut [0; 4]));
        if result.is_err() {
            break;
        }
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    device.release(from.buffer);
    device.release(to.buffer);
    result?;
    Ok(2.0 * bytes as f64 / fastest)
}
