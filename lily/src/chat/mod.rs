//! `lily chat`: a conversation in the terminal, or one message and its answer.

mod display;
mod interactive;
mod session;

use std::io::{self, IsTerminal, Read};

use clap::Args;
use lily_engine::ReplyDelta;
use serde::Serialize;

use self::display::{Display, Thoughts};
use self::session::{Answer, Session};
use crate::error::CliError;
use crate::generate::{decode_rate, finish_reason, prefill_rate};
use crate::model::{self, DeviceArgs, MemoryArgs, ModelArgs};
use crate::output;
use crate::sampling::SamplingArgs;

/// Talks to a model: in the terminal, or one message and its answer.
///
/// With a message, or with text on the standard input, prints the answer and ends.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily chat
  lily chat \"Who are you?\"
  lily chat --model mlx-community/Qwen3.6-35B-A3B-4bit --system \"Answer in French.\"
  cat report.txt | lily chat \"Summarise this in one sentence:\" - --no-think
  echo \"Hello\" | lily chat --json

With --json: {\"content\", \"reasoning\", \"tool_calls\": [..], \"finish_reason\": \"stop\"|\"stop_string\"|\"length\",
\"usage\": {\"prompt_tokens\", \"cached_tokens\", \"completion_tokens\", \"reasoning_tokens\"},
\"prefill_tokens_per_second\", \"decode_tokens_per_second\"}; rates may be null.")]
pub struct ChatArgs {
    /// A message, in one or more paragraphs; `-` stands for the standard input. The answer is printed and the program ends
    message: Vec<String>,
    /// The system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Let the model think before it answers [default: the template's]
    #[arg(long, overrides_with = "no_think")]
    think: bool,
    /// Have it answer without thinking
    #[arg(long)]
    no_think: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct AnswerJson {
    content: String,
    reasoning: String,
    tool_calls: Vec<String>,
    finish_reason: &'static str,
    usage: UsageJson,
    prefill_tokens_per_second: Option<f64>,
    decode_tokens_per_second: Option<f64>,
}

#[derive(Serialize)]
struct UsageJson {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    reasoning_tokens: usize,
}

/// Chats.
pub fn run(args: ChatArgs) -> Result<(), CliError> {
    let message = message(&args.message)?;
    if message.is_none() && args.json {
        return Err(CliError::Usage(
            "--json: expected a message, found an interactive chat".into(),
        ));
    }
    let checkpoint = args.model.open()?;
    // A checkpoint without a template is refused before anything is typed.
    checkpoint.chat_template()?;
    let engine = model::start_engine(&checkpoint, &args.device, &args.memory)?;
    let mut session = Session::new(checkpoint, engine.clone(), args.sampling)?;
    session.system = args.system;
    session.thinking = match (args.think, args.no_think) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let chatted = match message {
        Some(message) => once(&mut session, &message, args.json),
        None => interactive::run(&mut session),
    };
    drop(session);
    engine.finish();
    chatted
}

/// The message: the paragraphs on the command line, or what is piped in; `None` for an interactive chat.
fn message(paragraphs: &[String]) -> Result<Option<String>, CliError> {
    if paragraphs.is_empty() && io::stdin().is_terminal() {
        return Ok(None);
    }
    let piped = ["-".to_owned()];
    let paragraphs = if paragraphs.is_empty() { &piped[..] } else { paragraphs };
    let mut texts = Vec::with_capacity(paragraphs.len());
    for paragraph in paragraphs {
        let mut text = paragraph.clone();
        if text == "-" {
            text.clear();
            io::stdin().read_to_string(&mut text)?;
        }
        texts.push(text.trim().to_owned());
    }
    texts.retain(|text| !text.is_empty());
    match texts.is_empty() {
        true => Err(CliError::Usage("the message is empty".into())),
        false => Ok(Some(texts.join("\n\n"))),
    }
}

fn once(session: &mut Session, message: &str, json: bool) -> Result<(), CliError> {
    let thoughts = match (io::stdout().is_terminal(), output::is_colourful()) {
        (true, true) => Thoughts::Dimmed,
        (true, false) => Thoughts::Marked,
        (false, _) => Thoughts::Hidden,
    };
    let mut display = Display::new(io::stdout(), thoughts);
    let show = |delta: &ReplyDelta| if json { Ok(()) } else { display.show(delta) };
    let Answer { reply, reason, usage } = session.say(message, show)?;
    if !json {
        display.finish()?;
    }
    let reason = reason.ok_or(CliError::Interrupted)?;
    if json {
        output::json(&AnswerJson {
            content: reply.content,
            reasoning: reply.reasoning,
            tool_calls: reply.tool_calls,
            finish_reason: finish_reason(reason),
            usage: UsageJson {
                prompt_tokens: usage.prompt_tokens,
                cached_tokens: usage.cached_tokens,
                completion_tokens: usage.completion_tokens,
                reasoning_tokens: usage.reasoning_tokens,
            },
            prefill_tokens_per_second: prefill_rate(&usage),
            decode_tokens_per_second: decode_rate(&usage),
        })?;
    }
    Ok(())
}
