//! `MTLCommandQueue`.

use std::sync::{Arc, Mutex, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;

use crate::buffer::Memory;
use crate::command_buffer::SoftCommandBuffer;
use crate::machine::Machine;
use crate::residency::{Members, SoftResidencySet};

/// What a queue and its command buffers share.
pub(crate) struct QueueFields {
    pub machine: Arc<Machine>,
    /// The residency sets that hold for every command buffer of the queue.
    pub residency: Mutex<Vec<Arc<Members>>>,
}

impl QueueFields {
    /// Whether the queue's residency sets miss a buffer that they should have.
    pub fn misses(&self, memory: &Memory) -> bool {
        let sets = self.residency.lock().unwrap_or_else(PoisonError::into_inner);
        let any = |test: fn(&Members, u64) -> bool| sets.iter().any(|set| test(set, memory.id));
        !any(Members::is_member) && (any(Members::is_staged) || memory.is_wrapped() && any(Members::was_there))
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLCommandQueue"]
    #[ivars = Arc<QueueFields>]
    pub(crate) struct SoftQueue;

    unsafe impl NSObjectProtocol for SoftQueue {}

    impl SoftQueue {
        #[unsafe(method(setLabel:))]
        fn set_label(&self, _label: Option<&NSString>) {}

        #[unsafe(method(addResidencySet:))]
        fn add_residency_set(&self, set: &SoftResidencySet) {
            let mut sets = self.ivars().residency.lock().unwrap_or_else(PoisonError::into_inner);
            sets.push(set.ivars().members.clone());
        }

        #[unsafe(method(removeResidencySet:))]
        fn remove_residency_set(&self, set: &SoftResidencySet) {
            let mut sets = self.ivars().residency.lock().unwrap_or_else(PoisonError::into_inner);
            sets.retain(|other| !Arc::ptr_eq(other, &set.ivars().members));
        }

        #[unsafe(method_id(commandBuffer))]
        fn command_buffer(&self) -> Option<Retained<SoftCommandBuffer>> {
            Some(SoftCommandBuffer::new(self.ivars().clone(), true))
        }

        #[unsafe(method_id(commandBufferWithUnretainedReferences))]
        fn command_buffer_unretained(&self) -> Option<Retained<SoftCommandBuffer>> {
            Some(SoftCommandBuffer::new(self.ivars().clone(), false))
        }
    }
);

impl SoftQueue {
    pub fn new(machine: Arc<Machine>) -> Retained<Self> {
        let fields = QueueFields {
            machine,
            residency: Mutex::default(),
        };
        let this = Self::alloc().set_ivars(Arc::new(fields));
        // SAFETY: the super class's designated initializer.
        unsafe { msg_send![super(this), init] }
    }
}
