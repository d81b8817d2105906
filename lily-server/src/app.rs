//! The server's shared state and its routes.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use lily_engine::Engine;
use lily_model::Checkpoint;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::access;
use crate::config::ServerConfig;
use crate::endpoints::{
    chat, completions, health, messages, metrics, models, openapi, page, responses, status, tokens,
};
use crate::error::{AnthropicError, ApiError};
use crate::grammar::Grammars;
use crate::metrics::Metrics;
use crate::replay::Replays;

/// What all requests share.
#[derive(Debug)]
pub struct App {
    /// Options of the server.
    pub config: ServerConfig,
    /// The running model.
    pub engine: Engine,
    /// Tokenizer, chat template and generation defaults of the model.
    pub checkpoint: Arc<Checkpoint>,
    /// Compiler of grammars, made when the first request needs it.
    grammars: OnceLock<Result<Grammars, ApiError>>,
    /// Replies as the model wrote them.
    pub replays: Replays,
    /// What `/metrics` tells.
    pub metrics: Metrics,
    /// When the server started.
    pub started: SystemTime,
}

/// Handle to what all requests share.
pub type AppState = Arc<App>;

impl App {
    /// The state of a server that starts now.
    pub fn new(config: ServerConfig, engine: Engine, checkpoint: Arc<Checkpoint>) -> AppState {
        let metrics = Metrics::new(&engine);
        Arc::new(Self {
            config,
            engine,
            checkpoint,
            grammars: OnceLock::new(),
            replays: Replays::default(),
            metrics,
            started: SystemTime::now(),
        })
    }

    /// The compiler of grammars. The first call takes a while.
    pub fn grammars(&self) -> Result<&Grammars, ApiError> {
        let vocabulary = self.engine.info().vocabulary;
        let make = || Grammars::new(&self.checkpoint.tokenizer, &self.checkpoint.generation, vocabulary);
        self.grammars.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// Whether the server has the model that a request asks for.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if !self.config.serves(name) => Err(ApiError::NoModel {
                asked: name.to_owned(),
                served: self.config.model_id.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// All routes, with what guards them.
pub fn router(state: AppState) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/health", get(health::health))
        .route("/status", get(status::status))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/responses", post(responses::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(state.config.max_body_bytes))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), access::guard))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), count))
        .layer(cors(&state.config))
        .with_state(state)
}

/// Counts answered requests by route. Paths that are no routes share one label: clients may invent any number of them.
async fn count(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let path = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("other", MatchedPath::as_str)
        .to_owned();
    let response = next.run(request).await;
    app.metrics.answered(&path, response.status().as_u16());
    response
}

fn cors(config: &ServerConfig) -> CorsLayer {
    let origins = if config.cors_origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(
            config
                .cors_origins
                .iter()
                .filter_map(|origin| HeaderValue::from_str(origin).ok()),
        )
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(Any)
}

async fn no_route(method: Method, uri: Uri) -> Response {
    in_dialect(
        &uri,
        ApiError::NoRoute {
            method: method.to_string(),
            path: uri.path().to_owned(),
        },
    )
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    in_dialect(
        &uri,
        ApiError::MethodNotAllowed {
            method: method.to_string(),
            path: uri.path().to_owned(),
        },
    )
}

/// Answers with an error in the shape that the route's clients expect.
pub fn in_dialect(uri: &Uri, error: ApiError) -> Response {
    if uri.path().starts_with("/v1/messages") {
        AnthropicError(error).into_response()
    } else {
        error.into_response()
    }
}
