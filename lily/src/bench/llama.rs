//! llama.cpp as an arm: its `llama-bench`, a fresh process for every measurement, on a GGUF file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::arm::{Arm, Job, Sample};
use super::lily::finished;
use super::sweep::Peer;
use crate::error::CliError;

/// The program of llama.cpp that measures.
const PROGRAM: &str = "llama-bench";

/// Tokens that llama-bench submits together unless told otherwise.
const BATCH: usize = 2048;

/// llama.cpp over one GGUF file.
pub struct LlamaArm {
    program: PathBuf,
    model: PathBuf,
    settings: Settings,
    seen: Option<Seen>,
}

/// How it computes; what is absent it chooses itself.
pub struct Settings {
    /// Threads.
    pub threads: Option<usize>,
    /// Tokens that are computed together in prefill; where absent, as many as in a chunk of ours.
    pub ubatch: Option<usize>,
}

/// A test of `llama-bench -o json`; the fields that are read here.
#[derive(Clone, Debug, Deserialize)]
struct Test {
    n_prompt: usize,
    n_gen: usize,
    samples_ns: Vec<u64>,
    #[serde(flatten)]
    seen: Seen,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Seen {
    build_commit: String,
    build_number: u64,
    backends: String,
    cpu_info: String,
    gpu_info: String,
    model_type: String,
    model_size: u64,
    n_ubatch: usize,
}

impl LlamaArm {
    /// With the `llama-bench` at `path` (the program, or a directory that holds it) or else on PATH.
    ///
    /// # Errors
    /// [`CliError::Usage`] where there is none, or no such model
    pub fn new(path: Option<&Path>, model: PathBuf, settings: Settings) -> Result<Self, CliError> {
        let program = find(path, std::env::var_os("PATH").as_deref())?;
        if !model.is_file() {
            return Err(CliError::Usage(format!(
                "--peer-model: expected a GGUF file, found none at {}",
                model.display()
            )));
        }
        Ok(LlamaArm {
            program,
            model,
            settings,
            seen: None,
        })
    }

    /// Runs one test in a process of its own, and gives its seconds.
    fn test(&mut self, (prompt, steps, depth): (usize, usize, usize), job: &Job) -> Result<f64, CliError> {
        job.check()?;
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(&self.model).args([
            "-p",
            &prompt.to_string(),
            "-n",
            &steps.to_string(),
            "-d",
            &depth.to_string(),
            "-r",
            "1",
            "-fa",
            "1",
            "-o",
            "json",
        ]);
        if let Some(threads) = self.settings.threads {
            command.args(["-t", &threads.to_string()]);
        }
        if let Some(ubatch) = self.settings.ubatch.or(job.chunk) {
            let batch = ubatch.max(BATCH);
            command.args(["-ub", &ubatch.to_string(), "-b", &batch.to_string()]);
        }
        let failed = |problem: String| CliError::Arm {
            arm: self.name(),
            problem,
        };
        let output = finished(command, job.deadline)?;
        if !output.succeeded {
            let last = output.errors.lines().rfind(|line| !line.trim().is_empty());
            return Err(failed(last.unwrap_or("it ended without a word").to_owned()));
        }
        let seconds = read(&output.text, (prompt, steps)).map_err(failed)?;
        self.seen = Some(seconds.1);
        Ok(seconds.0)
    }
}

impl Arm for LlamaArm {
    fn name(&self) -> String {
        "llama.cpp".into()
    }

    fn sample(&mut self, job: &Job) -> Result<Sample, CliError> {
        let prefill_seconds = self.test((job.context, 0, 0), job)?;
        let decode_seconds = match job.steps {
            0 => 0.0,
            steps => self.test((0, steps, job.context), job)?,
        };
        Ok(Sample {
            prompt_tokens: job.context,
            prefill_seconds,
            steps: job.steps,
            decode_seconds,
            tokens: Vec::new(),
        })
    }

    fn peer(&self) -> Option<Peer> {
        let seen = self.seen.clone().unwrap_or_default();
        let device = if seen.gpu_info.is_empty() {
            seen.cpu_info
        } else {
            seen.gpu_info
        };
        Some(Peer {
            name: "llama.cpp".into(),
            version: format!("build {} ({}), {}", seen.build_number, seen.build_commit, seen.backends),
            device: device.trim().into(),
            format: format!(
                "another file in another format: {} ({}), {}",
                self.model.file_name().unwrap_or_default().to_string_lossy(),
                seen.model_type,
                crate::output::bytes(seen.model_size)
            ),
            notes: vec![
                format!(
                    "llama.cpp computed up to {} tokens of a prompt together (-ub)",
                    seen.n_ubatch
                ),
                "llama-bench takes tokens of its own, chosen at random, and does not tell what it generates".into(),
            ],
        })
    }
}

/// Seconds of the test with so many tokens of prompt and of reply.
fn read(text: &str, (prompt, steps): (usize, usize)) -> Result<(f64, Seen), String> {
    let tests: Vec<Test> = serde_json::from_str(text).map_err(|error| format!("the output of {PROGRAM}: {error}"))?;
    let found = tests
        .into_iter()
        .find(|test| (test.n_prompt, test.n_gen) == (prompt, steps));
    let test =
        found.ok_or_else(|| format!("{PROGRAM} did not measure {prompt} tokens of prompt and {steps} of reply"))?;
    let nanoseconds = test.samples_ns.first().ok_or(format!("{PROGRAM} gave no sample"))?;
    Ok((*nanoseconds as f64 * 1e-9, test.seen))
}

fn find(path: Option<&Path>, search: Option<&OsStr>) -> Result<PathBuf, CliError> {
    if let Some(path) = path {
        let program = if path.is_dir() {
            path.join(PROGRAM)
        } else {
            path.to_owned()
        };
        return match program.is_file() {
            true => Ok(program),
            false => Err(CliError::Usage(format!(
                "--peer-path: expected {PROGRAM} or its directory, found neither at {}",
                path.display()
            ))),
        };
    }
    std::env::split_paths(search.unwrap_or_default())
        .map(|directory| directory.join(PROGRAM))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            CliError::Usage(format!(
                "{PROGRAM} of llama.cpp is not on PATH: name it with --peer-path, or a running llama-server with --against http://.."
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened from what llama-bench prints.
    const OUTPUT: &str = r#"[{"build_commit": "abc1234", "build_number": 6500, "cpu_info": "AMD EPYC", "gpu_info": "", "backends": "CPU",
        "model_filename": "x.gguf", "model_type": "qwen35moe", "model_size": 18000000000, "n_ubatch": 512, "n_prompt": 0, "n_gen": 64, "n_depth": 512,
        "avg_ns": 2000000000, "samples_ns": [2000000000], "samples_ts": [32.0]}]"#;

    #[test]
    fn seconds_and_build_are_read() {
        let (seconds, seen) = read(OUTPUT, (0, 64)).unwrap();
        assert!((seconds - 2.0).abs() < 1e-9);
        assert_eq!(
            (seen.build_number, seen.cpu_info.as_str(), seen.n_ubatch),
            (6500, "AMD EPYC", 512)
        );
        assert!(
            read(OUTPUT, (512, 0))
                .unwrap_err()
                .contains("did not measure 512 tokens")
        );
        assert!(read("no json", (0, 64)).is_err());
    }

    #[test]
    fn the_program_is_found_or_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(PROGRAM);
        let search = Some(directory.path().as_os_str());
        assert!(find(None, search).unwrap_err().to_string().contains("--peer-path"));
        assert!(
            find(Some(directory.path()), None)
                .unwrap_err()
                .to_string()
                .contains("found neither")
        );
        std::fs::write(&path, "").unwrap();
        assert_eq!(find(None, search).unwrap(), path);
        assert_eq!(find(Some(directory.path()), None).unwrap(), path);
        assert_eq!(find(Some(&path), None).unwrap(), path);
    }
}
