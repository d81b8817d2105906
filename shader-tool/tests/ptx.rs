//! The sample kernels as PTX: what NVIDIA's driver is given.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;
use shader_tool::{Constants, Mode, Ptx, PtxArch};

#[test]
fn every_sample_compiles_for_every_generation() {
    let library = library(Mode::Plain);
    for unit in library.units() {
        for arch in PtxArch::ALL {
            let ptx = Ptx::compile(&library, unit, arch).unwrap();
            assert!(ptx.text().contains(&format!(".target {}", arch.name())));
            assert_eq!(ptx.text().contains("griddepcontrol.wait"), arch.starts_early());
            for kernel in library.manifest().kernels.iter().filter(|k| k.unit == unit) {
                let found = ptx.kernels().iter().find(|k| k.name == kernel.name).unwrap();
                for (parameter, buffer) in found.parameters.iter().zip(&kernel.buffers) {
                    assert_eq!(parameter.slot, buffer.index);
                    assert_eq!(
                        parameter.bytes.is_some(),
                        buffer.constant_space,
                        "{}: {}",
                        kernel.name,
                        buffer.name
                    );
                }
            }
        }
    }
}

#[test]
fn metal_becomes_the_matching_instructions() {
    let library = library(Mode::Plain);
    let ptx = |unit| library.ptx(unit, PtxArch::Sm80).unwrap();
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
fn function_constants_stay_open_until_a_pipeline_is_made() {
    let library = library(Mode::Plain);
    let ptx = Ptx::compile(&library, "row_sum.metal", PtxArch::Sm90).unwrap();
    assert!(ptx.text().contains("lily_constant_0") && ptx.text().contains("lily_constant_1"));
    let kernel = &ptx.kernels()[0].name;
    let ten = Constants::new().bool(0, true).uint(1, 10);
    let made = ptx.specialise(kernel, &ten).unwrap();
    assert!(!made.contains("lily_"));
    assert!(made.contains(", 10;"), "{made}");
    assert_eq!(Ptx::parse(ptx.text().to_owned()).unwrap(), ptx);
}
