//! What the software device reports about the program that uses it.

use std::fmt;

/// A kind of misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// A kernel's buffer argument has nothing bound to it.
    UnboundArgument,
    /// A binding index above 30, an offset at or beyond the buffer's end, or more than 4 KiB given to `setBytes`.
    BindingOutOfRange,
    /// An offset that is no multiple of what the argument's type or its address space needs.
    MisalignedOffset,
    /// A call on an encoder after `endEncoding`, or on a command buffer after `commit`.
    EncodeAfterEnd,
    /// A commit while an encoder of the command buffer is still open.
    OpenEncoder,
    /// A buffer is bound that was added to the queue's residency set and never committed, or that lies in pages of the program's
    /// own and was left out of the set.
    NotResident,
    /// A residency set was changed while a command buffer was in flight.
    ResidencyChangedInFlight,
    /// A buffer was released while a command buffer that does not retain it was in flight.
    ReleasedInFlight,
    /// Threads or threadgroup memory over the pipeline's or the device's limit, an empty threadgroup, no pipeline set.
    DispatchOverLimit,
    /// Two dispatches of a concurrent encoder touch the same bytes, one writing, and no barrier lies between.
    MissingBarrier,
    /// Two encoders touch an untracked buffer, one writing, and nothing orders them.
    UntrackedHazard,
    /// The host touched bytes that a command buffer in flight was still to write, or wrote bytes it was to read.
    HostAccessInFlight,
    /// A kernel may write a buffer that lies in memory mapped read-only.
    WriteToReadOnly,
    /// A pipeline declares a maximum of 32 threads, for which Apple's compiler drops barriers.
    PipelineOf32Threads,
    /// An object was autoreleased on a thread without an autorelease pool.
    NoAutoreleasePool,
    /// A call that this macOS version does not have.
    NotOnThisSystem,
    /// What the emulator's checker found inside a kernel: a race, an access outside a buffer, a divergent SIMD operation.
    Kernel,
}

/// One misuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub kind: FindingKind,
    /// Where and by which objects.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}
