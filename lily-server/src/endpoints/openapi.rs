//! `GET /openapi.json`: what the server's routes take, for people's tools.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The description, which is written by hand; a test compares it with the routes.
pub async fn openapi() -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, include_str!("../openapi.json")).into_response()
}
