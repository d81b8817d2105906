//! Deliberate mistakes of host code, one of each kind: each must be noticed, and nothing else be reported.

mod common;

use std::ptr::NonNull;

use common::{Bench, COUNT, KERNELS, bind, bind_count, dispatch, finish, pipeline_with, read, write};
use objc2::rc::autoreleasepool;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBarrierScope, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLCompileOptions,
    MTLComputeCommandEncoder, MTLComputePipelineDescriptor, MTLDevice, MTLDispatchType, MTLMathMode, MTLResidencySet,
    MTLResidencySetDescriptor, MTLResourceOptions,
};
use softmetal::{FindingKind, MachineSpec};

/// Runs a mistake on a machine that watches everything.
fn check(kind: FindingKind, mistake: impl FnOnce(&Bench)) {
    autoreleasepool(|_| {
        let bench = Bench::new(MachineSpec::m4_max().checked());
        mistake(&bench);
        bench.assert_only(kind);
    });
}

#[test]
fn correct_code_is_clean() {
    autoreleasepool(|_| {
        let bench = Bench::new(MachineSpec::m4_max().checked());
        let (a, b) = (bench.buffer(), bench.buffer());
        let (command_buffer, encoder) = bench.begin();
        bench.encode_add_one(&encoder, &a);
        encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        bench.encode_double(&encoder, &a, &b);
        finish(&command_buffer, &encoder);
        for i in 0..COUNT {
            assert_eq!(read(&b, i), 2.0 * (i as f32 + 1.0));
        }
        bench.mac.assert_clean();
    });
}

#[test]
fn an_argument_that_nothing_is_bound_to() {
    check(FindingKind::UnboundArgument, |bench| {
        let buffer = bench.buffer();
        let (command_buffer, encoder) = bench.begin();
        encoder.setComputePipelineState(&bench.add_one);
        bind(&encoder, &buffer, 0, 0);
        dispatch(&encoder, 1, COUNT);
        finish(&command_buffer, &encoder);
    });
}

#[test]
fn an_offset_beyond_the_buffer() {
    check(FindingKind::BindingOutOfRange, |bench| {
        let (a, b) = (bench.buffer(), bench.buffer());
        let (command_buffer, encoder) = bench.begin();
        bench.encode_double(&encoder, &a, &b);
        bind(&encoder, &a, COUNT * 4, 0);
        finish(&command_buffer, &encoder);
    });
}

#[test]
fn a_misaligned_offset() {
    check(FindingKind::MisalignedOffset, |bench| {
        let buffer = bench.buffer();
        let (command_buffer, encoder) = bench.begin();
        encoder.setComputePipelineState(&bench.add_one);
        bind(&encoder, &buffer, 2, 0);
        bind_count(&encoder, 0, 1);
        dispatch(&encoder, 1, COUNT);
        finish(&command_buffer, &encoder);
    });
}

#[test]
fn encoding_after_the_end() {
    check(FindingKind::EncodeAfterEnd, |bench| {
        let buffer = bench.buffer();
        let (command_buffer, encoder) = bench.begin();
        encoder.endEncoding();
        bench.encode_add_one(&encoder, &buffer);
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
    });
}

#[test]
fn a_commit_with_an_open_encoder() {
    check(FindingKind::OpenEncoder, |bench| {
        let buffer = bench.buffer();
        let (command_buffer, encoder) = bench.begin();
        bench.encode_add_one(&encoder, &buffer);
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
    });
}

#[test]
fn a_residency_set_that_was_not_committed() {
    check(FindingKind::NotResident, |bench| {
        let (a, b) = (bench.buffer(), bench.buffer());
        let set = bench
            .device
            .newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new())
            .unwrap();
        set.addAllocation(ProtocolObject::from_ref(&*a));
        set.commit();
        set.addAllocation(ProtocolObject::from_ref(&*b));
        bench.queue.addResidencySet(&set);
        let (command_buffer, encoder) = bench.begin();
        bench.encode_double(&encoder, &a, &b);
        finish(&command_buffer, &encoder);
    });
}

#[test]
fn a_residency_set_changed_in_flight() {
    check(FindingKind::ResidencyChangedInFlight, |bench| {
        let (a, b) = (bench.buffer(), bench.buffer());
        let set = bench
            .device
            .newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new())
            .unwrap();
        let (command_buffer, encoder) = bench.begin();
        bench.encode_double(&encoder, &a, &b);
        encoder.endEncoding();
        command_buffer.commit();
        set.addAllocation(ProtocolObject::from_ref(&*a));
        command_buffer.waitUntilCompleted();
    });
}

#[test]
fn a_buffer_released_in_flight() {
    check(FindingKind::ReleasedInFlight, |bench| {
        let buffer = bench.buffer();
        let command_buffer = bench.queue.commandBufferWithUnretainedReferences().unwrap();
        let encoder = command_buffer
            .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
            .unwrap();
        bench.encode_add_one(&encoder, &buffer);
        encoder.endEncoding();
        command_buffer.commit();
        drop(buffer);
        command_buffer.waitUntilCompleted();
    });
}

#[test]
fn too_many_threads() {
    check(FindingKind::DispatchOverLimit, |bench| {
        let (a, b) = (bench.buffer(), bench.buffer());
        let (command_buffer, encoder) = bench.begin();
        encoder.setComputePipelineState(&bench.double_into);
        bind(&encoder, &a, 0, 0);
        bind(&encoder, &b, 0, 1);
        dispatch(&encoder, 1, 2048);
        finish(&command_buffer, &encoder);
    });
}

#[test]
fn a_missing_barrier() {
    check(FindingKind::MissingBarrier, |bench| {
        let (a, b) = (bench.buffer(), bench.buffer());
        let (command_buffer, encoder) = bench.begin();
        bench.encode_add_one(&encoder, &a);
        bench.encode_double(&encoder, &a, &b);
        finish(&command_buffer, &encoder);
    });
}

#[test]
fn untracked_buffers_that_nothing_orders() {
    check(FindingKind::UntrackedHazard, |bench| {
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        let untracked = bench.device.newBufferWithLength_options(COUNT * 4, options).unwrap();
        let (first, encoder) = bench.begin();
        bench.encode_add_one(&encoder, &untracked);
        encoder.endEncoding();
        first.commit();
        let (second, encoder) = bench.begin();
        bench.encode_add_one(&encoder, &untracked);
        finish(&second, &encoder);
    });
}

#[test]
fn reading_results_before_they_are_there() {
    check(FindingKind::HostAccessInFlight, |bench| {
        let buffer = bench.buffer();
        let (command_buffer, encoder) = bench.begin();
        bench.encode_add_one(&encoder, &buffer);
        encoder.endEncoding();
        command_buffer.commit();
        assert_eq!(
            read(&buffer, 5),
            5.0,
            "the work runs no earlier than somebody waits for it"
        );
        command_buffer.waitUntilCompleted();
        assert_eq!(read(&buffer, 5), 6.0);
    });
}

#[test]
fn writing_inputs_that_are_still_to_be_read() {
    check(FindingKind::HostAccessInFlight, |bench| {
        let (a, b) = (bench.buffer(), bench.buffer());
        let (command_buffer, encoder) = bench.begin();
        bench.encode_double(&encoder, &a, &b);
        encoder.endEncoding();
        command_buffer.commit();
        write(&a, 5, 0.0);
        command_buffer.waitUntilCompleted();
    });
}

/// Two command buffers in flight, each with its own slot in one page, as in decode.
#[test]
fn touching_other_bytes_of_a_page_in_flight_is_fine() {
    autoreleasepool(|_| {
        let bench = Bench::new(MachineSpec::m4_max().checked());
        let page = bench
            .device
            .newBufferWithLength_options(4096, MTLResourceOptions::StorageModeShared)
            .unwrap();
        let (command_buffer, encoder) = bench.begin();
        bench.encode_add_one(&encoder, &page);
        encoder.endEncoding();
        command_buffer.commit();
        write(&page, COUNT, 7.0);
        command_buffer.waitUntilCompleted();
        assert_eq!((read(&page, 0), read(&page, COUNT)), (1.0, 7.0));
        bench.mac.assert_clean();
    });
}

#[test]
fn writing_to_memory_that_is_mapped_read_only() {
    check(FindingKind::WriteToReadOnly, |bench| {
        // SAFETY: new pages of this test's own.
        let pages = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 16384, libc::PROT_READ, flags, -1, 0)
        };
        // SAFETY: the pages stay mapped to the end of the process.
        let buffer = unsafe {
            bench.device.newBufferWithBytesNoCopy_length_options_deallocator(
                NonNull::new(pages).unwrap(),
                16384,
                MTLResourceOptions::StorageModeShared,
                None,
            )
        }
        .unwrap();
        let (command_buffer, encoder) = bench.begin();
        bench.encode_add_one(&encoder, &buffer);
        encoder.endEncoding();
        // Not committed: the mistake shows when the dispatch is encoded.
        drop(command_buffer);
    });
}

#[test]
fn a_pipeline_of_32_threads() {
    check(FindingKind::PipelineOf32Threads, |bench| {
        let narrow = |descriptor: &MTLComputePipelineDescriptor| descriptor.setMaxTotalThreadsPerThreadgroup(32);
        pipeline_with(&bench.device, KERNELS, "double_into", narrow);
    });
}

#[test]
fn a_call_that_the_system_does_not_have() {
    autoreleasepool(|_| {
        let bench = Bench::new(MachineSpec::m1());
        MTLCompileOptions::new().setMathMode(MTLMathMode::Safe);
        bench.assert_only(FindingKind::NotOnThisSystem);
    });
}

#[test]
fn work_without_an_autorelease_pool() {
    let bench = autoreleasepool(|_| Bench::new(MachineSpec::m4_max()));
    let command_buffer = bench.queue.commandBuffer();
    drop(command_buffer);
    bench.assert_only(FindingKind::NoAutoreleasePool);
}

#[test]
fn a_kernel_that_writes_past_its_buffer() {
    check(FindingKind::Kernel, |bench| {
        let (a, b) = (bench.buffer(), bench.buffer());
        let (command_buffer, encoder) = bench.begin();
        encoder.setComputePipelineState(&bench.double_into);
        bind(&encoder, &a, 0, 0);
        bind(&encoder, &b, 0, 1);
        dispatch(&encoder, 1, 2 * COUNT);
        finish(&command_buffer, &encoder);
        assert_eq!(b.length(), COUNT * 4);
    });
}
