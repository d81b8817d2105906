//! Runs the program.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A file of the repository's `tests/fixtures`.
pub fn fixture(path: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    root.join(path).display().to_string()
}

/// `lily` with nothing on its standard input and none of the caller's settings.
pub fn lily() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    command
        .stdin(Stdio::null())
        .env_remove("LILY_LOG")
        .env("HF_HUB_OFFLINE", "1");
    command
}

/// What a run printed and how it ended.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Run {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs `lily` with `args`.
pub fn run(args: &[&str]) -> Run {
    lily().args(args).output().unwrap().into()
}

/// Runs `lily` with `args` and `input` on its standard input.
pub fn run_with(args: &[&str], input: &str) -> Run {
    let mut child = lily()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

/// The standard output of a run that has to succeed.
pub fn ok(args: &[&str]) -> String {
    let run = run(args);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "lily {args:?}");
    run.out
}

/// The JSON that a run printed.
pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// The one line of complaint of a run that has to fail with `code`.
pub fn complaint(args: &[&str], code: i32) -> String {
    let run = run(args);
    assert_eq!(run.code, Some(code), "lily {args:?}: {run:?}");
    assert_eq!(run.out, "");
    assert_eq!(run.err.trim_end().lines().count(), 1, "one line: {:?}", run.err);
    run.err.trim_end().to_owned()
}
