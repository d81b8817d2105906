//! `lily bench`: how fast, always measured the same way.

mod ablate;
mod arm;
pub mod conditions;
mod http;
mod lily;
mod llama;
mod load;
pub mod measure;
mod mlx;
mod remote;
pub mod report;
mod server;
mod sweep;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use lily_model::{ModelConfig, Weights};

use self::ablate::AblateArgs;
use self::arm::{Arm, Job, alternate};
use self::conditions::Watch;
use self::lily::{FreshProcess, ThisProcess};
use self::llama::LlamaArm;
use self::load::LoadArgs;
use self::mlx::{Dtype, MlxArm};
use self::remote::RemoteArm;
use self::report::{Head, Model, Subject};
use self::sweep::{Measured, Point};
use crate::error::CliError;
use crate::inspect::parts;
use crate::model::{DeviceArgs, ModelArgs, SyntheticArgs};
use crate::output;
use crate::peer::{self, Environment, MlxArgs};

/// The contexts of the contract.
const CONTRACT: [usize; 10] = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072];

/// Measures the speed of prefill and decode, alone or beside another engine; of every optimization; or of the server under load.
///
/// Batch 1, greedy. For each context length and round: a fresh process, a warm-up of exactly this shape, one measured prefill, which ends when
/// the first token is chosen, and exactly 64 measured decode steps; medians over the rounds. Engines that are compared take turns. Token i of the
/// prompt is ((i * 2654435761) mod 2^32) mod vocab_size. Loading, tokenizing and templates are outside. The tokens have to be the same in every
/// round.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily bench
  lily bench --prompt 256,1024,4096 --json
  lily bench --contract --time-limit 600 --save results/today      today.json and today.md
  lily bench --prompt 512 --decode-at 512,8192 --rounds 3
  lily bench --synthetic qwen3.6-35b-a3b --layers 4 --prompt 512
  lily bench --against mlx-lm --prompt 512,4096                    installs MLX-LM where it is missing
  lily bench --against llama.cpp --peer-model model.gguf
  lily bench --against http://127.0.0.1:8000                       any OpenAI-compatible server; ours runs through HTTP too
  lily bench --ablate --device emulator --prompt 64                every optimization, off against on
  lily bench --ablate gqa-packing --device metal
  lily bench --serve --clients 1,4,16                              load on the server, and what it adds to the engine
  lily bench --serve --rate 2 --requests 100 --ttft-target 500

docs/bench.md describes the JSON of --json and --save.")]
pub struct BenchArgs {
    /// Lengths of prompts whose prefill is measured, in tokens [default: 512]
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    prompt: Vec<usize>,
    /// Contexts at which decode is measured, in tokens [default: the lengths of the prompts]
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    decode_at: Vec<usize>,
    /// The lengths of the contract: 256, 512, 1K and so on to 128K
    #[arg(long, conflicts_with_all = ["prompt", "decode_at"])]
    contract: bool,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 2)]
    rounds: usize,
    /// Seconds after which no more is measured; what is there by then is reported
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<u64>,
    /// Load the model once, in this process, instead of once for each arm: quicker, and not the contract
    #[arg(long)]
    one_process: bool,
    /// Decode steps; the contract's number where absent
    #[arg(long, value_name = "N", hide = true, default_value_t = measure::DECODE_STEPS)]
    decode_steps: usize,
    /// Another engine, measured in turns with this one
    #[arg(long, value_name = "mlx-lm|llama.cpp|URL", value_parser = Against::parse, help_heading = "Peers")]
    against: Option<Against>,
    #[command(flatten)]
    mlx: MlxArgs,
    /// Number format in which MLX computes [default: the checkpoint's]
    #[arg(long, value_enum, help_heading = "Peers")]
    peer_dtype: Option<Dtype>,
    /// llama-bench of llama.cpp, or its directory [default: on PATH]
    #[arg(long, value_name = "PATH", help_heading = "Peers")]
    peer_path: Option<PathBuf>,
    /// llama.cpp's model
    #[arg(long, value_name = "GGUF", help_heading = "Peers")]
    peer_model: Option<PathBuf>,
    /// Tokens that llama.cpp computes together in prefill (its -ub) [default: as many as this engine]
    #[arg(long, value_name = "N", help_heading = "Peers")]
    peer_ubatch: Option<usize>,
    /// The server's name of the model [default: the first that it lists]
    #[arg(long, value_name = "NAME", help_heading = "Peers")]
    peer_name: Option<String>,
    #[command(flatten)]
    ablate: AblateArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    synthetic: SyntheticArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Write the report to STEM.json and STEM.md too
    #[arg(long, value_name = "STEM")]
    save: Option<PathBuf>,
}

/// Who is measured beside us.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Against {
    MlxLm,
    LlamaCpp,
    Server(String),
}

impl Against {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "mlx-lm" => Ok(Against::MlxLm),
            "llama.cpp" => Ok(Against::LlamaCpp),
            url if url.starts_with("http://") || url.starts_with("https://") => Ok(Against::Server(url.into())),
            _ => Err("expected mlx-lm, llama.cpp or the URL of a server".into()),
        }
    }
}

/// Measures and prints.
pub fn run(args: BenchArgs) -> Result<(), CliError> {
    args.check()?;
    if args.ablate.is_asked_for() {
        return ablate::run(&args);
    }
    if args.load.serve {
        return load::run(&args);
    }
    run_sweep(&args)
}

impl BenchArgs {
    /// Options that do not go together, beyond what the parser knows.
    fn check(&self) -> Result<(), CliError> {
        let usage = |problem: &str| Err(CliError::Usage(problem.into()));
        if self.rounds == 0 || self.peer_ubatch == Some(0) || self.prompt.contains(&0) || self.decode_at.contains(&0) {
            return usage("--prompt, --decode-at, --rounds and --peer-ubatch have to be at least 1");
        }
        let (mlx, llama) = (
            self.against == Some(Against::MlxLm),
            self.against == Some(Against::LlamaCpp),
        );
        let server = matches!(self.against, Some(Against::Server(_)));
        if !mlx && (self.peer_dtype.is_some() || self.mlx.peer_python.is_some() || self.mlx.peer_version.is_some()) {
            return usage("--peer-dtype, --peer-python and --peer-version go with --against mlx-lm");
        }
        if !llama && (self.peer_path.is_some() || self.peer_model.is_some() || self.peer_ubatch.is_some()) {
            return usage("--peer-path, --peer-model and --peer-ubatch go with --against llama.cpp");
        }
        if llama && self.peer_model.is_none() {
            return usage("--against llama.cpp needs its model, a GGUF file: --peer-model FILE");
        }
        if !server && self.peer_name.is_some() && self.load.server.is_none() {
            return usage("--peer-name goes with a server: --against URL or --server URL");
        }
        if self.synthetic.synthetic.is_some() && (mlx || server || self.load.serve) {
            return usage(
                "--synthetic has no files that a server or MLX-LM could read; bench/synthetic_checkpoint.py makes some",
            );
        }
        if server && self.one_process {
            return usage("--one-process does not go with --against URL: both sides are servers then");
        }
        let lengths = self.contract || !self.prompt.is_empty() || !self.decode_at.is_empty();
        self.load.check(lengths, self.against.is_some() && !server)?;
        self.ablate.check(self)
    }

    fn points(&self) -> Vec<Point> {
        let prompt = if self.contract {
            CONTRACT.to_vec()
        } else if self.prompt.is_empty() {
            vec![512]
        } else {
            self.prompt.clone()
        };
        let decode_at = if self.decode_at.is_empty() {
            &prompt
        } else {
            &self.decode_at
        };
        sweep::points(&prompt, decode_at)
    }

    fn deadline(&self) -> Option<Instant> {
        self.time_limit
            .map(|seconds| Instant::now() + Duration::from_secs(seconds))
    }

    /// The options that name the model, for a process of our own.
    fn model_args(&self) -> Vec<String> {
        match self.synthetic.synthetic {
            Some(_) => self.synthetic.to_args(),
            None => self.model.to_args(),
        }
    }

    /// The same with the device.
    fn subject_args(&self) -> Vec<String> {
        [self.model_args(), self.device.to_args()].concat()
    }

    /// Name, shape and weights of what is measured.
    fn weights(&self) -> Result<(String, ModelConfig, Weights), CliError> {
        Ok(match self.synthetic.config()? {
            Some(config) => {
                let weights = Weights::synthetic(&config, 0);
                (self.synthetic.synthetic.clone().unwrap_or_default(), config, weights)
            }
            None => {
                let checkpoint = self.model.open()?;
                (checkpoint.name, checkpoint.config, checkpoint.weights)
            }
        })
    }
}

/// What is known of weights without a device.
pub fn describe(name: String, config: &ModelConfig, weights: &Weights) -> Model {
    let parts = parts::of_weights(weights, config);
    Model {
        name,
        layers: config.layers.len(),
        parameters: parts.iter().map(|part| part.parameters).sum(),
        bytes: parts.iter().map(|part| part.bytes).sum(),
        read_per_token: parts.iter().map(|part| part.read_per_token).sum(),
    }
}

/// The arm beside ours.
fn peer_arm(args: &BenchArgs, against: &Against) -> Result<Box<dyn Arm>, CliError> {
    Ok(match against {
        Against::MlxLm => {
            // The environment first: without it nothing needs to be downloaded.
            let environment = Environment::mlx_lm(&args.mlx)?;
            let checkpoint = args.model.open()?;
            let directory = peer::directory(&checkpoint)?;
            let vocab_size = checkpoint.config.vocab_size;
            Box::new(MlxArm::new(environment, directory, args.peer_dtype, vocab_size))
        }
        Against::LlamaCpp => {
            let model = args.peer_model.clone().unwrap_or_default();
            let settings = llama::Settings {
                threads: args.device.threads,
                ubatch: args.peer_ubatch,
            };
            Box::new(LlamaArm::new(args.peer_path.as_deref(), model, settings)?)
        }
        Against::Server(url) => Box::new(RemoteArm::at(url, args.peer_name.as_deref(), args.model.open()?)?),
    })
}

/// Our arm of a sweep.
fn our_arm(args: &BenchArgs) -> Result<Box<dyn Arm>, CliError> {
    if args.one_process {
        let (name, config, weights) = args.weights()?;
        let model = describe(name, &config, &weights);
        let backend = args.device.backend(&config, weights, None)?;
        return Ok(Box::new(ThisProcess::new("lily", backend, model)));
    }
    if let Some(Against::Server(_)) = args.against {
        let checkpoint = args.model.open()?;
        let model = describe(checkpoint.name.clone(), &checkpoint.config, &checkpoint.weights);
        return Ok(Box::new(RemoteArm::ours(args.subject_args(), model, checkpoint)));
    }
    Ok(Box::new(FreshProcess::new("lily", args.subject_args())))
}

fn run_sweep(args: &BenchArgs) -> Result<(), CliError> {
    // A wrong shape or switch is told before processes are started.
    args.synthetic.config()?;
    args.device.switches()?;
    let deadline = args.deadline();
    let mut watch = Watch::start();
    let mut peer = args
        .against
        .as_ref()
        .map(|against| peer_arm(args, against))
        .transpose()?;
    let mut ours = our_arm(args)?;
    let mut results: Vec<Measured> = Vec::new();
    let mut time_limit_reached = false;
    for point in args.points() {
        if !args.one_process {
            watch.look();
        }
        let job = Job {
            context: point.context,
            steps: if point.decode { args.decode_steps } else { 0 },
            round: 0,
            chunk: None,
            deadline,
        };
        let mut arms: Vec<&mut dyn Arm> = vec![ours.as_mut()];
        if let Some(peer) = &mut peer {
            arms.push(peer.as_mut());
        }
        let series = alternate(&mut arms, job, args.rounds, &mut watch)?;
        time_limit_reached = series.cut_short;
        if let Some((subject, _)) = ours.subject()
            && !series.samples[0].is_empty()
        {
            let measured = Measured::new(&point, &series, subject.model.read_per_token);
            if !args.json {
                if results.is_empty() {
                    introduce(&subject, peer.as_ref().map(|peer| peer.name()).as_deref())?;
                }
                writeln!(io::stdout(), "{}", sweep::row(&measured))?;
            }
            measured.wide().into_iter().for_each(|warning| watch.warn(warning));
            results.push(measured);
        }
        if time_limit_reached {
            break;
        }
    }
    let (subject, peak_memory_bytes) = ours.subject().ok_or(CliError::TimeLimit)?;
    let report = sweep::Report {
        head: Head::new("sweep", subject, watch.finish()),
        processes: if args.one_process { "one" } else { "one for each arm" },
        rounds: args.rounds,
        results,
        peer: peer.and_then(|peer| peer.peer()),
        time_limit_reached,
        peak_memory_bytes,
    };
    report::deliver(&report, |table| report.markdown(table), args.json, args.save.as_deref())
}

fn introduce(subject: &Subject, peer: Option<&str>) -> Result<(), CliError> {
    let model = &subject.model;
    let mut out = io::stdout();
    writeln!(
        out,
        "{}, {} layers, {} of weights, on {}\n",
        model.name,
        model.layers,
        output::bytes(model.bytes),
        subject.device
    )?;
    Ok(writeln!(out, "{}", sweep::header(peer))?)
}
