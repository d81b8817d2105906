//! The convolution and the gated delta rule against loops from their definitions, in f64.

use std::ops::Range;

use super::*;
use crate::KernelSet;
use crate::shared::SharedMut;
use crate::simd::tests::{numbers, sets};

#[test]
fn the_convolution_follows_its_definition_across_chunks() {
    let (channels, kernel, rows) = (24, 4, 11);
    let taps = numbers(1, kernel * channels);
    let raw = numbers(2, rows * channels);
    for set in sets() {
        for chunk in [1, 2, 3, 5, rows] {
            let mut state = vec![0.0; (kernel - 1) * channels];
            let mut out = raw.clone();
            for rows in out.chunks_mut(chunk * channels) {
                let row_count = rows.len() / channels;
                for first_channel in [0, 16] {
                    set.run(Convolve {
                        taps: &taps,
                        state: state.as_mut_ptr(),
                        rows: rows.as_mut_ptr(),
                        row_count,
                        channels,
                        first_channel,
                        channel_count: 16.min(channels - first_channel),
                        kernel,
                    });
                }
            }
            assert_eq!(state, raw[(rows - kernel + 1) * channels..]);
            for row in 0..rows {
                for channel in 0..channels {
                    let sum: f64 = (0..kernel)
                        .filter(|tap| row + tap + 1 >= kernel)
                        .map(|tap| {
                            let input = raw[(row + tap + 1 - kernel) * channels + channel];
                            f64::from(taps[tap * channels + channel]) * f64::from(input)
                        })
                        .sum();
                    let expected = sum / (1.0 + (-sum).exp());
                    let found = f64::from(out[row * channels + channel]);
                    assert!((found - expected).abs() < 1e-6, "{found} {expected}");
                }
            }
        }
    }
}

/// One head by the definition: state `[value_dim][key_dim]`.
fn reference(config: &DeltaNetConfig, head: usize, inputs: &Inputs, state: &mut [Vec<f64>]) -> Vec<Vec<f64>> {
    let (dk, dv) = (config.key_dim, config.value_dim);
    let key_head = head * config.key_heads / config.value_heads;
    let rows = inputs.a.len() / config.value_heads;
    let as_f64 = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
    let l2 = |x: Vec<f64>, scale: f64| -> Vec<f64> {
        let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        x.iter().map(|x| x / norm * scale).collect()
    };
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let mut outputs = Vec::new();
    for row in 0..rows {
        let qkv = &inputs.qkv[row * config.conv_channels()..];
        let q = l2(as_f64(&qkv[key_head * dk..][..dk]), (dk as f64).powf(-0.5));
        let k = l2(as_f64(&qkv[(config.key_heads + key_head) * dk..][..dk]), 1.0);
        let v = as_f64(&qkv[2 * config.key_heads * dk + head * dv..][..dv]);
        let gate = |x: &[f32]| f64::from(x[row * config.value_heads + head]);
        let beta = 1.0 / (1.0 + (-gate(&inputs.b)).exp());
        let decay = (-f64::from(A_LOG).exp() * (gate(&inputs.a) + f64::from(DT_BIAS)).exp().ln_1p()).exp();
        let mut o = Vec::new();
        for (state, v) in state.iter_mut().zip(&v) {
            state.iter_mut().for_each(|s| *s *= decay);
            let delta = beta * (v - dot(state, &k));
            state.iter_mut().zip(&k).for_each(|(s, k)| *s += delta * k);
            o.push(dot(state, &q));
        }
        let scale = 1.0 / (dot(&o, &o) / dv as f64 + f64::from(EPS)).sqrt();
        let z = as_f64(&inputs.z[(row * config.value_heads + head) * dv..][..dv]);
        let silu = |z: f64| z / (1.0 + (-z).exp());
        let norm = as_f64(&inputs.norm);
        outputs.push((0..dv).map(|i| o[i] * scale * norm[i] * silu(z[i])).collect());
    }
    outputs
}

const A_LOG: f32 = 0.3;
const DT_BIAS: f32 = -0.2;
const EPS: f32 = 1e-6;

struct Inputs {
    qkv: Vec<f32>,
    z: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    norm: Vec<f32>,
}

impl Inputs {
    fn new(config: &DeltaNetConfig, rows: usize) -> Inputs {
        Inputs {
            qkv: numbers(3, rows * config.conv_channels()),
            z: numbers(4, rows * config.value_heads * config.value_dim),
            a: numbers(5, rows * config.value_heads),
            b: numbers(6, rows * config.value_heads),
            norm: numbers(7, config.value_dim),
        }
    }

    /// Rows `rows` through the scan of one head.
    fn scan(
        &self,
        set: KernelSet,
        config: &DeltaNetConfig,
        head: usize,
        rows: Range<usize>,
        state: &mut [f32],
        out: &mut [f32],
    ) {
        let part = |width: usize| rows.start * width..rows.end * width;
        set.run(Scan {
            config,
            head,
            qkv: &self.qkv[part(config.conv_channels())],
            z: &self.z[part(config.value_heads * config.value_dim)],
            b: &self.b[part(config.value_heads)],
            a: &self.a[part(config.value_heads)],
            a_log: A_LOG,
            dt_bias: DT_BIAS,
            norm: &self.norm,
            eps: EPS,
            state,
            out: SharedMut::new(out),
            first_row: rows.start,
            scratch: &mut vec![0.0; scan_scratch(config)],
        });
    }
}

#[test]
fn the_scan_follows_its_definition_across_chunks() {
    // A narrow and a wide block of the state; more rows than are scanned at once.
    for (key_dim, value_dim) in [(16, 24), (16, 64), (128, 128)] {
        let config = DeltaNetConfig {
            key_heads: 2,
            value_heads: 4,
            key_dim,
            value_dim,
            conv_kernel: 4,
        };
        let (rows, head) = (2 * SCAN_TOKENS + 5, 3);
        let values = config.value_heads * value_dim;
        let inputs = Inputs::new(&config, rows);
        let mut expected_state = vec![vec![0.0; key_dim]; value_dim];
        let expected = reference(&config, head, &inputs, &mut expected_state);
        for set in sets() {
            let mut whole = Vec::new();
            for chunk in [rows, 1, 7, SCAN_TOKENS, SCAN_TOKENS + 1] {
                let mut state = vec![0.0; value_dim * key_dim];
                let mut out = vec![0.0; rows * values];
                for first in (0..rows).step_by(chunk) {
                    inputs.scan(set, &config, head, first..rows.min(first + chunk), &mut state, &mut out);
                }
                for (row, expected) in expected.iter().enumerate() {
                    for (column, expected) in expected.iter().enumerate() {
                        let found = f64::from(out[row * values + head * value_dim + column]);
                        assert!(
                            (found - expected).abs() < 2e-5,
                            "row {row}: {found}, expected {expected}"
                        );
                    }
                }
                let block = state_block(value_dim);
                for (value, expected) in expected_state.iter().enumerate() {
                    for (key, expected) in expected.iter().enumerate() {
                        let at = (value / block * key_dim + key) * block + value % block;
                        assert!((f64::from(state[at]) - expected).abs() < 1e-5);
                    }
                }
                if whole.is_empty() {
                    whole = out;
                } else {
                    assert!(whole == out, "chunks of {chunk}");
                }
            }
        }
    }
}

/// Values so large that the readout would be infinite in half precision; the norm after it brings the output back to its usual size.
#[test]
fn a_readout_beyond_half_precision_stays_finite() {
    let config = DeltaNetConfig {
        key_heads: 1,
        value_heads: 1,
        key_dim: 128,
        value_dim: 128,
        conv_kernel: 4,
    };
    let (rows, channels) = (5, config.conv_channels());
    let mut inputs = Inputs::new(&config, rows);
    for row in inputs.qkv.chunks_mut(channels) {
        row[2 * 128..].iter_mut().for_each(|value| *value *= 1e9);
    }
    let mut expected_state = vec![vec![0.0; 128]; 128];
    let expected = reference(&config, 0, &inputs, &mut expected_state);
    let readout: f64 = inputs.qkv[(rows - 1) * channels..][..128]
        .iter()
        .zip(&expected_state[0])
        .map(|(q, s)| f64::from(*q) * s / 128.0)
        .sum();
    assert!(readout.abs() > f64::from(half::f16::MAX), "{readout}");
    for set in sets() {
        let (mut state, mut out) = (vec![0.0; 128 * 128], vec![0.0; rows * 128]);
        inputs.scan(set, &config, 0, 0..rows, &mut state, &mut out);
        for (found, expected) in out.iter().zip(expected.iter().flatten()) {
            assert!(
                (f64::from(*found) - expected).abs() < 2e-5,
                "{found}, expected {expected}"
            );
        }
    }
}
