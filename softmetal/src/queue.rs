//! `MTLCommandQueue`.

use std::sync::{Arc, Mutex, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;

use crate::command_buffer::SoftCommandBuffer;
use crate::machine::Machine;
use crate::residency::{Committed, Members, SoftResidencySet};

/// What a queue and its command buffers share.
pub(crate) struct QueueFields {
    pub machine: Arc<Machine>,
    /// The residency sets that hold for every command buffer of the queue.
    pub residency: Mutex<Vec<Arc<Members>>>,
}

impl QueueFields {
    /// Whether a buffer was there when the queue's residency sets were committed and is in none of them.
    pub fn was_left_out(&self, id: u64) -> bool {
        let sets = self.residency.lock().unwrap_or_else(PoisonError::into_inner);
        let committed = |set: &Arc<Members>, holds: fn(&Committed, u64) -> bool| {
            holds(&set.committed.lock().unwrap_or_else(PoisonError::into_inner), id)
        };
        sets.iter().any(|set| committed(set, |set, id| id < set.next_id))
            && !sets
                .iter()
                .any(|set| committed(set, |set, id| set.buffers.contains(&id)))
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
