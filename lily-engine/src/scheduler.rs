//! The loop of the engine's thread.

use std::sync::{Arc, Mutex};

use crate::backend::Backend;
use crate::engine::{EngineOptions, EngineStatus};
use crate::error::EngineError;
use crate::generation::Event;
use crate::inbox::Inbox;
use crate::vocabulary::Vocabulary;

pub(crate) struct Scheduler<B: Backend> {
    backend: B,
    inbox: Arc<Inbox>,
}

impl<B: Backend> Scheduler<B> {
    pub(crate) fn new(
        backend: B,
        _vocabulary: Vocabulary,
        _options: EngineOptions,
        _context_limit: usize,
        inbox: Arc<Inbox>,
        _status: Arc<Mutex<EngineStatus>>,
    ) -> Self {
        Scheduler { backend, inbox }
    }

    pub(crate) fn run(&mut self) {
        let _ = &self.backend;
        while !self.inbox.is_done() {
            while let Some(job) = self.inbox.pop_if(|_| true) {
                let _ = job.events.try_send(Event::Failed(EngineError::Stopped));
            }
            self.inbox.wait();
        }
    }
}
