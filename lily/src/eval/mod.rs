//! `lily eval`: how well a model computes, and how well it predicts.

mod agreement;
mod golden;
pub mod statistics;
mod text;

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};

use crate::error::CliError;
use crate::model::{DeviceArgs, ModelArgs};
use crate::peer::MlxArgs;

/// Compares a model with golden logits or with another engine, or measures how well it predicts a text.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").required(true).multiple(true)), after_help = "\
Examples:
  lily eval --model DIR --golden golden.safetensors --golden-logits logits.numpy_f64 --json
  lily eval --model DIR --golden golden.safetensors --chunk 7
  lily eval --text story.txt --json
  lily eval --against mlx-lm
  lily eval --against mlx-lm --device emulator --text story.txt --json

A golden file is a safetensors file with `token_ids` [N+1] (integers) and logits [N or fewer, vocab_size] (f32, f64, f16 or bf16): row i is
what the reference said after tokens 0 to i, and token i+1 is what came. Where it has `positions` (integers, ascending), row i is position
positions[i] instead. The CPU computes in f32 throughout there, as with --exact.

With --against, MLX-LM gets the same tokens, in f32, in a Python environment that is made on demand; the report shows where the two prefer
different tokens and where they diverge most. Without --text, it is over four texts that are built in.

With --golden and --json: {\"positions\", \"chunk\", \"max_abs_logit_diff\", \"mean_kl\", \"top1_agreement\", \"perplexity\",
\"reference_perplexity\", \"perplexity_ratio\"}; mean_kl is in nats, from the reference to the model.
With --text and --json: {\"bytes\", \"tokens\", \"window\", \"perplexity\", \"bits_per_byte\"}; perplexity is per token.
With --against and --json: {\"model\", \"device\", \"peer\", \"peer_device\", \"texts\": [..], \"positions\", \"window\", \"perplexity\", \"peer_perplexity\",
\"perplexity_difference_percent\", \"top1_agreement\", \"mean_kl\", \"max_kl\", \"max_abs_logit_diff\", \"different_tops\",
\"largest_margin\", \"worst\": [..], \"differences\": [..]}, with places {\"text\", \"position\", \"kl\", \"max_abs_logit_diff\", \"margin\",
\"peer_margin\", \"before\", \"next\", \"ours\", \"peers\"} and choices {\"token\", \"text\", \"probability\", \"others_probability\"}; margins are in
nats.")]
pub struct EvalArgs {
    /// Golden file to compare with
    #[arg(long, value_name = "FILE", group = "what", conflicts_with_all = ["text", "against"])]
    golden: Option<PathBuf>,
    /// Name of the tensor with the logits in the golden file
    #[arg(long, value_name = "NAME", default_value = "logits.numpy_f64", requires = "golden")]
    golden_logits: String,
    /// Text to predict
    #[arg(long, value_name = "FILE", group = "what")]
    text: Option<PathBuf>,
    /// Engine to compare with, over the text
    #[arg(long, value_enum, value_name = "PEER", group = "what")]
    against: Option<agreement::Peer>,
    #[command(flatten)]
    mlx: MlxArgs,
    /// Positions to show of each kind
    #[arg(long, value_name = "N", default_value_t = 10, requires = "against")]
    worst: usize,
    /// Tokens of a prefill chunk; 1 uses decode steps [default: as many as the backend takes]
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// Longest context, for a text: longer ones are predicted in windows of this many tokens
    #[arg(long, value_name = "N", default_value_t = 4096, conflicts_with = "golden")]
    window: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Evaluates and prints.
pub fn run(mut args: EvalArgs) -> Result<(), CliError> {
    if args.chunk == Some(0) || args.window < 2 {
        return Err(CliError::Usage(
            "--chunk has to be at least 1 and --window at least 2".into(),
        ));
    }
    let checkpoint = args.model.open()?;
    if args.golden.is_some() {
        args.device.exact = true;
    }
    let mut backend = args
        .device
        .backend(&checkpoint.config, checkpoint.weights.clone(), None)?;
    match (&args.golden, &args.text) {
        (Some(path), _) => golden::run(&mut backend, path, &args.golden_logits, args.chunk, args.json),
        _ if args.against == Some(agreement::Peer::MlxLm) => agreement::run(&mut backend, &checkpoint, &args),
        (None, Some(path)) => {
            let text = read_text(path)?;
            let tokens = checkpoint.tokenizer.encode_plain(&text)?;
            text::run(
                &mut backend,
                &tokens,
                |id| checkpoint.tokenizer.token_bytes(id).len(),
                &args,
            )
        }
        // One of them is required.
        (None, None) => Ok(()),
    }
}

fn read_text(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|source| CliError::File {
        path: path.to_owned(),
        source,
    })
}
