//! `MTLCommandBuffer`: committed work, and running it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;
use objc2_metal::{MTLCommandBufferError, MTLCommandBufferStatus, MTLDispatchType};
use shader_tool::{Access, Mode};

use crate::blit::SoftBlitEncoder;
use crate::encoder::{Bound, BoundBuffer, Command, Grid, Recording, SoftEncoder};
use crate::execute::{self, Accesses};
use crate::finding::FindingKind;
use crate::foundation::SoftError;
use crate::machine::{Machine, State};
use crate::queue::QueueFields;
use crate::watch::{Allowed, Watch};

/// What Metal says of a command buffer that the display's watchdog ended.
const KILLED: &str = "Caused GPU Timeout Error (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)";

/// How a command buffer ended.
#[derive(Clone, Copy)]
struct Outcome {
    killed: bool,
    seconds: f64,
}

/// A committed command buffer.
pub(crate) struct InFlight {
    /// Commits of the machine before this one.
    number: u64,
    /// The number of the oldest command buffer that was in flight at the commit.
    oldest: u64,
    retained: bool,
    encoders: Vec<Arc<Recording>>,
    outcome: Mutex<Option<Outcome>>,
}

impl InFlight {
    fn outcome(&self) -> Option<Outcome> {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatches(&self) -> usize {
        let is_dispatch = |command: &&Command| matches!(command, Command::Dispatch(_));
        self.encoders
            .iter()
            .map(|encoder| encoder.commands.borrow().iter().filter(is_dispatch).count())
            .sum()
    }

    /// Calls `use_it` with every bound buffer.
    fn for_each_buffer(&self, mut use_it: impl FnMut(&BoundBuffer, Access)) {
        for encoder in &self.encoders {
            for command in encoder.commands.borrow().iter() {
                match command {
                    Command::Barrier => {}
                    Command::Copy(copy) => {
                        use_it(&copy.from, Access::Read);
                        use_it(&copy.to, Access::ReadWrite);
                    }
                    Command::Dispatch(dispatch) => {
                        for (_, access, bound) in &dispatch.bindings {
                            if let Bound::Buffer(buffer) = bound {
                                use_it(buffer, *access);
                            }
                        }
                        if let Grid::Indirect(buffer) = &dispatch.grid {
                            use_it(buffer, Access::Read);
                        }
                    }
                }
            }
        }
    }
}

pub(crate) struct CommandBufferFields {
    queue: Arc<QueueFields>,
    retained: bool,
    encoders: RefCell<Vec<Arc<Recording>>>,
    committed: RefCell<Option<Arc<InFlight>>>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLCommandBuffer"]
    #[ivars = CommandBufferFields]
    pub(crate) struct SoftCommandBuffer;

    unsafe impl NSObjectProtocol for SoftCommandBuffer {}

    impl SoftCommandBuffer {
        #[unsafe(method(setLabel:))]
        fn set_label(&self, _label: Option<&NSString>) {}

        #[unsafe(method_id(computeCommandEncoderWithDispatchType:))]
        fn compute_encoder(&self, dispatch_type: MTLDispatchType) -> Option<Retained<SoftEncoder>> {
            let recording = self.new_recording(dispatch_type == MTLDispatchType::Serial);
            Some(SoftEncoder::new(self.ivars().queue.machine.clone(), recording))
        }

        #[unsafe(method_id(blitCommandEncoder))]
        fn blit_encoder(&self) -> Option<Retained<SoftBlitEncoder>> {
            Some(SoftBlitEncoder::new(self.ivars().queue.machine.clone(), self.new_recording(true)))
        }

        #[unsafe(method(commit))]
        fn commit(&self) {
            let fields = self.ivars();
            let machine = &fields.queue.machine;
            if fields.committed.borrow().is_some() {
                machine.report(FindingKind::EncodeAfterEnd, "commit of a committed command buffer");
                return;
            }
            let encoders = fields.encoders.take();
            for open in encoders.iter().filter(|encoder| !encoder.ended.get()) {
                machine.report(FindingKind::OpenEncoder, "commit while an encoder is open");
                open.ended.set(true);
            }
            let mut state = machine.state();
            let number = state.committed;
            let in_flight = Arc::new(InFlight {
                number,
                oldest: state.in_flight.first().map_or(number, |first| first.number),
                retained: fields.retained,
                encoders,
                outcome: Mutex::default(),
            });
            state.end_watches();
            state.committed += 1;
            state.in_flight.push(in_flight.clone());
            let count = state.in_flight.len() as u64;
            state.statistics.most_in_flight = state.statistics.most_in_flight.max(count);
            if machine.spec.mode == Mode::Checked {
                state.start_watches();
            }
            drop(state);
            self.check_residency(&in_flight);
            fields.committed.replace(Some(in_flight));
        }

        #[unsafe(method(waitUntilCompleted))]
        fn wait_until_completed(&self) {
            let machine = &self.ivars().queue.machine;
            match &*self.ivars().committed.borrow() {
                Some(in_flight) => run_up_to(machine, in_flight),
                None => machine.report(FindingKind::EncodeAfterEnd, "waiting for a command buffer that was never committed"),
            }
        }

        /// Asking lets the work finish: who polls makes progress.
        #[unsafe(method(status))]
        fn status(&self) -> MTLCommandBufferStatus {
            let committed = self.ivars().committed.borrow();
            let Some(in_flight) = &*committed else { return MTLCommandBufferStatus::NotEnqueued };
            run_up_to(&self.ivars().queue.machine, in_flight);
            match in_flight.outcome() {
                Some(Outcome { killed: false, .. }) => MTLCommandBufferStatus::Completed,
                Some(Outcome { killed: true, .. }) => MTLCommandBufferStatus::Error,
                None => MTLCommandBufferStatus::Committed,
            }
        }

        #[unsafe(method_id(error))]
        fn error(&self) -> Option<Retained<SoftError>> {
            let committed = self.ivars().committed.borrow();
            let killed = committed.as_ref().and_then(|work| work.outcome()).is_some_and(|outcome| outcome.killed);
            killed.then(|| SoftError::new(MTLCommandBufferError::Timeout.0 as isize, KILLED))
        }

        #[unsafe(method(GPUStartTime))]
        fn gpu_start_time(&self) -> f64 {
            0.0
        }

        #[unsafe(method(GPUEndTime))]
        fn gpu_end_time(&self) -> f64 {
            self.ivars().committed.borrow().as_ref().and_then(|work| work.outcome()).map_or(0.0, |outcome| outcome.seconds)
        }
    }
);

impl SoftCommandBuffer {
    pub fn new(queue: Arc<QueueFields>, retained: bool) -> Retained<Self> {
        let this = Self::alloc().set_ivars(CommandBufferFields {
            queue,
            retained,
            encoders: RefCell::default(),
            committed: RefCell::default(),
        });
        // SAFETY: the super class's designated initializer.
        unsafe { msg_send![super(this), init] }
    }

    fn new_recording(&self, serial: bool) -> Arc<Recording> {
        let fields = self.ivars();
        let machine = &fields.queue.machine;
        let open = fields.encoders.borrow().iter().any(|encoder| !encoder.ended.get());
        if open {
            machine.report(
                FindingKind::OpenEncoder,
                "a new encoder while another of the command buffer is open",
            );
        }
        if fields.committed.borrow().is_some() {
            machine.report(
                FindingKind::EncodeAfterEnd,
                "a new encoder of a committed command buffer",
            );
        }
        let recording = Arc::new(Recording {
            id: machine.new_id(),
            serial,
            ended: false.into(),
            commands: RefCell::default(),
        });
        fields.encoders.borrow_mut().push(recording.clone());
        recording
    }

    /// Metal makes a directly bound buffer resident by itself, at a cost to every command buffer that grows with its size. A
    /// program that fills a residency set means to avoid that for its large, fixed memory. So it is a mistake to bind what was
    /// added and never committed, or pages of the program's own that the set was committed without.
    fn check_residency(&self, work: &InFlight) {
        let queue = &self.ivars().queue;
        let mut seen = BTreeSet::new();
        work.for_each_buffer(|buffer, _| {
            let memory = &buffer.memory;
            if seen.insert(memory.id) && queue.misses(memory) {
                queue.machine.report(
                    FindingKind::NotResident,
                    format!(
                        "{} is in none of the queue's committed residency sets",
                        memory.describe()
                    ),
                );
            }
        });
    }
}

impl State {
    /// Closes the memory of everything in flight to the host.
    fn start_watches(&mut self) {
        let mut wanted: BTreeMap<u64, (Allowed, (usize, usize))> = BTreeMap::new();
        for work in &self.in_flight {
            work.for_each_buffer(|buffer, access| {
                if buffer.memory.can_be_watched() {
                    let entry = wanted
                        .entry(buffer.memory.id)
                        .or_insert((Allowed::Reading, buffer.memory.pages()));
                    if access == Access::ReadWrite {
                        entry.0 = Allowed::Nothing;
                    }
                }
            });
        }
        self.watches = wanted
            .into_values()
            .filter_map(|(allowed, pages)| Watch::new(pages, allowed))
            .collect();
    }

    /// Opens all memory and keeps the touches, together with how many command buffers had been committed by then.
    fn end_watches(&mut self) {
        for watch in self.watches.drain(..) {
            let committed = self.committed;
            self.touches
                .extend(watch.end().into_iter().map(|touch| (committed, touch)));
        }
    }
}

/// Runs what was committed, in order, up to and with `last`.
fn run_up_to(machine: &Arc<Machine>, last: &InFlight) {
    let _running = machine.running.lock().unwrap_or_else(PoisonError::into_inner);
    while last.outcome().is_none() {
        let mut state = machine.state();
        state.end_watches();
        let Some(next) = state.in_flight.first().cloned() else {
            return;
        };
        drop(state);

        let started = Instant::now();
        let killed = machine.spec.killed_from.is_some_and(|first| next.number >= first);
        if !killed {
            run(machine, &next);
        }
        let mut state = machine.state();
        state.in_flight.remove(0);
        state.statistics.command_buffers += 1;
        if machine.spec.mode == Mode::Checked {
            state.start_watches();
        }
        if state.in_flight.is_empty() {
            state.touches.clear();
        }
        drop(state);
        let seconds = match machine.spec.seconds_per_dispatch {
            Some(each) => each * next.dispatches() as f64,
            None => started.elapsed().as_secs_f64(),
        };
        let outcome = Outcome { killed, seconds };
        *next.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }
}

fn run(machine: &Arc<Machine>, work: &InFlight) {
    if !work.retained {
        let mut released = BTreeSet::new();
        work.for_each_buffer(|buffer, _| {
            if buffer.alive.strong_count() == 0 && released.insert(buffer.memory.id) {
                machine.report(
                    FindingKind::ReleasedInFlight,
                    format!(
                        "{} was released before the command buffer that uses it completed",
                        buffer.memory.describe()
                    ),
                );
            }
        });
    }
    report_untracked_hazards(machine, work);
    let accesses = execute::run(machine, &work.encoders);
    report_touches(machine, work, &accesses);
}

/// Untracked buffers that two encoders use, one of them writing, where nothing ordered the two.
fn report_untracked_hazards(machine: &Machine, work: &InFlight) {
    for encoder in &work.encoders {
        let mut uses: BTreeMap<u64, (bool, String)> = BTreeMap::new();
        for command in encoder.commands.borrow().iter() {
            let Command::Dispatch(dispatch) = command else { continue };
            for (_, access, bound) in &dispatch.bindings {
                if let Bound::Buffer(BoundBuffer { memory, .. }) = bound
                    && !memory.tracked
                {
                    uses.entry(memory.id).or_insert((false, memory.describe())).0 |= *access == Access::ReadWrite;
                }
            }
        }
        for (id, (writes, description)) in uses {
            let previous = machine.state().untracked.insert(
                id,
                UntrackedUse {
                    number: work.number,
                    encoder: encoder.id,
                    writes,
                },
            );
            let Some(previous) = previous else { continue };
            let unordered = previous.number >= work.oldest && previous.encoder != encoder.id;
            if unordered && (writes || previous.writes) {
                machine.report(
                    FindingKind::UntrackedHazard,
                    format!("{description} is untracked, and nothing orders the two encoders that use it"),
                );
            }
        }
    }
}

/// The last use of an untracked buffer.
pub(crate) struct UntrackedUse {
    number: u64,
    encoder: u64,
    writes: bool,
}

/// Host accesses, since the commit, to bytes that the command buffer wrote or read.
fn report_touches(machine: &Machine, work: &InFlight, accesses: &Accesses) {
    let touches = machine.state().touches.clone();
    for (committed, touch) in touches {
        if committed <= work.number {
            continue;
        }
        let Some(access) = accesses.at(touch.address) else {
            continue;
        };
        if access.writes || touch.write {
            let (did, does) = (
                if touch.write { "wrote" } else { "read" },
                if access.writes { "writes" } else { "reads" },
            );
            machine.report(
                FindingKind::HostAccessInFlight,
                format!(
                    "the host {did} byte {} of {}, which a command buffer in flight {does}",
                    access.offset, access.buffer
                ),
            );
        }
    }
}
