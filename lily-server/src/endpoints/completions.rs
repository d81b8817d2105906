//! `POST /v1/completions`: text goes on from a prompt, without a chat template.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use lily_engine::{GenerateRequest, TokenLogprobs, Usage};
use lily_model::Tokenizer;
use serde::Serialize;
use serde_json::Value;

use super::models::unix_seconds;
use crate::app::AppState;
use crate::body::RawBody;
use crate::error::ApiError;
use crate::ids;
use crate::job::{Merged, Reply, blocking, sampling};
use crate::openai::chat_reply::{finish_reason, timings, usage};
use crate::openai::completion::{CompletionRequest, LegacyLogprobs, PromptText};
use crate::reply::{ReplyEvent, ReplyMachine};
use crate::sse::{self, Frame};

/// Completes each prompt of a request.
pub async fn complete(State(app): State<AppState>, body: RawBody) -> Result<Response, ApiError> {
    let client = body.client();
    let mut request = CompletionRequest::parse(&body.bytes()?)?;
    request.user = request.user.or(client);
    app.check_model(request.model.as_deref())?;
    let (stream, include_usage) = (request.stream == Some(true), request.include_usage());
    let head = Head {
        id: ids::dashed("cmpl"),
        created: unix_seconds(std::time::SystemTime::now()),
        model: app.config.model_id.clone(),
    };
    let shared = Arc::clone(&app);
    let choices = blocking(move || start(&shared, &request)).await?;
    if stream {
        return Ok(respond_streamed(app, choices, head, include_usage));
    }
    let collected = choices
        .into_iter()
        .map(|(writer, reply)| collect(&app.checkpoint.tokenizer, writer, reply));
    let (choices, usages): (Vec<Choice>, Vec<Usage>) = try_join_all(collected).await?.into_iter().unzip();
    let mut whole = head.object(choices);
    whole.usage = Some(usage(&usages));
    if let [only] = usages.as_slice() {
        whole.timings = Some(timings(only));
    }
    Ok(Json(whole).into_response())
}

/// What all chunks of a reply repeat.
#[derive(Clone, Debug)]
struct Head {
    id: String,
    created: u64,
    model: String,
}

/// A reply or a chunk of one.
#[derive(Debug, Serialize)]
struct Object<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: C,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Value>,
}

/// One choice of it: its text, or the piece that a chunk adds.
#[derive(Debug, Serialize)]
struct Choice {
    text: String,
    index: usize,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

impl Head {
    /// `choices` are some [`Choice`]s.
    fn object<C: AsRef<[Choice]> + Serialize>(&self, choices: C) -> Object<'_, C> {
        Object {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            choices,
            usage: None,
            timings: None,
        }
    }
}

/// Asks the engine for all choices: `n` for each prompt, in order.
fn start(app: &AppState, request: &CompletionRequest) -> Result<Vec<(Writer, Reply)>, ApiError> {
    let (checkpoint, echo) = (&app.checkpoint, request.echo == Some(true));
    let mut choices = Vec::new();
    for (number, prompt) in request.prompt.0.iter().enumerate() {
        let tokens = match prompt {
            PromptText::Tokens(tokens) => tokens.clone(),
            PromptText::Text(text) => checkpoint
                .tokenizer
                .encode(text)
                .map_err(|error| ApiError::Internal(error.to_string()))?,
        };
        if tokens.is_empty() {
            return Err(ApiError::invalid(format!("prompt[{number}]"), "must not be empty"));
        }
        let echoed = echo.then(|| match prompt {
            PromptText::Text(text) => text.clone(),
            PromptText::Tokens(tokens) => checkpoint.tokenizer.decode(tokens, false),
        });
        for choice in 0..request.sampling.n.unwrap_or(1) {
            let mut generate = GenerateRequest::new(tokens.clone());
            generate.sampling = sampling(&request.sampling, &checkpoint.generation, choice);
            if request.ignore_eos != Some(true) {
                generate.stop_tokens = checkpoint.generation.eos_token_ids.clone();
            }
            generate.stop_strings = request.sampling.stop.clone().unwrap_or_default().0;
            generate.max_tokens = Some(usize::try_from(request.token_limit()).unwrap_or(usize::MAX));
            generate.logprobs = request.logprobs.map(|top| top as usize);
            generate.prompt_logprobs = generate.logprobs.filter(|_| echo);
            generate.cache_key = request.prompt_cache_key.clone();
            generate.client = request.user.clone();
            let writer = Writer::new(choices.len(), echoed.clone(), tokens[0], request.logprobs.is_some());
            let generation = app
                .engine
                .submit(generate)
                .map_err(|error| match ApiError::from(error) {
                    // This API has no messages.
                    ApiError::Invalid {
                        message,
                        param: Some(param),
                        code,
                    } if param == "messages" => ApiError::Invalid {
                        message,
                        param: Some("prompt".into()),
                        code,
                    },
                    other => other,
                })?;
            choices.push((writer, Reply::new(generation, ReplyMachine::raw(), Arc::clone(app))));
        }
    }
    Ok(choices)
}

/// Writes one choice, whole or in pieces.
#[derive(Debug)]
struct Writer {
    index: usize,
    /// The prompt's text, until it has been told.
    echo: Option<String>,
    first_token: u32,
    logprobs: Option<LegacyLogprobs>,
}

impl Writer {
    fn new(index: usize, echo: Option<String>, first_token: u32, logprobs: bool) -> Self {
        Self {
            index,
            echo,
            first_token,
            logprobs: logprobs.then(LegacyLogprobs::default),
        }
    }

    /// The text that an event adds; `None` where there is nothing to tell yet.
    fn text(&mut self, event: &ReplyEvent, tokenizer: &Tokenizer) -> Option<String> {
        let logprobs = |list: &[TokenLogprobs], all: &mut LegacyLogprobs| {
            for entry in list {
                all.push(entry, tokenizer);
            }
        };
        match event {
            ReplyEvent::PromptLogprobs(list) => {
                if let Some(all) = &mut self.logprobs {
                    all.push_first(self.first_token, tokenizer);
                    logprobs(list, all);
                }
                self.echo.take()
            }
            ReplyEvent::Logprobs(entry) => {
                if let Some(all) = &mut self.logprobs {
                    logprobs(std::slice::from_ref(entry), all);
                }
                None
            }
            // Where nobody asked for log-probabilities, the prompt comes with the first text.
            ReplyEvent::Content(text) => Some(self.echo.take().unwrap_or_default() + text),
            ReplyEvent::Finished { .. } => self.echo.take(),
            _ => None,
        }
    }

    fn choice(&mut self, text: String, finish_reason: Option<&'static str>) -> Choice {
        let logprobs = self.logprobs.as_mut().map(|all| {
            let rest = LegacyLogprobs::at(all.offset());
            std::mem::replace(all, rest)
        });
        let logprobs = logprobs.filter(|all| !all.is_empty()).map(LegacyLogprobs::json);
        Choice {
            text,
            index: self.index,
            logprobs,
            finish_reason,
        }
    }
}

async fn collect(tokenizer: &Tokenizer, mut writer: Writer, mut reply: Reply) -> Result<(Choice, Usage), ApiError> {
    let mut text = String::new();
    while let Some(event) = reply.next().await {
        if let Some(piece) = writer.text(&event, tokenizer) {
            text.push_str(&piece);
        }
        match event {
            ReplyEvent::Finished { reason, usage } => {
                return Ok((writer.choice(text, Some(finish_reason(reason))), usage));
            }
            ReplyEvent::Failed(error) => return Err(error),
            _ => {}
        }
    }
    Err(ApiError::Internal("the reply has no end".into()))
}

fn respond_streamed(app: AppState, choices: Vec<(Writer, Reply)>, head: Head, include_usage: bool) -> Response {
    let keep_alive = app.config.keep_alive;
    sse::respond(keep_alive, |sender| async move {
        let tokenizer = &app.checkpoint.tokenizer;
        let (mut writers, replies): (Vec<Writer>, Vec<Reply>) = choices.into_iter().unzip();
        let mut events = Merged::new(replies);
        let mut usages = Vec::new();
        while let Some((index, event)) = events.next().await {
            let Some(writer) = writers.get_mut(index) else { continue };
            let text = writer.text(&event, tokenizer);
            let chunk = match event {
                ReplyEvent::Progress { done, total } => {
                    sender.send(Frame::progress(done, total));
                    continue;
                }
                ReplyEvent::Failed(error) => {
                    sender.send(Frame::data(&error.openai_json()));
                    return sender.send(Frame::done());
                }
                ReplyEvent::Finished { reason, usage } => {
                    usages.push(usage);
                    writer.choice(text.unwrap_or_default(), Some(finish_reason(reason)))
                }
                _ => match text {
                    Some(text) => writer.choice(text, None),
                    None => continue,
                },
            };
            sender.send(Frame::data(&head.object([chunk])));
        }
        if include_usage {
            let mut last = head.object([]);
            last.usage = Some(usage(&usages));
            sender.send(Frame::data(&last));
        }
        sender.send(Frame::done());
    })
}
