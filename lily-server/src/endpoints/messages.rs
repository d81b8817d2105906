//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::anthropic::reply::MessageWriter;
use crate::anthropic::request::MessagesRequest;
use crate::app::AppState;
use crate::body::RawBody;
use crate::error::{AnthropicError, ApiError};
use crate::job::{Reply, blocking};
use crate::reply::ReplyEvent;
use crate::sse::{self, Frame};

/// Answers a conversation.
pub async fn create(State(app): State<AppState>, body: RawBody) -> Result<Response, AnthropicError> {
    let client = body.client();
    let request = MessagesRequest::parse(&body.bytes()?)?;
    app.check_model(request.model.as_deref())?;
    if request.max_tokens.is_none() {
        return Err(ApiError::invalid("max_tokens", "must be a number, found nothing").into());
    }
    let reply = request.job()?.asked_by(client).start(&app).await?.pop();
    let reply = reply.ok_or_else(|| ApiError::Internal("the engine gave no reply".into()))?;
    let writer = MessageWriter::new(&app.config.model_id, request.stop_sequences.clone().unwrap_or_default());
    if request.stream == Some(true) {
        Ok(stream(&app, reply, writer))
    } else {
        Ok(Json(collect(reply, writer).await?).into_response())
    }
}

/// Tokens of the prompt that a request would give.
pub async fn count_tokens(State(app): State<AppState>, body: RawBody) -> Result<Json<Value>, AnthropicError> {
    let request = MessagesRequest::parse(&body.bytes()?)?;
    app.check_model(request.model.as_deref())?;
    let job = request.job()?;
    let prompt = blocking(move || job.prompt(&app.checkpoint)).await?;
    Ok(Json(json!({ "input_tokens": prompt.tokens.len() })))
}

async fn collect(mut reply: Reply, mut writer: MessageWriter) -> Result<Value, ApiError> {
    while let Some(event) = reply.next().await {
        writer.events(&event);
        match event {
            ReplyEvent::Finished { reason, usage } => return Ok(writer.whole(reason, &usage)),
            ReplyEvent::Failed(error) => return Err(error),
            _ => {}
        }
    }
    Err(ApiError::Internal("the reply has no end".into()))
}

fn stream(app: &AppState, mut reply: Reply, mut writer: MessageWriter) -> Response {
    sse::respond(app.config.keep_alive, |sender| async move {
        while let Some(event) = reply.next().await {
            if let ReplyEvent::Progress { done, total } = event {
                sender.send(Frame::progress(done, total));
            }
            for (name, data) in writer.events(&event) {
                sender.send(Frame::event(name, &data));
            }
            if let ReplyEvent::Failed(error) = event {
                sender.send(Frame::event("error", &error.anthropic_json()));
            }
        }
    })
}
