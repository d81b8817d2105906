//! `lily bench`: prefill and decode speed, always measured the same way.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;
use lily_engine::{Backend, BackendError, DecodeStep, PrefillLogits, Sampling};
use lily_model::{SamplerStart, Weights};
use serde::Serialize;

use crate::error::CliError;
use crate::inspect::parts;
use crate::machine::{self, Machine};
use crate::model::{DeviceArgs, ModelArgs, SyntheticArgs};
use crate::output;

/// Decode steps that are measured.
const DECODE_STEPS: usize = 64;

/// Measures the speed of prefill and decode.
///
/// Batch 1, greedy. For each context length: a warm-up of exactly this shape, then in each round one measured prefill, which ends when the first
/// token is chosen, and exactly 64 measured decode steps; medians over the rounds. Token i of the prompt is ((i * 2654435761) mod 2^32) mod
/// vocab_size. Loading, tokenizing and templates are outside. The tokens have to be the same in every round.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily bench
  lily bench --prompt 256,1024,4096 --json
  lily bench --prompt 512 --decode-at 512,8192 --rounds 3
  lily bench --synthetic qwen3.6-35b-a3b --layers 4 --prompt 512

With --json: {\"version\", \"machine\": {\"os\", \"arch\", \"cpu\", \"cpus\", \"memory_bytes\"}, \"device\", \"model\": {\"name\", \"layers\",
\"parameters\", \"bytes\", \"read_per_token\"}, \"rounds\", \"results\": [{\"context\", \"prefill_tokens_per_second\",
\"decode_tokens_per_second\", \"decode_bytes_per_second\", \"prefill_seconds\": [..], \"decode_seconds\": [..], \"tokens\": [..]}],
\"peak_memory_bytes\"}; what was not asked for is null, and seconds are of each round.")]
pub struct BenchArgs {
    /// Lengths of prompts whose prefill is measured, in tokens
    #[arg(long, value_delimiter = ',', value_name = "N,..", default_value = "512")]
    prompt: Vec<usize>,
    /// Contexts at which decode is measured, in tokens [default: the lengths of the prompts]
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    decode_at: Vec<usize>,
    /// Rounds, after a warm-up
    #[arg(long, value_name = "N", default_value_t = 2)]
    rounds: usize,
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

#[derive(Serialize)]
struct Report {
    version: &'static str,
    machine: Machine,
    device: String,
    model: Model,
    rounds: usize,
    results: Vec<Measured>,
    peak_memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Model {
    name: String,
    layers: usize,
    parameters: u64,
    bytes: u64,
    read_per_token: u64,
}

#[derive(Serialize)]
struct Measured {
    context: usize,
    prefill_tokens_per_second: Option<f64>,
    decode_tokens_per_second: Option<f64>,
    /// Bytes of weights read in a second of decode.
    decode_bytes_per_second: Option<f64>,
    prefill_seconds: Vec<f64>,
    decode_seconds: Vec<f64>,
    tokens: Vec<u32>,
}

/// Measures and prints.
pub fn run(args: BenchArgs) -> Result<(), CliError> {
    let decode_at = if args.decode_at.is_empty() {
        args.prompt.clone()
    } else {
        args.decode_at.clone()
    };
    if args.rounds == 0 || args.prompt.contains(&0) || decode_at.contains(&0) {
        return Err(CliError::Usage(
            "--prompt, --decode-at and --rounds have to be at least 1".into(),
        ));
    }
    let (name, config, weights) = match args.synthetic.config()? {
        Some(config) => {
            let weights = Weights::synthetic(&config, 0);
            (args.synthetic.synthetic.unwrap_or_default(), config, weights)
        }
        None => {
            let checkpoint = args.model.open()?;
            (checkpoint.name, checkpoint.config, checkpoint.weights)
        }
    };
    let parts = parts::of_weights(&weights, &config);
    let model = Model {
        name,
        layers: config.layers.len(),
        parameters: parts.iter().map(|part| part.parameters).sum(),
        bytes: parts.iter().map(|part| part.bytes).sum(),
        read_per_token: parts.iter().map(|part| part.read_per_token).sum(),
    };
    let mut backend = args.device.backend(&config, weights, None)?;
    let device = backend.device().description;
    if !args.json {
        writeln!(
            io::stdout(),
            "{}, {} layers, {} of weights, on {device}",
            model.name,
            model.layers,
            output::bytes(model.bytes)
        )?;
        writeln!(
            io::stdout(),
            "{:>10} {:>16} {:>16} {:>16}",
            "context",
            "prefill tok/s",
            "decode tok/s",
            "weights read"
        )?;
    }
    let mut contexts = [args.prompt.clone(), decode_at.clone()].concat();
    contexts.sort_unstable();
    contexts.dedup();
    let mut results = Vec::with_capacity(contexts.len());
    for context in contexts {
        let asked = Asked {
            context,
            prefill: args.prompt.contains(&context),
            decode: decode_at.contains(&context),
            rounds: args.rounds,
        };
        let measured = measure(&mut backend, &asked, model.read_per_token)?;
        if !args.json {
            writeln!(io::stdout(), "{}", for_people(&measured))?;
        }
        results.push(measured);
    }
    if args.json {
        output::json(&Report {
            version: env!("CARGO_PKG_VERSION"),
            machine: Machine::this(),
            device,
            model,
            rounds: args.rounds,
            results,
            peak_memory_bytes: machine::peak_memory(),
        })?;
    }
    Ok(())
}

fn for_people(measured: &Measured) -> String {
    let rate = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.1}"));
    let read = measured
        .decode_bytes_per_second
        .map_or("-".into(), |rate| format!("{}/s", output::bytes(rate as u64)));
    format!(
        "{:>10} {:>16} {:>16} {read:>16}",
        output::count(measured.context as u64),
        rate(measured.prefill_tokens_per_second),
        rate(measured.decode_tokens_per_second)
    )
}

/// What is measured at a context length.
struct Asked {
    context: usize,
    prefill: bool,
    decode: bool,
    rounds: usize,
}

/// Token `index` of the prompt.
pub fn prompt_token(index: usize, vocab_size: usize) -> u32 {
    let spread = (index as u64).wrapping_mul(2_654_435_761) & 0xffff_ffff;
    (spread % vocab_size.max(1) as u64) as u32
}

fn measure(backend: &mut impl Backend, asked: &Asked, read_per_token: u64) -> Result<Measured, CliError> {
    let vocab_size = backend.vocab_size();
    let prompt: Vec<u32> = (0..asked.context)
        .map(|index| prompt_token(index, vocab_size))
        .collect();
    let steps = if asked.decode { DECODE_STEPS } else { 0 };
    let mut tokens = round(backend, &prompt, steps)?.tokens;
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for _ in 0..asked.rounds {
        let round = round(backend, &prompt, steps)?;
        if round.tokens != tokens {
            return Err(CliError::NotReproducible(format!(
                "context {}: two rounds gave different tokens; the figures mean nothing",
                asked.context
            )));
        }
        tokens = round.tokens;
        prefill.push(round.prefill.as_secs_f64());
        decode.push(round.decode.as_secs_f64());
    }
    let rate = |asked: bool, count: usize, seconds: &[f64]| asked.then(|| count as f64 / median(seconds));
    let decode_rate = rate(asked.decode, steps, &decode);
    Ok(Measured {
        context: asked.context,
        prefill_tokens_per_second: rate(asked.prefill, asked.context, &prefill),
        decode_tokens_per_second: decode_rate,
        decode_bytes_per_second: decode_rate.map(|rate| rate * read_per_token as f64),
        prefill_seconds: if asked.prefill { prefill } else { Vec::new() },
        decode_seconds: if asked.decode { decode } else { Vec::new() },
        tokens,
    })
}

/// One round of a measurement.
pub struct Round {
    /// Time of the prompt, the choice of the first token included.
    pub prefill: Duration,
    /// Time of the decode steps.
    pub decode: Duration,
    /// The tokens chosen.
    pub tokens: Vec<u32>,
}

/// One prefill and `steps` decode steps, whose tokens the device chooses where it can, as it does for the engine.
pub fn round<B: Backend>(backend: &mut B, prompt: &[u32], steps: usize) -> Result<Round, BackendError> {
    let mut sequence = backend.new_sequence()?;
    let mut tokens = Vec::with_capacity(steps + 1);
    let chunk = backend.max_chunk();
    let chunks = prompt.len().div_ceil(chunk);
    let started = Instant::now();
    for (index, part) in prompt.chunks(chunk).enumerate() {
        let logits = if index + 1 == chunks {
            PrefillLogits::Last
        } else {
            PrefillLogits::None
        };
        backend.prefill(&mut sequence, part, logits)?;
    }
    let mut token = most_likely(backend.logits(&sequence));
    let prefill = started.elapsed();
    tokens.push(token);
    let started = Instant::now();
    if steps > 0 && backend.hands_over_tokens() {
        let greedy = Sampling::greedy();
        let start = SamplerStart {
            sampling: &greedy,
            seed: 0,
            step: 1,
            valid_ids: backend.vocab_size(),
            history: &[],
        };
        backend.start_hand_off(&mut sequence, token, &start)?;
        for step in 1..=steps {
            tokens.push(backend.next_token(&mut sequence, step < steps)?);
        }
    } else {
        for _ in 0..steps {
            backend.decode(&mut [DecodeStep {
                sequence: &mut sequence,
                token,
            }])?;
            token = most_likely(backend.logits(&sequence));
            tokens.push(token);
        }
    }
    Ok(Round {
        prefill,
        decode: started.elapsed(),
        tokens,
    })
}

/// The largest logit's id, the lowest among equals.
pub fn most_likely(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().fold(
        (0, f32::NEG_INFINITY),
        |best, (id, &logit)| {
            if logit > best.1 { (id, logit) } else { best }
        },
    );
    best.0 as u32
}

/// The middle value, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_tokens_follow_the_contract() {
        assert_eq!(prompt_token(0, 248_320), 0);
        assert_eq!(prompt_token(1, 248_320), 2_654_435_761u64.rem_euclid(248_320) as u32);
        // 2 * 2654435761 wraps around 2^32.
        assert_eq!(
            prompt_token(2, 248_320),
            (5_308_871_522u64 - (1 << 32)).rem_euclid(248_320) as u32
        );
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
    }
}
