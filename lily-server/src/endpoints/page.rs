//! `GET /`: a page to chat on. One file inside the program, without anything from elsewhere.

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

/// Only what is in the page itself may run, and it may only talk to this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The page.
pub async fn page() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Html(include_str!("../page.html"))).into_response()
}
