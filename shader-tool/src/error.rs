//! The crate's one error type.

use std::fmt;
use std::path::PathBuf;

/// One message about a place in a kernel source, from the reader, the lint or clang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The source's name, as in [`crate::SourceFile::name`].
    pub file: String,
    /// Counted from 1.
    pub line: u32,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

fn lines(diagnostics: &[Diagnostic]) -> String {
    diagnostics
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// What can go wrong between a `.metal` file and a finished dispatch.
#[derive(Debug, thiserror::Error)]
pub enum ShaderError {
    /// No usable clang. The text is one line and says how to install one.
    #[error("{0}")]
    NoClang(String),
    /// The source could not be read as Metal, or the lint refused it.
    #[error("{}", lines(.0))]
    Source(Vec<Diagnostic>),
    /// clang refused the translated source; `log` is its output, which names `.metal` lines.
    #[error("clang refused {file}:\n{log}")]
    Compile {
        /// The `.metal` file that was compiled.
        file: String,
        /// clang's output.
        log: String,
    },
    /// A tool could not be started or its output not be used.
    #[error("{tool}: {message}")]
    Tool {
        /// The program's path.
        tool: String,
        /// What happened.
        message: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// No kernel of that name.
    #[error("no kernel named {0}")]
    UnknownKernel(String),
    /// A function constant is missing, has the wrong type, or does not exist.
    #[error("kernel {kernel}: function constant {index}: {message}")]
    Constant {
        /// The kernel's name.
        kernel: String,
        /// The constant's index.
        index: u32,
        /// What is wrong with it.
        message: String,
    },
    /// A dispatch that Metal would refuse: an unbound buffer, too many threads, too much threadgroup memory, and so on.
    #[error("kernel {kernel}: {message}")]
    Dispatch {
        /// The kernel's name.
        kernel: String,
        /// What is wrong with it.
        message: String,
    },
    /// In plain mode: the lanes of a simdgroup or the threads of a threadgroup diverged, so the dispatch could not finish.
    /// In checked mode the same is a finding of the report.
    #[error("{0}")]
    Diverged(Box<crate::Finding>),
}
