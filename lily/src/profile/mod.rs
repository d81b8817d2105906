//! `lily profile`: where the time of one step goes.

mod limits;
mod record;
mod trace;
mod work;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use lily_engine::Backend;
use lily_model::Weights;
use serde::Serialize;

use crate::backend::AnyBackend;
use crate::bench;
use crate::bench::conditions::Watch;
use crate::bench::measure::median;
use crate::bench::report::{Head, Subject};
use crate::error::CliError;
use crate::model::{DeviceArgs, Kv, ModelArgs, SyntheticArgs};
use crate::output;
use limits::Limits;
use record::{Event, Step, record};
use work::{Shapes, StateFormat, Work};

/// What is profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// One decode step of one sequence
    Decode,
    /// One chunk of a prompt
    Prefill,
}

/// Tells where the time of one prefill or one decode step goes, operation by operation.
///
/// The step runs some times as always and some times with its operations timed, in turns; the profile of medium length is shown. On the CPU an
/// operation is timed where it runs. On a GPU every dispatch runs alone, so that the sum is longer than the step, where dispatches overlap. The
/// emulator's times are those of software on the processor, not of a GPU. A decode step is the pass whose logits the host reads.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily profile                                          a decode step of the demo model after 512 tokens
  lily profile prefill --prompt 1024
  lily profile decode --context 4096 --trace decode.json
  lily profile --synthetic qwen3.6-35b-a3b --layers 4 --json

Open the file of --trace in https://ui.perfetto.dev or chrome://tracing.

With --json: what every measurement says (docs/bench.md) and \"step\", \"context\", \"tokens\", \"limits\": {\"bytes_per_second\",
\"flops_per_second\", \"source\"}, \"plain_seconds\": [..], \"profiled_seconds\", \"operations_seconds\", \"accounted\", \"operations\":
[{\"operation\", \"kernels\": [..], \"calls\", \"seconds\", \"share\", \"bytes\", \"flops\", \"limit_share\"}], \"notes\": [..]. accounted is
operations_seconds over profiled_seconds; share is of operations_seconds; limit_share is the time that bytes or flops need at the limit over
the time taken, null where an operation has neither.")]
pub struct ProfileArgs {
    /// What is profiled
    #[arg(value_enum, default_value_t = Phase::Decode)]
    phase: Phase,
    /// Tokens before the step [default: 512 for decode, 0 for prefill]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Tokens of the prefill
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Rounds of each kind, after a warm-up
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Write the profile as a Chrome trace
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Limit of the memory in GB/s [default: measured]
    #[arg(long, value_name = "GB/S")]
    bandwidth: Option<f64>,
    /// Limit of arithmetic in TFLOP/s [default: measured on the CPU, unknown on a GPU]
    #[arg(long, value_name = "TFLOP/S")]
    arithmetic: Option<f64>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    synthetic: SyntheticArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// All calls of one operation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    operation: String,
    kernels: Vec<String>,
    calls: usize,
    seconds: f64,
    share: f64,
    bytes: f64,
    flops: f64,
    limit_share: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    step: Phase,
    context: usize,
    tokens: usize,
    limits: Limits,
    plain_seconds: Vec<f64>,
    profiled_seconds: f64,
    operations_seconds: f64,
    accounted: f64,
    operations: Vec<Row>,
    notes: Vec<&'static str>,
}

/// Profiles and prints.
pub fn run(args: ProfileArgs) -> Result<(), CliError> {
    let positive = |limit: Option<f64>| limit.is_none_or(|limit| limit > 0.0 && limit.is_finite());
    if args.rounds == 0 || args.prompt == 0 || !positive(args.bandwidth) || !positive(args.arithmetic) {
        return Err(CliError::Usage(
            "--prompt and --rounds have to be at least 1, --bandwidth and --arithmetic above 0".into(),
        ));
    }
    let watch = Watch::start();
    let (name, config, weights) = match args.synthetic.config()? {
        Some(config) => {
            let weights = Weights::synthetic(&config, 0);
            (args.synthetic.synthetic.clone().unwrap_or_default(), config, weights)
        }
        None => {
            let checkpoint = args.model.open()?;
            (checkpoint.name, checkpoint.config, checkpoint.weights)
        }
    };
    let shapes = Shapes::of(&config, &weights);
    let model = bench::describe(name, &config, &weights);
    let mut backend = args.device.backend(&config, weights, None)?;
    let step = match args.phase {
        Phase::Decode => Step {
            decode: true,
            context: args.context.unwrap_or(512),
            rows: 1,
        },
        Phase::Prefill => Step {
            decode: false,
            context: args.context.unwrap_or(0),
            rows: args.prompt,
        },
    };
    let (most, longest) = (backend.max_chunk(), backend.context_limit());
    if step.rows > most || step.context.saturating_add(step.rows) > longest {
        return Err(CliError::Usage(format!(
            "--prompt: expected at most {most}, the tokens of one chunk here, and with --context at most {longest}"
        )));
    }
    let mut limits = Limits::measure(&mut backend, args.device.threads)?;
    if let Some(bandwidth) = args.bandwidth {
        limits.bytes_per_second = bandwidth * 1e9;
    }
    if let Some(arithmetic) = args.arithmetic {
        limits.flops_per_second = Some(arithmetic * 1e12);
    }
    let recorded = record(&mut backend, step, args.rounds)?;
    let state = match &backend {
        AnyBackend::Cpu(_) => StateFormat {
            kv: if args.device.kv == Some(Kv::Bf16) { 2 } else { 4 },
            conv: 4,
        },
        AnyBackend::Gpu(_) => StateFormat { kv: 2, conv: 2 },
    };
    let events = with_work(&recorded.events, &shapes, step, state);
    let operations = rows(&events, &limits);
    let device = backend.device();
    let notes = notes(&device.kind);
    let title = format!(
        "{}, {}, on {}",
        model.name,
        step_for_people(args.phase, step),
        device.description
    );
    if let Some(path) = &args.trace {
        trace::write(path, &title, &events, &operations)?;
    }
    let subject = Subject {
        device: device.description,
        device_kind: device.kind,
        max_chunk: Some(most),
        model,
    };
    let operations_seconds: f64 = operations.iter().map(|row| row.seconds).sum();
    let profiled_seconds = recorded.profiled.as_secs_f64();
    let report = Report {
        head: Head::new("profile", subject, watch.finish()),
        step: args.phase,
        context: step.context,
        tokens: step.rows,
        limits,
        plain_seconds: recorded.plain.iter().map(|time| time.as_secs_f64()).collect(),
        profiled_seconds,
        operations_seconds,
        accounted: operations_seconds / profiled_seconds.max(f64::MIN_POSITIVE),
        operations,
        notes,
    };
    if args.json {
        return output::json(&report);
    }
    print(&title, &report, args.trace.as_deref())
}

/// What a reader of the times has to know.
fn notes(kind: &str) -> Vec<&'static str> {
    match kind {
        "cpu" => vec![
            "products are done in integers, which may exceed the limit of f32",
            "the memory's limit is that of main memory; caches, where a small model stays, are faster",
        ],
        "emulator" => vec![
            "dispatches ran one by one",
            "times are those of software on the processor and say nothing about a GPU",
        ],
        "cuda" => vec!["dispatches ran one by one, each between two events, which add some microseconds"],
        _ => vec!["dispatches ran one by one, each in a command buffer of its own"],
    }
}

/// Events with their work; several of one operation in one layer share it.
fn with_work(events: &[Event], shapes: &Shapes, step: Step, state: StateFormat) -> Vec<(Event, Work)> {
    let shared_apart = events.iter().any(|event| event.operation.starts_with("shared"));
    let mut calls: BTreeMap<(&str, Option<usize>), usize> = BTreeMap::new();
    for event in events {
        *calls.entry((&event.operation, event.layer)).or_default() += 1;
    }
    let work = |event: &Event| {
        let work = shapes.work(&event.operation, event.layer, step, state, shared_apart);
        let calls = calls[&(event.operation.as_str(), event.layer)] as f64;
        let each = Work {
            bytes: work.bytes / calls,
            flops: work.flops / calls,
        };
        (event.clone(), each)
    };
    events.iter().map(work).collect()
}

/// Sums by operation, the longest first.
fn rows(events: &[(Event, Work)], limits: &Limits) -> Vec<Row> {
    let mut sums: BTreeMap<&str, Row> = BTreeMap::new();
    for (event, work) in events {
        let row = sums.entry(&event.operation).or_default();
        row.calls += 1;
        row.seconds += event.time.as_secs_f64();
        row.bytes += work.bytes;
        row.flops += work.flops;
        if let Some(kernel) = event.kernel.as_ref().filter(|kernel| !row.kernels.contains(kernel)) {
            row.kernels.push(kernel.clone());
        }
    }
    let total: f64 = sums.values().map(|row| row.seconds).sum();
    let mut rows: Vec<Row> = sums
        .into_iter()
        .map(|(operation, row)| Row {
            operation: operation.into(),
            share: row.seconds / total.max(f64::MIN_POSITIVE),
            limit_share: limits
                .least_seconds(row.bytes, row.flops)
                .map(|least| least / row.seconds.max(f64::MIN_POSITIVE)),
            ..row
        })
        .collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    rows
}

fn step_for_people(phase: Phase, step: Step) -> String {
    let (context, rows) = (output::count(step.context as u64), output::count(step.rows as u64));
    match phase {
        Phase::Decode => format!("a decode step after {context} tokens"),
        Phase::Prefill => format!("a prefill of {rows} tokens after {context}"),
    }
}

fn print(title: &str, report: &Report, trace: Option<&Path>) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{title}")?;
    let arithmetic = report
        .limits
        .flops_per_second
        .map_or(String::new(), |limit| format!(", {:.2} TFLOP/s", limit / 1e12));
    let memory = report.limits.bytes_per_second / 1e9;
    writeln!(out, "limits: {memory:.1} GB/s{arithmetic} ({})", report.limits.source)?;
    writeln!(
        out,
        "{:20} {:>6} {:>11} {:>7} {:>9} {:>8} {:>9} {:>8} {:>6}  kernels",
        "operation", "calls", "time", "share", "bytes", "GB/s", "GFLOP", "GFLOP/s", "limit"
    )?;
    for row in &report.operations {
        let rate = |amount: f64| match amount > 0.0 {
            true => format!("{:.1}", amount / 1e9 / row.seconds.max(f64::MIN_POSITIVE)),
            false => "-".into(),
        };
        let bytes = match row.bytes > 0.0 {
            true => output::bytes(row.bytes as u64),
            false => "-".into(),
        };
        let flops = match row.flops > 0.0 {
            true => format!("{:.4}", row.flops / 1e9),
            false => "-".into(),
        };
        let line = format!(
            "{:20} {:>6} {:>8.1} us {:>5.1} % {bytes:>9} {:>8} {flops:>9} {:>8} {:>6}  {}",
            row.operation,
            row.calls,
            1e6 * row.seconds,
            100.0 * row.share,
            rate(row.bytes),
            rate(row.flops),
            row.limit_share
                .map_or("-".into(), |share| format!("{:.0} %", 100.0 * share)),
            row.kernels.join(" ")
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(
        out,
        "operations {:.3} ms, {:.1} % of the profiled step's {:.3} ms; the step as always {:.3} ms",
        1e3 * report.operations_seconds,
        100.0 * report.accounted,
        1e3 * report.profiled_seconds,
        1e3 * median(&report.plain_seconds)
    )?;
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    if let Some(path) = trace {
        writeln!(out, "trace: {}", path.display())?;
    }
    Ok(())
}
