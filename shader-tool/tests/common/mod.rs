//! What the tests share: the sample kernels, buffers of numbers, and a small reproducible random generator.
#![allow(dead_code, reason = "each test binary uses its own part")]

use half::bf16;
use shader_tool::{Buffer, Library, Mode, Options, SourceFile};
use std::path::Path;

/// The sample kernels, and the tile vocabulary that ships.
pub fn sources() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = SourceFile::read_dir(&root.join("tests/kernels")).unwrap();
    let tile = std::fs::read_to_string(root.join("../kernels/include/tile.h")).unwrap();
    sources.push(SourceFile::new("include/tile.h", tile));
    sources
}

/// The sample kernels; panics with the one-line message where clang is missing.
pub fn library(mode: Mode) -> Library {
    Library::build(
        &sources(),
        Options {
            mode,
            ..Options::default()
        },
    )
    .unwrap()
}

/// One of the sample sources with `from`, which must occur once, replaced by `to`.
pub fn broken(file: &str, from: &str, to: &str, mode: Mode) -> Library {
    let mut sources = sources();
    let source = sources.iter_mut().find(|s| s.name == file).unwrap();
    assert_eq!(source.text.matches(from).count(), 1, "{from} in {file}");
    source.text = source.text.replace(from, to);
    Library::build(
        &sources,
        Options {
            mode,
            ..Options::default()
        },
    )
    .unwrap()
}

/// The line of the first occurrence of `text` in a sample source.
pub fn line_of(file: &str, text: &str) -> u32 {
    let sources = sources();
    let source = sources.iter().find(|s| s.name == file).unwrap();
    (1..)
        .zip(source.text.lines())
        .find(|(_, line)| line.contains(text))
        .unwrap()
        .0
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 ^ (self.0 >> 17) as u32 & 1
    }

    /// Uniform in -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() & 0xffff) as f32 / 32768.0 - 1.0
    }

    pub fn bf16s(&mut self, n: usize) -> Vec<bf16> {
        (0..n).map(|_| bf16::from_f32(self.float())).collect()
    }
}

pub fn of_bf16(values: &[bf16]) -> Buffer {
    Buffer::from_bytes(&values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>())
}

pub fn of_f32(values: &[f32]) -> Buffer {
    Buffer::from_bytes(&values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>())
}

pub fn of_u32(values: &[u32]) -> Buffer {
    Buffer::from_bytes(&values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>())
}

pub fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub fn to_f32(buffer: &Buffer) -> Vec<f32> {
    buffer
        .to_vec()
        .chunks_exact(4)
        .map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
        .collect()
}

pub fn to_u32(buffer: &Buffer) -> Vec<u32> {
    buffer
        .to_vec()
        .chunks_exact(4)
        .map(|b| u32::from_ne_bytes(b.try_into().unwrap()))
        .collect()
}

pub fn to_bf16(buffer: &Buffer) -> Vec<bf16> {
    buffer
        .to_vec()
        .chunks_exact(2)
        .map(|b| bf16::from_ne_bytes(b.try_into().unwrap()))
        .collect()
}
