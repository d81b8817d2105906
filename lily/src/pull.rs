//! `lily pull`: downloads a checkpoint and nothing else.

use clap::Args;
use lily_model::hub;
use serde::Serialize;

use crate::error::CliError;
use crate::output;
use crate::progress::Downloads;

/// Downloads a model from Hugging Face into its cache, or what is missing of it.
///
/// HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are honoured.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily pull mlx-community/Qwen3.6-35B-A3B-4bit
  HF_HOME=/big/disk lily pull mlx-community/Qwen3.6-35B-A3B-4bit@main --json

With --json: {\"repository\", \"directory\"}.")]
pub struct PullArgs {
    /// ORG/NAME or ORG/NAME@REVISION
    repository: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Pulled {
    repository: String,
    directory: String,
}

/// Downloads and prints where.
pub fn run(args: PullArgs) -> Result<(), CliError> {
    let directory = hub::pull(&args.repository, &Downloads::new())?.display().to_string();
    if args.json {
        return output::json(&Pulled {
            repository: args.repository,
            directory,
        });
    }
    use std::io::Write;
    writeln!(std::io::stdout(), "{directory}")?;
    Ok(())
}
