//! The sending end of a generation, which never blocks the engine's thread.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use crate::generation::Event;
use crate::inbox::Pause;

/// Sends events to a reader. What its buffer has no room for waits here, and whoever owns the outlet stops producing until that is gone.
pub(crate) struct Outlet {
    events: Sender<Event>,
    pause: Arc<Pause>,
    backlog: VecDeque<Event>,
}

impl Outlet {
    pub(crate) fn new(events: Sender<Event>, pause: Arc<Pause>) -> Self {
        Outlet {
            events,
            pause,
            backlog: VecDeque::new(),
        }
    }

    /// Sends `event`, now or when the reader has room.
    pub(crate) fn send(&mut self, event: Event) {
        self.backlog.push_back(event);
        self.flush();
    }

    /// Whether everything is sent. If not, the reader wakes the engine when it has taken something.
    pub(crate) fn flush(&mut self) -> bool {
        // The second attempt is for a reader that took an event after the first one failed but before it could see the mark.
        self.try_flush() || {
            self.pause.set();
            self.try_flush()
        }
    }

    fn try_flush(&mut self) -> bool {
        while let Some(event) = self.backlog.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.backlog.push_front(event);
                    return false;
                }
                Err(TrySendError::Closed(_)) => self.backlog.clear(),
            }
        }
        true
    }

    /// Whether the reader has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.events.is_closed()
    }
}
