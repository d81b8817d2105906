//! Every kernel, from the file that ships, against a plain reference written from the definition.
//!
//! Each test sweeps shapes with their edges in the plain emulator, then runs a small case under the checker, which must find nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod attention;
mod broken;
mod delta;
mod experts;
mod gemm;
mod gemv;
mod route;
mod rows;
mod sample;

use half::bf16;
use lily_gpu::device::{BufferId, Device, Memory, Slice};
use lily_gpu::emulator::{EmulatorDevice, EmulatorOptions, TileBackend};
use lily_gpu::params::StepState;
use lily_gpu::pass::{Dispatch, Pass};
use lily_gpu::policy::Family;
use lily_gpu::weights::{Form, GpuMatrix, describe_encoding, form};
use lily_model::{Bytes, Encoding, FloatType, Matrix};

/// 4-bit and 8-bit as published.
pub const Q4: Encoding = Encoding::Affine {
    bits: 4,
    group_size: 64,
    scale_type: FloatType::Bf16,
};
pub const Q8: Encoding = Encoding::Affine {
    bits: 8,
    group_size: 64,
    scale_type: FloatType::Bf16,
};

/// Every other encoding that a checkpoint may hold.
pub const OTHERS: [Encoding; 10] = [
    Encoding::Affine {
        bits: 2,
        group_size: 64,
        scale_type: FloatType::Bf16,
    },
    Encoding::Affine {
        bits: 3,
        group_size: 64,
        scale_type: FloatType::Bf16,
    },
    Encoding::Affine {
        bits: 4,
        group_size: 32,
        scale_type: FloatType::F16,
    },
    Encoding::Affine {
        bits: 5,
        group_size: 128,
        scale_type: FloatType::F32,
    },
    Encoding::Affine {
        bits: 6,
        group_size: 32,
        scale_type: FloatType::Bf16,
    },
    Encoding::Mxfp4,
    Encoding::Nvfp4 { global_scale: 0.5 },
    Encoding::Mxfp8,
    Encoding::Float(FloatType::F16),
    Encoding::Float(FloatType::F32),
];

/// A small generator of numbers for tests.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn word(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// In `[-1, 1)`.
    pub fn unit(&mut self) -> f32 {
        self.word() as f32 / 2_147_483_648.0 - 1.0
    }

    pub fn vec(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * scale).collect()
    }

    /// Numbers that bfloat holds exactly.
    pub fn bf16s(&mut self, len: usize, scale: f32) -> Vec<f32> {
        self.vec(len, scale).into_iter().map(round).collect()
    }
}

pub fn round(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// Binds up to four matrices that share a dispatch, as every kernel with segments takes them.
pub fn read_segments(dispatch: Dispatch, matrices: &[GpuMatrix]) -> Dispatch {
    (0..4).fold(dispatch, |dispatch, segment| match matrices.get(segment) {
        Some(m) => dispatch.read(m.codes).read(m.scales).read(m.biases),
        None => dispatch.unused().unused().unused(),
    })
}

/// Random weights `[count, rows, cols]`; elements are of the size of `1 / sqrt(cols)`.
pub fn matrix(count: usize, rows: usize, cols: usize, encoding: Encoding, seed: u64) -> Matrix {
    let mut random = Random::new(seed);
    let elements = count * rows * cols;
    let size = 1.0 / (cols as f32).sqrt();
    let put = |values: Vec<f32>, float: FloatType| -> Vec<u8> {
        match float {
            FloatType::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
            FloatType::F16 => values
                .iter()
                .flat_map(|&v| half::f16::from_f32(v).to_le_bytes())
                .collect(),
            FloatType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    };
    let (codes, scales, biases) = match encoding {
        Encoding::Float(float) => (put(random.vec(elements, size), float), vec![], vec![]),
        _ => {
            let mut codes: Vec<u8> = (0..elements * encoding.bits() / 8)
                .map(|_| random.word() as u8)
                .collect();
            if encoding == Encoding::Mxfp8 {
                // no NaN codes
                codes.iter_mut().for_each(|code| *code &= 0xbf);
            }
            let groups = elements / encoding.group_size().unwrap_or(1);
            match encoding {
                Encoding::Affine { bits, scale_type, .. } => {
                    let steps = ((1 << bits) - 1) as f32;
                    let scales: Vec<f32> = (0..groups).map(|_| random.unit() * 2.0 * size / steps).collect();
                    let biases = scales
                        .iter()
                        .map(|s| -s * steps / 2.0 + random.unit() * size * 0.1)
                        .collect();
                    (codes, put(scales, scale_type), put(biases, scale_type))
                }
                Encoding::Nvfp4 { .. } => (
                    codes,
                    (0..groups).map(|_| 0x10 + (random.word() % 16) as u8).collect(),
                    vec![],
                ),
                _ => (
                    codes,
                    (0..groups).map(|_| 119 + (random.word() % 6) as u8).collect(),
                    vec![],
                ),
            }
        }
    };
    Matrix {
        name: "test".into(),
        count,
        rows,
        cols,
        encoding,
        codes: Bytes::from(codes),
        scales: Bytes::from(scales),
        biases: Bytes::from(biases),
    }
}

/// Row `row` of matrix `index` in full precision.
pub fn row(matrix: &Matrix, index: usize, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; matrix.cols];
    matrix.dequantize_row(index, row, &mut out);
    out
}

pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * weight / rms(x)`
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f64) -> Vec<f64> {
    let mean = dot(x, x) / x.len() as f64;
    x.iter()
        .zip(weight)
        .map(|(&x, &w)| f64::from(x) * f64::from(w) / (mean + eps).sqrt())
        .collect()
}

/// A device and what a test does with it.
pub struct Gpu {
    pub device: EmulatorDevice,
    checked: bool,
}

impl Gpu {
    pub fn new(checked: bool) -> Gpu {
        Gpu::with(EmulatorOptions {
            checked,
            ..EmulatorOptions::default()
        })
    }

    /// With the threadgroup memory of an H200.
    pub fn h200(checked: bool) -> Gpu {
        Gpu::with(EmulatorOptions {
            checked,
            family: Family::H200,
            ..EmulatorOptions::default()
        })
    }

    /// With another implementation of the tile vocabulary.
    pub fn tiles(tiles: TileBackend) -> Gpu {
        Gpu::with(EmulatorOptions {
            tiles,
            ..EmulatorOptions::default()
        })
    }

    fn with(options: EmulatorOptions) -> Gpu {
        Gpu {
            device: EmulatorDevice::new(options).unwrap(),
            checked: options.checked,
        }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> Slice {
        let buffer = self.device.allocate("test", bytes.len(), Memory::Device).unwrap();
        let slice = Slice {
            buffer,
            offset: 0,
            len: bytes.len(),
        };
        self.device.write(slice, bytes).unwrap();
        slice
    }

    pub fn f32(&mut self, values: &[f32]) -> Slice {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn bf16(&mut self, values: &[f32]) -> Slice {
        self.bytes(
            &values
                .iter()
                .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
                .collect::<Vec<_>>(),
        )
    }

    pub fn u32(&mut self, values: &[u32]) -> Slice {
        self.bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Memory in which every number is NaN, so that what was not written shows.
    pub fn scratch(&mut self, bytes: usize) -> Slice {
        let buffer: BufferId = self.device.allocate("scratch", bytes, Memory::Device).unwrap();
        self.device.fill(buffer, 0xff).unwrap();
        Slice {
            buffer,
            offset: 0,
            len: bytes,
        }
    }

    pub fn step(&mut self, position: usize) -> Slice {
        self.u32(&[7, position as u32, 0, 0])
    }

    pub fn matrix(&mut self, matrix: &Matrix) -> GpuMatrix {
        let codes = self.bytes(&matrix.codes);
        let mut other = |bytes: &[u8]| if bytes.is_empty() { codes } else { self.bytes(bytes) };
        let (scales, biases) = (other(&matrix.scales), other(&matrix.biases));
        GpuMatrix {
            count: matrix.count,
            rows: matrix.rows,
            cols: matrix.cols,
            form: form(matrix.encoding),
            encoding: describe_encoding(matrix.encoding),
            codes,
            scales,
            biases,
        }
    }

    /// Runs one dispatch; under the checker nothing may be found.
    pub fn run(&mut self, dispatch: Dispatch) {
        let mut pass = Pass::new(false);
        pass.push(dispatch);
        let recording = self.device.record(&pass).unwrap();
        self.device.submit(recording).unwrap();
        if self.checked {
            assert!(self.device.findings().is_empty(), "{:#?}", self.device.findings());
            assert!(self.device.undeclared().is_empty(), "{:?}", self.device.undeclared());
        }
    }

    pub fn read(&mut self, slice: Slice) -> Vec<u8> {
        let mut bytes = vec![0; slice.len];
        self.device.read(slice, &mut bytes).unwrap();
        bytes
    }

    pub fn read_f32(&mut self, slice: Slice) -> Vec<f32> {
        self.read(slice)
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    pub fn read_u32(&mut self, slice: Slice) -> Vec<u32> {
        self.read(slice)
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    pub fn read_bf16(&mut self, slice: Slice) -> Vec<f32> {
        self.read(slice)
            .chunks_exact(2)
            .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect()
    }
}

/// Relative error allowed for a result that was rounded once to bfloat, and for sums in f32.
pub const BF16: f64 = 4.5e-3;
pub const F32: f64 = 2e-5;

/// Every number of `found` lies within `tolerance` of `expected`, relative to it and to `scale`.
#[track_caller]
pub fn close(what: &str, found: &[f32], expected: &[f64], tolerance: f64, scale: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (index, (&f, &e)) in found.iter().zip(expected).enumerate() {
        let allowed = tolerance * e.abs().max(scale);
        let difference = (f64::from(f) - e).abs();
        assert!(
            difference <= allowed,
            "{what}: [{index}] is {f}, expected {e} within {allowed:.2e}"
        );
    }
}

/// The form whose GEMV kernels read a matrix.
pub fn gemv_form(matrix: &GpuMatrix) -> &'static str {
    match matrix.form {
        Form::Q4 => "q4",
        Form::Q8 => "q8",
        _ => "any",
    }
}

#[test]
fn a_step_state_is_what_the_kernels_read() {
    let state = StepState {
        token: 1,
        position: 2,
        sampled: 3,
        failed: 4,
    };
    let bytes = lily_gpu::params::Params::bytes(&state);
    assert_eq!(
        bytes,
        [1u32, 2, 3, 4].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()
    );
}
