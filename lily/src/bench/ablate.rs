//! Every optimization of the GPU kernels, off against on, at the context where it matters.

use std::fmt::Write as _;
use std::io::{self, Write};

use clap::Args;
use lily_gpu::Switches;
use lily_gpu::switches::{Ablation, Phase};
use serde::Serialize;

use super::arm::{Arm, Job, Sample, alternate};
use super::conditions::Watch;
use super::lily::{FreshProcess, ThisProcess};
use super::measure::median;
use super::report::{self, Head};
use super::{BenchArgs, describe};
use crate::error::CliError;
use crate::model::{Device, DeviceArgs};
use crate::output;

/// Stands for every switch.
const ALL: &str = "all";

/// Which switches.
#[derive(Args, Clone, Debug)]
pub struct AblateArgs {
    /// Optimizations of the GPU kernels, each off against on, at its context or those of --prompt [default: all of them]
    #[arg(long, value_name = "SWITCH,..", num_args = 0.., value_delimiter = ',', default_missing_value = ALL,
        conflicts_with_all = ["against", "serve", "contract", "decode_at", "without"], help_heading = "Ablation")]
    ablate: Option<Vec<String>>,
}

impl AblateArgs {
    /// Whether ablations are what is measured.
    pub fn is_asked_for(&self) -> bool {
        self.ablate.is_some()
    }

    /// Switches that there are, on a device that has them.
    pub fn check(&self, args: &BenchArgs) -> Result<(), CliError> {
        if !self.is_asked_for() {
            return Ok(());
        }
        if args.device.device == Device::Cpu {
            return Err(no_switches());
        }
        self.ablations().map(drop)
    }

    fn ablations(&self) -> Result<Vec<Ablation>, CliError> {
        let names = self.ablate.as_deref().unwrap_or_default();
        if names.is_empty() || names.iter().any(|name| name == ALL) {
            return Ok(Switches::ABLATIONS.to_vec());
        }
        let find = |name: &String| {
            // Its complaint lists those that there are.
            let known = Switches::default().without(name);
            known.map_err(|error| CliError::Usage(format!("--ablate: {error}")))?;
            let found = Switches::ABLATIONS.iter().find(|ablation| ablation.name == name);
            found.copied().ok_or_else(no_switches)
        };
        names.iter().map(find).collect()
    }
}

fn no_switches() -> CliError {
    CliError::Usage(
        "--ablate: switches belong to the GPU kernels, and the CPU has none: choose --device metal, cuda or emulator"
            .into(),
    )
}

/// The gain of one switch at one context.
#[derive(Debug, Serialize)]
struct Gain {
    switch: &'static str,
    phase: &'static str,
    context: usize,
    on_tokens_per_second: f64,
    off_tokens_per_second: f64,
    /// How much faster on is than off, in percent: the median of the rounds, the least and the most.
    gain_percent: f64,
    least_percent: f64,
    most_percent: f64,
    on_seconds: Vec<f64>,
    off_seconds: Vec<f64>,
    same_tokens: bool,
}

impl Gain {
    /// `None` where there is no complete round.
    fn new(ablation: &Ablation, phase: Phase, context: usize, on: &[Sample], off: &[Sample]) -> Option<Self> {
        let (seconds, name): (fn(&Sample) -> f64, _) = match phase {
            Phase::Prefill => (|sample| sample.prefill_seconds, "prefill"),
            _ => (|sample| sample.decode_seconds, "decode"),
        };
        let count = match phase {
            Phase::Prefill => context,
            _ => on.first()?.steps,
        } as f64;
        let (on_seconds, off_seconds): (Vec<f64>, Vec<f64>) =
            on.iter().zip(off).map(|(on, off)| (seconds(on), seconds(off))).unzip();
        let gains: Vec<f64> = on_seconds
            .iter()
            .zip(&off_seconds)
            .map(|(on, off)| 100.0 * (off / on - 1.0))
            .collect();
        Some(Gain {
            switch: ablation.name,
            phase: name,
            context,
            on_tokens_per_second: count / median(&on_seconds),
            off_tokens_per_second: count / median(&off_seconds),
            gain_percent: median(&gains),
            least_percent: gains.iter().copied().fold(f64::INFINITY, f64::min),
            most_percent: gains.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            same_tokens: on.first()?.tokens == off.first()?.tokens,
            on_seconds,
            off_seconds,
        })
    }

    fn row(&self) -> String {
        format!(
            "| {} | {} | {} | {:.1} | {:.1} | {:+.1} % | {:+.1} to {:+.1} % | {} |",
            self.switch,
            self.phase,
            output::count(self.context as u64),
            self.off_tokens_per_second,
            self.on_tokens_per_second,
            self.gain_percent,
            self.least_percent,
            self.most_percent,
            if self.same_tokens { "yes" } else { "no" }
        )
    }
}

const HEADER: &str = "\
| switch | phase | context | off, tokens/s | on, tokens/s | gain | rounds | same tokens |
|---|---|---:|---:|---:|---:|---|---|";

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    processes: &'static str,
    rounds: usize,
    results: Vec<Gain>,
    time_limit_reached: bool,
}

impl Report {
    fn markdown(&self, with_table: bool) -> String {
        let mut text = self.head.markdown();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "- batch 1, greedy; off and on in turns, {}; medians of {}; a gain is on over off",
            match self.processes {
                "one" => "both in one process",
                _ => "a fresh process for each arm",
            },
            report::rounds(self.rounds)
        );
        let lines = std::iter::once(HEADER.to_owned()).chain(self.results.iter().map(Gain::row));
        report::end_markdown(&mut text, self.time_limit_reached, with_table, lines);
        text
    }
}

/// Measures and prints.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    args.synthetic.config()?;
    let ablations = args.ablate.ablations()?;
    let deadline = args.deadline();
    let mut watch = Watch::start();
    let mut on = arm("lily", args, &args.device)?;
    let mut without = Without(None);
    let mut results = Vec::new();
    let mut time_limit_reached = false;
    let points = ablations.iter().flat_map(|ablation| {
        let contexts = if args.prompt.is_empty() {
            ablation.contexts
        } else {
            &args.prompt
        };
        contexts.iter().map(move |&context| (ablation, context))
    });
    for (ablation, context) in points {
        if !args.one_process {
            watch.look();
        }
        let job = Job {
            context,
            steps: if ablation.phase == Phase::Prefill {
                0
            } else {
                args.decode_steps
            },
            round: 0,
            chunk: None,
            deadline,
        };
        let off = without.arm(args, ablation.name)?;
        let series = alternate(&mut [on.as_mut(), off], job, args.rounds, &mut watch)?;
        if on.subject().is_some_and(|(subject, _)| subject.device_kind == "cpu") {
            return Err(no_switches());
        }
        let phases: &[Phase] = match ablation.phase {
            Phase::Both => &[Phase::Prefill, Phase::Decode],
            Phase::Prefill => &[Phase::Prefill],
            Phase::Decode => &[Phase::Decode],
        };
        for &phase in phases {
            let Some(gain) = Gain::new(ablation, phase, context, &series.samples[0], &series.samples[1]) else {
                continue;
            };
            if !args.json {
                if results.is_empty() {
                    writeln!(io::stdout(), "{HEADER}")?;
                }
                writeln!(io::stdout(), "{}", gain.row())?;
            }
            results.push(gain);
        }
        time_limit_reached = series.cut_short;
        if time_limit_reached {
            break;
        }
    }
    let (subject, _) = on.subject().ok_or(CliError::TimeLimit)?;
    let report = Report {
        head: Head::new("ablation", subject, watch.finish()),
        processes: if args.one_process { "one" } else { "one for each arm" },
        rounds: args.rounds,
        results,
        time_limit_reached,
    };
    report::deliver(&report, |table| report.markdown(table), args.json, args.save.as_deref())
}

/// The last arm with a switch off: in one process, at most two models are loaded at once, since a model that is dropped frees its memory.
struct Without(Option<(&'static str, Box<dyn Arm>)>);

impl Without {
    fn arm(&mut self, args: &BenchArgs, switch: &'static str) -> Result<&mut dyn Arm, CliError> {
        // The old one's memory is free before a new one is loaded.
        let last = self.0.take().filter(|(name, _)| *name == switch);
        let arm = match last {
            Some((_, arm)) => arm,
            None => {
                let mut device = args.device.clone();
                device.without.push(switch.into());
                arm(&format!("lily without {switch}"), args, &device)?
            }
        };
        Ok(self.0.insert((switch, arm)).1.as_mut())
    }
}

fn arm(name: &str, args: &BenchArgs, device: &DeviceArgs) -> Result<Box<dyn Arm>, CliError> {
    if !args.one_process {
        return Ok(Box::new(FreshProcess::new(
            name,
            [args.model_args(), device.to_args()].concat(),
        )));
    }
    let (model_name, config, weights) = args.weights()?;
    let model = describe(model_name, &config, &weights);
    let backend = device.backend(&config, weights, None)?;
    Ok(Box::new(ThisProcess::new(name, backend, model)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64) -> Sample {
        Sample {
            prompt_tokens: 8,
            prefill_seconds: seconds,
            steps: 4,
            decode_seconds: 2.0 * seconds,
            tokens: vec![1],
        }
    }

    #[test]
    fn a_gain_is_on_over_off_round_by_round() {
        let ablation = Switches::ABLATIONS[0];
        let (on, off) = (
            [sample(1.0), sample(2.0), sample(1.0)],
            [sample(1.5), sample(2.0), sample(1.2)],
        );
        let gain = Gain::new(&ablation, Phase::Prefill, 8, &on, &off).unwrap();
        assert!((gain.gain_percent - 20.0).abs() < 1e-9, "{gain:?}");
        assert!(
            (gain.most_percent - 50.0).abs() < 1e-9 && gain.least_percent.abs() < 1e-9,
            "{gain:?}"
        );
        assert_eq!(gain.on_tokens_per_second, 8.0);
        let decode = Gain::new(&ablation, Phase::Decode, 8, &on, &off).unwrap();
        assert_eq!((decode.phase, decode.on_tokens_per_second), ("decode", 2.0));
        assert!(Gain::new(&ablation, Phase::Decode, 8, &[], &[]).is_none());
    }
}
