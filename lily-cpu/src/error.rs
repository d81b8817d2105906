//! Why the CPU model could not be built or could not run.

use thiserror::Error;

/// Why the CPU model could not be built or could not run.
#[derive(Debug, Error)]
pub enum CpuError {
    /// A token id is not a row of the embedding.
    #[error("token id {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A prefill chunk is empty or longer than [`crate::CpuModel::max_chunk`], or a decode batch is.
    #[error("{found} tokens in one step, expected 1 to {limit}")]
    BadChunk {
        /// Tokens asked for.
        found: usize,
        /// Most tokens of a step.
        limit: usize,
    },
    /// The kernels that the options ask for do not run on this processor.
    #[error("the {0} kernels do not run on this processor")]
    UnsupportedKernels(&'static str),
    /// The shape asks for something that the kernels cannot do.
    #[error("{what}: expected {expected}, found {found}")]
    UnsupportedShape {
        /// The dimension.
        what: &'static str,
        /// What the kernels can do.
        expected: &'static str,
        /// What the config says.
        found: usize,
    },
    /// The worker threads could not be started.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}
