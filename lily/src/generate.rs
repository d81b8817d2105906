//! `lily generate`: continues a text, without a chat template.

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::Args;
use lily_engine::{Engine, EngineError, Event, FinishReason, GenerateRequest, TokenLogprobs, Usage, Vocabulary};
use lily_model::{Checkpoint, Weights};
use serde::Serialize;

use crate::error::CliError;
use crate::machine;
use crate::model::{self, DeviceArgs, MemoryArgs, ModelArgs, SyntheticArgs};
use crate::output;
use crate::sampling::SamplingArgs;

/// Continues a text as it stands, without a chat template.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily generate \"Once upon a time\" --max-tokens 100
  lily generate --file story.txt --temperature 0 --json
  echo \"The capital of France is\" | lily generate --max-tokens 5
  lily generate --synthetic qwen3.6-35b-a3b \"x\" --max-tokens 32 --json    speed and memory; the text means nothing

With --json: {\"text\", \"token_ids\", \"finish_reason\": \"stop\"|\"stop_string\"|\"length\", \"prompt_tokens\", \"completion_tokens\",
\"prefill_seconds\", \"decode_seconds\", \"prefill_tokens_per_second\", \"decode_tokens_per_second\", \"peak_memory_bytes\",
\"logprobs\": [{\"id\", \"logprob\", \"top\": [[id, logprob], ..]}]}; rates and memory may be null.")]
pub struct GenerateArgs {
    /// The text [default: the standard input]
    prompt: Option<String>,
    /// Read the text from a file
    #[arg(long, short, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Token ids instead of a text
    #[arg(long, value_delimiter = ',', value_name = "ID,..", conflicts_with_all = ["prompt", "file"])]
    prompt_ids: Vec<u32>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Log-probabilities of each token, with this many alternatives (in JSON)
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<usize>,
    /// Go on after the tokens that end a text
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    synthetic: SyntheticArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Print the result as JSON at the end instead of the text as it comes
    #[arg(long)]
    json: bool,
}

/// What a generation took and gave, for machines.
#[derive(Serialize)]
struct Generated {
    text: String,
    token_ids: Vec<u32>,
    finish_reason: &'static str,
    prompt_tokens: usize,
    completion_tokens: usize,
    prefill_seconds: f64,
    decode_seconds: f64,
    prefill_tokens_per_second: Option<f64>,
    decode_tokens_per_second: Option<f64>,
    peak_memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<Logprobs>,
}

#[derive(Serialize)]
struct Logprobs {
    id: u32,
    logprob: f32,
    top: Vec<(u32, f32)>,
}

impl From<TokenLogprobs> for Logprobs {
    fn from(logprobs: TokenLogprobs) -> Self {
        Logprobs {
            id: logprobs.id,
            logprob: logprobs.logprob,
            top: logprobs.top,
        }
    }
}

/// The name of a finish reason in JSON.
pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::StopString(_) => "stop_string",
        FinishReason::Length => "length",
    }
}

/// Tokens per second of a prompt's tokens that were computed; `None` where none were.
pub fn prefill_rate(usage: &Usage) -> Option<f64> {
    let computed = usage.prompt_tokens - usage.cached_tokens;
    (computed > 0).then(|| computed as f64 / usage.prefill.as_secs_f64())
}

/// Tokens per second after the first token; `None` where there is only one.
pub fn decode_rate(usage: &Usage) -> Option<f64> {
    (usage.completion_tokens > 1).then(|| (usage.completion_tokens - 1) as f64 / usage.decode.as_secs_f64())
}

/// Generates and prints.
pub fn run(args: GenerateArgs) -> Result<(), CliError> {
    let text = prompt_text(&args)?;
    let checkpoint = args.model.open()?;
    let prompt = match text {
        Some(text) => checkpoint.tokenizer.encode(&text)?,
        None => args.prompt_ids.clone(),
    };
    if prompt.is_empty() {
        return Err(CliError::Usage("the prompt is empty".into()));
    }
    let mut request = args.sampling.request(prompt, &checkpoint);
    request.logprobs = args.logprobs;
    if args.ignore_eos {
        request.stop_tokens.clear();
    }
    let engine = start(&args, &checkpoint)?;
    let printed = print(&engine, request, args.json);
    engine.finish();
    printed
}

fn prompt_text(args: &GenerateArgs) -> Result<Option<String>, CliError> {
    if !args.prompt_ids.is_empty() {
        return Ok(None);
    }
    if let Some(path) = &args.file {
        let text = std::fs::read_to_string(path).map_err(|source| CliError::File {
            path: path.clone(),
            source,
        })?;
        return Ok(Some(text));
    }
    if let Some(prompt) = &args.prompt {
        return Ok(Some(prompt.clone()));
    }
    if std::io::stdin().is_terminal() {
        return Err(CliError::Usage(
            "no prompt: give one as an argument, with --file or on the standard input".into(),
        ));
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    // The line break that `echo` adds is not part of the text.
    Ok(Some(text.strip_suffix('\n').unwrap_or(&text).to_owned()))
}

/// An engine for one generation: nothing is cached for later ones. With `--synthetic`, the checkpoint only lends its tokenizer.
fn start(args: &GenerateArgs, checkpoint: &Checkpoint) -> Result<Engine, CliError> {
    let memory = MemoryArgs {
        cache_memory: Some(args.memory.cache_memory.unwrap_or(0)),
        ..args.memory.clone()
    };
    match args.synthetic.config()? {
        None => model::start_engine(checkpoint, &args.device, &memory),
        Some(config) => {
            let weights = Weights::synthetic(&config, 0);
            let bytes = model::weight_bytes(&weights);
            let backend = args.device.backend(&config, weights, memory.context)?;
            let options = memory.options(&backend, bytes);
            Ok(Engine::start(backend, Vocabulary::new(&checkpoint.tokenizer), options)?)
        }
    }
}

fn print(engine: &Engine, request: GenerateRequest, json: bool) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    let mut generation = engine.submit(request)?;
    let (mut text, mut token_ids, mut logprobs) = (String::new(), Vec::new(), Vec::new());
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token(token) => {
                token_ids.push(token.id);
                logprobs.extend(token.logprobs.map(Logprobs::from));
                if json {
                    text.push_str(&token.text);
                } else if !token.text.is_empty() {
                    out.write_all(token.text.as_bytes())?;
                    out.flush()?;
                }
            }
            Event::Finished { reason, usage } => {
                if !json {
                    return Ok(writeln!(out)?);
                }
                drop(out);
                return output::json(&Generated {
                    text,
                    token_ids,
                    finish_reason: finish_reason(reason),
                    prompt_tokens: usage.prompt_tokens,
                    completion_tokens: usage.completion_tokens,
                    prefill_seconds: usage.prefill.as_secs_f64(),
                    decode_seconds: usage.decode.as_secs_f64(),
                    prefill_tokens_per_second: prefill_rate(&usage),
                    decode_tokens_per_second: decode_rate(&usage),
                    peak_memory_bytes: machine::peak_memory(),
                    logprobs,
                });
            }
            Event::Failed(error) => return Err(error.into()),
            Event::Started { .. } | Event::PrefillProgress { .. } | Event::PromptLogprobs(_) => {}
        }
    }
    Err(EngineError::Stopped.into())
}
