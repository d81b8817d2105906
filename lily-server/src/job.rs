//! A chat request in the terms that all APIs share, and its way to the engine.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use lily_engine::{Event, FinishReason, GenerateRequest, Generation, ReasoningBudget, ReplyFormat, Sampling};
use lily_model::{ChatInput, Checkpoint, GenerationConfig};
use serde_json::{Map, Value};
use tokio::time::Sleep;

use crate::app::{App, AppState};
use crate::error::ApiError;
use crate::grammar::format::{OutputFormat, grammar};
use crate::metrics::Stopwatch;
use crate::openai::sampling::{LogitBias, SamplingFields};
use crate::reply::{ReplyEvent, ReplyMachine};
use crate::tools::definition::{Tool, ToolChoice};

/// Written at the end of thoughts that ran out of their budget: the model then answers from what it has, as it was trained to.
const BUDGET_END: &str =
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n";

/// A chat request, whichever API it came through.
#[derive(Clone, Debug, Default)]
pub struct ChatJob {
    /// Messages as the template takes them.
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    pub tools: Arc<[Tool]>,
    /// Whether it may or must.
    pub tool_choice: ToolChoice,
    /// Whether it may make several calls in one turn.
    pub parallel_tool_calls: bool,
    /// The form that the content must have.
    pub format: OutputFormat,
    /// How it thinks.
    pub thinking: Thinking,
    /// How tokens are chosen.
    pub sampling: SamplingFields,
    /// Most tokens of the reply.
    pub max_tokens: Option<u64>,
    /// Alternatives to each token whose log-probabilities are wanted, if any are.
    pub logprobs: Option<usize>,
    /// Name of the conversation.
    pub cache_key: Option<String>,
    /// Name of whoever asks.
    pub client: Option<String>,
}

/// How the model thinks before it answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thinking {
    /// Whether it does; the template's default where absent.
    pub enabled: Option<bool>,
    /// Whether thoughts of earlier turns stay in the prompt. They do unless the request says otherwise: histories then only grow, so the
    /// prefix cache serves them, and the model sees the arguments of its earlier calls as it made them.
    pub preserve: Option<bool>,
    /// Most tokens of thoughts.
    pub budget: Option<usize>,
    /// Further variables of the template.
    pub extra: Map<String, Value>,
}

/// A request's prompt, ready for the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Whether the reply starts with thoughts.
    pub starts_in_reasoning: bool,
}

impl ChatJob {
    /// The same, from `client` unless the request names its user.
    pub fn asked_by(mut self, client: Option<String>) -> Self {
        self.client = self.client.or(client);
        self
    }

    /// Renders and tokenizes the conversation.
    pub fn prompt(&self, checkpoint: &Checkpoint) -> Result<Prompt, ApiError> {
        let template = checkpoint
            .chat_template()
            .map_err(|error| ApiError::invalid_request(error.to_string()))?;
        let definitions: Vec<Value> = self.tools.iter().map(|tool| tool.definition.clone()).collect();
        let rendered = template
            .render_late_system(&ChatInput {
                messages: &self.messages,
                tools: &definitions,
                add_generation_prompt: true,
                enable_thinking: self.thinking.enabled,
                preserve_thinking: Some(self.thinking.preserve.unwrap_or(true)),
                extra: self.thinking.extra.clone(),
            })
            .map_err(|error| match error {
                lily_model::Error::TemplateRefused(_) => ApiError::invalid("messages", error.to_string()),
                other => ApiError::Internal(other.to_string()),
            })?;
        let tokens = checkpoint
            .tokenizer
            .encode_prompt(&rendered)
            .map_err(|error| ApiError::Internal(error.to_string()))?;
        Ok(Prompt {
            tokens,
            text: rendered.text(),
            starts_in_reasoning: rendered.ends_in_thinking(),
        })
    }

    /// What the engine is asked for the `choice`-th reply.
    fn request(&self, prompt: &Prompt, choice: u32, app: &App) -> Result<GenerateRequest, ApiError> {
        let (checkpoint, tokenizer) = (&app.checkpoint, &app.checkpoint.tokenizer);
        let mut request = GenerateRequest::new(prompt.tokens.clone());
        request.sampling = sampling(&self.sampling, &checkpoint.generation, choice);
        request.stop_tokens = checkpoint.generation.eos_token_ids.clone();
        request.stop_strings = self.sampling.stop.clone().unwrap_or_default().0;
        request.max_tokens = self
            .max_tokens
            .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        request.logprobs = self.logprobs;
        request.format = ReplyFormat::Chat {
            starts_in_reasoning: prompt.starts_in_reasoning,
        };
        if let Some(tokens) = self.thinking.budget {
            let end = format!("{BUDGET_END}</think>\n\n");
            let end = tokenizer
                .encode(&end)
                .map_err(|error| ApiError::Internal(error.to_string()))?;
            request.reasoning_budget = Some(ReasoningBudget { tokens, end });
        }
        if self.tool_choice == ToolChoice::None
            && let Some(open) = tokenizer.added_token("<tool_call>")
        {
            request.sampling.logit_bias.push((open, f32::NEG_INFINITY));
        }
        let markup = tokenizer
            .added_token("<tool_call>")
            .zip(tokenizer.added_token("</tool_call>"));
        let grammar = grammar(
            &self.format,
            &self.tool_choice,
            &self.tools,
            self.parallel_tool_calls,
            markup,
        )?;
        if let Some(grammar) = grammar {
            let field = if self.format == OutputFormat::Text {
                "tools"
            } else {
                "response_format"
            };
            request.mask = Some(app.grammars()?.mask(grammar, field)?);
        }
        request.snapshot_at = message_ends(&prompt.tokens, tokenizer.added_token("<|im_end|>"));
        request.cache_key = self.cache_key.clone();
        request.client = self.client.clone();
        Ok(request)
    }

    /// Starts the request's replies: as many as `n` asks for.
    pub async fn start(self, app: &AppState) -> Result<Vec<Reply>, ApiError> {
        let shared = Arc::clone(app);
        // A long conversation takes a while to render and tokenize; other requests must not wait for it.
        blocking(move || {
            let mut prompt = self.prompt(&shared.checkpoint)?;
            prompt.tokens = shared
                .replays
                .restore(prompt.tokens, &self.tools, &shared.checkpoint.tokenizer);
            let choices = self.sampling.n.unwrap_or(1);
            (0..choices)
                .map(|choice| {
                    let request = self.request(&prompt, choice, &shared)?;
                    let generation = shared.engine.submit(request)?;
                    let reply = Reply::new(generation, ReplyMachine::chat(&self.tools), Arc::clone(&shared));
                    Ok(reply.remembered(prompt.tokens.clone()))
                })
                .collect()
        })
        .await
    }
}

/// Does work that may take a while, such as tokenizing, on a thread of its own: one thread serves all connections.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::Internal(format!("the request could not be prepared: {error}")))?
}

/// The request's wishes over the checkpoint's defaults.
pub fn sampling(fields: &SamplingFields, defaults: &GenerationConfig, choice: u32) -> Sampling {
    let base = Sampling::from_config(defaults);
    Sampling {
        temperature: fields.temperature.unwrap_or(base.temperature),
        top_k: fields
            .top_k
            .map_or(base.top_k, |top_k| usize::try_from(top_k).unwrap_or(0)),
        // OpenAI allows 0, which keeps only the most likely token, as the smallest mass does.
        top_p: fields.top_p.unwrap_or(base.top_p).max(f32::MIN_POSITIVE),
        min_p: fields.min_p.unwrap_or(base.min_p),
        repetition_penalty: fields.repetition_penalty.unwrap_or(base.repetition_penalty),
        presence_penalty: fields.presence_penalty.unwrap_or(base.presence_penalty),
        frequency_penalty: fields.frequency_penalty.unwrap_or(base.frequency_penalty),
        logit_bias: fields.logit_bias.clone().unwrap_or(LogitBias(Vec::new())).0,
        // Each choice has its own numbers, all of them repeatable.
        seed: fields.seed.map(|seed| (seed as u64).wrapping_add(u64::from(choice))),
    }
}

/// Where snapshots for later requests are worth keeping: after the system message, which other conversations share, and after the last
/// few messages, from which an edited or repeated turn starts.
fn message_ends(tokens: &[u32], end: Option<u32>) -> Vec<usize> {
    const LAST: usize = 3;
    let Some(end) = end else { return Vec::new() };
    // A line break follows each message's end and belongs to it.
    let ends: Vec<usize> = (0..tokens.len())
        .filter(|&at| tokens[at] == end)
        .map(|at| (at + 2).min(tokens.len()))
        .collect();
    let mut chosen: Vec<usize> = ends.iter().rev().take(LAST).copied().collect();
    chosen.extend(ends.first());
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// A reply on its way. Dropping it stops its generation.
#[derive(Debug)]
pub struct Reply {
    generation: Generation,
    machine: ReplyMachine,
    ready: VecDeque<ReplyEvent>,
    done: bool,
    stopwatch: Stopwatch,
    /// Until the reply has to be complete.
    deadline: Option<Pin<Box<Sleep>>>,
    app: AppState,
    /// Prompt and tokens so far, where the reply is to be remembered.
    replay: Option<(Vec<u32>, Vec<u32>)>,
}

impl Reply {
    /// The reply that `generation` makes.
    pub fn new(generation: Generation, machine: ReplyMachine, app: AppState) -> Self {
        Self {
            generation,
            machine,
            ready: VecDeque::new(),
            done: false,
            stopwatch: Stopwatch::start(),
            deadline: app
                .config
                .request_timeout
                .map(|time| Box::pin(tokio::time::sleep(time))),
            app,
            replay: None,
        }
    }

    /// The same, to be remembered for when the client sends it back.
    fn remembered(mut self, prompt: Vec<u32>) -> Self {
        self.replay = Some((prompt, Vec::new()));
        self
    }

    fn take_note(&mut self, event: &Event) {
        self.stopwatch.observe(event, &self.app.metrics);
        match (event, &mut self.replay) {
            (Event::Token(token), Some((_, tokens))) => tokens.push(token.id),
            (
                Event::Finished {
                    reason: FinishReason::Stop,
                    ..
                },
                replay,
            ) => {
                if let Some((prompt, tokens)) = replay.take() {
                    self.app.replays.remember(prompt, tokens);
                }
            }
            _ => {}
        }
    }

    /// The next piece; `None` after [`ReplyEvent::Finished`] or [`ReplyEvent::Failed`].
    pub async fn next(&mut self) -> Option<ReplyEvent> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.done = matches!(event, ReplyEvent::Finished { .. } | ReplyEvent::Failed(_));
                return Poll::Ready(Some(event));
            }
            if self.done {
                return Poll::Ready(None);
            }
            let Poll::Ready(event) = self.generation.poll_next(context) else {
                return self.poll_deadline(context).map(Some);
            };
            let event = event.unwrap_or(Event::Failed(lily_engine::EngineError::Stopped));
            self.take_note(&event);
            self.machine.push(event, &mut self.ready);
        }
    }

    /// Ready where the engine's next event has not come in time.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<ReplyEvent> {
        let Some(deadline) = &mut self.deadline else {
            return Poll::Pending;
        };
        deadline.as_mut().poll(context).map(|()| {
            self.done = true;
            let time = self.app.config.request_timeout.unwrap_or_default();
            ReplyEvent::Failed(ApiError::ReplyTimeout(time.as_secs()))
        })
    }
}

/// Several replies whose pieces are told as they come.
#[derive(Debug)]
pub struct Merged {
    replies: Vec<Option<Reply>>,
}

impl Merged {
    /// Of replies, which are numbered in this order.
    pub fn new(replies: Vec<Reply>) -> Self {
        Self {
            replies: replies.into_iter().map(Some).collect(),
        }
    }

    /// The next piece of any reply with the reply's number; `None` once all have ended.
    pub async fn next(&mut self) -> Option<(usize, ReplyEvent)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, ReplyEvent)>> {
        let mut running = false;
        for (number, slot) in self.replies.iter_mut().enumerate() {
            let Some(reply) = slot else { continue };
            match reply.poll_next(context) {
                Poll::Ready(Some(event)) => return Poll::Ready(Some((number, event))),
                Poll::Ready(None) => *slot = None,
                Poll::Pending => running = true,
            }
        }
        if running { Poll::Pending } else { Poll::Ready(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_asked_for_after_the_first_and_the_last_messages() {
        let tokens = [1, 9, 0, 1, 9, 0, 1, 9, 0, 1, 9, 0, 1, 9, 0, 1];
        assert_eq!(message_ends(&tokens, Some(9)), [3, 9, 12, 15]);
        assert_eq!(message_ends(&tokens[..2], Some(9)), [2]);
        assert_eq!(message_ends(&tokens, None), Vec::<usize>::new());
    }
}
