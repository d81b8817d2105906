//! Every way a request can fail, and the two JSON shapes in which clients expect to hear of it.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lily_engine::{BackendError, EngineError};
use serde_json::{Value, json};
use thiserror::Error;

/// Why a request was not served. The message is for the person who wrote the client.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ApiError {
    /// 400: the request itself is wrong.
    #[error("{message}")]
    Invalid {
        /// What is wrong, what was expected and what was found.
        message: String,
        /// The field at fault, as a path: `messages[0].content`.
        param: Option<String>,
        /// A word that programs may test for.
        code: Option<&'static str>,
    },
    /// 401: an API key is required and none of the right ones was sent.
    #[error("{0}")]
    Unauthorized(&'static str),
    /// 403: the request came under a host or from a web page that is not allowed.
    #[error("{0}")]
    Forbidden(String),
    /// 404: no such route.
    #[error("there is no {method} {path}")]
    NoRoute {
        /// Method of the request.
        method: String,
        /// Path of the request.
        path: String,
    },
    /// 404: the model that was asked for is not the one that is served.
    #[error("the model '{asked}' does not exist; this server has '{served}'")]
    NoModel {
        /// Name in the request.
        asked: String,
        /// Id of the served model.
        served: String,
    },
    /// 405: the route exists, but not for this method.
    #[error("{path} does not take {method}")]
    MethodNotAllowed {
        /// Method of the request.
        method: String,
        /// Path of the request.
        path: String,
    },
    /// 408: the body did not arrive in time.
    #[error("the request's body did not arrive within {0} seconds")]
    BodyTimeout(u64),
    /// 413: the body is larger than the server takes.
    #[error("the request's body is larger than {0} bytes, the most that this server takes")]
    TooLarge(usize),
    /// 503: the server has all the work it may hold; the same request may succeed later.
    #[error("{0}")]
    Overloaded(String),
    /// 504: the reply took longer than the server lets it.
    #[error("the reply was not complete within {0} seconds, the most that this server gives a request")]
    ReplyTimeout(u64),
    /// 500: the engine failed.
    #[error("{0}")]
    Internal(String),
}

impl ApiError {
    /// A 400 that names the field at fault.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
            param: Some(param.into()),
            code: None,
        }
    }

    /// A 400 about the request as a whole.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
            param: None,
            code: None,
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. } => StatusCode::BAD_REQUEST,
            Self::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NoRoute { .. } | Self::NoModel { .. } => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Overloaded(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::ReplyTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// `{"error": {"message", "type", "param", "code"}}`: OpenAI's shape.
    pub fn openai_json(&self) -> Value {
        let (kind, code) = match self {
            Self::Invalid { code, .. } => ("invalid_request_error", *code),
            Self::Unauthorized(_) => ("invalid_request_error", Some("invalid_api_key")),
            Self::Forbidden(_) => ("invalid_request_error", Some("forbidden")),
            Self::NoRoute { .. } => ("invalid_request_error", Some("unknown_url")),
            Self::NoModel { .. } => ("invalid_request_error", Some("model_not_found")),
            Self::MethodNotAllowed { .. } => ("invalid_request_error", Some("method_not_allowed")),
            Self::BodyTimeout(_) => ("invalid_request_error", Some("timeout")),
            Self::TooLarge(_) => ("invalid_request_error", Some("request_too_large")),
            Self::Overloaded(_) => ("server_error", Some("overloaded")),
            Self::ReplyTimeout(_) => ("server_error", Some("timeout")),
            Self::Internal(_) => ("server_error", Some("internal_error")),
        };
        json!({ "error": { "message": self.to_string(), "type": kind, "param": self.param(), "code": code } })
    }

    /// `{"type": "error", "error": {"type", "message"}}`: Anthropic's shape.
    pub fn anthropic_json(&self) -> Value {
        let kind = match self {
            Self::Invalid { .. } | Self::MethodNotAllowed { .. } | Self::BodyTimeout(_) => "invalid_request_error",
            Self::Unauthorized(_) => "authentication_error",
            Self::Forbidden(_) => "permission_error",
            Self::NoRoute { .. } | Self::NoModel { .. } => "not_found_error",
            Self::TooLarge(_) => "request_too_large",
            Self::Overloaded(_) => "overloaded_error",
            Self::ReplyTimeout(_) => "timeout_error",
            Self::Internal(_) => "api_error",
        };
        let message = match self.param() {
            Some(param) => format!("{param}: {self}"),
            None => self.to_string(),
        };
        json!({ "type": "error", "error": { "type": kind, "message": message } })
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } => param.as_deref(),
            Self::NoModel { .. } => Some("model"),
            _ => None,
        }
    }

    fn respond(&self, body: Value) -> Response {
        let mut response = (self.status(), axum::Json(body)).into_response();
        match self {
            Self::Unauthorized(_) => {
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Overloaded(_) => {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(self.openai_json())
    }
}

/// The engine speaks of its own fields, which are named as in OpenAI's API wherever that has them.
impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Invalid { field, expected, found } => {
                Self::invalid(field, format!("expected {expected}, found {found}"))
            }
            EngineError::ContextOverflow { .. } => Self::Invalid {
                message: error.to_string(),
                param: Some("messages".to_owned()),
                code: Some("context_length_exceeded"),
            },
            EngineError::QueueFull { .. } | EngineError::ShuttingDown => Self::Overloaded(error.to_string()),
            EngineError::Backend(BackendError::OutOfMemory { .. }) => Self::Overloaded(error.to_string()),
            other => Self::Internal(other.to_string()),
        }
    }
}

/// An error on one of Anthropic's routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnthropicError(pub ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        self.0.respond(self.0.anthropic_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_shape_has_all_four_fields() {
        let error = ApiError::invalid("messages[0].role", "must be one of system, user");
        assert_eq!(
            error.openai_json(),
            json!({ "error": {
                "message": "must be one of system, user",
                "type": "invalid_request_error",
                "param": "messages[0].role",
                "code": null,
            } })
        );
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn unknown_model_is_404_and_names_the_served_one() {
        let error = ApiError::NoModel {
            asked: "gpt-4".into(),
            served: "demo".into(),
        };
        assert_eq!(error.status(), StatusCode::NOT_FOUND);
        assert_eq!(error.openai_json()["error"]["code"], "model_not_found");
        assert!(error.to_string().contains("'demo'"));
    }

    #[test]
    fn anthropic_shape_puts_the_field_in_the_message() {
        let error = ApiError::invalid("max_tokens", "must be at least 1, found 0");
        assert_eq!(
            error.anthropic_json(),
            json!({ "type": "error", "error": {
                "type": "invalid_request_error",
                "message": "max_tokens: must be at least 1, found 0",
            } })
        );
    }

    #[test]
    fn overload_asks_to_come_back() {
        let response = ApiError::Overloaded("64 requests are waiting".into()).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
