//! `MTLComputePipelineDescriptor` and `MTLComputePipelineState`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, Message, define_class, msg_send};
use objc2_foundation::NSString;
use objc2_metal::MTLPipelineOption;
use shader_tool::{KernelInfo, Pipeline};

use crate::archive::SoftArchive;
use crate::finding::FindingKind;
use crate::foundation::SoftArray;
use crate::library::SoftFunction;
use crate::machine::Machine;

/// Fields of a [`SoftPipelineDescriptor`].
#[derive(Default)]
pub(crate) struct DescriptorFields {
    function: RefCell<Option<Retained<SoftFunction>>>,
    archives: RefCell<Option<Retained<SoftArray>>>,
    /// 0 where the program leaves it to the compiler.
    max_threads: Cell<usize>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLComputePipelineDescriptor"]
    #[ivars = DescriptorFields]
    pub(crate) struct SoftPipelineDescriptor;

    unsafe impl NSObjectProtocol for SoftPipelineDescriptor {}

    impl SoftPipelineDescriptor {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Retained<Self> {
            let this = this.set_ivars(DescriptorFields::default());
            // SAFETY: the super class's designated initializer.
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setLabel:))]
        fn set_label(&self, _label: Option<&NSString>) {}

        #[unsafe(method(setComputeFunction:))]
        fn set_compute_function(&self, function: Option<&SoftFunction>) {
            self.ivars().function.replace(function.map(Message::retain));
        }

        #[unsafe(method(setBinaryArchives:))]
        fn set_binary_archives(&self, archives: Option<&SoftArray>) {
            self.ivars().archives.replace(archives.map(Message::retain));
        }

        #[unsafe(method(setMaxTotalThreadsPerThreadgroup:))]
        fn set_max_threads(&self, threads: usize) {
            self.ivars().max_threads.set(threads);
        }

        #[unsafe(method(setThreadGroupSizeIsMultipleOfThreadExecutionWidth:))]
        fn set_multiple_of_width(&self, _multiple: bool) {}
    }
);

impl SoftPipelineDescriptor {
    /// # Errors
    /// None is set.
    pub fn function(&self) -> Result<Retained<SoftFunction>, String> {
        self.ivars()
            .function
            .borrow()
            .clone()
            .ok_or_else(|| "the pipeline descriptor has no function".into())
    }

    fn is_in_an_archive(&self, key: &str) -> bool {
        let archives = self.ivars().archives.borrow();
        archives.iter().flat_map(|array| array.ivars()).any(|archive| {
            // SAFETY: the array was given to `setBinaryArchives:`, so it holds archives, and all are of this class.
            let archive = unsafe { &*(&raw const **archive).cast::<SoftArchive>() };
            archive.ivars().keys.borrow().contains(key)
        })
    }
}

/// A compiled kernel and what it declares.
pub(crate) struct Compiled {
    pub pipeline: Pipeline,
    pub info: KernelInfo,
    /// The most threads that a threadgroup of it may have.
    pub max_threads: usize,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLComputePipelineState"]
    #[ivars = Arc<Compiled>]
    pub(crate) struct SoftPipeline;

    unsafe impl NSObjectProtocol for SoftPipeline {}

    impl SoftPipeline {
        #[unsafe(method(maxTotalThreadsPerThreadgroup))]
        fn max_total_threads_per_threadgroup(&self) -> usize {
            self.ivars().max_threads
        }

        #[unsafe(method(threadExecutionWidth))]
        fn thread_execution_width(&self) -> usize {
            32
        }
    }
);

impl SoftPipeline {
    /// Compiles a function, or takes it from an archive.
    ///
    /// # Errors
    /// What clang refuses; a miss where the program asked for an error on a miss.
    pub fn new(
        machine: &Arc<Machine>,
        descriptor: &SoftPipelineDescriptor,
        options: MTLPipelineOption,
    ) -> Result<Retained<Self>, String> {
        let function = descriptor.function()?;
        let fields = function.ivars();
        let archived = descriptor.is_in_an_archive(&fields.key());
        if !archived && options.contains(MTLPipelineOption::FailOnBinaryArchiveMiss) {
            return Err(format!("{} is in none of the binary archives", fields.name));
        }
        let pipeline = fields
            .library
            .pipeline(&fields.name, &fields.constants())
            .map_err(|error| error.to_string())?;
        let info = pipeline.kernel().clone();
        let declared = info.max_threads.as_deref().and_then(|text| text.trim().parse().ok());
        let asked = Some(descriptor.ivars().max_threads.get()).filter(|&threads| threads > 0);
        if declared == Some(32) || asked == Some(32) {
            machine.report(FindingKind::PipelineOf32Threads, format!("kernel {}", fields.name));
        }
        {
            let statistics = &mut machine.state().statistics;
            if archived {
                statistics.from_archive += 1;
            } else {
                statistics.compiled += 1;
            }
        }
        let max_threads = asked.or(declared).unwrap_or(1024).min(1024);
        let this = Self::alloc().set_ivars(Arc::new(Compiled {
            pipeline,
            info,
            max_threads,
        }));
        // SAFETY: the super class's designated initializer.
        Ok(unsafe { msg_send![super(this), init] })
    }
}
