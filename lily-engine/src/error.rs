//! Why the engine did not do what it was asked.

use std::path::PathBuf;

use thiserror::Error;

use crate::backend::BackendError;

/// Why a request was refused or failed.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum EngineError {
    /// The request itself is wrong; whoever made it has to change it.
    #[error("{field}: expected {expected}, found {found}")]
    Invalid {
        /// Field of [`crate::GenerateRequest`] or [`crate::Sampling`].
        field: &'static str,
        /// What may stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// The prompt leaves no room for a reply in the context, whose length the model, the options or the memory limit.
    #[error("the prompt has {prompt_tokens} tokens, the context has room for {context_limit}, the reply included")]
    ContextOverflow {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of prompt and reply together that a sequence may hold.
        context_limit: usize,
    },
    /// The queue is full; the same request may succeed later.
    #[error("{waiting} requests are waiting already, the most that the queue takes")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
    /// The engine takes no more requests: it shuts down.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// The token mask failed or allows no token.
    #[error("the grammar failed: {0}")]
    Mask(String),
    /// The model's logits are not numbers.
    #[error("the model's logits are not finite at position {position}")]
    NotFinite {
        /// Tokens before the ones that could not be told.
        position: usize,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The directory for snapshots cannot be used.
    #[error("cache directory {directory}: {problem}", directory = directory.display())]
    CacheDirectory {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The engine's thread is gone.
    #[error("the engine has stopped")]
    Stopped,
}

impl EngineError {
    /// An [`EngineError::Invalid`].
    pub(crate) fn invalid(field: &'static str, expected: impl Into<String>, found: impl ToString) -> Self {
        EngineError::Invalid {
            field,
            expected: expected.into(),
            found: found.to_string(),
        }
    }
}
