//! Why a checkpoint could not be found, read or used.

use std::path::PathBuf;

use thiserror::Error;

/// Why a checkpoint could not be found, read or used. Every message names the file and the field or tensor that is at fault.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system could not read or write a file.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file that the checkpoint must have is not there.
    #[error("{checkpoint}: {file} is missing: {why}")]
    MissingFile {
        /// Directory or name of the checkpoint.
        checkpoint: String,
        /// Name of the file.
        file: String,
        /// What it is needed for.
        why: String,
    },
    /// A file is there, but its bytes are not what its format asks for.
    #[error("{file}: {problem}")]
    BadFile {
        /// The file.
        file: String,
        /// What is wrong, where.
        problem: String,
    },
    /// A field of a JSON file is missing or has a value that cannot be used.
    #[error("{file}: {field}: expected {expected}, found {found}")]
    Field {
        /// The file.
        file: String,
        /// Path of the field, parts separated by dots.
        field: String,
        /// What may stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A tensor is missing, or has another shape or type than the config asks for.
    #[error("{file}: tensor {tensor}: expected {expected}, found {found}")]
    Tensor {
        /// The file.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// What the config asks for.
        expected: String,
        /// What the file holds.
        found: String,
    },
    /// The checkpoint is of an architecture that is not implemented.
    #[error("{file}: model_type {found:?} is not supported; supported are {supported}")]
    UnsupportedArchitecture {
        /// The file.
        file: String,
        /// The `model_type` in the file.
        found: String,
        /// The supported ones.
        supported: &'static str,
    },
    /// The chat template refused the messages; whoever wrote them has to change them.
    #[error("the chat template refused the messages: {0}")]
    TemplateRefused(String),
    /// The chat template itself failed.
    #[error("chat template {file}: {problem}")]
    Template {
        /// Where the template comes from.
        file: String,
        /// What failed, on which line.
        problem: String,
    },
    /// The tokenizer failed on a text.
    #[error("the tokenizer failed: {0}")]
    Tokenize(String),
    /// `--model` names neither a directory nor a repository that can be had.
    #[error("{model}: {problem}")]
    Hub {
        /// What was asked for.
        model: String,
        /// Why it cannot be had.
        problem: String,
    },
}

/// Shorthand for this crate's results.
pub type Result<T> = std::result::Result<T, Error>;
