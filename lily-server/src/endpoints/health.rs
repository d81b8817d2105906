//! `GET /health`: whether the server can take work, for probes.

use axum::Json;
use serde_json::{Value, json};

/// Answers as long as the server runs; the model is loaded before it starts to listen.
pub async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}
