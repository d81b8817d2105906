//! How a GPU spreads a tile over a simdgroup, tried before a kernel family is trusted.

use half::bf16;
use objc2::rc::autoreleasepool;
use shader_tool::SourceFile;

use super::buffer::Buffer;
use super::commands::Queue;
use super::pipeline::Kernels;
use super::system::{KernelFamily, System};
use crate::error::GpuError;

const SOURCE: &str = include_str!("layout_test.metal");
/// Floats that the kernel writes.
const OUTPUTS: usize = 2 * 16 * 32 + 16;

/// Multiplies matrices of small integers, so that every correct result is exact.
///
/// # Errors
/// The family's kernels do not compile here, or give another result.
pub fn run(system: &System, queue: &Queue, headers: &[SourceFile], family: KernelFamily) -> Result<(), GpuError> {
    let mut sources: Vec<SourceFile> = headers.iter().filter(|source| !source.is_unit()).cloned().collect();
    sources.push(SourceFile::new("layout_test.metal", SOURCE));
    let mut kernels = Kernels::compile(system, &sources, family, None, &mut |_, _| {})?;
    let pipeline = kernels.pipeline(system, "tile_layout_test", &[])?;

    let (a, b, c) = (integers(16 * 16, 5), integers(32 * 16, 7), integers(16 * 32, 11));
    let mut inputs = Vec::new();
    for values in [&a, &b, &c] {
        let bytes: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        let mut buffer = Buffer::new(system, "layout test", bytes.len())?;
        buffer.write(0, &bytes);
        inputs.push(buffer);
    }
    let out = Buffer::new(system, "layout test", OUTPUTS * 4)?;
    autoreleasepool(|_| {
        let command_buffer = queue.command_buffer()?;
        let encoder = command_buffer.compute()?;
        encoder.set_pipeline(&pipeline);
        for (slot, buffer) in inputs.iter().chain([&out]).enumerate() {
            encoder.set_buffer(slot, buffer, 0);
        }
        encoder.dispatch([1; 3], [32, 1, 1]);
        encoder.end();
        command_buffer.commit();
        command_buffer.wait().map(|_| ())
    })?;

    let mut bytes = [0; OUTPUTS * 4];
    out.read(0, &mut bytes);
    let found: Vec<f32> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&word| f32::from_le_bytes(word))
        .collect();
    let expected = expected(&a, &b, &c);
    let wrong = found
        .iter()
        .zip(&expected)
        .filter(|(found, expected)| found != expected)
        .count();
    if wrong == 0 {
        return Ok(());
    }
    Err(GpuError::Device(format!(
        "{wrong} of {OUTPUTS} products of the layout test are wrong"
    )))
}

/// Integers from -2 to 2 in a fixed, irregular order.
fn integers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as i32 % 5 - 2
    };
    (0..count).map(|_| next() as f32).collect()
}

/// What the kernel must write, from its definition.
fn expected(a: &[f32], b: &[f32], c: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; OUTPUTS];
    for row in 0..16 {
        for column in 0..32 {
            out[row * 32 + column] = 1.0 + (0..16).map(|k| a[row * 16 + k] * b[column * 16 + k]).sum::<f32>();
        }
        for column in 0..32 {
            out[512 + row * 32 + column] = (0..16).map(|k| out[row * 32 + k] * c[k * 32 + column]).sum();
        }
        out[1024 + row] = out[row * 32..row * 32 + 16].iter().sum();
    }
    out
}
