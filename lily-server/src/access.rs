//! Who may ask: API keys, and for servers without one, protection from web pages.
//!
//! A page that the user merely visits can make the browser send requests to a server on the user's own machine: directly (the
//! browser then adds the page's `Origin`), or by pointing a DNS name of its own at 127.0.0.1 (then `Host` carries that name).
//! Without a key these two headers are all that tells such requests from the user's. With a key a page cannot know it.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use crate::app::{AppState, in_dialect};
use crate::config::ServerConfig;
use crate::error::ApiError;

/// Lets a request through, or answers it with 401 or 403.
pub async fn guard(State(state): State<AppState>, request: Request, next: Next) -> Response {
    match check(&state.config, request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => in_dialect(request.uri(), error),
    }
}

/// Whether a request with these headers may pass.
pub fn check(config: &ServerConfig, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    if config.api_keys.is_empty() {
        check_host(config, headers)?;
        return check_origin(config, headers);
    }
    // Probes carry no key, and the page only asks for one. Neither tells anything about the model or its users.
    if method == Method::GET && matches!(path, "/health" | "/") {
        return Ok(());
    }
    check_key(&config.api_keys, headers)
}

/// A key comes as `Authorization: Bearer KEY` (OpenAI) or as `x-api-key: KEY` (Anthropic).
fn check_key(keys: &[String], headers: &HeaderMap) -> Result<(), ApiError> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let Some(sent) = bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok())) else {
        return Err(ApiError::Unauthorized(
            "no API key was sent: put it in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
        ));
    };
    // Every key is compared, each in constant time, so that the time tells nothing about them.
    let known = keys.iter().fold(0, |found, key| {
        found | key.as_bytes().ct_eq(sent.as_bytes()).unwrap_u8()
    });
    if known == 1 {
        Ok(())
    } else {
        Err(ApiError::Unauthorized("the API key is not one of this server's"))
    }
}

fn check_host(config: &ServerConfig, headers: &HeaderMap) -> Result<(), ApiError> {
    // HTTP/1.1 requires the header and every browser sends it; what lacks it is no browser.
    let Some(value) = headers.get(header::HOST) else {
        return Ok(());
    };
    let host = value.to_str().map(host_name).unwrap_or("");
    let allowed = host.eq_ignore_ascii_case("localhost")
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || config
            .allowed_hosts
            .iter()
            .any(|name| name == "*" || name.eq_ignore_ascii_case(host));
    if allowed {
        return Ok(());
    }
    Err(ApiError::Forbidden(format!(
        "requests for host '{host}' are refused; allow it with --allowed-host, or set --api-key"
    )))
}

fn check_origin(config: &ServerConfig, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or("");
    let own = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .is_some_and(|host| {
            origin
                .split_once("://")
                .is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
        });
    if own
        || config
            .cors_origins
            .iter()
            .any(|allowed| allowed == "*" || allowed == origin)
    {
        return Ok(());
    }
    Err(ApiError::Forbidden(format!(
        "requests from web pages of '{origin}' are refused; allow them with --cors-origin, or set --api-key"
    )))
}

/// `Host` without its port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn ask(config: &ServerConfig, list: &[(&'static str, &str)]) -> Result<(), ApiError> {
        check(config, &Method::POST, "/v1/chat/completions", &headers(list))
    }

    #[test]
    fn names_that_could_be_rebound_are_refused() {
        let config = ServerConfig::default();
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "192.168.1.4",
            "[fe80::1]",
        ] {
            assert_eq!(ask(&config, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
        ] {
            assert!(
                matches!(ask(&config, &[("host", host)]), Err(ApiError::Forbidden(_))),
                "{host}"
            );
        }
        let config = ServerConfig {
            allowed_hosts: vec!["box.lan".into()],
            ..Default::default()
        };
        assert_eq!(ask(&config, &[("host", "Box.lan:8080")]), Ok(()));
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let config = ServerConfig::default();
        let host = ("host", "127.0.0.1:8080");
        assert_eq!(ask(&config, &[host, ("origin", "http://127.0.0.1:8080")]), Ok(()));
        for origin in [
            "http://evil.example",
            "http://127.0.0.1:9999",
            "null",
            "http://127.0.0.1:8080.evil.example",
        ] {
            assert!(
                matches!(ask(&config, &[host, ("origin", origin)]), Err(ApiError::Forbidden(_))),
                "{origin}"
            );
        }
        let config = ServerConfig {
            cors_origins: vec!["https://app.example".into()],
            ..Default::default()
        };
        assert_eq!(ask(&config, &[host, ("origin", "https://app.example")]), Ok(()));
    }

    #[test]
    fn a_key_is_required_where_one_is_set() {
        let config = ServerConfig {
            api_keys: vec!["one".into(), "two".into()],
            ..Default::default()
        };
        assert_eq!(ask(&config, &[("authorization", "Bearer two")]), Ok(()));
        assert_eq!(ask(&config, &[("authorization", "bearer one")]), Ok(()));
        assert_eq!(ask(&config, &[("x-api-key", "one")]), Ok(()));
        for wrong in ["Bearer three", "Bearer on", "Bearer ", "Basic one", "one"] {
            assert!(
                matches!(
                    ask(&config, &[("authorization", wrong)]),
                    Err(ApiError::Unauthorized(_))
                ),
                "{wrong}"
            );
        }
        assert!(matches!(ask(&config, &[]), Err(ApiError::Unauthorized(_))));
        assert_eq!(check(&config, &Method::GET, "/health", &headers(&[])), Ok(()));
        assert!(check(&config, &Method::GET, "/metrics", &headers(&[])).is_err());
    }
}
