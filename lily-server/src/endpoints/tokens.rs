//! `POST /tokenize`, `/detokenize` and `/apply-template`: text to tokens, tokens to text, messages to a prompt.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::chat;
use crate::app::AppState;
use crate::body::{RawBody, parse_json};
use crate::error::ApiError;
use crate::job::blocking;
use crate::openai::chat_request::ChatRequest;

#[derive(Deserialize)]
struct TokenizeRequest {
    /// Text; llama.cpp's name is `content`, vLLM's is `prompt`.
    #[serde(default, alias = "prompt")]
    content: Option<String>,
    /// Whether control tokens that the text spells out become those tokens.
    #[serde(default)]
    parse_special: Option<bool>,
    /// Whether to tell each token's text as well.
    #[serde(default)]
    with_pieces: Option<bool>,
    /// A conversation instead of text.
    #[serde(default)]
    messages: Option<Value>,
}

/// Tokens of a text or of a conversation's prompt.
pub async fn tokenize(State(app): State<AppState>, body: RawBody) -> Result<Json<Value>, ApiError> {
    let bytes = body.bytes()?;
    blocking(move || {
        let request: TokenizeRequest = parse_json(&bytes)?;
        let tokenizer = &app.checkpoint.tokenizer;
        let tokens = match (&request.content, &request.messages) {
            (Some(content), None) => {
                let encoded = if request.parse_special == Some(false) {
                    tokenizer.encode_plain(content)
                } else {
                    tokenizer.encode(content)
                };
                encoded.map_err(|error| ApiError::Internal(error.to_string()))?
            }
            (None, Some(_)) => chat::job(&ChatRequest::parse(&bytes)?)?.prompt(&app.checkpoint)?.tokens,
            _ => {
                return Err(ApiError::invalid_request(
                    "the request must have either content or messages",
                ));
            }
        };
        let count = tokens.len();
        let listed: Value = if request.with_pieces == Some(true) {
            let piece = |id: &u32| json!({ "id": id, "piece": String::from_utf8_lossy(tokenizer.token_bytes(*id)) });
            tokens.iter().map(piece).collect()
        } else {
            tokens.into()
        };
        Ok(Json(
            json!({ "tokens": listed, "count": count, "max_model_len": app.engine.info().context_limit }),
        ))
    })
    .await
}

#[derive(Deserialize)]
struct DetokenizeRequest {
    tokens: Vec<u32>,
}

/// Text of tokens, control tokens spelled out.
pub async fn detokenize(State(app): State<AppState>, body: RawBody) -> Result<Json<Value>, ApiError> {
    let request: DetokenizeRequest = body.json()?;
    let vocabulary = app.engine.info().vocabulary;
    if let Some(position) = request.tokens.iter().position(|&token| token as usize >= vocabulary) {
        let message = format!("expected an id below {vocabulary}, found {}", request.tokens[position]);
        return Err(ApiError::invalid(format!("tokens[{position}]"), message));
    }
    let text = app.checkpoint.tokenizer.decode(&request.tokens, false);
    Ok(Json(json!({ "content": text, "prompt": text })))
}

/// The prompt that a chat request would give.
pub async fn apply_template(State(app): State<AppState>, body: RawBody) -> Result<Json<Value>, ApiError> {
    let request = ChatRequest::parse(&body.bytes()?)?;
    let job = chat::job(&request)?;
    let prompt = blocking(move || job.prompt(&app.checkpoint)).await?;
    Ok(Json(json!({ "prompt": prompt.text })))
}
