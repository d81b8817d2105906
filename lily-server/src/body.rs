//! Request bodies: read within limits, parsed into a type, with errors that name the field.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::app::AppState;
use crate::error::ApiError;

/// A request's body, or why it could not be read. Handlers parse it themselves, so that each answers in its own API's error shape.
pub struct RawBody {
    read: Result<Bytes, ApiError>,
    peer: Option<IpAddr>,
}

/// Address of a connection's other end, which the listener notes in each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

impl FromRequest<AppState> for RawBody {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Self::Rejection> {
        let limit = state.config.max_body_bytes;
        let timeout = state.config.body_timeout;
        let peer = request.extensions().get().map(|Peer(address)| *address);
        Ok(Self {
            read: read(request, state, limit, timeout).await,
            peer,
        })
    }
}

async fn read(request: Request, state: &AppState, limit: usize, timeout: Duration) -> Result<Bytes, ApiError> {
    // What is too large is refused before it is sent.
    if request.body().size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Err(ApiError::TooLarge(limit));
    }
    match tokio::time::timeout(timeout, Bytes::from_request(request, state)).await {
        Err(_) => Err(ApiError::BodyTimeout(timeout.as_secs())),
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_)))) => {
            Err(ApiError::TooLarge(limit))
        }
        Ok(Err(rejection)) => Err(ApiError::invalid_request(format!(
            "the request's body could not be read: {}",
            rejection.body_text()
        ))),
    }
}

impl RawBody {
    /// The body's bytes.
    pub fn bytes(self) -> Result<Bytes, ApiError> {
        self.read
    }

    /// Who takes turns in the queue where the request does not name its user: everyone at one address together.
    pub fn client(&self) -> Option<String> {
        self.peer.map(|address| address.to_string())
    }

    /// The body as JSON. A wrong type is a 400 that names the field.
    pub fn json<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        parse_json(&self.bytes()?)
    }
}

/// Parses JSON; the error carries the path of the field at fault.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::invalid_request(
            "the request has no body; a JSON object is expected",
        ));
    }
    // serde would also read structs from arrays.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(ApiError::invalid_request("the request's body must be a JSON object"));
    }
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() && path != "." {
            ApiError::invalid(path, without_position(&inner))
        } else if inner.is_data() {
            ApiError::invalid_request(without_position(&inner))
        } else {
            ApiError::invalid_request(format!("the request's body is not valid JSON: {inner}"))
        }
    })?;
    parser
        .end()
        .map_err(|error| ApiError::invalid_request(format!("the request's body is not valid JSON: {error}")))?;
    Ok(value)
}

/// serde_json ends its messages with ` at line L column C`, which says less than the field's path does.
fn without_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Inner {
        #[allow(dead_code)]
        size: u32,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Outer {
        #[allow(dead_code)]
        list: Vec<Inner>,
    }

    fn error(text: &str) -> (String, Option<String>) {
        match parse_json::<Outer>(text.as_bytes()) {
            Err(ApiError::Invalid { message, param, .. }) => (message, param),
            other => panic!("expected a 400, found {other:?}"),
        }
    }

    #[test]
    fn wrong_type_names_the_path() {
        let (message, param) = error(r#"{"list": [{"size": 1}, {"size": "big"}]}"#);
        assert_eq!(param.as_deref(), Some("list[1].size"));
        assert_eq!(message, "invalid type: string \"big\", expected u32");
    }

    #[test]
    fn missing_field_is_named() {
        let (message, param) = error(r#"{"list": [{}]}"#);
        assert_eq!(param.as_deref(), Some("list[0]"));
        assert!(message.contains("`size`"), "{message}");
        assert_eq!(error("{}").1, None);
    }

    #[test]
    fn broken_json_is_told_with_its_place() {
        let (message, param) = error(r#"{"list": [}"#);
        assert_eq!(param, None);
        assert!(message.contains("line 1 column"), "{message}");
        assert!(error("").0.contains("no body"));
        assert!(error(r#"{"list": []} x"#).0.contains("not valid JSON"));
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        let text = format!("{{\"list\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(
            parse_json::<serde_json::Value>(text.as_bytes()),
            Err(ApiError::Invalid { .. })
        ));
    }
}
