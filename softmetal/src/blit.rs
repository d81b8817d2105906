//! `MTLBlitCommandEncoder`: copies between buffers.

use std::sync::Arc;

use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;

use crate::buffer::SoftBuffer;
use crate::encoder::{BoundBuffer, Command, Copy, Recording};
use crate::finding::FindingKind;
use crate::machine::Machine;

pub(crate) struct BlitFields {
    machine: Arc<Machine>,
    recording: Arc<Recording>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLBlitCommandEncoder"]
    #[ivars = BlitFields]
    pub(crate) struct SoftBlitEncoder;

    unsafe impl NSObjectProtocol for SoftBlitEncoder {}

    impl SoftBlitEncoder {
        #[unsafe(method(setLabel:))]
        fn set_label(&self, _label: Option<&NSString>) {}

        #[unsafe(method(copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:))]
        fn copy(&self, from: &SoftBuffer, from_offset: usize, to: &SoftBuffer, to_offset: usize, length: usize) {
            let BlitFields { machine, recording } = self.ivars();
            if recording.ended.get() {
                machine.report(FindingKind::EncodeAfterEnd, "a copy on an encoder that has ended");
                return;
            }
            if [from_offset, to_offset, length].iter().any(|n| !n.is_multiple_of(4)) {
                machine.report(
                    FindingKind::MisalignedOffset,
                    format!("a copy of {length} bytes from offset {from_offset} to {to_offset}: each must be a multiple of 4"),
                );
            }
            let (from, to) = (bound(from, from_offset), bound(to, to_offset));
            for side in [&from, &to] {
                if side.offset.checked_add(length).is_none_or(|end| end > side.memory.length) {
                    let buffer = side.memory.describe();
                    machine.report(
                        FindingKind::BindingOutOfRange,
                        format!("a copy of {length} bytes at offset {} of {buffer}, {} bytes", side.offset, side.memory.length),
                    );
                    return;
                }
            }
            recording.commands.borrow_mut().push(Command::Copy(Copy { from, to, length }));
        }

        #[unsafe(method(endEncoding))]
        fn end_encoding(&self) {
            let BlitFields { machine, recording } = self.ivars();
            if recording.ended.replace(true) {
                machine.report(FindingKind::EncodeAfterEnd, "endEncoding on an encoder that has ended");
            }
        }
    }
);

fn bound(buffer: &SoftBuffer, offset: usize) -> BoundBuffer {
    let fields = buffer.ivars();
    BoundBuffer {
        memory: fields.memory.clone(),
        alive: Arc::downgrade(&fields.alive),
        offset,
    }
}

impl SoftBlitEncoder {
    pub fn new(machine: Arc<Machine>, recording: Arc<Recording>) -> Retained<Self> {
        let this = Self::alloc().set_ivars(BlitFields { machine, recording });
        // SAFETY: the super class's designated initializer.
        unsafe { msg_send![super(this), init] }
    }
}
