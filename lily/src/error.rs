//! Why a command failed, and its exit code.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CliError {
    /// The checkpoint could not be found, read or used.
    #[error(transparent)]
    Model(#[from] lily_model::Error),
    /// The CPU model could not be built or could not run.
    #[error(transparent)]
    Cpu(#[from] lily_cpu::CpuError),
    /// The GPU model could not be built or could not run.
    #[error(transparent)]
    Gpu(#[from] lily_gpu::GpuError),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] lily_engine::EngineError),
    /// A backend failed in a measurement.
    #[error(transparent)]
    Backend(#[from] lily_engine::BackendError),
    /// The server could not start.
    #[error(transparent)]
    Serve(#[from] lily_server::ServeError),
    /// An engine to compare with cannot be used.
    #[error(transparent)]
    Peer(#[from] crate::peer::PeerError),
    /// A file could not be read.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A golden file is not what it has to be.
    #[error("{path}: {problem}", path = path.display())]
    Golden {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        problem: String,
    },
    /// Options that do not fit each other or the model.
    #[error("{0}")]
    Usage(String),
    /// An engine that was being measured failed.
    #[error("{arm}: {problem}")]
    Arm {
        /// Which.
        arm: String,
        /// What it said.
        problem: String,
    },
    /// The time for a measurement is over.
    #[error("the time limit was reached before anything was measured")]
    TimeLimit,
    /// A measurement that must be the same each time was not.
    #[error("{0}")]
    NotReproducible(String),
    /// `lily doctor` found something.
    #[error("the test of {0} failed: please report what is printed above")]
    Unwell(&'static str),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The terminal, a pipe or the runtime failed.
    #[error("input or output failed: {0}")]
    Io(#[from] io::Error),
    /// The terminal's line editor failed.
    #[error("the terminal failed: {0}")]
    Terminal(#[from] rustyline::error::ReadlineError),
}

impl CliError {
    /// 2 where the command line is at fault, 130 after Ctrl-C as shells expect, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage(_) => 2,
            CliError::Interrupted => 130,
            _ => 1,
        }
    }

    /// Whether the reader of our output went away, as `lily ... | head` does: no reason to complain.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, CliError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
