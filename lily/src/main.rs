//! `lily`: the command line. Each command has a file of its own; what several share lies in `model`, `sampling`, `machine`, `output` and
//! `progress`.

mod backend;
mod bench;
mod chat;
mod demo;
mod doctor;
mod error;
mod eval;
mod generate;
mod inspect;
mod machine;
mod model;
mod output;
mod peer;
mod profile;
mod progress;
mod pull;
mod sampling;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Runs models of the Qwen3.6 family on this machine.
#[derive(Debug, Parser)]
#[command(name = "lily", version, after_help = EXAMPLES, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  lily chat                                              talk to the built-in demo model
  lily chat --model mlx-community/Qwen3.6-35B-A3B-4bit   download a model and talk to it
  lily serve                                             an OpenAI-compatible server on port 8080
  lily inspect --synthetic qwen3.6-35b-a3b               what a model would need, without having it

Messages of the engine go to the error output; LILY_LOG=debug shows more of them.";

#[derive(Debug, Subcommand)]
enum Command {
    Chat(chat::ChatArgs),
    Generate(generate::GenerateArgs),
    Serve(serve::ServeArgs),
    Inspect(inspect::InspectArgs),
    Pull(pull::PullArgs),
    Eval(eval::EvalArgs),
    Bench(Box<bench::BenchArgs>),
    Profile(profile::ProfileArgs),
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("LILY_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let result = match Cli::parse().command {
        Command::Chat(args) => chat::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Eval(args) => eval::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Profile(args) => profile::run(args),
        Command::Doctor(args) => doctor::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lily: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
