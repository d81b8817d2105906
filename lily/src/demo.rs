//! The checkpoint that is part of the program.

use lily_model::Source;

use crate::error::CliError;

/// Where the demo checkpoint's files are.
pub fn source() -> Result<Source, CliError> {
    Err(CliError::Usage(
        "this build has no demo model: give one with --model".into(),
    ))
}
