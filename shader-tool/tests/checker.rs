//! Deliberately broken variants of the sample kernels: each is caught, with its kind and its line.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;
use shader_tool::{
    Binding, Buffer, Constants, Dispatch, Emulator, Finding, FindingKind, Library, Mode, Order, Report, ShaderError,
};

/// Both orders must find it: a mistake must not hide behind the order in which threads happen to run.
fn found(library: &Library, dispatch: impl Fn(&Library, &mut Emulator) -> Report) -> Vec<Vec<Finding>> {
    [Order::Fixed, Order::Random(5)]
        .map(|order| dispatch(library, &mut Emulator::new().with_order(order)).findings)
        .to_vec()
}

#[track_caller]
fn caught(findings: &[Vec<Finding>], kind: FindingKind, file: &str, line: u32, buffer: Option<&str>) {
    for found in findings {
        let hit = found
            .iter()
            .any(|f| f.kind == kind && f.file == file && f.line == line && f.buffer.as_deref() == buffer);
        assert!(hit, "expected {kind:?} at {file}:{line}, found {found:#?}");
    }
}

fn row_sum(library: &Library, emulator: &mut Emulator) -> Report {
    let (x, out) = (of_bf16(&Random(1).bf16s(2 * 200)), Buffer::new(8));
    let params = words(&[200, 0]);
    emulator
        .dispatch(&Dispatch {
            pipeline: &library
                .pipeline("row_sum", &Constants::new().bool(0, false).uint(1, 0))
                .unwrap(),
            bindings: &[
                Binding::buffer(0, &x),
                Binding::buffer(1, &out),
                Binding::bytes(2, &params),
            ],
            threadgroups: [2, 1, 1],
            threads_per_threadgroup: [128, 1, 1],
            threadgroup_memory: &[],
        })
        .unwrap()
}

fn matmul(library: &Library, emulator: &mut Emulator) -> Report {
    let mut random = Random(2);
    emulator
        .dispatch(&Dispatch {
            pipeline: &library.pipeline("matmul", &Constants::new()).unwrap(),
            bindings: &[
                Binding::buffer(0, &of_bf16(&random.bf16s(32 * 32))),
                Binding::buffer(1, &of_bf16(&random.bf16s(32 * 32))),
                Binding::buffer(2, &of_bf16(&random.bf16s(32 * 32))),
                Binding::buffer(3, &Buffer::new(4096)),
                Binding::buffer(4, &Buffer::new(4096)),
                Binding::buffer(5, &Buffer::new(256)),
                Binding::bytes(6, &words(&[32])),
            ],
            threadgroups: [1, 1, 1],
            threads_per_threadgroup: [64, 1, 1],
            threadgroup_memory: &[],
        })
        .unwrap()
}

fn gemv(library: &Library, emulator: &mut Emulator) -> Report {
    let mut random = Random(3);
    emulator
        .dispatch(&Dispatch {
            pipeline: &library.pipeline("gemv_q4_bf16_r4_g64", &Constants::new()).unwrap(),
            bindings: &[
                Binding::buffer(0, &of_u32(&(0..16 * 16).map(|_| random.next()).collect::<Vec<_>>())),
                Binding::buffer(1, &of_bf16(&random.bf16s(32))),
                Binding::buffer(2, &of_bf16(&random.bf16s(32))),
                Binding::buffer(3, &of_bf16(&random.bf16s(128))),
                Binding::buffer(4, &Buffer::new(32)),
                Binding::bytes(5, &words(&[16, 128])),
            ],
            threadgroups: [2, 1, 1],
            threads_per_threadgroup: [64, 1, 1],
            threadgroup_memory: &[],
        })
        .unwrap()
}

fn transpose(library: &Library, bytes: u32, emulator: &mut Emulator) -> Report {
    let (x, out) = (Buffer::new(40 * 40 * 4), Buffer::new(40 * 40 * 4));
    emulator
        .dispatch(&Dispatch {
            pipeline: &library.pipeline("transpose_f32", &Constants::new()).unwrap(),
            bindings: &[
                Binding::buffer(0, &x),
                Binding::buffer(1, &out),
                Binding::bytes(2, &words(&[40, 40])),
            ],
            threadgroups: [2, 2, 1],
            threads_per_threadgroup: [32, 8, 1],
            threadgroup_memory: &[(0, bytes)],
        })
        .unwrap()
}

const BARRIER: &str = "  threadgroup_barrier(mem_flags::mem_threadgroup);\n";

#[test]
fn missing_barrier_before_reading_what_others_write() {
    let partial = "    partial[sg] = sum;\n  }\n";
    let library = broken(
        "row_sum.metal",
        &format!("{partial}{BARRIER}"),
        &format!("{partial}\n"),
        Mode::Checked,
    );
    let found = found(&library, row_sum);
    let line = line_of("row_sum.metal", "const float total");
    caught(&found, FindingKind::UninitializedRead, "row_sum.metal", line, None);
    // In whichever order they come, the later of the two accesses is the one that is reported.
    for findings in &found {
        let race = |f: &&Finding| f.kind == FindingKind::Race && f.file == "row_sum.metal";
        let lines: Vec<u32> = findings.iter().filter(race).map(|f| f.line).collect();
        assert!(
            !lines.is_empty() && lines.iter().all(|&l| l == line || l == line - 3),
            "{findings:#?}"
        );
    }
}

#[test]
fn missing_barrier_between_filling_and_multiplying() {
    let before = "      ws[i / 16 * PITCH + i % 16] = w[i / 16 * k + k0 + i % 16];\n    }\n";
    let library = broken(
        "matmul.metal",
        &format!("{before}  {BARRIER}"),
        &format!("{before}\n"),
        Mode::Checked,
    );
    let line = line_of("matmul.metal", "mt::load(left");
    for findings in found(&library, matmul) {
        let hit = |f: &Finding| {
            f.kind == FindingKind::UninitializedRead && f.called_from == Some(("matmul.metal".to_owned(), line))
        };
        assert!(findings.iter().any(hit), "{findings:#?}");
    }
}

#[test]
fn missing_barrier_before_overwriting() {
    let before = "    mt::multiply(acc0, acc1, left, right0, right1);\n";
    let library = broken(
        "matmul.metal",
        &format!("{before}  {BARRIER}"),
        &format!("{before}\n"),
        Mode::Checked,
    );
    for findings in found(&library, matmul) {
        assert!(findings.iter().any(|f| f.kind == FindingKind::Race), "{findings:#?}");
    }
}

#[test]
fn off_by_one() {
    let library = broken("row_sum.metal", "i < p.columns;", "i <= p.columns;", Mode::Checked);
    let line = line_of("row_sum.metal", "sum += float(x");
    caught(
        &found(&library, row_sum),
        FindingKind::OutOfBounds,
        "row_sum.metal",
        line,
        Some("x"),
    );
}

#[test]
fn past_the_end_of_threadgroup_memory() {
    let found = found(&library(Mode::Checked), |library, emulator| {
        transpose(library, 32 * 32 * 4, emulator)
    });
    let line = line_of("transpose.metal", "block[i * 33 + at.x] =");
    caught(&found, FindingKind::OutOfBounds, "transpose.metal", line, None);
}

#[test]
fn a_binding_ends_where_it_was_said_to() {
    let library = library(Mode::Checked);
    let (x, out) = (of_bf16(&Random(1).bf16s(400)), Buffer::new(8));
    let params = words(&[200, 0]);
    let pipeline = library
        .pipeline("row_sum", &Constants::new().bool(0, false).uint(1, 0))
        .unwrap();
    let mut dispatch = Dispatch {
        pipeline: &pipeline,
        bindings: &[
            Binding::buffer(0, &x).len(398 * 2),
            Binding::buffer(1, &out),
            Binding::bytes(2, &params),
        ],
        threadgroups: [2, 1, 1],
        threads_per_threadgroup: [64, 1, 1],
        threadgroup_memory: &[],
    };
    let findings = Emulator::new().dispatch(&dispatch).unwrap().findings;
    assert!(
        findings
            .iter()
            .any(|f| f.kind == FindingKind::OutOfBounds && f.buffer.as_deref() == Some("x"))
    );
    let whole = [
        Binding::buffer(0, &x),
        Binding::buffer(1, &out),
        Binding::bytes(2, &params),
    ];
    dispatch.bindings = &whole;
    assert!(Emulator::new().dispatch(&dispatch).unwrap().findings.is_empty());
}

#[test]
fn two_threadgroups_write_one_element() {
    let library = broken(
        "gemv.metal",
        "y[row0 + r] = T(sum);",
        "y[(row0 + r) & 7] = T(sum);",
        Mode::Checked,
    );
    let line = line_of("gemv.metal", "y[row0 + r] = T(sum);");
    caught(&found(&library, gemv), FindingKind::Race, "gemv.metal", line, Some("y"));
}

#[test]
fn simd_operation_in_a_divergent_branch() {
    let text = "lane < 16 ? simd_sum(sums[r]) : 0.0f;";
    let library = broken("gemv.metal", "simd_sum(sums[r]);", text, Mode::Checked);
    let line = line_of("gemv.metal", "simd_sum(sums[r]);");
    caught(
        &found(&library, gemv),
        FindingKind::DivergentSimd,
        "gemv.metal",
        line,
        None,
    );
}

#[test]
fn lanes_that_meet_in_two_different_calls() {
    let text = "0.0f;\n    if (lane < 16) {\n      sum_ = simd_sum(sums[r]);\n    } else {\n      sum_ = simd_sum(sums[r] * float(y[0]));\n    }\n    const float sum = sum_;";
    let text = format!("0.0f;{}", &text[5..]);
    let library = broken(
        "gemv.metal",
        "const float sum = simd_sum(sums[r]);",
        &format!("float sum_ = {text}"),
        Mode::Checked,
    );
    for findings in found(&library, gemv) {
        assert!(
            findings.iter().any(|f| f.kind == FindingKind::DivergentSimd),
            "{findings:#?}"
        );
    }
}

#[test]
fn a_divergent_dispatch_is_an_error_in_plain_mode() {
    let library = broken(
        "gemv.metal",
        "simd_sum(sums[r]);",
        "lane < 16 ? simd_sum(sums[r]) : 0.0f;",
        Mode::Plain,
    );
    let mut random = Random(3);
    let error = Emulator::new().dispatch(&Dispatch {
        pipeline: &library.pipeline("gemv_q4_f16_r2_g64", &Constants::new()).unwrap(),
        bindings: &[
            Binding::buffer(0, &Buffer::new(1024)),
            Binding::buffer(1, &of_bf16(&random.bf16s(32))),
            Binding::buffer(2, &of_bf16(&random.bf16s(32))),
            Binding::buffer(3, &of_bf16(&random.bf16s(128))),
            Binding::buffer(4, &Buffer::new(32)),
            Binding::bytes(5, &words(&[16, 128])),
        ],
        threadgroups: [4, 1, 1],
        threads_per_threadgroup: [64, 1, 1],
        threadgroup_memory: &[],
    });
    let Err(ShaderError::Diverged(finding)) = error else {
        panic!("{error:?}")
    };
    assert_eq!(
        (finding.kind, finding.file.as_str()),
        (FindingKind::DivergentSimd, "gemv.metal")
    );
    assert_eq!(finding.line, line_of("gemv.metal", "simd_sum(sums[r]);"));
}

#[test]
fn barrier_that_not_all_threads_reach() {
    let from = format!("    partial[sg] = sum;\n  }}\n{BARRIER}");
    let to = format!("    partial[sg] = sum;\n  }}\n  if (sg == 3) {{ return; }}\n{BARRIER}");
    let library = broken("row_sum.metal", &from, &to, Mode::Checked);
    for findings in found(&library, row_sum) {
        assert!(
            findings.iter().any(|f| f.kind == FindingKind::DivergentBarrier),
            "{findings:#?}"
        );
    }
}

#[test]
fn misaligned_vector_in_threadgroup_memory() {
    let from = "      as[i / 16 * PITCH + i % 16] = a[i / 16 * k + k0 + i % 16];\n";
    let to = "      *(threadgroup bfloat4*)(as + (i / 16 * PITCH + i % 16) / 4 * 4 + 1) = bfloat4(a[i / 16 * k + k0 + i % 16]);\n";
    let library = broken("matmul.metal", from, to, Mode::Checked);
    let line = line_of("matmul.metal", from.trim());
    caught(
        &found(&library, matmul),
        FindingKind::Misaligned,
        "matmul.metal",
        line,
        None,
    );
}

#[test]
fn wrong_address_space_does_not_compile() {
    let library = broken(
        "row_sum.metal",
        "    partial[sg] = sum;\n",
        "    device float* bad = partial;\n    bad[sg] = sum;\n",
        Mode::Plain,
    );
    let error = library.compile("row_sum.metal").unwrap_err();
    let line = line_of("row_sum.metal", "    partial[sg] = sum;");
    let ShaderError::Compile { log, .. } = error else {
        panic!("{error}")
    };
    assert!(log.contains(&format!("row_sum.metal:{line}:")), "{log}");
    assert!(log.contains("__global_device"), "{log}");
}

const EXCHANGE: &str = "#include <metal_stdlib>\nusing namespace metal;\n\
kernel void exchange(device float* x [[buffer(0)]], uint i [[thread_position_in_threadgroup]],\n\
    uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {\n\
  threadgroup float t[64];\n\
  t[i] = x[i];\n\
  simdgroup_barrier(mem_flags::mem_threadgroup);\n\
  x[i] = t[sg * 32 + (lane + 1) % 32];\n\
}\n";

fn exchange(text: &str) -> Report {
    let sources = [shader_tool::SourceFile::new("exchange.metal", text)];
    let options = shader_tool::Options {
        mode: Mode::Checked,
        ..Default::default()
    };
    let library = Library::build(&sources, options).unwrap();
    let x = of_f32(&(0..64).map(|i| i as f32).collect::<Vec<_>>());
    let dispatch = Dispatch {
        pipeline: &library.pipeline("exchange", &Constants::new()).unwrap(),
        bindings: &[Binding::buffer(0, &x)],
        threadgroups: [1, 1, 1],
        threads_per_threadgroup: [64, 1, 1],
        threadgroup_memory: &[],
    };
    Emulator::new().dispatch(&dispatch).unwrap()
}

#[test]
fn missing_simdgroup_barrier() {
    assert_eq!(exchange(EXCHANGE).findings, []);
    let without = EXCHANGE.replace("simdgroup_barrier(mem_flags::mem_threadgroup);", "");
    caught(
        &[exchange(&without).findings],
        FindingKind::UninitializedRead,
        "exchange.metal",
        8,
        None,
    );
    // A simdgroup barrier is not enough where other simdgroups' values are read.
    let across = EXCHANGE.replace("sg * 32 + (lane + 1) % 32", "63 - i");
    let findings = exchange(&across).findings;
    assert!(
        findings
            .iter()
            .any(|f| matches!(f.kind, FindingKind::Race | FindingKind::UninitializedRead)),
        "{findings:#?}"
    );
}

#[test]
fn dispatches_without_a_barrier_between_them() {
    let library = library(Mode::Checked);
    let pipeline = library
        .pipeline("row_sum", &Constants::new().bool(0, false).uint(1, 0))
        .unwrap();
    let (x, sums, out) = (of_bf16(&Random(1).bf16s(64)), Buffer::new(64), Buffer::new(64));
    let params = words(&[8, 0]);
    let dispatch = |emulator: &mut Emulator, from: &Buffer, at: usize, to: &Buffer| {
        let bindings = [
            Binding::buffer(0, from),
            Binding::buffer(1, to).offset(at),
            Binding::bytes(2, &params),
        ];
        let dispatch = Dispatch {
            pipeline: &pipeline,
            bindings: &bindings,
            threadgroups: [2, 1, 1],
            threads_per_threadgroup: [32, 1, 1],
            threadgroup_memory: &[],
        };
        emulator.dispatch(&dispatch).unwrap()
    };
    let emulator = &mut Emulator::new();
    let report = dispatch(emulator, &x, 0, &sums);
    assert_eq!(report.findings, []);
    let ranges = |set: &shader_tool::RangeSet| (set.as_slice().len(), set.span());
    let accesses: Vec<_> = report
        .accesses
        .iter()
        .map(|a| (a.name.as_str(), ranges(&a.reads), ranges(&a.writes)))
        .collect();
    assert_eq!(accesses, [("x", (1, 0..32), (0, 0..0)), ("out", (0, 0..0), (1, 0..8))]);
    // Writing another part of the same buffer is no conflict; reading what was written is, and so is writing it again.
    assert_eq!(dispatch(emulator, &x, 8, &sums).findings, []);
    let read = dispatch(emulator, &sums, 0, &out).findings;
    assert_eq!(
        (read[0].kind, read[0].buffer.as_deref()),
        (FindingKind::Hazard, Some("x")),
        "{read:#?}"
    );
    assert!(read[0].detail.contains("row_sum"), "{}", read[0]);
    assert_eq!(dispatch(emulator, &x, 8, &sums).findings[0].kind, FindingKind::Hazard);
    emulator.barrier();
    assert_eq!(dispatch(emulator, &sums, 0, &out).findings, []);
    // And writing what another dispatch may still be reading.
    assert_eq!(dispatch(emulator, &x, 16, &sums).findings[0].kind, FindingKind::Hazard);
}

#[test]
fn dispatches_that_metal_would_refuse() {
    let library = library(Mode::Plain);
    let constants = Constants::new().bool(0, false).uint(1, 0);
    let refuse = |name: &str, constants: &Constants| library.pipeline(name, constants).unwrap_err().to_string();
    assert_eq!(refuse("nothing", &constants), "no kernel named nothing");
    assert!(refuse("row_sum", &Constants::new().bool(0, true)).contains("kWidth has no value"));
    assert!(
        refuse("row_sum", &Constants::new().bool(0, true).float(1, 1.0)).contains("is Uint, but the value is Float")
    );
    assert!(refuse("row_sum", &constants.clone().bool(7, true)).contains("no such constant"));

    let pipeline = library.pipeline("row_sum", &constants).unwrap();
    let (x, out) = (Buffer::new(64), Buffer::new(64));
    let mapped = Buffer::from_owner(vec![0_u8; 64]);
    let params = words(&[8, 0]);
    let run = |bindings: &[Binding<'_>], threads: u32| {
        let dispatch = Dispatch {
            pipeline: &pipeline,
            bindings,
            threadgroups: [1, 1, 1],
            threads_per_threadgroup: [threads, 1, 1],
            threadgroup_memory: &[],
        };
        Emulator::new().dispatch(&dispatch).map(drop).map_err(|e| e.to_string())
    };
    let [a, b, c] = [
        Binding::buffer(0, &x),
        Binding::buffer(1, &out),
        Binding::bytes(2, &params),
    ];
    assert_eq!(run(&[a, b, c], 32), Ok(()));
    let refused = |bindings: &[Binding<'_>], threads: u32, part: &str| {
        let error = run(bindings, threads).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    refused(&[a, b], 32, "buffer 2 (p) is not bound");
    refused(&[a, b, c, a], 32, "bound twice");
    refused(&[a, b, c, Binding::bytes(5, &[])], 32, "nothing takes buffer 5");
    refused(&[a, b.offset(65), c], 32, "offset 65 of 64 bytes");
    refused(&[a, Binding::buffer(1, &x), c], 32, "overlap");
    refused(&[a, Binding::buffer(1, &mapped), c], 32, "read-only memory");
    refused(&[a, b, c], 288, "max_total_threads_per_threadgroup is 256");
    refused(&[a, b, c], 1056, "Metal allows 1 to 1024");
}
