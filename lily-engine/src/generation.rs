//! What comes back from the engine: a stream of events for each request.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::error::EngineError;
use crate::inbox::Inbox;
use crate::reply::{Markup, Part};

/// A step of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request left the queue.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Those of them that came from the prefix cache and are not computed again.
        cached_tokens: usize,
    },
    /// A chunk of the prompt was read.
    PrefillProgress {
        /// Tokens of the prompt read so far, those from the cache included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Log-probabilities of the prompt's tokens from the second on, where asked for; before the first token.
    PromptLogprobs(Vec<TokenLogprobs>),
    /// A token of the reply.
    Token(Token),
    /// The reply is complete. The last event.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The generation failed; what came before is valid. The last event.
    Failed(EngineError),
}

/// A token of a reply, and the text that is certain by now.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Text that became certain with this token; empty where it completes no character or may still turn out to start a stop string. The
    /// texts of all tokens of a part, joined, are the part's text.
    pub text: String,
    /// The part of the reply that `text` belongs to. Where the token is `markup`, that is the part before it.
    pub part: Part,
    /// What the token does, where it is markup and not text.
    pub markup: Option<Markup>,
    /// Its log-probability, where asked for.
    pub logprobs: Option<TokenLogprobs>,
}

impl Token {
    /// The part that is open after this token.
    pub fn next_part(&self) -> Part {
        match self.markup {
            Some(Markup::ThinkStart) => Part::Reasoning,
            Some(Markup::ThinkEnd | Markup::ToolCallEnd) => Part::Content,
            Some(Markup::ToolCallStart) => Part::ToolCall,
            Some(Markup::End) | None => self.part,
        }
    }
}

/// Log-probabilities at one position, from the model's own distribution: before penalties, bias, mask and temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token that is there.
    pub id: u32,
    /// Its natural log-probability.
    pub logprob: f32,
    /// The most likely tokens and their log-probabilities, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token.
    Stop,
    /// The stop string of this index in [`crate::GenerateRequest::stop_strings`].
    StopString(usize),
    /// `max_tokens`, the context limit or the memory plan.
    Length,
}

/// What a generation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: usize,
    /// Tokens of the reply, the stop token and markup included.
    pub completion_tokens: usize,
    /// Those of them that are reasoning, the token that ends it included.
    pub reasoning_tokens: usize,
    /// Time from the request to its start.
    pub queued: Duration,
    /// Time from the start to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
}

/// A running generation: a stream of [`Event`]s that ends with [`Event::Finished`] or [`Event::Failed`].
///
/// Dropping it cancels the generation, between two tokens or two prefill chunks. At most [`Generation::BUFFER`] events wait for a slow reader;
/// then this generation pauses, and no other.
#[derive(Debug)]
pub struct Generation {
    events: mpsc::Receiver<Event>,
    pause: Arc<crate::inbox::Pause>,
    inbox: Arc<Inbox>,
}

impl Generation {
    /// Events that wait for a slow reader before the generation pauses.
    pub const BUFFER: usize = 256;

    pub(crate) fn new(events: mpsc::Receiver<Event>, pause: Arc<crate::inbox::Pause>, inbox: Arc<Inbox>) -> Self {
        Generation { events, pause, inbox }
    }

    /// The next event; `None` after the last one. If the engine's thread ended early, the last event is missing.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The next event, waiting for it; `None` after the last one.
    ///
    /// # Panics
    /// Inside an asynchronous task.
    pub fn blocking_next(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.resume();
        event
    }

    /// The next event, for hand-written streams.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let polled = self.events.poll_recv(context);
        if polled.is_ready() {
            self.resume();
        }
        polled
    }

    fn resume(&self) {
        if self.pause.clear() {
            self.inbox.wake();
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.events.close();
        self.inbox.wake();
    }
}
