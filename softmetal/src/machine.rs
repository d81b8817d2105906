//! Which Mac the software device plays, and what all of its objects share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shader_tool::Mode;

use crate::command_buffer::{InFlight, UntrackedUse};
use crate::finding::{Finding, FindingKind};
use crate::watch::{Touch, Watch};

/// What `newBufferWithBytesNoCopy` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCopy {
    /// It wraps the memory, as on real Apple GPUs.
    Works,
    /// It returns a buffer of length 0, as on the paravirtual device of hosted CI machines.
    Empty,
}

/// What the tensor operations of Metal 4 do, on a machine whose GPU and system have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorOperations {
    /// They work.
    Work,
    /// The system's headers do not compile, as after some updates of macOS.
    DoNotCompile,
    /// The elements of a result lie elsewhere than on M5.
    OtherLayout,
}

/// The Mac to play.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// `MTLDevice.name`.
    pub name: String,
    /// `MTLDevice.architecture.name`; virtual devices have none.
    pub architecture: Option<String>,
    /// The highest Apple GPU family that the device supports (7 for M1).
    pub apple_family: usize,
    /// The macOS version.
    pub os: (usize, usize, usize),
    /// `recommendedMaxWorkingSetSize`, bytes.
    pub working_set: u64,
    /// `maxBufferLength`, bytes.
    pub max_buffer_length: usize,
    /// What `newBufferWithBytesNoCopy` does.
    pub no_copy: NoCopy,
    /// What the tensor operations do.
    pub tensor_operations: TensorOperations,
    /// The GPU time that a command buffer reports for each of its dispatches; `None` reports the time that it really took.
    pub seconds_per_dispatch: Option<f64>,
    /// Plain for speed; checked to have every memory access of the kernels and of the host watched.
    pub mode: Mode,
    /// Every command buffer from this number on, counted from 0, is killed like one that the display watchdog stops.
    pub killed_from: Option<u64>,
}

impl MachineSpec {
    /// An M1 with 16 GB and macOS 14.
    pub fn m1() -> Self {
        Self {
            name: "Apple M1".into(),
            architecture: Some("applegpu_g13g".into()),
            apple_family: 7,
            os: (14, 0, 0),
            working_set: 11_453_251_584,
            max_buffer_length: 8_589_934_592,
            no_copy: NoCopy::Works,
            tensor_operations: TensorOperations::Work,
            seconds_per_dispatch: None,
            mode: Mode::Plain,
            killed_from: None,
        }
    }

    /// An M4 Max with 64 GB and macOS 15.5.
    pub fn m4_max() -> Self {
        Self {
            name: "Apple M4 Max".into(),
            architecture: Some("applegpu_g16s".into()),
            apple_family: 9,
            os: (15, 5, 0),
            working_set: 55_662_788_608,
            max_buffer_length: 41_747_087_360,
            ..Self::m1()
        }
    }

    /// An M5 Max with 128 GB and macOS 26.4.
    pub fn m5_max() -> Self {
        Self {
            name: "Apple M5 Max".into(),
            architecture: Some("applegpu_g17s".into()),
            apple_family: 10,
            os: (26, 4, 0),
            working_set: 115_448_725_504,
            max_buffer_length: 86_586_540_032,
            ..Self::m1()
        }
    }

    /// The virtual device of hosted CI machines, macOS 15.
    pub fn paravirtual() -> Self {
        Self {
            name: "Apple Paravirtual device".into(),
            architecture: None,
            apple_family: 5,
            os: (15, 0, 0),
            working_set: 5_010_800_640,
            max_buffer_length: 3_758_096_384,
            no_copy: NoCopy::Empty,
            ..Self::m1()
        }
    }

    /// The same machine with every memory access watched.
    pub fn checked(self) -> Self {
        Self {
            mode: Mode::Checked,
            ..self
        }
    }
}

/// What has happened on a machine so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Command buffers that ran.
    pub command_buffers: u64,
    /// Dispatches that ran.
    pub dispatches: u64,
    /// Barriers that were encoded.
    pub barriers: u64,
    /// Kernels that were compiled because no binary archive had them.
    pub compiled: u64,
    /// Pipelines that a binary archive served.
    pub from_archive: u64,
    /// Buffers alive.
    pub buffers: u64,
    /// Bytes of the buffers alive, memory that they share with the host not counted.
    pub allocated_bytes: u64,
    /// Most command buffers that were in flight at once.
    pub most_in_flight: u64,
}

#[derive(Default)]
pub(crate) struct State {
    pub findings: Vec<Finding>,
    pub statistics: Statistics,
    /// Committed and not yet run, in the order of their commits.
    pub in_flight: Vec<Arc<InFlight>>,
    /// Command buffers that were committed, whether they have run or not.
    pub committed: u64,
    /// The last use of each untracked buffer, by its id.
    pub untracked: BTreeMap<u64, UntrackedUse>,
    /// The memory of what is in flight, closed to the host.
    pub watches: Vec<Watch>,
    /// Host accesses to that memory, each with the number of commits before it.
    pub touches: Vec<(u64, Touch)>,
}

/// What the objects of one machine share.
pub(crate) struct Machine {
    pub spec: MachineSpec,
    /// Held by the thread that runs command buffers.
    pub running: Mutex<()>,
    state: Mutex<State>,
    next_id: AtomicU64,
}

impl Machine {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub fn report(&self, kind: FindingKind, message: impl Into<String>) {
        self.state().findings.push(Finding {
            kind,
            message: message.into(),
        });
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Machine>>> = const { RefCell::new(None) };
}

/// The machine that this thread's `MTLCreateSystemDefaultDevice` belongs to.
pub(crate) fn current() -> Option<Arc<Machine>> {
    CURRENT.with(|current| current.borrow().clone())
}

/// Reports a call that this thread's machine, by its macOS version, does not have; on a Mac it would end the process.
pub(crate) fn needs_macos(major: usize, what: &str) {
    if let Some(machine) = current().filter(|machine| machine.spec.os.0 < major) {
        let found = machine.spec.os.0;
        machine.report(
            FindingKind::NotOnThisSystem,
            format!("{what} needs macOS {major}, this is {found}"),
        );
    }
}

/// A software Mac. `MTLCreateSystemDefaultDevice` on the thread that installed it returns its device.
#[derive(Clone)]
pub struct SoftMetal(Arc<Machine>);

impl SoftMetal {
    /// Makes a machine and installs it for this thread, in place of an earlier one.
    pub fn install(spec: MachineSpec) -> Self {
        let machine = Arc::new(Machine {
            spec,
            running: Mutex::default(),
            state: Mutex::default(),
            next_id: AtomicU64::new(1),
        });
        CURRENT.with(|current| current.replace(Some(machine.clone())));
        Self(machine)
    }

    /// Everything reported so far.
    pub fn findings(&self) -> Vec<Finding> {
        self.0.state().findings.clone()
    }

    /// Panics with the findings, if there are any.
    pub fn assert_clean(&self) {
        let findings = self.findings();
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "misuse of Metal:\n{}", lines.join("\n"));
    }

    /// What has happened so far.
    pub fn statistics(&self) -> Statistics {
        self.0.state().statistics
    }
}
