//! Where requests wait for the engine's thread, and how it is woken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;

use crate::error::EngineError;
use crate::generation::Event;
use crate::request::GenerateRequest;

/// Set by the engine's thread when a reader's buffer is full, cleared by the reader when it has taken an event.
#[derive(Debug, Default)]
pub(crate) struct Pause(AtomicBool);

impl Pause {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it was set.
    pub(crate) fn clear(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

/// A request on its way to the engine's thread.
pub(crate) struct Job {
    pub(crate) request: GenerateRequest,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) pause: std::sync::Arc<Pause>,
    pub(crate) submitted: Instant,
}

/// A bounded queue in which clients take turns; the jobs of one client keep their order.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Clients with their jobs; the first client's first job is next. No client is without jobs.
    clients: VecDeque<(Option<String>, VecDeque<Job>)>,
    woken: bool,
    closed: bool,
}

impl State {
    fn waiting(&self) -> usize {
        self.clients.iter().map(|(_, jobs)| jobs.len()).sum()
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("waiting", &self.waiting()).finish()
    }
}

impl Inbox {
    /// The state; a thread that panicked while it held the lock left it whole, since every change is one statement.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job at the end of its client's jobs.
    pub(crate) fn push(&self, job: Job, capacity: usize) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError::ShuttingDown);
        }
        let waiting = state.waiting();
        if waiting >= capacity {
            return Err(EngineError::QueueFull { waiting });
        }
        let client = job.request.client.clone();
        match state.clients.iter_mut().find(|(name, _)| *name == client) {
            Some((_, jobs)) => jobs.push_back(job),
            None => state.clients.push_back((client, VecDeque::from([job]))),
        }
        state.woken = true;
        self.changed.notify_all();
        Ok(())
    }

    /// Takes the next job if `fits` says so, and sends its client to the end of the line.
    pub(crate) fn pop_if(&self, fits: impl FnOnce(&GenerateRequest) -> bool) -> Option<Job> {
        let mut state = self.lock();
        if !fits(&state.clients.front()?.1.front()?.request) {
            return None;
        }
        let (client, mut jobs) = state.clients.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            state.clients.push_back((client, jobs));
        }
        job
    }

    /// Removes the jobs whose callers have gone.
    pub(crate) fn drop_abandoned(&self) {
        let mut state = self.lock();
        for (_, jobs) in &mut state.clients {
            jobs.retain(|job| !job.events.is_closed());
        }
        state.clients.retain(|(_, jobs)| !jobs.is_empty());
    }

    /// Jobs that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting()
    }

    /// Makes the engine's thread look again.
    pub(crate) fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_all();
    }

    /// Takes no more jobs.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.woken = true;
        self.changed.notify_all();
    }

    /// Closes the queue and drops what waits: the engine's thread ends.
    pub(crate) fn abandon(&self) {
        self.close();
        self.lock().clients.clear();
    }

    /// Whether the queue is closed and empty.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.lock();
        state.closed && state.clients.is_empty()
    }

    /// Waits until [`Inbox::wake`] or a new job since the last call.
    pub(crate) fn wait(&self) {
        let mut state = self.lock();
        while !state.woken {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.woken = false;
    }
}
