//! Products against plain sums over dequantized rows.

use half::{bf16, f16};
use lily_model::{Encoding, FloatType, Matrix};

use super::*;
use crate::pool::Pool;
use crate::quantize::padded_cols;
use crate::simd::tests::sets;

/// Numbers in [-1, 1) and bytes, the same in every run.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn number(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 30) as f32 - 1.0
    }

    fn floats(&mut self, float: FloatType, count: usize, scale: f32) -> Vec<u8> {
        (0..count)
            .flat_map(|_| {
                let value = self.number() * scale;
                match float {
                    FloatType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
                    FloatType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
                    FloatType::F32 => value.to_le_bytes().to_vec(),
                }
            })
            .collect()
    }

    fn matrix(&mut self, encoding: Encoding, count: usize, rows: usize, cols: usize) -> Matrix {
        let elements = count * rows * cols;
        let groups = encoding.group_size().map_or(0, |size| elements / size);
        let (codes, scales, biases) = match encoding {
            Encoding::Float(float) => (self.floats(float, elements, 1.0), Vec::new(), Vec::new()),
            Encoding::Affine { bits, scale_type, .. } => (
                (0..elements * bits as usize / 8).map(|_| self.bits() as u8).collect(),
                self.floats(scale_type, groups, 0.1),
                self.floats(scale_type, groups, 1.0),
            ),
            // Scales near 1, and no E4M3 NaN among the elements.
            Encoding::Mxfp4 => (
                self.bytes(elements / 2),
                (0..groups).map(|_| 120 + self.bits() as u8 % 10).collect(),
                Vec::new(),
            ),
            Encoding::Nvfp4 { .. } => (
                self.bytes(elements / 2),
                (0..groups).map(|_| self.bits() as u8 % 0x60).collect(),
                Vec::new(),
            ),
            Encoding::Mxfp8 => (
                (0..elements).map(|_| self.bits() as u8 & 0xbf).collect(),
                (0..groups).map(|_| 120 + self.bits() as u8 % 10).collect(),
                Vec::new(),
            ),
        };
        Matrix {
            name: format!("{encoding:?}"),
            count,
            rows,
            cols,
            encoding,
            codes: codes.into(),
            scales: scales.into(),
            biases: biases.into(),
        }
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }
}

/// The definition: each output in f64, and the sum of the magnitudes of its terms.
fn reference(matrix: &Matrix, index: usize, row: usize, x: &[f32]) -> (f64, f64) {
    let mut weights = vec![0.0; matrix.cols];
    matrix.dequantize_row(index, row, &mut weights);
    let terms = weights.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
    (terms.clone().sum(), terms.map(f64::abs).sum())
}

/// All outputs, `[inputs.rows(), matrix.rows]`.
fn product(set: KernelSet, matrix: &Matrix, index: usize, inputs: &Inputs<'_>) -> Vec<f32> {
    let mut panel = Panel::new(
        matrix.cols,
        padded_cols(matrix.cols, 64).max(padded_cols(matrix.cols, 128)),
    );
    let mut tile: Tile = [f32::NAN; TILE_TOKENS * PANEL_ROWS];
    let mut out = vec![f32::NAN; inputs.rows() * matrix.rows];
    for rows in PanelRows::cover(set, matrix, index, 0, matrix.rows) {
        panel.load(set, rows, inputs);
        for first in (0..inputs.rows()).step_by(TILE_TOKENS) {
            let tokens = panel.multiply(set, rows, inputs, first, &mut tile);
            for token in 0..tokens {
                for row in 0..rows.rows {
                    out[(first + token) * matrix.rows + rows.first_row + row] = tile[token * PANEL_ROWS + row];
                }
            }
        }
    }
    out
}

/// Largest error relative to the sum of the magnitudes.
fn error(matrix: &Matrix, index: usize, inputs: &Inputs<'_>, out: &[f32]) -> f64 {
    let mut largest = 0f64;
    for token in 0..inputs.rows() {
        for row in 0..matrix.rows {
            let (expected, magnitude) = reference(matrix, index, row, inputs.row(token));
            let difference = (f64::from(out[token * matrix.rows + row]) - expected).abs();
            assert!(difference.is_finite());
            largest = largest.max(difference / magnitude.max(1e-30));
        }
    }
    largest
}

fn encodings() -> Vec<Encoding> {
    let mut encodings: Vec<Encoding> = [FloatType::Bf16, FloatType::F16, FloatType::F32]
        .map(Encoding::Float)
        .to_vec();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            for scale_type in [FloatType::Bf16, FloatType::F16, FloatType::F32] {
                encodings.push(Encoding::Affine {
                    bits,
                    group_size,
                    scale_type,
                });
            }
        }
    }
    encodings.extend([Encoding::Mxfp4, Encoding::Nvfp4 { global_scale: 0.5 }, Encoding::Mxfp8]);
    encodings
}

#[test]
fn f32_products_of_every_encoding() {
    let mut random = Random(1);
    for encoding in encodings() {
        let matrix = random.matrix(encoding, 2, 21, 256);
        let x: Vec<f32> = (0..7 * 256).map(|_| random.number()).collect();
        let inputs = Inputs::first(7, &x, 256, None);
        for set in sets() {
            let out = product(set, &matrix, 1, &inputs);
            let error = error(&matrix, 1, &inputs, &out);
            assert!(error < 1e-6, "{} {encoding:?}: {error}", set.name());
            // Few rows are multiplied straight from the bytes, in the same order.
            for count in [1, 3] {
                let few = product(set, &matrix, 1, &Inputs::first(count, &x, 256, None));
                assert!(
                    few == out[..count * matrix.rows],
                    "{} {encoding:?}: {count} rows",
                    set.name()
                );
            }
        }
    }
}

#[test]
fn integer_products_at_every_edge() {
    let mut random = Random(2);
    for group_size in [64, 128] {
        // One group, less than a block of groups, a block, a block and a part.
        for cols in [1, 3, 8, 11].map(|groups| groups * group_size) {
            for rows in [1, 3, 4, 23, 24, 25, PANEL_ROWS - 1, PANEL_ROWS, PANEL_ROWS + 1] {
                let scale_type = [FloatType::Bf16, FloatType::F16, FloatType::F32][rows % 3];
                let encoding = Encoding::Affine {
                    bits: 4,
                    group_size,
                    scale_type,
                };
                let matrix = random.matrix(encoding, 1, rows, cols);
                let tokens = TILE_TOKENS + 2;
                let x: Vec<f32> = (0..tokens * cols).map(|_| random.number()).collect();
                for set in sets() {
                    check_integer_products(set, &matrix, &x, tokens, group_size);
                }
            }
        }
    }
}

fn check_integer_products(set: KernelSet, matrix: &Matrix, x: &[f32], tokens: usize, group_size: usize) {
    let mut pool = Pool::new(1).unwrap();
    let cols = matrix.cols;
    let mut quantized = QuantizedRows::new(tokens, cols, group_size);
    quantized.fill(&mut pool, set, Layout::Interleaved, x, cols);
    let inputs = Inputs::first(tokens, x, cols, Some(&quantized));
    let all = product(set, matrix, 0, &inputs);
    let mut tiled = QuantizedRows::new(tokens, cols, group_size);
    tiled.fill(&mut pool, set, Layout::Tiled, x, cols);
    let inputs_tiled = Inputs::first(tokens, x, cols, Some(&tiled));
    assert!(product(set, matrix, 0, &inputs_tiled) == all, "{}, tiled", set.name());
    let error = error(matrix, 0, &inputs, &all);
    assert!(error < 2e-5, "{} {}x{cols}: {error}", set.name(), matrix.rows);
    // Any selection of rows, and the direct layout, give the same bits.
    for count in [1, 2, 3, TILE_TOKENS - 1, TILE_TOKENS, TILE_TOKENS + 1] {
        let rows: Vec<u32> = (0..count as u32).map(|row| (row * 7 + 3) % tokens as u32).collect();
        let expected: Vec<f32> = rows
            .iter()
            .flat_map(|&row| all[row as usize * matrix.rows..][..matrix.rows].to_vec())
            .collect();
        let some = |quantized| Inputs {
            select: Select::Rows(&rows),
            ..Inputs::first(tokens, x, cols, Some(quantized))
        };
        assert!(product(set, matrix, 0, &some(&quantized)) == expected, "{count} rows");
        let mut gathered = QuantizedRows::new(count, cols, group_size);
        gathered.gather(&mut pool, &tiled, &rows);
        let some_tiled = Inputs {
            gathered: Some((&gathered, 0)),
            ..some(&tiled)
        };
        assert!(product(set, matrix, 0, &some_tiled) == expected, "{count} rows, tiled");
        let mut direct = QuantizedRows::new(tokens, cols, group_size);
        direct.fill(&mut pool, set, Layout::Direct, x, cols);
        assert!(
            product(set, matrix, 0, &some(&direct)) == expected,
            "{count} rows, direct"
        );
    }
}

/// More rows than sixteen bits can tell apart, as lm_head has.
#[test]
fn rows_beyond_sixteen_bits() {
    let mut random = Random(5);
    let encoding = Encoding::Affine {
        bits: 4,
        group_size: 64,
        scale_type: FloatType::Bf16,
    };
    let matrix = random.matrix(encoding, 1, 66_001, 64);
    let x: Vec<f32> = (0..64).map(|_| random.number()).collect();
    for set in sets() {
        let mut quantized = QuantizedRows::new(1, 64, 64);
        quantized.fill(&mut Pool::new(1).unwrap(), set, Layout::Direct, &x, 64);
        for (quantized, most) in [(None, 1e-6), (Some(&quantized), 2e-5)] {
            let inputs = Inputs::first(1, &x, 64, quantized);
            let error = error(&matrix, 0, &inputs, &product(set, &matrix, 0, &inputs));
            assert!(error < most, "{}: {error}", set.name());
        }
    }
}

#[test]
fn integers_hold_the_largest_codes_and_activations() {
    // Codes 15 everywhere and activations of one magnitude: the sums of a group of 128 are as large as they get.
    for set in sets() {
        let cols = 1024;
        let matrix = Matrix {
            codes: vec![0xff; cols / 2].into(),
            scales: 1f32.to_le_bytes().repeat(cols / 128).into(),
            biases: 0f32.to_le_bytes().repeat(cols / 128).into(),
            ..Random(3).matrix(
                Encoding::Affine {
                    bits: 4,
                    group_size: 128,
                    scale_type: FloatType::F32,
                },
                1,
                1,
                cols,
            )
        };
        for value in [3.0f32, -3.0] {
            let x = vec![value; cols];
            let mut quantized = QuantizedRows::new(1, cols, 128);
            for layout in [Layout::Direct, Layout::Interleaved, Layout::Tiled] {
                quantized.fill(&mut Pool::new(1).unwrap(), set, layout, &x, cols);
                let out = product(set, &matrix, 0, &Inputs::first(1, &x, cols, Some(&quantized)));
                let expected = 15.0 * value * cols as f32;
                assert!(
                    (out[0] - expected).abs() < 1e-6 * expected.abs(),
                    "{} {expected}",
                    out[0]
                );
            }
        }
    }
}

#[test]
fn zero_and_huge_activations_are_quantized_without_harm() {
    for set in sets() {
        let matrix = Random(4).matrix(
            Encoding::Affine {
                bits: 4,
                group_size: 64,
                scale_type: FloatType::Bf16,
            },
            1,
            5,
            512,
        );
        for value in [0.0, 1e-30, 1e30] {
            let x = vec![value; 512];
            let mut quantized = QuantizedRows::new(1, 512, 64);
            quantized.fill(&mut Pool::new(1).unwrap(), set, Layout::Direct, &x, 512);
            let inputs = Inputs::first(1, &x, 512, Some(&quantized));
            assert!(error(&matrix, 0, &inputs, &product(set, &matrix, 0, &inputs)) < 2e-5);
        }
    }
}
