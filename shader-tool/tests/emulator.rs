//! The sample kernels against plain references, plain and checked, in fixed and in random order.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;
use half::bf16;
use shader_tool::{Binding, Buffer, Constants, Dispatch, Emulator, Library, Mode, Options, Order, Report, TileBackend};

/// Every way to run a kernel that must not change its result.
fn everywhere(mut test: impl FnMut(&Library, &mut Emulator)) {
    let (plain, checked) = (library(Mode::Plain), library(Mode::Checked));
    test(&plain, &mut Emulator::new());
    test(&plain, &mut Emulator::new().with_threads(1));
    test(&plain, &mut Emulator::new().with_order(Order::Random(7)));
    test(&checked, &mut Emulator::new());
    test(&checked, &mut Emulator::new().with_order(Order::Random(11)));
}

fn run(emulator: &mut Emulator, dispatch: &Dispatch<'_>) -> Report {
    let report = emulator.dispatch(dispatch).unwrap();
    emulator.barrier();
    assert!(report.findings.is_empty(), "{}", report.findings[0]);
    report
}

#[test]
fn row_sum_takes_any_shape_and_its_constants() {
    let mut random = Random(1);
    everywhere(|library, emulator| {
        for (rows, columns, threads) in [(1, 1, 32), (3, 31, 64), (5, 33, 96), (7, 1000, 256)] {
            for scaled in [false, true] {
                let x = random.bf16s(rows * columns);
                let (input, out) = (of_bf16(&x), Buffer::new(rows * 4));
                let constants = Constants::new().bool(0, scaled).uint(1, 10);
                let mut params = words(&[columns as u32]);
                params.extend(0.5_f32.to_ne_bytes());
                run(
                    emulator,
                    &Dispatch {
                        pipeline: &library.pipeline("row_sum", &constants).unwrap(),
                        bindings: &[
                            Binding::buffer(0, &input),
                            Binding::buffer(1, &out),
                            Binding::bytes(2, &params),
                        ],
                        threadgroups: [rows as u32, 1, 1],
                        threads_per_threadgroup: [threads, 1, 1],
                        threadgroup_memory: &[],
                    },
                );
                for (row, got) in x.chunks(columns).zip(to_f32(&out)) {
                    let sum: f64 = row.iter().map(|v| v.to_f64()).sum();
                    let expected = if scaled { sum * 0.5 + 5.0 } else { sum };
                    assert!(
                        (f64::from(got) - expected).abs() < 1e-3,
                        "{rows}x{columns}: {got} {expected}"
                    );
                }
            }
        }
    });
}

#[test]
fn transpose_uses_dynamic_threadgroup_memory() {
    everywhere(|library, emulator| {
        for (rows, columns) in [(1_usize, 1_usize), (31, 33), (64, 40)] {
            let x: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
            let (input, out) = (of_f32(&x), Buffer::new(rows * columns * 4));
            let report = run(
                emulator,
                &Dispatch {
                    pipeline: &library.pipeline("transpose_f32", &Constants::new()).unwrap(),
                    bindings: &[
                        Binding::buffer(0, &input),
                        Binding::buffer(1, &out),
                        Binding::bytes(2, &words(&[rows as u32, columns as u32])),
                    ],
                    threadgroups: [columns.div_ceil(32) as u32, rows.div_ceil(32) as u32, 1],
                    threads_per_threadgroup: [32, 8, 1],
                    threadgroup_memory: &[(0, 32 * 33 * 4)],
                },
            );
            assert_eq!(report.threadgroup_memory, 32 * 33 * 4);
            let got = to_f32(&out);
            for r in 0..rows {
                for c in 0..columns {
                    assert_eq!(got[c * rows + r], x[r * columns + c]);
                }
            }
        }
    });
}

#[test]
fn histogram_counts_with_atomics() {
    let permutation = [3, 1, 2, 0, 7, 5, 6, 4, 11, 9, 10, 8, 15, 13, 14, 12];
    let mut random = Random(3);
    let values: Vec<u32> = (0..1000).map(|_| random.next()).collect();
    let mut in_order = None;
    everywhere(|library, emulator| {
        let (input, counts, places) = (of_u32(&values), Buffer::new(64), Buffer::new(4000));
        run(
            emulator,
            &Dispatch {
                pipeline: &library.pipeline("histogram", &Constants::new()).unwrap(),
                bindings: &[
                    Binding::buffer(0, &input),
                    Binding::buffer(1, &counts),
                    Binding::buffer(2, &places),
                    Binding::bytes(3, &words(&[1000])),
                ],
                threadgroups: [8, 1, 1],
                threads_per_threadgroup: [128, 1, 1],
                threadgroup_memory: &[],
            },
        );
        let mut expected = [0; 16];
        values.iter().for_each(|v| expected[permutation[*v as usize & 15]] += 1);
        assert_eq!(to_u32(&counts), expected);
        let places = to_u32(&places);
        for (bin, &count) in expected.iter().enumerate() {
            let of_bin = values
                .iter()
                .zip(&places)
                .filter(|(v, _)| permutation[**v as usize & 15] == bin);
            let mut seen: Vec<u32> = of_bin.map(|(_, place)| *place).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..count));
        }
        if !format!("{emulator:?}").contains("Random") {
            assert_eq!(
                *in_order.get_or_insert(places.clone()),
                places,
                "a fixed order is reproducible"
            );
        }
    });
}

#[test]
fn simd_functions_act_on_their_lanes() {
    let mut random = Random(4);
    everywhere(|library, emulator| {
        let x: Vec<f32> = (0..32).map(|_| random.float()).collect();
        let (input, out) = (of_f32(&x), Buffer::new(32 * 16 * 4));
        run(
            emulator,
            &Dispatch {
                pipeline: &library.pipeline("simd_functions", &Constants::new()).unwrap(),
                bindings: &[Binding::buffer(0, &input), Binding::buffer(1, &out)],
                threadgroups: [1, 1, 1],
                threads_per_threadgroup: [32, 1, 1],
                threadgroup_memory: &[],
            },
        );
        let got = to_f32(&out);
        let sum: f32 = x.iter().sum();
        let ballot = (0..16).filter(|&i| x[i] > 0.0).fold(0_u32, |bits, i| bits | 1 << i);
        for lane in 0..32 {
            let o = &got[lane * 16..lane * 16 + 16];
            let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-4, "lane {lane}: {a} {b}");
            near(o[0], sum);
            assert_eq!(o[1], x.iter().copied().fold(f32::MIN, f32::max));
            assert_eq!(o[2], x.iter().copied().fold(f32::MAX, f32::min));
            assert_eq!(o[3], x[lane ^ 5]);
            assert_eq!(o[4], if lane + 3 < 32 { x[lane + 3] } else { x[lane] });
            assert_eq!(o[5], if lane < 2 { -1.0 } else { x[lane - 2] });
            assert_eq!(o[6], x[9]);
            near(o[7], x[..=lane].iter().sum());
            near(o[8], x[..lane].iter().sum());
            assert_eq!(o[9], ballot as f32);
            assert_eq!(o[10].to_bits(), x.iter().fold(0, |bits, v| bits ^ v.to_bits()));
            near(o[11], -sum);
            assert_eq!(o[12], bf16::from_f32(x[lane]).to_f32());
            assert_eq!(o[13], (x[lane] * 100.0).trunc());
            near(o[14], x[lane].exp());
            assert_eq!(o[15], 1.0);
        }
    });
}

#[test]
fn gemv_dequantizes() {
    let mut random = Random(5);
    everywhere(|library, emulator| {
        for (rows, columns) in [(8, 64), (12, 576)] {
            let codes: Vec<u32> = (0..rows * columns / 8).map(|_| random.next()).collect();
            let groups = rows * columns / 64;
            let (scales, biases, x) = (random.bf16s(groups), random.bf16s(groups), random.bf16s(columns));
            let y = Buffer::new(rows * 2);
            run(
                emulator,
                &Dispatch {
                    pipeline: &library.pipeline("gemv_q4_bf16_r4_g64", &Constants::new()).unwrap(),
                    bindings: &[
                        Binding::buffer(0, &of_u32(&codes)),
                        Binding::buffer(1, &of_bf16(&scales)),
                        Binding::buffer(2, &of_bf16(&biases)),
                        Binding::buffer(3, &of_bf16(&x)),
                        Binding::buffer(4, &y),
                        Binding::bytes(5, &words(&[rows as u32, columns as u32])),
                    ],
                    threadgroups: [rows.div_ceil(8) as u32, 1, 1],
                    threads_per_threadgroup: [64, 1, 1],
                    threadgroup_memory: &[],
                },
            );
            for (row, got) in to_bf16(&y).iter().enumerate() {
                let expected: f64 = (0..columns)
                    .map(|k| {
                        let i = row * columns + k;
                        let code = codes[i / 8] >> (i % 8 * 4) & 15;
                        (scales[i / 64].to_f64() * f64::from(code) + biases[i / 64].to_f64()) * x[k].to_f64()
                    })
                    .sum();
                let error = (got.to_f64() - expected).abs();
                assert!(
                    error < 0.01 * (1.0 + expected.abs()),
                    "{rows}x{columns} row {row}: {got} {expected}"
                );
            }
        }
    });
}

#[test]
fn tiles_multiply_on_every_backend() {
    let mut random = Random(6);
    let k = 48;
    let (a, w, v) = (random.bf16s(32 * k), random.bf16s(32 * k), random.bf16s(32 * 32));
    let product = |i: usize, j: usize| -> f64 { (0..k).map(|x| a[i * k + x].to_f64() * w[j * k + x].to_f64()).sum() };
    for mode in [Mode::Plain, Mode::Checked] {
        for tiles in [TileBackend::Native, TileBackend::Simdgroup, TileBackend::Tensor] {
            let library = Library::build(
                &sources(),
                Options {
                    mode,
                    tiles,
                    ..Options::default()
                },
            )
            .unwrap();
            let (d, e, stats) = (Buffer::new(4096), Buffer::new(4096), Buffer::new(256));
            run(
                &mut Emulator::new(),
                &Dispatch {
                    pipeline: &library.pipeline("matmul", &Constants::new()).unwrap(),
                    bindings: &[
                        Binding::buffer(0, &of_bf16(&a)),
                        Binding::buffer(1, &of_bf16(&w)),
                        Binding::buffer(2, &of_bf16(&v)),
                        Binding::buffer(3, &d),
                        Binding::buffer(4, &e),
                        Binding::buffer(5, &stats),
                        Binding::bytes(6, &words(&[k as u32])),
                    ],
                    threadgroups: [1, 1, 1],
                    threads_per_threadgroup: [64, 1, 1],
                    threadgroup_memory: &[],
                },
            );
            let (d, e, stats) = (to_f32(&d), to_f32(&e), to_f32(&stats));
            for i in 0..32 {
                let row: Vec<f64> = (0..32).map(|j| product(i, j)).collect();
                for j in 0..32 {
                    assert!(
                        (f64::from(d[i * 32 + j]) - row[j]).abs() < 1e-4,
                        "{tiles:?} d[{i}][{j}]"
                    );
                    let again: f64 = (0..32)
                        .map(|x| bf16::from_f32(d[i * 32 + x]).to_f64() * v[x * 32 + j].to_f64())
                        .sum();
                    assert!((f64::from(e[i * 32 + j]) - again).abs() < 1e-4, "{tiles:?} e[{i}][{j}]");
                }
                let largest = row.iter().copied().fold(f64::MIN, f64::max);
                assert!(
                    (f64::from(stats[i * 2]) - largest).abs() < 1e-4,
                    "{tiles:?} largest of row {i}"
                );
                assert!(
                    (f64::from(stats[i * 2 + 1]) - row.iter().sum::<f64>()).abs() < 1e-3,
                    "{tiles:?} sum of row {i}"
                );
            }
        }
    }
}
