//! `MTLBinaryArchive`: which specialised functions are in it. The machine code itself is cached by `shader-tool`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{AnyObject, NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;

use crate::foundation::{SoftError, SoftUrl};
use crate::machine::Machine;
use crate::pipeline::SoftPipelineDescriptor;

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLBinaryArchiveDescriptor"]
    #[ivars = RefCell<Option<Retained<SoftUrl>>>]
    pub(crate) struct SoftArchiveDescriptor;

    unsafe impl NSObjectProtocol for SoftArchiveDescriptor {}

    impl SoftArchiveDescriptor {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Retained<Self> {
            let this = this.set_ivars(RefCell::default());
            // SAFETY: the super class's designated initializer.
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setUrl:))]
        fn set_url(&self, url: Option<&SoftUrl>) {
            self.ivars().replace(url.map(objc2::Message::retain));
        }
    }
);

pub(crate) struct ArchiveFields {
    /// The GPU and the system that the machine code is for.
    header: String,
    pub keys: RefCell<BTreeSet<String>>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLBinaryArchive"]
    #[ivars = ArchiveFields]
    pub(crate) struct SoftArchive;

    unsafe impl NSObjectProtocol for SoftArchive {}

    impl SoftArchive {
        #[unsafe(method(addComputePipelineFunctionsWithDescriptor:error:))]
        fn add(&self, descriptor: &SoftPipelineDescriptor, error: *mut *mut AnyObject) -> bool {
            let result = descriptor.function().map(|function| {
                self.ivars().keys.borrow_mut().insert(function.ivars().key());
            });
            // SAFETY: Metal's callers pass null or a variable for the error.
            unsafe { SoftError::value_or_error(result, error) }.is_some()
        }

        #[unsafe(method(serializeToURL:error:))]
        fn serialize(&self, url: &SoftUrl, error: *mut *mut AnyObject) -> bool {
            let keys = self.ivars().keys.borrow();
            let mut text = self.ivars().header.clone();
            for key in keys.iter() {
                text.push_str(&format!("{key}\n"));
            }
            let result = fs::write(url.path(), text).map_err(|cause| format!("{}: {cause}", url.path().display()));
            // SAFETY: Metal's callers pass null or a variable for the error.
            unsafe { SoftError::value_or_error(result, error) }.is_some()
        }

        #[unsafe(method(setLabel:))]
        fn set_label(&self, _label: Option<&NSString>) {}
    }
);

impl SoftArchive {
    /// An empty archive, or the one in the descriptor's file.
    ///
    /// # Errors
    /// The file cannot be read, is no archive, or is another GPU's or another system's.
    pub fn open(machine: &Arc<Machine>, descriptor: &SoftArchiveDescriptor) -> Result<Retained<Self>, String> {
        let header = format!(
            "softmetal archive for {}, macOS {:?}\n",
            machine.spec.name, machine.spec.os
        );
        let mut keys = BTreeSet::new();
        if let Some(url) = &*descriptor.ivars().borrow() {
            let text = fs::read_to_string(url.path()).map_err(|cause| format!("{}: {cause}", url.path().display()))?;
            let body = text
                .strip_prefix(&header)
                .ok_or("the archive is not of this GPU and system")?;
            keys.extend(body.lines().map(String::from));
        }
        let this = Self::alloc().set_ivars(ArchiveFields {
            header,
            keys: RefCell::new(keys),
        });
        // SAFETY: the super class's designated initializer.
        Ok(unsafe { msg_send![super(this), init] })
    }
}
