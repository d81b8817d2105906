//! `GET /v1/models` and `GET /v1/models/{id}`: the model that is served, under each of its names.

use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::{App, AppState};
use crate::error::ApiError;

/// All names of the model.
pub async fn list(State(app): State<AppState>) -> Json<Value> {
    let names = std::iter::once(&app.config.model_id).chain(&app.config.aliases);
    let models: Vec<Value> = names.map(|name| describe(&app, name)).collect();
    Json(json!({ "object": "list", "data": models }))
}

/// The model under one of its names, which may hold slashes.
pub async fn show(State(app): State<AppState>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    app.check_model(Some(&id))?;
    Ok(Json(describe(&app, &id)))
}

/// OpenAI's model object. `max_model_len` (vLLM's name) tells the context limit, which clients need to trim their histories.
fn describe(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": unix_seconds(app.started),
        "owned_by": "lily",
        "root": app.config.model_id,
        "max_model_len": app.engine.info().context_limit,
    })
}

/// Seconds since 1970.
pub fn unix_seconds(time: std::time::SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
