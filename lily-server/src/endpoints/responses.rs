//! `POST /v1/responses`: OpenAI's newer API, without its storage.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::models::unix_seconds;
use crate::app::AppState;
use crate::body::RawBody;
use crate::error::ApiError;
use crate::job::Reply;
use crate::openai::responses_reply::ResponseWriter;
use crate::openai::responses_request::ResponsesRequest;
use crate::reply::ReplyEvent;
use crate::sse::{self, Frame};

/// Answers a conversation.
pub async fn create(State(app): State<AppState>, body: RawBody) -> Result<Response, ApiError> {
    let client = body.client();
    let request = ResponsesRequest::parse(&body.bytes()?)?;
    app.check_model(request.model.as_deref())?;
    let reply = request.job()?.asked_by(client).start(&app).await?.pop();
    let reply = reply.ok_or_else(|| ApiError::Internal("the engine gave no reply".into()))?;
    if request.stream == Some(true) {
        return Ok(stream(app, reply, request));
    }
    let created = unix_seconds(std::time::SystemTime::now());
    let writer = ResponseWriter::new(&app.config.model_id, created, &request, &app.checkpoint.tokenizer);
    Ok(Json(collect(reply, writer).await?).into_response())
}

async fn collect(mut reply: Reply, mut writer: ResponseWriter<'_>) -> Result<Value, ApiError> {
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

fn stream(app: AppState, mut reply: Reply, request: ResponsesRequest) -> Response {
    let keep_alive = app.config.keep_alive;
    sse::respond(keep_alive, |sender| async move {
        let created = unix_seconds(std::time::SystemTime::now());
        let mut writer = ResponseWriter::new(&app.config.model_id, created, &request, &app.checkpoint.tokenizer);
        for (name, data) in writer.first() {
            sender.send(Frame::event(name, &data));
        }
        while let Some(event) = reply.next().await {
            if let ReplyEvent::Progress { done, total } = event {
                sender.send(Frame::progress(done, total));
            }
            for (name, data) in writer.events(&event) {
                sender.send(Frame::event(name, &data));
            }
        }
    })
}
