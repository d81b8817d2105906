//! The sample kernels as PTX: what NVIDIA's driver is given.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;
use shader_tool::{Constants, Mode, PtxArch};

#[test]
fn every_sample_compiles_for_both_generations() {
    let library = library(Mode::Plain);
    for unit in library.units() {
        for (arch, target) in [(PtxArch::Sm80, ".target sm_80"), (PtxArch::Sm90, ".target sm_90")] {
            let ptx = library.ptx(unit, &Constants::new(), arch).unwrap();
            assert!(ptx.contains(target));
            for kernel in library.manifest().kernels.iter().filter(|k| k.unit == unit) {
                assert!(
                    ptx.contains(&format!(".entry {}(", kernel.name)),
                    "{} in {unit}",
                    kernel.name
                );
            }
        }
    }
}

#[test]
fn metal_becomes_the_matching_instructions() {
    let library = library(Mode::Plain);
    let ptx = |unit| library.ptx(unit, &Constants::new(), PtxArch::Sm90).unwrap();
    let row_sum = ptx("row_sum.metal");
    assert!(
        row_sum.contains("shfl.sync.bfly") && row_sum.contains("bar.sync"),
        "simd_sum, threadgroup_barrier"
    );
    assert!(
        row_sum.contains(".shared .align 16") && row_sum.contains("ld.global.nc"),
        "threadgroup, device const"
    );
    assert!(
        row_sum.contains(".maxntid 256, 1, 1"),
        "max_total_threads_per_threadgroup"
    );
    let matmul = ptx("matmul.metal");
    assert_eq!(matmul.matches("mma.sync.aligned.m16n8k16").count() % 4, 0);
    assert!(
        matmul.contains("ldmatrix.sync.aligned.m8n8.x4.shared"),
        "tiles from threadgroup memory"
    );
    assert!(
        matmul.contains("ldmatrix.sync.aligned.m8n8.x4.trans.shared"),
        "and transposed"
    );
    assert!(!matmul.contains("shfl.sync.idx"), "no emulated simdgroup_matrix");
    assert!(ptx("histogram.metal").contains("atom.global.add.u32"));
    assert!(
        ptx("transpose.metal").contains(".extern .shared"),
        "dynamic threadgroup memory"
    );
}

#[test]
fn function_constants_are_compiled_in() {
    let library = library(Mode::Plain);
    let of = |constants| library.ptx("row_sum.metal", &constants, PtxArch::Sm90).unwrap();
    // The scale is a field of the parameters that only the scaled variant reads.
    let with = of(Constants::new().bool(0, true).uint(1, 10));
    let without = of(Constants::new().bool(0, false).uint(1, 10));
    let multiplies = |ptx: &str| {
        ptx.lines()
            .filter(|l| l.contains("mul.rn.f32") || l.contains("fma.rn.f32"))
            .count()
    };
    assert_eq!(multiplies(&without), 0, "{without}");
    assert!(
        multiplies(&with) > 0 && with.contains("0f40A00000"),
        "half of ten is in the code: {with}"
    );
}
