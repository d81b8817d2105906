//! `GET /metrics`: Prometheus' text format.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::AppState;
use crate::error::ApiError;

/// All metrics.
pub async fn metrics(State(app): State<AppState>) -> Result<Response, ApiError> {
    let text = app
        .metrics
        .encode()
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok((
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
        .into_response())
}
