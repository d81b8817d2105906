//! Lily's own arms: in a process of its own for every round, or in this process.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lily_engine::Backend;
use serde::Deserialize;

use super::arm::{Arm, Job, Sample};
use super::measure;
use super::report::{Model, Subject};
use crate::backend::AnyBackend;
use crate::error::CliError;
use crate::machine;

/// How often a running process is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Each round is a fresh process of this program: `lily bench --one-process --rounds 1 --json` with the same model and device.
pub struct FreshProcess {
    name: String,
    args: Vec<String>,
    seen: Option<(Subject, Option<u64>)>,
}

/// What is read of a process's report.
#[derive(Deserialize)]
struct ArmReport {
    #[serde(flatten)]
    subject: Subject,
    results: Vec<ArmResult>,
    peak_memory_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct ArmResult {
    prefill_seconds: Vec<f64>,
    decode_seconds: Vec<f64>,
    tokens: Vec<u32>,
}

impl FreshProcess {
    /// `args` name model and device.
    pub fn new(name: &str, args: Vec<String>) -> Self {
        FreshProcess {
            name: name.into(),
            args,
            seen: None,
        }
    }

    fn failed(&self, problem: impl Into<String>) -> CliError {
        CliError::Arm {
            arm: self.name.clone(),
            problem: problem.into(),
        }
    }
}

impl Arm for FreshProcess {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn sample(&mut self, job: &Job) -> Result<Sample, CliError> {
        job.check()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["bench", "--one-process", "--json", "--rounds", "1"])
            .args(["--prompt", &job.context.to_string()])
            .args(["--decode-steps", &job.steps.to_string()])
            .args(&self.args);
        let output = finished(command, job.deadline)?;
        if !output.succeeded {
            let last = output.errors.lines().last().unwrap_or("it ended without a word");
            return Err(self.failed(last.strip_prefix("lily: ").unwrap_or(last)));
        }
        // Its notices are ours, once.
        if self.seen.is_none() || std::env::var_os("LILY_LOG").is_some() {
            eprint!("{}", output.errors);
        }
        let report: ArmReport =
            serde_json::from_str(&output.text).map_err(|error| self.failed(format!("its report: {error}")))?;
        let peak = self
            .seen
            .take()
            .and_then(|(_, peak)| peak)
            .max(report.peak_memory_bytes);
        self.seen = Some((report.subject, peak));
        let result = report.results.into_iter().next();
        let sample = result.and_then(|result| {
            Some(Sample {
                prompt_tokens: job.context,
                prefill_seconds: *result.prefill_seconds.first()?,
                steps: job.steps,
                decode_seconds: result.decode_seconds.first().copied().unwrap_or(0.0),
                tokens: result.tokens,
            })
        });
        sample.ok_or_else(|| self.failed("its report has no result"))
    }

    fn subject(&self) -> Option<(Subject, Option<u64>)> {
        self.seen.clone()
    }
}

/// How a process ended.
pub struct Finished {
    /// Whether its exit code was 0.
    pub succeeded: bool,
    /// Its standard output.
    pub text: String,
    /// Its error output.
    pub errors: String,
}

/// Runs a process to its end, or ends it at the deadline.
///
/// # Errors
/// [`CliError::TimeLimit`], [`CliError::Io`] where it cannot be started
pub fn finished(mut command: Command, deadline: Option<Instant>) -> Result<Finished, CliError> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let text = child.stdout.take().map(|output| thread::spawn(|| all(output)));
    let errors = child.stderr.take().map(|output| thread::spawn(|| all(output)));
    let succeeded = loop {
        if let Some(status) = child.try_wait()? {
            break status.success();
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(CliError::TimeLimit);
        }
        thread::sleep(POLL);
    };
    let joined = |reader: Option<thread::JoinHandle<String>>| reader.and_then(|r| r.join().ok()).unwrap_or_default();
    Ok(Finished {
        succeeded,
        text: joined(text),
        errors: joined(errors),
    })
}

fn all(mut output: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came before a failure is still worth reading.
    let _ = output.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Rounds in this process, where the model stays loaded.
pub struct ThisProcess {
    name: String,
    backend: AnyBackend,
    subject: Subject,
    warm: Option<(usize, usize)>,
}

impl ThisProcess {
    /// Over a loaded model.
    pub fn new(name: &str, backend: AnyBackend, model: Model) -> Self {
        let info = backend.device();
        ThisProcess {
            name: name.into(),
            subject: Subject {
                device: info.description,
                device_kind: info.kind,
                max_chunk: Some(backend.max_chunk()),
                model,
            },
            backend,
            warm: None,
        }
    }
}

impl Arm for ThisProcess {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn sample(&mut self, job: &Job) -> Result<Sample, CliError> {
        job.check()?;
        let prompt = measure::prompt(job.context, self.backend.vocab_size());
        let mut warm_up = None;
        if self.warm != Some((job.context, job.steps)) {
            warm_up = Some(measure::round(&mut self.backend, &prompt, job.steps)?.tokens);
            self.warm = Some((job.context, job.steps));
            job.check()?;
        }
        let round = measure::round(&mut self.backend, &prompt, job.steps)?;
        if warm_up.is_some_and(|tokens| tokens != round.tokens) {
            return Err(CliError::NotReproducible(format!(
                "context {}: warm-up and round gave different tokens; the figures mean nothing",
                job.context
            )));
        }
        Ok(Sample {
            prompt_tokens: job.context,
            prefill_seconds: round.prefill.as_secs_f64(),
            steps: job.steps,
            decode_seconds: round.decode.as_secs_f64(),
            tokens: round.tokens,
        })
    }

    fn subject(&self) -> Option<(Subject, Option<u64>)> {
        Some((self.subject.clone(), machine::peak_memory()))
    }
}
