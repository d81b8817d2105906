//! Other engines, to compare with: where MLX-LM is installed, and how a Python driver in it is talked to.

mod checkpoint;
mod driver;
mod environment;

pub use checkpoint::directory;
pub use driver::Driver;
pub use environment::{Environment, MlxArgs};

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a peer cannot be used.
#[derive(Debug, Error)]
pub enum PeerError {
    /// No Python that could hold an environment.
    #[error("MLX-LM needs Python 3.10 or later: {0}; install it, or name one that has mlx-lm with --peer-python")]
    NoPython(String),
    /// The environment could not be made or filled.
    #[error("{what} could not be installed in {}: {reason}", directory.display())]
    Install {
        /// The package.
        what: String,
        /// The environment's directory.
        directory: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The named Python has no mlx-lm.
    #[error("--peer-python {}: {reason}", python.display())]
    NotThere {
        /// The interpreter.
        python: PathBuf,
        /// What it said.
        reason: String,
    },
    /// A driver ended, answered what was not asked or reported an error.
    #[error("{peer}: {problem}")]
    Driver {
        /// The peer.
        peer: String,
        /// What it said.
        problem: String,
    },
    /// A driver took too long.
    #[error("{peer}: no answer within {seconds} s")]
    TimedOut {
        /// The peer.
        peer: String,
        /// The limit.
        seconds: u64,
    },
    /// No directory for caches.
    #[error("no directory for caches: set HOME or LILY_CACHE")]
    NoCache,
    /// A file could not be written or read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl PeerError {
    fn file(path: &Path, source: io::Error) -> Self {
        PeerError::File {
            path: path.to_owned(),
            source,
        }
    }
}

/// Where Lily keeps what can be made anew: `LILY_CACHE`, or a folder in the user's cache directory.
fn cache_directory() -> Result<PathBuf, PeerError> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let of_user = || {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        if cfg!(target_os = "macos") {
            return home.map(|home| home.join("Library/Caches"));
        }
        variable("XDG_CACHE_HOME").or_else(|| home.map(|home| home.join(".cache")))
    };
    variable("LILY_CACHE")
        .or_else(|| of_user().map(|cache| cache.join("lily")))
        .ok_or(PeerError::NoCache)
}

/// The last lines of what a program said, as one line.
fn last_words(text: &str, lines: usize) -> String {
    let said: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    said[said.len().saturating_sub(lines)..].join(" | ")
}
