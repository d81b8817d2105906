//! MLX-LM as an arm: a fresh process of its Python for every round, on the same checkpoint and token ids.

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::arm::{Arm, Job, Sample};
use super::measure;
use super::sweep::Peer;
use crate::error::CliError;
use crate::peer::{Environment, PeerError};

const SCRIPT: &str = include_str!("mlx.py");

/// Number format in which MLX computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bfloat16
    Bfloat16,
    /// float16
    Float16,
    /// Single precision
    Float32,
}

/// MLX-LM over one checkpoint.
pub struct MlxArm {
    environment: Environment,
    checkpoint: PathBuf,
    dtype: Option<Dtype>,
    vocab_size: usize,
    seen: Option<(String, String)>,
}

#[derive(Serialize)]
struct Request<'a> {
    model: &'a PathBuf,
    dtype: Option<Dtype>,
    prompt: Vec<u32>,
    steps: usize,
}

#[derive(Deserialize)]
struct Answer {
    prefill_seconds: f64,
    decode_seconds: f64,
    tokens: Vec<u32>,
    device: String,
    dtype: String,
}

impl MlxArm {
    /// Over a checkpoint in a directory; `dtype` is the checkpoint's own where `None`.
    pub fn new(environment: Environment, checkpoint: PathBuf, dtype: Option<Dtype>, vocab_size: usize) -> Self {
        MlxArm {
            environment,
            checkpoint,
            dtype,
            vocab_size,
            seen: None,
        }
    }
}

impl Arm for MlxArm {
    fn name(&self) -> String {
        "mlx-lm".into()
    }

    fn sample(&mut self, job: &Job) -> Result<Sample, CliError> {
        job.check()?;
        let request = Request {
            model: &self.checkpoint,
            dtype: self.dtype,
            prompt: measure::prompt(job.context, self.vocab_size),
            steps: job.steps,
        };
        let limit = job
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let answer: Answer = match self.environment.start(SCRIPT)?.ask(&request, limit) {
            Err(PeerError::TimedOut { .. }) => return Err(CliError::TimeLimit),
            answer => answer?,
        };
        self.seen = Some((answer.device, answer.dtype));
        Ok(Sample {
            prompt_tokens: job.context,
            prefill_seconds: answer.prefill_seconds,
            steps: job.steps,
            decode_seconds: answer.decode_seconds,
            tokens: answer.tokens,
        })
    }

    fn peer(&self) -> Option<Peer> {
        let (device, dtype) = self.seen.clone().unwrap_or_default();
        let mut notes = Vec::new();
        if device == "cpu" {
            notes.push("MLX runs on the processor here; it is made for Apple's GPUs".into());
        }
        Some(Peer {
            name: "mlx-lm".into(),
            version: self.environment.description(),
            device,
            format: format!("the same checkpoint, computed in {dtype}"),
            notes,
        })
    }
}
