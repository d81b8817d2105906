//! `MTLResidencySet`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;

use crate::buffer::SoftBuffer;
use crate::finding::FindingKind;
use crate::machine::Machine;

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLResidencySetDescriptor"]
    #[ivars = Cell<usize>]
    pub(crate) struct SoftResidencyDescriptor;

    unsafe impl NSObjectProtocol for SoftResidencyDescriptor {}

    impl SoftResidencyDescriptor {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Retained<Self> {
            let this = this.set_ivars(Cell::default());
            // SAFETY: the super class's designated initializer.
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setInitialCapacity:))]
        fn set_initial_capacity(&self, capacity: usize) {
            self.ivars().set(capacity);
        }

        #[unsafe(method(setLabel:))]
        fn set_label(&self, _label: Option<&NSString>) {}
    }
);

/// What a commit made of a set.
#[derive(Default)]
struct Committed {
    /// Ids of the buffers.
    buffers: BTreeSet<u64>,
    /// Buffers made later have ids from here on.
    next_id: u64,
}

/// The buffers of a set, by id.
#[derive(Default)]
pub(crate) struct Members {
    /// As of the last commit.
    committed: Mutex<Committed>,
    /// As of the last change.
    staged: Mutex<BTreeSet<u64>>,
}

impl Members {
    fn committed(&self) -> MutexGuard<'_, Committed> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn staged(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The set holds the buffer.
    pub fn is_member(&self, id: u64) -> bool {
        self.committed().buffers.contains(&id)
    }

    /// The buffer was added, whether that was committed or not.
    pub fn is_staged(&self, id: u64) -> bool {
        self.staged().contains(&id)
    }

    /// The buffer existed when the set was committed.
    pub fn was_there(&self, id: u64) -> bool {
        id < self.committed().next_id
    }
}

pub(crate) struct ResidencyFields {
    machine: Arc<Machine>,
    pub members: Arc<Members>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLResidencySet"]
    #[ivars = ResidencyFields]
    pub(crate) struct SoftResidencySet;

    unsafe impl NSObjectProtocol for SoftResidencySet {}

    impl SoftResidencySet {
        #[unsafe(method(addAllocation:))]
        fn add_allocation(&self, buffer: &SoftBuffer) {
            self.report_if_in_flight("an allocation was added to");
            self.staged().insert(buffer.ivars().memory.id);
        }

        #[unsafe(method(removeAllocation:))]
        fn remove_allocation(&self, buffer: &SoftBuffer) {
            self.report_if_in_flight("an allocation was removed from");
            self.staged().remove(&buffer.ivars().memory.id);
        }

        #[unsafe(method(allocationCount))]
        fn allocation_count(&self) -> usize {
            self.staged().len()
        }

        #[unsafe(method(commit))]
        fn commit(&self) {
            self.report_if_in_flight("a commit changed");
            let committed = Committed { buffers: self.staged().clone(), next_id: self.ivars().machine.new_id() };
            *self.ivars().members.committed() = committed;
        }

        #[unsafe(method(requestResidency))]
        fn request_residency(&self) {}

        #[unsafe(method(endResidency))]
        fn end_residency(&self) {}
    }
);

impl SoftResidencySet {
    pub fn new(machine: Arc<Machine>) -> Retained<Self> {
        let this = Self::alloc().set_ivars(ResidencyFields {
            machine,
            members: Arc::default(),
        });
        // SAFETY: the super class's designated initializer.
        unsafe { msg_send![super(this), init] }
    }

    fn staged(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.ivars().members.staged()
    }

    fn report_if_in_flight(&self, what: &str) {
        let machine = &self.ivars().machine;
        let count = machine.state().in_flight.len();
        if count > 0 {
            machine.report(
                FindingKind::ResidencyChangedInFlight,
                format!("{what} a residency set while {count} command buffers were in flight"),
            );
        }
    }
}
