//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use serde_json::Value;

use crate::app::AppState;
use crate::body::RawBody;
use crate::error::ApiError;
use crate::grammar::format::OutputFormat;
use crate::job::{ChatJob, Merged, Reply, Thinking};
use crate::openai::chat_reply::{Choice, ChunkWriter, Head};
use crate::openai::chat_request::{ChatRequest, Effort};
use crate::prompt::template_messages;
use crate::reply::ReplyEvent;
use crate::sse::{self, Frame};
use crate::tools::definition::{Tool, ToolChoice};

/// Answers a conversation.
pub async fn complete(State(app): State<AppState>, body: RawBody) -> Result<Response, ApiError> {
    let client = body.client();
    let request = ChatRequest::parse(&body.bytes()?)?;
    app.check_model(request.model.as_deref())?;
    let job = job(&request)?.asked_by(client);
    let logprobs = job.logprobs.is_some();
    let replies = job.start(&app).await?;
    let head = Head::new(&app.config.model_id);
    if request.stream == Some(true) {
        return Ok(stream(app, replies, head, request.include_usage()));
    }
    let choices = replies
        .into_iter()
        .enumerate()
        .map(|(index, reply)| collect(&app, index, reply, logprobs));
    let (choices, usages): (Vec<_>, Vec<_>) = try_join_all(choices).await?.into_iter().unzip();
    Ok(Json(Choice::reply(&head, choices, &usages)).into_response())
}

/// The request in the terms that all APIs share.
pub fn job(request: &ChatRequest) -> Result<ChatJob, ApiError> {
    let tools: Arc<[Tool]> = Tool::parse_all(request.tools.as_deref().unwrap_or_default(), "tools")?.into();
    Ok(ChatJob {
        messages: template_messages(&request.messages)?,
        tool_choice: ToolChoice::parse(request.tool_choice.as_ref(), &tools)?,
        parallel_tool_calls: request.parallel_tool_calls != Some(false),
        tools,
        format: OutputFormat::parse(request.response_format.as_ref(), "response_format")?,
        thinking: thinking(request)?,
        sampling: request.sampling.clone(),
        max_tokens: request.token_limit(),
        logprobs: (request.logprobs == Some(true)).then(|| request.top_logprobs.unwrap_or(0) as usize),
        cache_key: request.prompt_cache_key.clone(),
        client: request.user.clone(),
    })
}

/// How much the model thinks: `chat_template_kwargs` has the last word, then `enable_thinking`, then `reasoning_effort`.
fn thinking(request: &ChatRequest) -> Result<Thinking, ApiError> {
    let mut extra = request.chat_template_kwargs.clone().unwrap_or_default();
    let mut take = |name: &str| match extra.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(value)),
        Some(other) => Err(ApiError::invalid(
            format!("chat_template_kwargs.{name}"),
            format!("must be true or false, found {other}"),
        )),
    };
    let enabled = take("enable_thinking")?.or(request.enable_thinking);
    let preserve = take("preserve_thinking")?;
    let effort = request.reasoning_effort.map(Effort::meaning);
    Ok(Thinking {
        enabled: enabled.or(effort.map(|(enabled, _)| enabled)),
        preserve,
        budget: request
            .thinking_budget
            .map(|tokens| tokens as usize)
            .or(effort.and_then(|(_, budget)| budget)),
        extra,
    })
}

async fn collect(
    app: &AppState,
    index: usize,
    mut reply: Reply,
    logprobs: bool,
) -> Result<(Value, lily_engine::Usage), ApiError> {
    let mut choice = Choice::new(&app.checkpoint.tokenizer, logprobs);
    while let Some(event) = reply.next().await {
        match event {
            ReplyEvent::Finished { reason, usage } => return Ok((choice.finish(index, reason), usage)),
            ReplyEvent::Failed(error) => return Err(error),
            event => choice.push(&event),
        }
    }
    Err(ApiError::Internal("the reply has no end".into()))
}

fn stream(app: AppState, replies: Vec<Reply>, head: Head, include_usage: bool) -> Response {
    let keep_alive = app.config.keep_alive;
    sse::respond(keep_alive, |sender| async move {
        let tokenizer = &app.checkpoint.tokenizer;
        let mut writers: Vec<ChunkWriter<'_>> = (0..)
            .take(replies.len())
            .map(|choice| ChunkWriter::new(head.clone(), choice, include_usage, tokenizer))
            .collect();
        let mut events = Merged::new(replies);
        for writer in &mut writers {
            sender.send(Frame::data(&writer.first()));
        }
        let mut usages = Vec::new();
        while let Some((index, event)) = events.next().await {
            match event {
                ReplyEvent::Progress { done, total } => sender.send(Frame::progress(done, total)),
                ReplyEvent::Failed(error) => {
                    sender.send(Frame::data(&error.openai_json()));
                    return sender.send(Frame::done());
                }
                event => {
                    if let ReplyEvent::Finished { usage, .. } = &event {
                        usages.push(*usage);
                    }
                    if let Some(chunk) = writers.get_mut(index).and_then(|writer| writer.chunk_for(&event)) {
                        sender.send(Frame::data(&chunk));
                    }
                }
            }
        }
        if include_usage {
            sender.send(Frame::data(&ChunkWriter::usage_chunk(&head, &usages)));
        }
        sender.send(Frame::done());
    })
}
