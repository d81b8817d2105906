//! `lily doctor`: whether this program computes rightly here, as text to paste into a report.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use lily_cpu::{CpuModel, CpuOptions};
use lily_engine::sampling::SamplerState;
use lily_engine::{Backend, BackendError, DecodeStep, PrefillLogits, Sampling};
use lily_gpu::GpuModel;
use lily_gpu::self_test::tile_kernels;
use lily_model::Checkpoint;
use serde::Serialize;
use sysinfo::System;

use crate::backend::AnyBackend;
use crate::bench::measure::{self, Round, median, most_likely, round};
use crate::error::CliError;
use crate::eval::statistics::Comparison;
use crate::machine::Machine;
use crate::model::DeviceArgs;
use crate::{demo, output};

/// What the demo model reads in the tests.
const TEXT: &str = "Once upon a time there was a little fox who lived at the edge of a dark wood. Every morning she went down to the river to \
                    drink, and every morning an old crow sat on the same branch and called out to her.";
/// Decode steps of a test.
const STEPS: usize = 16;
/// Mean divergence from the reference, in nats, that rounding explains.
const MOST_KL: f64 = 5e-3;
/// Tokens of the measured prompt, and decode steps after it.
const BENCH: (usize, usize) = (256, 64);

/// Tests the device with the demo model, and measures it for some seconds.
///
/// Everything is computed with the demo model, which is part of the program, and compared with the CPU's exact path. The exit code is 1 where a
/// test fails.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily doctor                     the device that other commands would use
  lily doctor --device cpu --seconds 3
  lily doctor --json

With --json: {\"version\", \"machine\": {...}, \"system\", \"device\": {\"kind\", \"description\"}, \"notices\": [..],
\"tests\": [{\"name\", \"passed\", \"detail\"}], \"bench\": {\"seconds\", \"rounds\", \"prompt\", \"prefill_tokens_per_second\",
\"decode_tokens_per_second\"}}; where no device could be opened, \"device\" and \"bench\" are null and the test \"device\" says why.")]
pub struct DoctorArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Seconds that the measurement takes; 0 for none
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    machine: Machine,
    system: String,
    device: Option<Opened>,
    notices: Vec<String>,
    tests: Vec<Test>,
    bench: Option<Bench>,
}

#[derive(Serialize)]
struct Opened {
    kind: String,
    description: String,
}

#[derive(Serialize)]
struct Test {
    name: &'static str,
    passed: bool,
    detail: String,
}

#[derive(Serialize)]
struct Bench {
    seconds: f64,
    rounds: usize,
    prompt: usize,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

/// Tests, measures and prints.
pub fn run(args: DoctorArgs) -> Result<(), CliError> {
    let report = examine(&args)?;
    if args.json {
        output::json(&report)?;
    } else {
        std::io::stdout().write_all(for_people(&report).as_bytes())?;
    }
    match report.tests.iter().find(|test| !test.passed) {
        Some(test) => Err(CliError::Unwell(test.name)),
        None => Ok(()),
    }
}

fn examine(args: &DoctorArgs) -> Result<Report, CliError> {
    let checkpoint = Checkpoint::open(&demo::source())?;
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        machine: Machine::this(),
        system: System::long_os_version().unwrap_or_else(|| "unknown".into()),
        device: None,
        notices: Vec::new(),
        tests: Vec::new(),
        bench: None,
    };
    let opened = args.device.backend_with_notices(
        &checkpoint.config,
        checkpoint.weights.clone(),
        None,
        &mut report.notices,
    );
    let mut backend = match opened {
        Ok(backend) => backend,
        Err(error @ CliError::Usage(_)) => return Err(error),
        Err(error) => {
            report.tests.push(test("device", Err(error.to_string())));
            return Ok(report);
        }
    };
    let info = Backend::device(&backend);
    report.device = Some(Opened {
        kind: info.kind,
        description: info.description,
    });
    if let AnyBackend::Gpu(model) = &mut backend {
        report
            .tests
            .push(test("kernels with matrix tiles", tiles(GpuModel::device(model))));
    }
    let tokens = checkpoint.tokenizer.encode_plain(TEXT)?;
    let reference = Reference::compute(&checkpoint, tokens)?;
    report.tests.push(test("prefill", reference.prefill(&mut backend)));
    report.tests.push(test("decode", reference.decode(&mut backend)));
    if backend.hands_over_tokens() {
        let valid = checkpoint.tokenizer.len();
        report
            .tests
            .push(test("token hand-off", reference.hand_off(&mut backend, valid)));
    }
    if args.seconds > 0 && report.tests.iter().all(|test| test.passed) {
        report.bench = Some(measure(&mut backend, Duration::from_secs(args.seconds))?);
    }
    Ok(report)
}

/// A test that gives its figures, or says what is wrong.
fn test(name: &'static str, result: Result<String, String>) -> Test {
    Test {
        name,
        passed: result.is_ok(),
        detail: result.unwrap_or_else(|problem| problem),
    }
}

fn tiles(device: &mut Box<dyn lily_gpu::Device>) -> Result<String, String> {
    let checks = tile_kernels(device);
    let problems: Vec<String> = checks
        .iter()
        .filter_map(|check| Some(format!("{}: {}", check.kernel, check.problem.as_ref()?)))
        .collect();
    match problems.is_empty() {
        true => Ok(format!("{} kernels", checks.len())),
        false => Err(problems.join("; ")),
    }
}

/// What the CPU's exact path says of the text.
struct Reference {
    tokens: Vec<u32>,
    /// `[tokens, vocabulary]`
    logits: Vec<Vec<f32>>,
}

impl Reference {
    fn compute(checkpoint: &Checkpoint, tokens: Vec<u32>) -> Result<Reference, CliError> {
        let options = CpuOptions {
            exact: true,
            ..CpuOptions::default()
        };
        let (config, weights) = (checkpoint.config.clone(), checkpoint.weights.clone());
        let mut cpu = CpuModel::new(Arc::new(config), Arc::new(weights), options)?;
        let logits = prefilled(&mut cpu, &tokens)?;
        Ok(Reference { tokens, logits })
    }

    fn prefill(&self, backend: &mut AnyBackend) -> Result<String, String> {
        let logits = prefilled(backend, &self.tokens).map_err(|error| error.to_string())?;
        self.compare(0, &logits)
    }

    /// All but the last tokens as a prompt, those one by one.
    fn decode(&self, backend: &mut AnyBackend) -> Result<String, String> {
        let (start, rest) = self.tokens.split_at(self.tokens.len() - STEPS);
        let mut run = || {
            let mut sequence = backend.new_sequence()?;
            backend.prefill(&mut sequence, start, PrefillLogits::None)?;
            let mut rows = Vec::with_capacity(rest.len());
            for &token in rest {
                backend.decode(&mut [DecodeStep {
                    sequence: &mut sequence,
                    token,
                }])?;
                rows.push(backend.logits(&sequence).to_vec());
            }
            Ok::<_, BackendError>(rows)
        };
        let rows = run().map_err(|error| error.to_string())?;
        self.compare(start.len(), &rows)
    }

    /// Greedy text that the device chooses is what its own logits say.
    fn hand_off(&self, backend: &mut AnyBackend, valid: usize) -> Result<String, String> {
        let (&last, start) = self.tokens.split_last().ok_or("no text")?;
        let mut run = || {
            let (mut chosen, mut expected) = (Vec::new(), Vec::new());
            let mut sequence = backend.new_sequence()?;
            backend.prefill(&mut sequence, start, PrefillLogits::None)?;
            let state = SamplerState::new(Sampling::greedy(), &self.tokens, valid, 0, |_| false);
            backend.start_hand_off(&mut sequence, last, &state.start(valid, &[]))?;
            for _ in 0..STEPS {
                chosen.push(backend.next_token(&mut sequence, true)?);
            }
            backend.end_hand_off(&mut sequence)?;
            let mut sequence = backend.new_sequence()?;
            backend.prefill(&mut sequence, start, PrefillLogits::None)?;
            let mut token = last;
            for _ in 0..STEPS {
                backend.decode(&mut [DecodeStep {
                    sequence: &mut sequence,
                    token,
                }])?;
                token = most_likely(&backend.logits(&sequence)[..valid]);
                expected.push(token);
            }
            Ok::<_, BackendError>((chosen, expected))
        };
        let (chosen, expected) = run().map_err(|error| error.to_string())?;
        match chosen == expected {
            true => Ok(format!("{STEPS} tokens as the logits say")),
            false => Err(format!("the device chose {chosen:?}, its logits say {expected:?}")),
        }
    }

    /// Rows of logits from position `first` on against the reference's.
    fn compare(&self, first: usize, rows: &[Vec<f32>]) -> Result<String, String> {
        let mut comparison = Comparison::default();
        for (row, expected) in rows.iter().zip(&self.logits[first..]) {
            comparison.add(row, expected, most_likely(expected));
        }
        let (kl, same) = (comparison.mean_kl(), comparison.top1_agreement());
        let detail = format!(
            "{} tokens: mean KL {kl:.1e} to the CPU's exact path, the same top token at {:.0} %",
            comparison.positions,
            100.0 * same
        );
        // Of so few tokens, one may be a near tie.
        let enough = (rows.len() - 1) as f64 / rows.len() as f64;
        // What is not a number does not pass.
        match kl <= MOST_KL && same >= enough.min(0.96) {
            true => Ok(detail),
            false => Err(detail),
        }
    }
}

/// Logits of every token.
fn prefilled<B: Backend>(backend: &mut B, tokens: &[u32]) -> Result<Vec<Vec<f32>>, BackendError> {
    let mut rows = Vec::with_capacity(tokens.len());
    let mut sequence = backend.new_sequence()?;
    for chunk in tokens.chunks(backend.max_chunk()) {
        let mut each = |_: usize, logits: &[f32]| rows.push(logits.to_vec());
        backend.prefill(&mut sequence, chunk, PrefillLogits::All(&mut each))?;
    }
    Ok(rows)
}

/// Rounds of the usual measurement for about as long.
fn measure(backend: &mut AnyBackend, time: Duration) -> Result<Bench, CliError> {
    let (prompt, steps) = BENCH;
    let started = Instant::now();
    let tokens = measure::prompt(prompt, backend.vocab_size());
    // the first one warms up
    round(backend, &tokens, steps)?;
    let mut rounds: Vec<Round> = Vec::new();
    while rounds.is_empty() || started.elapsed() < time {
        rounds.push(round(backend, &tokens, steps)?);
    }
    let rate = |count: usize, of: fn(&Round) -> Duration| {
        let seconds: Vec<f64> = rounds.iter().map(|round| of(round).as_secs_f64()).collect();
        count as f64 / median(&seconds)
    };
    Ok(Bench {
        seconds: started.elapsed().as_secs_f64(),
        rounds: rounds.len(),
        prompt,
        prefill_tokens_per_second: rate(prompt, |round| round.prefill),
        decode_tokens_per_second: rate(steps, |round| round.decode),
    })
}

fn for_people(report: &Report) -> String {
    let machine = &report.machine;
    let mut rows = vec![
        ("lily", format!("{} ({}, {})", report.version, machine.os, machine.arch)),
        ("system", report.system.clone()),
        (
            "machine",
            format!(
                "{}, {} processors, {}",
                machine.cpu,
                machine.cpus,
                output::bytes(machine.memory_bytes)
            ),
        ),
    ];
    if let Some(device) = &report.device {
        rows.push(("device", format!("{}: {}", device.kind, device.description)));
    }
    rows.extend(report.notices.iter().map(|notice| ("notice", notice.clone())));
    for test in &report.tests {
        let outcome = if test.passed { "passed" } else { "FAILED" };
        rows.push(("test", format!("{outcome}: {} ({})", test.name, test.detail)));
    }
    if let Some(bench) = &report.bench {
        let text = format!(
            "demo model: prefill of {} tokens {:.0} tokens/s, decode {:.1} tokens/s ({} rounds in {:.1} s)",
            bench.prompt, bench.prefill_tokens_per_second, bench.decode_tokens_per_second, bench.rounds, bench.seconds
        );
        rows.push(("speed", text));
    }
    rows.iter().map(|(name, text)| format!("{name:10}{text}\n")).collect()
}
