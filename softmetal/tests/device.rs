//! Lily's Metal device over the software Metal: the same host code that runs on a Mac.

use lily_gpu::GpuError;
use lily_gpu::device::{BufferId, Device, Memory, Slice};
use lily_gpu::emulator::kernel_sources;
use lily_gpu::metal::{KernelFamily, MetalDevice, MetalOptions};
use lily_gpu::pass::{Dispatch, Pass};
use lily_model::Bytes;
use objc2::rc::autoreleasepool;
use shader_tool::SourceFile;
use softmetal::{MachineSpec, NoCopy, SoftMetal, TensorOperations};

const KERNELS: &str = r#"
#include <metal_stdlib>
using namespace metal;

kernel void add_one(
    device const float* from [[buffer(0)]],
    device float* to [[buffer(1)]],
    uint id [[thread_position_in_grid]])
{
    to[id] = from[id] + 1.0f;
}

constant bool twice [[function_constant(0)]];
kernel void scale(device float* values [[buffer(0)]], uint id [[thread_position_in_grid]])
{
    values[id] *= twice ? 2.0f : 3.0f;
}
"#;

const COUNT: usize = 256;

/// A Mac and Lily's device on it, with the kernels above beside those that ship.
fn open(spec: MachineSpec) -> (SoftMetal, MetalDevice) {
    let (mac, device) = try_open(spec, true, None);
    (mac, device.unwrap())
}

fn try_open(
    spec: MachineSpec,
    tensor_operations: bool,
    cache: Option<std::path::PathBuf>,
) -> (SoftMetal, Result<MetalDevice, GpuError>) {
    let mac = SoftMetal::install(spec);
    let mut sources: Vec<SourceFile> = kernel_sources()
        .into_iter()
        .filter(|source| !source.is_unit())
        .collect();
    sources.push(SourceFile::new("test.metal", KERNELS));
    let options = MetalOptions {
        tensor_operations,
        cache,
        progress: &mut |_, _| {},
    };
    let device = MetalDevice::with_sources(&sources, options);
    (mac, device)
}

fn floats(device: &mut MetalDevice, values: &[f32]) -> Slice {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let buffer = device.allocate("test", bytes.len(), Memory::Device).unwrap();
    let slice = Slice {
        buffer,
        offset: 0,
        len: bytes.len(),
    };
    device.write(slice, &bytes).unwrap();
    slice
}

fn read(device: &mut MetalDevice, slice: Slice) -> Vec<f32> {
    let mut bytes = vec![0; slice.len];
    device.read(slice, &mut bytes).unwrap();
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&word| f32::from_le_bytes(word))
        .collect()
}

fn add_one(from: Slice, to: Slice) -> Dispatch {
    Dispatch::new("add_one", "add one")
        .read(from)
        .write(to)
        .grid(COUNT / 64, 1, 1)
        .threads(64)
}

/// A chain of `add_one` through the given buffers.
fn chain(slices: &[Slice]) -> Pass {
    let mut pass = Pass::new(false);
    for pair in slices.windows(2) {
        pass.push(add_one(pair[0], pair[1]));
    }
    pass
}

fn checked() -> MachineSpec {
    MachineSpec::m4_max().checked()
}

#[test]
fn a_pass_runs_again_and_again() {
    let (mac, mut device) = open(checked());
    let slices: Vec<Slice> = (0..3).map(|_| floats(&mut device, &[0.0; COUNT])).collect();
    let mut pass = chain(&slices);
    pass.push(add_one(slices[2], slices[0]));
    let recording = device.record(&pass).unwrap();
    for _ in 0..5 {
        device.submit(recording).unwrap();
    }
    assert_eq!(read(&mut device, slices[0]), [15.0; COUNT]);
    let statistics = mac.statistics();
    assert_eq!(
        statistics.most_in_flight, 2,
        "two passes in flight, no more and no fewer"
    );
    assert_eq!(statistics.barriers, 5 * 2, "one barrier between two stages");
    mac.assert_clean();
}

#[test]
fn independent_dispatches_have_no_barrier() {
    let (mac, mut device) = open(checked());
    let slices: Vec<Slice> = (0..4).map(|_| floats(&mut device, &[1.0; COUNT])).collect();
    let mut pass = Pass::new(false);
    pass.push(add_one(slices[0], slices[1]));
    pass.push(add_one(slices[2], slices[3]));
    let recording = device.record(&pass).unwrap();
    device.submit(recording).unwrap();
    assert_eq!(read(&mut device, slices[3]), [2.0; COUNT]);
    assert_eq!(mac.statistics().barriers, 0);
    mac.assert_clean();
}

#[test]
fn results_of_a_step_are_read_while_the_next_is_in_flight() {
    let (mac, mut device) = open(checked());
    // Two slots of one buffer, as for the tokens of alternating steps.
    let slots = floats(&mut device, &[0.0; 2 * COUNT]);
    let (even, odd) = (slots.part(0, COUNT * 4), slots.part(COUNT * 4, COUNT * 4));
    let recordings = [chain(&[even, odd]), chain(&[odd, even])].map(|pass| device.record(&pass).unwrap());
    let mut previous = device.submit(recordings[0]).unwrap();
    for step in 1..6 {
        let event = device.submit(recordings[step % 2]).unwrap();
        let mut bytes = [0; 4];
        device
            .read_after(previous, if step % 2 == 1 { odd } else { even }.part(0, 4), &mut bytes)
            .unwrap();
        assert_eq!(f32::from_le_bytes(bytes), step as f32);
        previous = event;
    }
    drop(device);
    mac.assert_clean();
}

#[test]
fn copies_keep_their_place_among_passes() {
    let (mac, mut device) = open(checked());
    let (a, b, saved) = (
        floats(&mut device, &[5.0; COUNT]),
        floats(&mut device, &[0.0; COUNT]),
        floats(&mut device, &[0.0; COUNT]),
    );
    let forward = device.record(&chain(&[a, b])).unwrap();
    let back = device.record(&chain(&[b, a])).unwrap();
    device.submit(forward).unwrap();
    device.copy(b, saved).unwrap();
    device.submit(back).unwrap();
    device.submit(forward).unwrap();
    assert_eq!(read(&mut device, saved)[0], 6.0);
    assert_eq!(read(&mut device, b)[0], 8.0);
    // Lengths that Metal's copies do not take.
    device.copy(saved.part(1, 3), b.part(1, 3)).unwrap();
    assert_eq!(read(&mut device, b)[..2], [6.0, 8.0]);
    mac.assert_clean();
}

#[test]
fn function_constants_specialise_a_kernel() {
    let (mac, mut device) = open(checked());
    let values = floats(&mut device, &[1.0; COUNT]);
    let mut pass = Pass::new(false);
    for twice in [true, false] {
        pass.push(
            Dispatch::new("scale", "scale")
                .constant(0, twice)
                .update(values)
                .grid(COUNT / 64, 1, 1)
                .threads(64),
        );
    }
    let recording = device.record(&pass).unwrap();
    device.submit(recording).unwrap();
    assert_eq!(read(&mut device, values), [6.0; COUNT]);
    mac.assert_clean();
}

#[test]
fn a_released_buffer_outlives_the_work_that_uses_it() {
    let (mac, mut device) = open(checked());
    let (_file, bytes) = mapped(4096);
    let weights = device.place("weights", &bytes).unwrap();
    let a = floats(&mut device, &[1.0; COUNT]);
    let warm = floats(&mut device, &[0.0; COUNT]);
    let recording = device.record(&chain(&[weights, warm])).unwrap();
    device.submit(recording).unwrap();
    let late = floats(&mut device, &[0.0; COUNT]);
    let recording = device.record(&chain(&[a, late])).unwrap();
    device.submit(recording).unwrap();
    device.copy(late, warm).unwrap();
    device.release(late.buffer);
    device.discard(recording);
    assert_eq!(read(&mut device, warm), [2.0; COUNT]);
    assert!(
        device.read(late, &mut vec![0; late.len]).is_err(),
        "a released buffer is gone"
    );
    // Weights, which are members of the residency set, can go too.
    device.release(weights.buffer);
    drop(device);
    assert_eq!(mac.statistics().buffers, 0);
    mac.assert_clean();
}

#[test]
fn a_killed_command_buffer_is_an_error_and_no_hang() {
    let spec = MachineSpec {
        killed_from: Some(2),
        ..MachineSpec::m4_max()
    };
    let (_mac, mut device) = open(spec);
    let (a, b) = (floats(&mut device, &[1.0; COUNT]), floats(&mut device, &[0.0; COUNT]));
    let recording = device.record(&chain(&[a, b])).unwrap();
    // Command buffer 0 is the layout test's.
    let good = device.submit(recording).unwrap();
    device.read_after(good, b.part(0, 4), &mut [0; 4]).unwrap();
    let bad = device.submit(recording).unwrap();
    let error = device
        .read_after(bad, b.part(0, 4), &mut [0; 4])
        .unwrap_err()
        .to_string();
    assert!(error.contains("ImpactingInteractivity"), "{error}");
}

#[test]
fn a_pass_that_takes_long_is_spread_over_command_buffers() {
    let counts = |seconds_per_dispatch| {
        let (mac, mut device) = open(MachineSpec {
            seconds_per_dispatch: Some(seconds_per_dispatch),
            ..MachineSpec::m4_max()
        });
        let slices: Vec<Slice> = (0..13).map(|_| floats(&mut device, &[0.0; COUNT])).collect();
        let recording = device.record(&chain(&slices)).unwrap();
        let counts = [(); 3].map(|()| {
            let before = mac.statistics().command_buffers;
            device.submit(recording).unwrap();
            assert_eq!(read(&mut device, slices[12])[0], 12.0);
            mac.statistics().command_buffers - before
        });
        mac.assert_clean();
        counts
    };
    assert_eq!(counts(0.0001), [1, 1, 1]);
    assert_eq!(counts(0.03), [1, 3, 3], "0.36 s, then 0.12 s each");
    assert_eq!(counts(1.0), [1, 12, 12], "a stage is never cut");
}

/// A file with some floats at `offset`, mapped.
fn mapped(offset: usize) -> (tempfile::NamedTempFile, Bytes) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = vec![0xff; offset];
    bytes.extend((0..COUNT).flat_map(|i| (i as f32).to_le_bytes()));
    bytes.extend([0xff; 100]);
    std::fs::write(file.path(), &bytes).unwrap();
    // SAFETY: this test's own file, which nobody changes.
    let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
    let all = Bytes::from(map);
    let part = all.slice(offset..offset + COUNT * 4).unwrap();
    (file, part)
}

#[test]
fn weights_are_read_in_place() {
    let (mac, mut device) = open(checked());
    let (_file, bytes) = mapped(5000 * 8);
    let before = mac.statistics().allocated_bytes;
    let weights = device.place("weights", &bytes).unwrap();
    assert_eq!(mac.statistics().allocated_bytes, before, "nothing was copied");
    let again = device.place("the same", &bytes).unwrap();
    assert_eq!(again, weights, "a file is one buffer");
    let out = floats(&mut device, &[0.0; COUNT]);
    let recording = device.record(&chain(&[weights, out])).unwrap();
    drop(bytes);
    device.submit(recording).unwrap();
    assert_eq!(read(&mut device, out)[7], 8.0);
    mac.assert_clean();
}

#[test]
fn weights_are_copied_where_they_cannot_be_read_in_place() {
    let place = |spec: MachineSpec, offset: usize| {
        let (mac, mut device) = open(spec);
        let (_file, bytes) = mapped(offset);
        let before = mac.statistics().allocated_bytes;
        let weights = device.place("weights", &bytes).unwrap();
        assert!(mac.statistics().allocated_bytes > before, "a copy was made");
        assert_eq!(read(&mut device, weights)[7], 7.0);
        mac.assert_clean();
    };
    place(checked(), 4); // misaligned
    place(
        MachineSpec {
            no_copy: NoCopy::Empty,
            ..checked()
        },
        4096,
    );
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_the_numbers() {
    let (_mac, mut device) = open(MachineSpec::m1());
    let error = device.check_fits(19 << 30).unwrap_err().to_string();
    for part in ["19.0 GiB", "10.7 GiB", "sudo sysctl iogpu.wired_limit_mb=20480"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    device.check_fits(5 << 30).unwrap();
    let error = device.allocate("KV cache", 11 << 30, Memory::Device).unwrap_err();
    assert!(matches!(error, GpuError::OutOfMemory { .. }), "{error}");
}

#[test]
fn bad_recordings_are_refused() {
    let (_mac, mut device) = open(MachineSpec::m4_max());
    let a = floats(&mut device, &[1.0; COUNT]);
    let mut refuse = |dispatch: Dispatch, part: &str| {
        let mut pass = Pass::new(false);
        pass.push(dispatch);
        let error = device.record(&pass).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refuse(Dispatch::new("no_such_kernel", "x").read(a), "no_such_kernel");
    refuse(add_one(a, a).threads(2048), "2048 threads");
    refuse(add_one(a, Slice { len: a.len + 4, ..a }), "of a buffer of 1024");
    refuse(
        add_one(
            a,
            Slice {
                buffer: BufferId(999),
                ..a
            },
        ),
        "buffer 999 does not exist",
    );
}

#[test]
fn every_supported_mac_opens_with_its_kernel_family() {
    for (spec, family) in [
        (MachineSpec::m1(), KernelFamily::Simdgroup),
        (MachineSpec::m4_max(), KernelFamily::Simdgroup),
        (MachineSpec::m5_max(), KernelFamily::Tensor),
        (
            MachineSpec {
                os: (26, 1, 0),
                ..MachineSpec::m5_max()
            },
            KernelFamily::Simdgroup,
        ),
    ] {
        let name = spec.name.clone();
        let (mac, device) = open(spec);
        assert_eq!((device.family(), device.notices().len()), (family, 0), "{name}");
        let description = device.describe().description;
        assert!(
            description.contains(&name) && description.contains(family.name()),
            "{description}"
        );
        mac.assert_clean();
    }
    let (_mac, device) = try_open(MachineSpec::m5_max(), false, None);
    assert_eq!(
        device.unwrap().family(),
        KernelFamily::Simdgroup,
        "tensor operations can be turned off"
    );
}

#[test]
fn unsupported_systems_are_refused_with_a_reason() {
    let (_mac, device) = try_open(
        MachineSpec {
            os: (13, 6, 0),
            ..MachineSpec::m1()
        },
        true,
        None,
    );
    let error = device.err().unwrap().to_string();
    assert!(
        error.contains("macOS 14.0 or later") && error.contains("macOS 13.6"),
        "{error}"
    );
    let (_mac, device) = try_open(MachineSpec::paravirtual(), true, None);
    let error = device.err().unwrap().to_string();
    assert!(
        error.contains("Apple Paravirtual device") && error.contains("LILY_ANY_GPU=1"),
        "{error}"
    );
}

#[test]
fn broken_tensor_operations_are_noticed_and_not_used() {
    for tensor in [TensorOperations::DoNotCompile, TensorOperations::OtherLayout] {
        let (mac, device) = open(MachineSpec {
            tensor_operations: tensor,
            ..MachineSpec::m5_max()
        });
        assert_eq!(device.family(), KernelFamily::Simdgroup, "{tensor:?}");
        assert!(
            device.notices()[0].contains("tensor operations cannot be used here"),
            "{:?}",
            device.notices()
        );
        mac.assert_clean();
    }
}

/// A header of the system that breaks one kernel and not the others is noticed by that kernel's own test.
#[test]
fn a_kernel_that_is_wrong_through_tensor_operations_is_noticed() {
    let mac = SoftMetal::install(MachineSpec::m5_max());
    let mut sources: Vec<SourceFile> = kernel_sources()
        .into_iter()
        .filter(|source| !source.is_unit() || source.name == "attention_prefill.metal")
        .collect();
    let open = |sources: &[SourceFile]| {
        let options = MetalOptions {
            tensor_operations: true,
            cache: None,
            progress: &mut |_, _| {},
        };
        MetalDevice::with_sources(sources, options).unwrap()
    };
    let device = open(&sources);
    assert_eq!((device.family(), device.notices()), (KernelFamily::Tensor, vec![]));
    drop(device);
    for source in &mut sources {
        let broken =
            "#if TILE_BACKEND == TILE_TENSOR\n#define sigmoid(x) 1.0f\n#endif\ntemplate <int D, int DIM_SPLIT>";
        source.text = source.text.replace("template <int D, int DIM_SPLIT>", broken);
    }
    let device = open(&sources);
    assert_eq!(device.family(), KernelFamily::Simdgroup);
    let notice = device.notices().remove(0);
    assert!(
        notice.contains("attention_prefill_64_s1") && notice.contains("(2 other"),
        "{notice}"
    );
    mac.assert_clean();
}

#[test]
fn the_second_start_takes_pipelines_from_the_archive() {
    let cache = tempfile::tempdir().unwrap();
    let start = |spec: MachineSpec| {
        let (mac, device) = try_open(spec, true, Some(cache.path().to_owned()));
        let mut device = device.unwrap();
        let (a, b) = (floats(&mut device, &[1.0; COUNT]), floats(&mut device, &[0.0; COUNT]));
        let recording = device.record(&chain(&[a, b])).unwrap();
        device.submit(recording).unwrap();
        assert_eq!(read(&mut device, b), [2.0; COUNT]);
        mac.assert_clean();
        mac.statistics().from_archive
    };
    assert_eq!(start(MachineSpec::m4_max()), 0);
    assert_eq!(start(MachineSpec::m4_max()), 1);
    assert_eq!(start(MachineSpec::m1()), 0, "another GPU has another archive");
    // A damaged file is as good as none, and is replaced.
    for entry in std::fs::read_dir(cache.path()).unwrap() {
        std::fs::write(entry.unwrap().path(), "damaged").unwrap();
    }
    assert_eq!(start(MachineSpec::m4_max()), 0);
    assert_eq!(start(MachineSpec::m4_max()), 1);
}

#[test]
fn the_device_needs_no_pool_of_its_caller() {
    // Every other test would report an object that was autoreleased outside a pool; this one has an outer pool.
    autoreleasepool(|_| {
        let (mac, device) = open(MachineSpec::m1());
        drop(device);
        mac.assert_clean();
    });
}
