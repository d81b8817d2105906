//! Load on an HTTP server: ours, started for it, or one that runs; beside another, where one is named.

mod drive;
mod overhead;
mod plan;
mod statistics;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use self::drive::{Driven, Mode, Target, drive};
use self::overhead::Overhead;
use self::plan::{Lengths, plan};
use self::statistics::{Quantiles, Statistics, Targets};
use super::conditions::Watch;
use super::http::Client;
use super::report::{self, Head, Subject};
use super::server::OwnServer;
use super::{Against, BenchArgs, describe};
use crate::error::CliError;
use crate::model::{self, MemoryArgs};

/// What is asked of a server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Load on the HTTP server, in a process of its own, instead of the engine alone
    #[arg(long)]
    pub serve: bool,
    /// Clients at the same time, each of which sends its next request when it has its reply [default: 1]
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,..",
        requires = "serve",
        conflicts_with = "rate"
    )]
    clients: Vec<usize>,
    /// Requests that arrive in a second, as a Poisson process, instead of clients that wait
    #[arg(long, value_delimiter = ',', value_name = "R,..", requires = "serve")]
    rate: Vec<f64>,
    /// Requests of each load and round
    #[arg(long, value_name = "N", default_value_t = 32, requires = "serve")]
    requests: usize,
    /// Tokens of a prompt: N, A-B (uniform) or lognormal:MEDIAN:SIGMA
    #[arg(long, value_name = "LENGTHS", default_value = "256", requires = "serve")]
    prompt_tokens: Lengths,
    /// Tokens of a reply, in the same forms
    #[arg(long, value_name = "LENGTHS", default_value = "64", requires = "serve")]
    reply_tokens: Lengths,
    /// Milliseconds to the first token within which a request is good
    #[arg(long, value_name = "MS", requires = "serve")]
    ttft_target: Option<f64>,
    /// Mean milliseconds between tokens within which a request is good
    #[arg(long, value_name = "MS", requires = "serve")]
    itl_target: Option<f64>,
    /// Seed of lengths, arrivals and prompts
    #[arg(long, value_name = "N", default_value_t = 0, requires = "serve")]
    seed: u64,
    /// A server that runs already, instead of one of our own
    #[arg(long, value_name = "URL", requires = "serve", conflicts_with = "against")]
    pub server: Option<String>,
    /// Do not measure what the server adds to the engine, which takes the model's memory a second time
    #[arg(long, requires = "serve")]
    no_overhead: bool,
}

impl LoadArgs {
    /// Options that do not go together, beyond what the parser knows. `lengths`: those of a sweep are given; `other_peer`: a peer without HTTP.
    pub fn check(&self, lengths: bool, other_peer: bool) -> Result<(), CliError> {
        let usage = |problem: &str| Err(CliError::Usage(problem.into()));
        if !self.serve {
            return Ok(());
        }
        if lengths {
            return usage(
                "--prompt, --decode-at and --contract do not go with --serve: --prompt-tokens has the lengths there",
            );
        }
        if other_peer {
            return usage("--serve is compared with servers: --against URL");
        }
        if self.requests == 0 || self.clients.contains(&0) {
            return usage("--requests and --clients have to be at least 1");
        }
        if !self.rate.iter().all(|rate| rate.is_finite() && *rate > 0.0) {
            return usage("--rate: expected numbers above 0");
        }
        if !self.targets_are_positive() {
            return usage("--ttft-target and --itl-target: expected numbers above 0");
        }
        Ok(())
    }

    fn targets_are_positive(&self) -> bool {
        [self.ttft_target, self.itl_target]
            .into_iter()
            .flatten()
            .all(|target| target > 0.0)
    }

    fn levels(&self) -> Vec<Level> {
        if !self.rate.is_empty() {
            return self.rate.iter().map(|&rate| Level::Rate(rate)).collect();
        }
        let clients = if self.clients.is_empty() {
            &[1][..]
        } else {
            &self.clients
        };
        clients.iter().map(|&clients| Level::Clients(clients)).collect()
    }
}

/// How heavy a load is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// Clients at the same time.
    Clients(usize),
    /// Requests a second.
    Rate(f64),
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Level::Clients(1) => write!(f, "1 client"),
            Level::Clients(clients) => write!(f, "{clients} clients"),
            Level::Rate(rate) => write!(f, "{rate}/s"),
        }
    }
}

/// One server at one level.
#[derive(Serialize)]
struct Loaded {
    server: String,
    #[serde(flatten)]
    level: Level,
    #[serde(flatten)]
    statistics: Statistics,
}

const HEADER: &str = "\
| server | load | requests | failed | requests/s | tokens/s | TTFT ms, p50 / p90 / p99 | between tokens ms, p50 / p90 / p99 | good |
|---|---|---:|---:|---:|---:|---|---|---:|";

impl Loaded {
    fn row(&self) -> String {
        let times = |quantiles: Option<Quantiles>| {
            quantiles.map_or("-".into(), |q| format!("{:.1} / {:.1} / {:.1}", q.p50, q.p90, q.p99))
        };
        let s = &self.statistics;
        let good = s.goodput_per_second.zip(s.good_share);
        format!(
            "| {} | {} | {} | {} | {:.2} | {:.1} | {} | {} | {} |",
            self.server,
            self.level,
            s.requests,
            s.failed,
            s.requests_per_second,
            s.output_tokens_per_second,
            times(s.ttft_ms),
            times(s.itl_ms),
            good.map_or("-".into(), |(rate, share)| format!(
                "{rate:.2}/s, {:.0} %",
                100.0 * share
            ))
        )
    }
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    rounds: usize,
    requests: usize,
    prompt_tokens: Lengths,
    reply_tokens: Lengths,
    seed: u64,
    targets: Targets,
    results: Vec<Loaded>,
    overhead: Option<Overhead>,
    time_limit_reached: bool,
}

impl Report {
    fn markdown(&self, with_table: bool) -> String {
        let mut text = self.head.markdown();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "- completions, streamed, greedy; prompts of {} tokens, replies of {}; {} requests of each load and round, {}; the clients run on the \
             same machine",
            self.prompt_tokens,
            self.reply_tokens,
            self.requests,
            report::rounds(self.rounds)
        );
        if self.targets.any() {
            let target = |target: Option<f64>| target.map_or("any".into(), |ms| format!("{ms} ms"));
            let _ = writeln!(
                text,
                "- good: TTFT of at most {}, mean time between tokens of at most {}",
                target(self.targets.ttft_ms),
                target(self.targets.itl_ms)
            );
        }
        if let Some(overhead) = &self.overhead {
            let _ = writeln!(
                text,
                "- the server over the engine alone, one client, {} requests to each in turns: {:+.1} % of a decode step (middle half of the pairs {:+.1} \
                 to {:+.1} %; medians {:.3} and {:.3} ms); first token after {:.1} ms, {:.1} at the engine",
                overhead.requests,
                overhead.decode_percent,
                overhead.decode_percent_low,
                overhead.decode_percent_high,
                overhead.server_step_ms,
                overhead.engine_step_ms,
                overhead.server_ttft_ms,
                overhead.engine_ttft_ms
            );
        }
        for loaded in &self.results {
            for (failure, count) in &loaded.statistics.failures {
                let _ = writeln!(text, "- **failed** at {}, {count} times: {failure}", loaded.level);
            }
        }
        let lines = std::iter::once(HEADER.to_owned()).chain(self.results.iter().map(Loaded::row));
        report::end_markdown(&mut text, self.time_limit_reached, with_table, lines);
        text
    }
}

/// A server that runs.
fn running(url: &str, name: Option<&str>) -> Result<Target, CliError> {
    let client = Client::new(url);
    let model = match name {
        Some(name) => name.to_owned(),
        None => client.first_model().map_err(|error| CliError::Arm {
            arm: url.into(),
            problem: error.to_string(),
        })?,
    };
    Ok(Target {
        name: url.into(),
        client,
        model,
    })
}

/// Loads, measures and prints.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    let load = &args.load;
    let deadline = args.deadline();
    let late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let mut watch = Watch::start();
    let checkpoint = args.model.open()?;
    let model = describe(checkpoint.name.clone(), &checkpoint.config, &checkpoint.weights);
    // A server refuses ids that the tokenizer does not have, though the model's matrices have rows for them.
    let vocab_size = checkpoint.tokenizer.len();
    let levels = load.levels();
    // As many requests run at the same time as clients ask for.
    let parallel = load.clients.iter().copied().max().unwrap_or(1).max(16).to_string();
    let own = match &load.server {
        Some(_) => None,
        None => Some(OwnServer::start(
            &args.subject_args(),
            &["--parallel", &parallel, "--queue", "65536"],
        )?),
    };
    let mut targets = Vec::new();
    let (mut device, mut device_kind) = ("a server that was running".to_owned(), "unknown".to_owned());
    if let Some(own) = &own {
        (device, device_kind) = own.device.clone();
        targets.push(Target {
            name: "lily serve".into(),
            client: own.client.clone(),
            model: own.model.clone(),
        });
    }
    let url = match &args.against {
        Some(Against::Server(url)) => Some(url),
        _ => load.server.as_ref(),
    };
    if let Some(url) = url {
        targets.push(running(url, args.peer_name.as_deref())?);
    }
    let overhead = match &own {
        Some(_) if !load.no_overhead => {
            let engine = model::start_engine(&checkpoint, &args.device, &MemoryArgs::default())?;
            let lengths = (&load.prompt_tokens, &load.reply_tokens);
            let requests = plan(
                load.requests * args.rounds,
                lengths,
                None,
                vocab_size,
                load.seed ^ u64::MAX,
            );
            let overhead = overhead::measure(&engine, &targets[0], &requests, deadline);
            engine.finish();
            overhead?
        }
        _ => None,
    };
    let goals = Targets {
        ttft_ms: load.ttft_target,
        itl_ms: load.itl_target,
    };
    let mut results = Vec::new();
    if !args.json {
        writeln!(io::stdout(), "{HEADER}")?;
    }
    for (number, &level) in levels.iter().enumerate() {
        if late() {
            break;
        }
        let mut driven: Vec<Vec<Driven>> = targets.iter().map(|_| Vec::new()).collect();
        for round in 0..args.rounds {
            let seed = load.seed + (number * args.rounds + round) as u64 + 1;
            let (rate, mode) = match level {
                Level::Clients(clients) => (None, Mode::Clients(clients)),
                Level::Rate(rate) => (Some(rate), Mode::Arrivals),
            };
            let lengths = (&load.prompt_tokens, &load.reply_tokens);
            let requests = plan(load.requests, lengths, rate, vocab_size, seed);
            let mut order: Vec<usize> = (0..targets.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for target in order {
                driven[target].push(drive(&targets[target], &requests, mode, deadline));
            }
        }
        for (target, driven) in targets.iter().zip(&driven) {
            let loaded = Loaded {
                server: target.name.clone(),
                level,
                statistics: Statistics::new(driven, &goals),
            };
            if !args.json {
                writeln!(io::stdout(), "{}", loaded.row())?;
            }
            results.push(loaded);
        }
    }
    // Levels and requests that were left out; what ended after the limit is whole.
    let sent = |loaded: &Loaded| loaded.statistics.requests == load.requests * args.rounds;
    let time_limit_reached = results.len() < levels.len() * targets.len() || !results.iter().all(sent);
    let subject = Subject {
        device,
        device_kind,
        max_chunk: None,
        model,
    };
    for loaded in &results {
        if loaded.statistics.failed > 0 {
            watch.warn(format!(
                "{} of {} requests failed at {}",
                loaded.statistics.failed, loaded.statistics.requests, loaded.level
            ));
        }
    }
    let report = Report {
        time_limit_reached,
        head: Head::new("load", subject, watch.finish()),
        rounds: args.rounds,
        requests: load.requests,
        prompt_tokens: load.prompt_tokens,
        reply_tokens: load.reply_tokens,
        seed: load.seed,
        targets: goals,
        results,
        overhead,
    };
    report::deliver(&report, |table| report.markdown(table), args.json, args.save.as_deref())
}
