//! Tells the program which commit it was built from: `LILY_COMMIT`, for the reports of measurements.

use std::process::Command;

/// What the program is made of, seen from this package.
const SOURCES: [&str; 9] = [
    "src",
    "../lily-cpu",
    "../lily-engine",
    "../lily-gpu",
    "../lily-model",
    "../lily-server",
    "../kernels",
    "../demo",
    "../Cargo.lock",
];

fn main() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!(
        "cargo::rustc-env=LILY_COMMIT={}",
        commit().unwrap_or_else(|| "unknown".into())
    );
}

/// `58a130e0c3f1`, with `-changed` where a source differs from it; `None` outside of a repository.
fn commit() -> Option<String> {
    let mut commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&[&["status", "--porcelain", "--untracked-files=no", "--"], &SOURCES[..]].concat())?;
    if !changes.is_empty() {
        commit.push_str("-changed");
    }
    Some(commit)
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
