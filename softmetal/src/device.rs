//! `MTLDevice`.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use objc2::rc::Retained;
use objc2::runtime::{AnyObject, NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;
use objc2_metal::{MTLGPUFamily, MTLPipelineOption, MTLResourceOptions};

use crate::archive::{SoftArchive, SoftArchiveDescriptor};
use crate::buffer::{Memory, SoftBuffer, is_tracked, pages};
use crate::foundation::SoftError;
use crate::library::{SoftCompileOptions, SoftLibrary};
use crate::machine::{self, Machine, MachineSpec, NoCopy, needs_macos};
use crate::pipeline::{SoftPipeline, SoftPipelineDescriptor};
use crate::queue::SoftQueue;
use crate::residency::{SoftResidencyDescriptor, SoftResidencySet};
use crate::watch;

/// The most threadgroup memory that a dispatch may have, bytes, on every Apple GPU.
pub(crate) const THREADGROUP_MEMORY: usize = 32 << 10;

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLArchitecture"]
    #[ivars = Retained<NSString>]
    struct SoftArchitecture;

    unsafe impl NSObjectProtocol for SoftArchitecture {}

    impl SoftArchitecture {
        #[unsafe(method_id(name))]
        fn name(&self) -> Retained<NSString> {
            self.ivars().clone()
        }
    }
);

impl SoftArchitecture {
    fn new(name: &str) -> Retained<Self> {
        let this = Self::alloc().set_ivars(NSString::from_str(name));
        // SAFETY: the super class's designated initializer.
        unsafe { msg_send![super(this), init] }
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLDevice"]
    #[ivars = Arc<Machine>]
    pub(crate) struct SoftDevice;

    unsafe impl NSObjectProtocol for SoftDevice {}

    impl SoftDevice {
        #[unsafe(method_id(name))]
        fn name(&self) -> Retained<NSString> {
            NSString::from_str(&self.ivars().spec.name)
        }

        #[unsafe(method_id(architecture))]
        fn architecture(&self) -> Option<Retained<SoftArchitecture>> {
            self.ivars().spec.architecture.as_ref().map(|name| SoftArchitecture::new(name))
        }

        #[unsafe(method(supportsFamily:))]
        fn supports_family(&self, family: MTLGPUFamily) -> bool {
            let MachineSpec { apple_family, os, .. } = &self.ivars().spec;
            match family {
                MTLGPUFamily::Metal3 => *apple_family >= 7,
                MTLGPUFamily::Metal4 => *apple_family >= 7 && os.0 >= 26,
                MTLGPUFamily(number) => (1001..=1000 + *apple_family as isize).contains(&number),
            }
        }

        #[unsafe(method(hasUnifiedMemory))]
        fn has_unified_memory(&self) -> bool {
            true
        }

        #[unsafe(method(recommendedMaxWorkingSetSize))]
        fn recommended_max_working_set_size(&self) -> u64 {
            self.ivars().spec.working_set
        }

        #[unsafe(method(maxBufferLength))]
        fn max_buffer_length(&self) -> usize {
            self.ivars().spec.max_buffer_length
        }

        #[unsafe(method(currentAllocatedSize))]
        fn current_allocated_size(&self) -> usize {
            self.ivars().state().statistics.allocated_bytes as usize
        }

        #[unsafe(method(maxThreadgroupMemoryLength))]
        fn max_threadgroup_memory_length(&self) -> usize {
            THREADGROUP_MEMORY
        }

        #[unsafe(method_id(newCommandQueue))]
        fn new_command_queue(&self) -> Option<Retained<SoftQueue>> {
            Some(SoftQueue::new(self.ivars().clone()))
        }

        #[unsafe(method_id(newBufferWithLength:options:))]
        fn new_buffer(&self, length: usize, options: MTLResourceOptions) -> Option<Retained<SoftBuffer>> {
            self.allocate(length, options)
        }

        /// Like Metal, refuses a pointer or a length that is not of whole pages.
        #[unsafe(method_id(newBufferWithBytesNoCopy:length:options:deallocator:))]
        fn new_buffer_no_copy(
            &self,
            pointer: *mut c_void,
            length: usize,
            options: MTLResourceOptions,
            deallocator: *const AnyObject,
        ) -> Option<Retained<SoftBuffer>> {
            assert!(deallocator.is_null(), "the software Metal calls no deallocator");
            NonNull::new(pointer).and_then(|pointer| self.wrap(pointer, length, options))
        }

        #[unsafe(method_id(newLibraryWithSource:options:error:))]
        fn new_library(
            &self,
            source: &NSString,
            options: Option<&SoftCompileOptions>,
            error: *mut *mut AnyObject,
        ) -> Option<Retained<SoftLibrary>> {
            let result = SoftLibrary::compile(self.ivars().clone(), &source.to_string(), options);
            // SAFETY: Metal's callers pass null or a variable for the error.
            unsafe { SoftError::value_or_error(result, error) }
        }

        #[unsafe(method_id(newComputePipelineStateWithDescriptor:options:reflection:error:))]
        fn new_pipeline(
            &self,
            descriptor: &SoftPipelineDescriptor,
            options: MTLPipelineOption,
            _reflection: *mut *mut AnyObject,
            error: *mut *mut AnyObject,
        ) -> Option<Retained<SoftPipeline>> {
            let result = SoftPipeline::new(self.ivars(), descriptor, options);
            // SAFETY: Metal's callers pass null or a variable for the error.
            unsafe { SoftError::value_or_error(result, error) }
        }

        #[unsafe(method_id(newBinaryArchiveWithDescriptor:error:))]
        fn new_binary_archive(
            &self,
            descriptor: &SoftArchiveDescriptor,
            error: *mut *mut AnyObject,
        ) -> Option<Retained<SoftArchive>> {
            let result = SoftArchive::open(self.ivars(), descriptor);
            // SAFETY: Metal's callers pass null or a variable for the error.
            unsafe { SoftError::value_or_error(result, error) }
        }

        #[unsafe(method_id(newResidencySetWithDescriptor:error:))]
        fn new_residency_set(
            &self,
            _descriptor: &SoftResidencyDescriptor,
            error: *mut *mut AnyObject,
        ) -> Option<Retained<SoftResidencySet>> {
            needs_macos(15, "MTLDevice.newResidencySet");
            // SAFETY: Metal's callers pass null or a variable for the error.
            unsafe { SoftError::value_or_error(Ok(SoftResidencySet::new(self.ivars().clone())), error) }
        }
    }
);

impl SoftDevice {
    fn allocate(&self, length: usize, options: MTLResourceOptions) -> Option<Retained<SoftBuffer>> {
        let machine = self.ivars();
        if length == 0 || length > machine.spec.max_buffer_length {
            return None;
        }
        let memory = Memory::allocate(machine.clone(), length, is_tracked(options))?;
        Some(SoftBuffer::new(memory, length))
    }

    fn wrap(
        &self,
        pointer: NonNull<c_void>,
        length: usize,
        options: MTLResourceOptions,
    ) -> Option<Retained<SoftBuffer>> {
        let machine = self.ivars();
        let whole_pages = (pointer.as_ptr() as usize).is_multiple_of(watch::page_size()) && length == pages(length);
        if !whole_pages || length > machine.spec.max_buffer_length {
            return None;
        }
        let memory = Memory::wrap(machine.clone(), pointer, length, is_tracked(options));
        let visible = if machine.spec.no_copy == NoCopy::Works {
            length
        } else {
            0
        };
        Some(SoftBuffer::new(memory, visible))
    }
}

/// Metal's entry point, under the name that objc2-metal links to.
///
/// # Panics
/// Where this thread has no machine ([`crate::SoftMetal::install`]).
#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> *mut SoftDevice {
    let machine = machine::current().expect("a test installs a software Mac before it asks for a device");
    let this = SoftDevice::alloc().set_ivars(machine);
    // SAFETY: the super class's designated initializer.
    let device: Retained<SoftDevice> = unsafe { msg_send![super(this), init] };
    Retained::into_raw(device)
}
