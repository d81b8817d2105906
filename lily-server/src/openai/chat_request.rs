//! The body of `POST /v1/chat/completions`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::message::Message;
use super::sampling::SamplingFields;
use crate::body::parse_json;
use crate::error::ApiError;

/// Most alternatives to a token that a request may ask for.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// A chat request. Fields that the server does not know are ignored; those that it knows but cannot honour are refused.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct ChatRequest {
    /// The model's name; the served one where absent.
    #[serde(default)]
    pub model: Option<String>,
    /// The conversation, oldest message first.
    pub messages: Vec<Message>,
    /// Whether the reply comes as server-sent events.
    #[serde(default)]
    pub stream: Option<bool>,
    /// What the stream holds besides the reply.
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of the reply, thoughts included.
    #[serde(default)]
    pub max_completion_tokens: Option<u64>,
    /// Older name of the same.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// Whether to tell each token's log-probability.
    #[serde(default)]
    pub logprobs: Option<bool>,
    /// Alternatives to tell for each token.
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    /// Functions that the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    /// Whether it may or must call one.
    #[serde(default)]
    pub tool_choice: Option<Value>,
    /// Whether it may make several calls in one turn.
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// The form that the reply must have.
    #[serde(default)]
    pub response_format: Option<Value>,
    /// How much the model thinks first.
    #[serde(default)]
    pub reasoning_effort: Option<Effort>,
    /// Whether it thinks first (extension).
    #[serde(default)]
    pub enable_thinking: Option<bool>,
    /// Most tokens of thoughts (extension).
    #[serde(default)]
    pub thinking_budget: Option<u64>,
    /// Variables of the chat template (extension).
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Name of the conversation, for the prefix cache.
    #[serde(default)]
    pub prompt_cache_key: Option<String>,
    /// Name of whoever asks; clients that wait take turns.
    #[serde(default)]
    pub user: Option<String>,
    /// Predecessor of `tools`; refused.
    #[serde(default)]
    functions: Option<Value>,
    /// Output modalities; only text is made.
    #[serde(default)]
    modalities: Option<Vec<String>>,
    /// How tokens are chosen: read in a pass of its own, since serde's `flatten` would lose the names of fields at fault.
    #[serde(skip)]
    pub sampling: SamplingFields,
}

/// What a stream holds besides the reply.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct StreamOptions {
    /// Whether a last chunk tells the usage.
    #[serde(default)]
    pub include_usage: Option<bool>,
}

/// How much the model thinks before it answers.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// Not at all.
    None,
    /// A few lines.
    Minimal,
    /// Little.
    Low,
    /// The usual.
    Medium,
    /// As much as it wants.
    High,
    /// As much as it wants.
    #[serde(alias = "max")]
    Xhigh,
}

impl Effort {
    /// Whether to think, and most tokens of thoughts. The model itself knows no efforts; the budgets stand for them.
    pub fn meaning(self) -> (bool, Option<usize>) {
        match self {
            Self::None => (false, None),
            Self::Minimal => (true, Some(512)),
            Self::Low => (true, Some(2048)),
            Self::Medium => (true, Some(8192)),
            Self::High | Self::Xhigh => (true, None),
        }
    }
}

impl ChatRequest {
    /// Reads and checks a body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut request: Self = parse_json(bytes)?;
        request.sampling = parse_json(bytes)?;
        request.validate()?;
        Ok(request)
    }

    fn validate(&self) -> Result<(), ApiError> {
        self.sampling.validate()?;
        if self.messages.is_empty() {
            return Err(ApiError::invalid("messages", "must hold at least one message"));
        }
        if let Some(top) = self.top_logprobs {
            if top > MAX_TOP_LOGPROBS {
                let message = format!("must be between 0 and {MAX_TOP_LOGPROBS}, found {top}");
                return Err(ApiError::invalid("top_logprobs", message));
            }
            if self.logprobs != Some(true) {
                return Err(ApiError::invalid("top_logprobs", "needs logprobs to be true"));
            }
        }
        for (field, value) in [
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_tokens", self.max_tokens),
        ] {
            if value == Some(0) {
                return Err(ApiError::invalid(field, "must be at least 1, found 0"));
            }
        }
        if self.functions.is_some() {
            return Err(ApiError::invalid("functions", "is not supported; use tools"));
        }
        if let Some(other) = self.modalities.iter().flatten().find(|modality| *modality != "text") {
            return Err(ApiError::invalid(
                "modalities",
                format!("only text is made, found {other:?}"),
            ));
        }
        Ok(())
    }

    /// Most tokens of the reply: the newer field wins.
    pub fn token_limit(&self) -> Option<u64> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    /// Whether a streamed reply ends with a chunk that tells the usage.
    pub fn include_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .and_then(|options| options.include_usage)
            .unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &str) -> String {
        match ChatRequest::parse(json.as_bytes()) {
            Err(ApiError::Invalid { param, message, .. }) => param.unwrap_or(message),
            other => panic!("{json}: expected a 400, found {other:?}"),
        }
    }

    fn with(field: &str) -> String {
        format!(r#"{{"messages": [{{"role": "user", "content": "a"}}], {field}}}"#)
    }

    #[test]
    fn unknown_fields_are_ignored_and_sampling_is_read() {
        let request =
            ChatRequest::parse(with(r#""temperature": 0.5, "store": true, "x": {"y": []}"#).as_bytes()).unwrap();
        assert_eq!(request.sampling.temperature, Some(0.5));
        assert_eq!(request.token_limit(), None);
    }

    #[test]
    fn the_newer_token_limit_wins() {
        let request = ChatRequest::parse(with(r#""max_tokens": 5, "max_completion_tokens": 7"#).as_bytes()).unwrap();
        assert_eq!(request.token_limit(), Some(7));
    }

    #[test]
    fn faults_name_the_field() {
        assert!(fault("{}").contains("missing field `messages`"));
        assert!(fault("[]").contains("must be a JSON object"));
        assert_eq!(fault(r#"{"messages": []}"#), "messages");
        assert_eq!(fault(r#"{"messages": "a"}"#), "messages");
        assert_eq!(
            fault(r#"{"messages": [{"role": "user", "content": {}}]}"#),
            "messages[0].content"
        );
        for (field, param) in [
            (r#""stream": "yes""#, "stream"),
            (
                r#""stream_options": {"include_usage": 1}"#,
                "stream_options.include_usage",
            ),
            (r#""max_tokens": -1"#, "max_tokens"),
            (r#""max_tokens": 1.5"#, "max_tokens"),
            (r#""max_tokens": 0"#, "max_tokens"),
            (r#""top_logprobs": 2"#, "top_logprobs"),
            (r#""logprobs": true, "top_logprobs": 21"#, "top_logprobs"),
            (r#""tools": {}"#, "tools"),
            (r#""reasoning_effort": "huge""#, "reasoning_effort"),
            (r#""functions": []"#, "functions"),
            (r#""modalities": ["audio"]"#, "modalities"),
            (r#""temperature": 9"#, "temperature"),
            (r#""model": 4"#, "model"),
        ] {
            assert_eq!(fault(&with(field)), param, "{field}");
        }
    }
}
