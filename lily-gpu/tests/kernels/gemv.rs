//! gemv_norm and gemv.

use lily_gpu::params::GemvParams;
use lily_gpu::pass::Dispatch;
use lily_model::{Encoding, Matrix};

use crate::*;

struct Case {
    /// Rows of the matrices that share the dispatch.
    rows: Vec<usize>,
    k: usize,
    m: usize,
    encoding: Encoding,
    rows_per_block: usize,
    tokens: usize,
    simdgroups: usize,
    norm: bool,
    add: bool,
    /// The kernel, where its name says more than form, rows and tokens; and its row blocks to a threadgroup.
    kernel: Option<(&'static str, usize)>,
}

fn run(case: &Case, checked: bool) {
    run_on(case, Gpu::new(checked));
}

fn run_on(case: &Case, mut gpu: Gpu) {
    let Case { k, m, norm, add, .. } = *case;
    let mut random = Random::new(11 + k as u64);
    let matrices: Vec<Matrix> = case
        .rows
        .iter()
        .enumerate()
        .map(|(i, &rows)| matrix(1, rows, k, case.encoding, i as u64))
        .collect();
    let placed: Vec<_> = matrices.iter().map(|m| gpu.matrix(m)).collect();
    let x = if norm {
        random.vec(m * k, 2.0)
    } else {
        random.bf16s(m * k, 2.0)
    };
    let weight = random.vec(k, 1.0);
    let before: Vec<Vec<f32>> = case.rows.iter().map(|rows| random.vec(m * rows, 1.0)).collect();
    let eps = 1e-6;

    let form = gemv_form(&placed[0]);
    let name = if norm { "gemv_norm" } else { "gemv" };
    let kernel = match case.kernel {
        Some((kernel, _)) => kernel.into(),
        None => format!("{name}_{form}_r{}_m{}", case.rows_per_block, case.tokens),
    };
    let mut params = GemvParams {
        k: k as u32,
        m: m as u32,
        eps,
        segments: placed.len() as u32,
        ..GemvParams::default()
    };
    let mut outputs = Vec::new();
    let mut end = 0;
    for (i, p) in placed.iter().enumerate() {
        end += p.rows.div_ceil(case.rows_per_block);
        params.rows[i] = p.rows as u32;
        params.block_end[i] = end as u32;
        params.y_stride[i] = p.rows as u32;
        params.encoding[i] = p.encoding;
        // the second output is f32, and the first goes into a ring of three slots, of which position 5 takes the last
        let float = add || i == 1;
        params.float_outputs |= u32::from(float) << i;
        let ring = if i == 0 && !add && m == 1 { 3 } else { 0 };
        params.ring[i] = ring as u32;
        let y = match add {
            true => gpu.f32(&before[i]),
            false => gpu.scratch(ring.max(1) * m * p.rows * if float { 4 } else { 2 }),
        };
        outputs.push((y, float, ring));
    }
    let input = if norm { gpu.f32(&x) } else { gpu.bf16(&x) };
    let (streamed, output) = (kernel == "gemv_norm_streamed_2048", kernel == "gemv_streamed_4096");
    let mut dispatch = Dispatch::new(kernel, "test");
    if !streamed && !output {
        dispatch = dispatch.constant(0, add);
    }
    if norm {
        dispatch = dispatch.constant(1, false);
    }
    dispatch = dispatch.read(input);
    if norm {
        dispatch = dispatch.read(gpu.f32(&weight));
    }
    dispatch = match output {
        // one matrix, and no ring that a position would choose a slot of
        true => dispatch
            .read(placed[0].codes)
            .read(placed[0].scales)
            .read(placed[0].biases)
            .update(outputs[0].0),
        false => {
            let mut dispatch = read_segments(dispatch, &placed);
            for i in 0..4 {
                dispatch = match outputs.get(i) {
                    Some(&(y, ..)) => dispatch.update(y),
                    None => dispatch.unused(),
                };
            }
            dispatch.read(gpu.step(5))
        }
    };
    gpu.run(
        dispatch
            .params(&params)
            .grid(
                end.div_ceil(case.kernel.map_or(case.simdgroups, |(_, blocks)| blocks)),
                m.div_ceil(case.tokens),
                1,
            )
            .threads(case.simdgroups * 32)
            .threadgroup_memory(if streamed { 4 * 1184 * 16 } else { 0 }),
    );

    for (i, matrix) in matrices.iter().enumerate() {
        let (y, float, ring) = outputs[i];
        let found = if float { gpu.read_f32(y) } else { gpu.read_bf16(y) };
        let found = if ring > 0 {
            &found[2 * matrix.rows..]
        } else {
            &found[..]
        };
        let mut expected = Vec::new();
        for token in 0..m {
            let x = &x[token * k..][..k];
            let normed: Vec<f64> = match norm {
                true => rms_norm(x, &weight, f64::from(eps)),
                false => x.iter().map(|&x| f64::from(x)).collect(),
            };
            for r in 0..matrix.rows {
                let sum: f64 = row(matrix, 0, r)
                    .iter()
                    .zip(&normed)
                    .map(|(&w, x)| f64::from(w) * x)
                    .sum();
                expected.push(if add {
                    sum + f64::from(before[i][token * matrix.rows + r])
                } else {
                    sum
                });
            }
        }
        let what = format!("{name} {form} {:?} k {k} m {m} matrix {i}", case.rows);
        close(&what, found, &expected, if float { F32 * 4.0 } else { BF16 }, 1.0);
    }
}

fn sweep(encoding: Encoding, rows_per_block: &[usize], ks: &[usize]) {
    for &k in ks {
        for &r in rows_per_block {
            for rows in [vec![1], vec![r], vec![r + 1, 1], vec![8 * r - 1, 8 * r, 8 * r + 1, 3]] {
                for (norm, add, m, tokens) in [(true, false, 1, 1), (false, false, 1, 1), (false, true, 1, 1)] {
                    let rows = if add { vec![rows[0]] } else { rows.clone() };
                    run(
                        &Case {
                            rows,
                            k,
                            m,
                            encoding,
                            rows_per_block: r,
                            tokens,
                            simdgroups: 8,
                            norm,
                            add,
                            kernel: None,
                        },
                        false,
                    );
                }
            }
        }
    }
}

#[test]
fn q4() {
    sweep(Q4, &[2, 4], &[64, 192, 512, 576, 4096, 4160]);
}

#[test]
fn q8() {
    sweep(Q8, &[2, 4], &[64, 512, 4160]);
}

/// The kernels that fetch ahead, over edges of their units (32 and 16 columns), blocks (128), depths and row blocks.
#[test]
fn ahead() {
    let case = |rows: &[usize], k, encoding, (kernel, rows_per_block, blocks), norm, add| Case {
        rows: rows.to_vec(),
        k,
        m: 1,
        encoding,
        rows_per_block,
        tokens: 1,
        simdgroups: 8,
        norm,
        add,
        kernel: Some((kernel, blocks)),
    };
    let with_norm = [
        // four row blocks to a threadgroup: some go round again, and the last ends early
        (Q4, ("gemv_norm_tiles", 16, 4)),
        (Q8, ("gemv_norm_deep_q8_r1_d4", 1, 8)),
    ];
    let without = [(Q4, ("gemv_deep_q4_r2_d4", 2, 8)), (Q8, ("gemv_deep_q8_r1_d4", 1, 8))];
    for k in [64, 192, 2048, 4160] {
        for (encoding, kernel) in with_norm.into_iter().filter(|(_, kernel)| k <= 2048 || kernel.1 == 1) {
            let r = kernel.1;
            run(&case(&[4 * r + 1, 1, r, 3], k, encoding, kernel, true, false), false);
        }
        for (encoding, kernel) in without {
            let r = kernel.1;
            run(&case(&[8 * r + 1, 1, r, 3], k, encoding, kernel, false, false), false);
            run(&case(&[8 * r - 1], k, encoding, kernel, false, true), false);
        }
    }
    // a run of row blocks to a threadgroup, more than are on their way at once, over edges of matrices
    let streamed = ("gemv_norm_streamed_2048", 16, 6);
    run_on(
        &case(&[67, 1, 16, 33], 2048, Q4, streamed, true, false),
        Gpu::h200(false),
    );
    run_on(&case(&[33], 2048, Q4, streamed, true, false), Gpu::h200(true));
    let output = ("gemv_streamed_4096", 16, 1);
    for rows in [1, 15, 16, 49] {
        run(&case(&[rows], 4096, Q4, output, false, true), rows == 15);
    }
    let small = case(&[17, 2], 192, Q4, with_norm[0].1, true, false);
    for tiles in [TileBackend::Simdgroup, TileBackend::Tensor] {
        run_on(&small, Gpu::tiles(tiles));
    }
    run(&small, true);
    run(&case(&[3], 192, Q4, without[0].1, false, true), true);
    run(&case(&[3], 192, Q8, without[1].1, false, true), true);
}

#[test]
fn any_encoding() {
    for encoding in OTHERS {
        sweep(encoding, &[2], &[128, 1152]);
    }
    sweep(Q4, &[2], &[128]);
}

#[test]
fn several_tokens() {
    for (encoding, r) in [(Q4, 4), (Q8, 4), (OTHERS[1], 2)] {
        for m in [1, 3, 4, 5, 9] {
            let rows = vec![17, 1];
            run(
                &Case {
                    rows,
                    k: 1088,
                    m,
                    encoding,
                    rows_per_block: r,
                    tokens: 4,
                    simdgroups: 8,
                    norm: true,
                    add: false,
                    kernel: None,
                },
                false,
            );
        }
    }
}

/// More rows than sixteen bits can tell apart, as lm_head has.
#[test]
fn rows_beyond_sixteen_bits() {
    let case = |norm| Case {
        rows: vec![66_001],
        k: 128,
        m: 1,
        encoding: Q4,
        rows_per_block: 4,
        tokens: 1,
        simdgroups: 8,
        norm,
        add: false,
        kernel: None,
    };
    run(&case(true), false);
    run(&case(false), false);
}

#[test]
fn checked() {
    for (encoding, r) in [(Q4, 4), (Q8, 2), (OTHERS[3], 2)] {
        for (norm, add) in [(true, false), (false, true)] {
            let rows = if add { vec![9] } else { vec![9, 1] };
            run(
                &Case {
                    rows,
                    k: 640,
                    m: 1,
                    encoding,
                    rows_per_block: r,
                    tokens: 1,
                    simdgroups: 8,
                    norm,
                    add,
                    kernel: None,
                },
                true,
            );
        }
    }
    run(
        &Case {
            rows: vec![5],
            k: 1088,
            m: 3,
            encoding: Q4,
            rows_per_block: 4,
            tokens: 4,
            simdgroups: 8,
            norm: true,
            add: false,
            kernel: None,
        },
        true,
    );
}

/// The router of a chunk: both outputs are float, and each row's are the same alone.
/// router.metal with `tokens` rows to a threadgroup.
fn router(tokens: usize, rows: &[usize], k: usize, m: usize, checked: bool) -> Vec<Vec<f32>> {
    let mut random = Random::new(k as u64);
    let mut gpu = Gpu::new(checked);
    let matrices: Vec<Matrix> = (0..rows.len()).map(|i| matrix(1, rows[i], k, Q8, i as u64)).collect();
    let placed: Vec<_> = matrices.iter().map(|m| gpu.matrix(m)).collect();
    let (weight, x) = (random.vec(k, 1.0), random.vec(m * k, 2.0));
    let mut params = GemvParams {
        k: k as u32,
        m: m as u32,
        eps: 1e-6,
        segments: rows.len() as u32,
        float_outputs: u32::MAX,
        ..GemvParams::default()
    };
    let mut end = 0;
    for (i, p) in placed.iter().enumerate() {
        end += p.rows.div_ceil(256);
        params.rows[i] = p.rows as u32;
        params.block_end[i] = end as u32;
        params.y_stride[i] = p.rows as u32;
        params.encoding[i] = p.encoding;
    }
    let outputs: Vec<_> = rows.iter().map(|rows| gpu.scratch(m * rows * 4)).collect();
    let mut dispatch = Dispatch::new(format!("router_q8_{tokens}"), "test")
        .constant(1, false)
        .read(gpu.f32(&x))
        .read(gpu.f32(&weight));
    dispatch = read_segments(dispatch, &placed);
    for i in 0..4 {
        dispatch = match outputs.get(i) {
            Some(&y) => dispatch.write(y),
            None => dispatch.unused(),
        };
    }
    gpu.run(
        dispatch
            .unused()
            .params(&params)
            .grid(end, m.div_ceil(tokens), 1)
            .threads(256),
    );
    let found: Vec<Vec<f32>> = outputs.iter().map(|&y| gpu.read_f32(y)).collect();
    for (matrix, found) in matrices.iter().zip(&found) {
        let weights: Vec<Vec<f32>> = (0..matrix.rows).map(|r| row(matrix, 0, r)).collect();
        let expected: Vec<f64> = x
            .chunks(k)
            .flat_map(|x| {
                let normed = rms_norm(x, &weight, 1e-6);
                let product = |w: &Vec<f32>| w.iter().zip(&normed).map(|(&w, x)| f64::from(w) * x).sum();
                weights.iter().map(product).collect::<Vec<f64>>()
            })
            .collect();
        close(
            &format!("router {rows:?} k {k} m {m}, {tokens} tokens"),
            found,
            &expected,
            F32 * 4.0,
            1.0,
        );
    }
    found
}

#[test]
fn router_of_a_chunk() {
    for (rows, k, m) in [
        ([257, 1], 192, 33),
        ([256, 3], 64, 31),
        ([7, 1], 2048, 2),
        ([1, 66], 128, 32),
    ] {
        let [small, large] = [16, 32].map(|tokens| router(tokens, &rows, k, m, false));
        assert_eq!(small, large, "a row's sums do not depend on the tile");
    }
    let [whole, alone] = [130, 1].map(|m| router(32, &[65, 1], 192, m, false));
    assert_eq!(
        whole[0][..65],
        alone[0],
        "a row's sums do not depend on the rows beside it"
    );
    for tokens in [16, 32] {
        router(tokens, &[3, 1], 64, 2, true);
    }
}
