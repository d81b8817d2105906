//! Shapes of `POST /v1/completions`.

use std::fmt;

use lily_engine::TokenLogprobs;
use lily_model::Tokenizer;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::chat_reply::finite;
use super::chat_request::{MAX_TOP_LOGPROBS, StreamOptions};
use super::sampling::SamplingFields;
use crate::body::parse_json;
use crate::error::ApiError;

/// Most prompts in a request.
const MAX_PROMPTS: usize = 256;

/// Tokens of a reply where the request does not say: OpenAI's default.
const DEFAULT_MAX_TOKENS: u64 = 16;

/// The body of a completion request.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CompletionRequest {
    /// The model's name; the served one where absent.
    #[serde(default)]
    pub model: Option<String>,
    /// What to go on from.
    pub prompt: Prompts,
    /// Whether the reply comes as server-sent events.
    #[serde(default)]
    pub stream: Option<bool>,
    /// What the stream holds besides the reply.
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of the reply; 0 only reads the prompt.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// Whether the reply goes on after the tokens that end a text, for measurements.
    #[serde(default)]
    pub ignore_eos: Option<bool>,
    /// Whether the reply starts with the prompt.
    #[serde(default)]
    pub echo: Option<bool>,
    /// Alternatives to tell for each token.
    #[serde(default)]
    pub logprobs: Option<u32>,
    /// Replies to choose from; only as many as are returned.
    #[serde(default)]
    best_of: Option<u32>,
    /// Text after the completion; refused.
    #[serde(default)]
    suffix: Option<String>,
    /// Name of the conversation, for the prefix cache.
    #[serde(default)]
    pub prompt_cache_key: Option<String>,
    /// Name of whoever asks.
    #[serde(default)]
    pub user: Option<String>,
    /// How tokens are chosen.
    #[serde(skip)]
    pub sampling: SamplingFields,
}

/// Prompts of a request, each as text or as token ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompts(pub Vec<PromptText>);

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptText {
    /// As text.
    Text(String),
    /// As token ids.
    Tokens(Vec<u32>),
}

impl CompletionRequest {
    /// Reads and checks a body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut request: Self = parse_json(bytes)?;
        request.sampling = parse_json(bytes)?;
        request.sampling.validate()?;
        let count = request.prompt.0.len();
        if count == 0 || count > MAX_PROMPTS {
            return Err(ApiError::invalid(
                "prompt",
                format!("expected 1 to {MAX_PROMPTS} prompts, found {count}"),
            ));
        }
        if let Some(top) = request.logprobs
            && top > MAX_TOP_LOGPROBS
        {
            return Err(ApiError::invalid(
                "logprobs",
                format!("must be between 0 and {MAX_TOP_LOGPROBS}, found {top}"),
            ));
        }
        if let Some(best_of) = request.best_of
            && best_of != request.sampling.n.unwrap_or(1)
        {
            return Err(ApiError::invalid(
                "best_of",
                "must equal n: every reply that is made is returned",
            ));
        }
        if request.suffix.as_deref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::invalid("suffix", "is not supported"));
        }
        Ok(request)
    }

    /// Most tokens of the reply.
    pub fn token_limit(&self) -> u64 {
        self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)
    }

    /// Whether a streamed reply ends with a chunk that tells the usage.
    pub fn include_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .and_then(|options| options.include_usage)
            .unwrap_or(false)
    }
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Item {
            Token(u32),
            Text(String),
            Tokens(Vec<u32>),
        }

        struct PromptVisitor;

        impl<'de> Visitor<'de> for PromptVisitor {
            type Value = Prompts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string, token ids, or a list of either")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![PromptText::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Prompts, A::Error> {
                let (mut prompts, mut tokens) = (Vec::new(), Vec::new());
                while let Some(item) = sequence.next_element()? {
                    match item {
                        Item::Token(token) => tokens.push(token),
                        Item::Text(text) => prompts.push(PromptText::Text(text)),
                        Item::Tokens(list) => prompts.push(PromptText::Tokens(list)),
                    }
                }
                match (prompts.is_empty(), tokens.is_empty()) {
                    (true, false) => Ok(Prompts(vec![PromptText::Tokens(tokens)])),
                    (_, true) => Ok(Prompts(prompts)),
                    (false, false) => Err(de::Error::custom("token ids and prompts are mixed in one list")),
                }
            }
        }

        deserializer.deserialize_any(PromptVisitor)
    }
}

/// Log-probabilities in the legacy shape: lists by position.
#[derive(Clone, Debug, Default)]
pub struct LegacyLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    offset: usize,
}

impl LegacyLogprobs {
    /// Starts where `offset` characters have been told already.
    pub fn at(offset: usize) -> Self {
        Self {
            offset,
            ..Self::default()
        }
    }

    /// Characters told so far.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The prompt's first token, which nothing predicts.
    pub fn push_first(&mut self, id: u32, tokenizer: &Tokenizer) {
        self.push_token(id, tokenizer);
        self.token_logprobs.push(Value::Null);
        self.top_logprobs.push(Value::Null);
    }

    /// The next token.
    pub fn push(&mut self, entry: &TokenLogprobs, tokenizer: &Tokenizer) {
        self.push_token(entry.id, tokenizer);
        self.token_logprobs.push(finite(entry.logprob).into());
        let top: Map<String, Value> = entry
            .top
            .iter()
            .map(|&(id, value)| (token_text(id, tokenizer), finite(value).into()))
            .collect();
        self.top_logprobs.push(Value::Object(top));
    }

    fn push_token(&mut self, id: u32, tokenizer: &Tokenizer) {
        self.tokens.push(token_text(id, tokenizer).into());
        self.text_offset.push(self.offset);
        // A character counts where its first byte is, so that tokens with parts of characters add up.
        self.offset += tokenizer
            .token_bytes(id)
            .iter()
            .filter(|&&byte| byte & 0xc0 != 0x80)
            .count();
    }

    /// The lists.
    pub fn json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// A token's text; bytes that are no text are spelled out as OpenAI does, so that different tokens stay different.
fn token_text(id: u32, tokenizer: &Tokenizer) -> String {
    let bytes = tokenizer.token_bytes(id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes
            .iter()
            .fold(String::from("bytes:"), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(json: &str) -> Result<Vec<PromptText>, ApiError> {
        CompletionRequest::parse(format!(r#"{{"prompt": {json}}}"#).as_bytes()).map(|request| request.prompt.0)
    }

    #[test]
    fn prompts_come_in_four_forms() {
        let text = |text: &str| PromptText::Text(text.into());
        assert_eq!(prompt(r#""a""#).unwrap(), [text("a")]);
        assert_eq!(prompt(r#"["a", "b"]"#).unwrap(), [text("a"), text("b")]);
        assert_eq!(prompt("[1, 2]").unwrap(), [PromptText::Tokens(vec![1, 2])]);
        assert_eq!(
            prompt("[[1], [2, 3]]").unwrap(),
            [PromptText::Tokens(vec![1]), PromptText::Tokens(vec![2, 3])]
        );
        for bad in ["[]", "5", "[1, \"a\"]", "[-1]", "{}", "[1.5]", "[null]"] {
            assert!(
                matches!(prompt(bad), Err(ApiError::Invalid { param: Some(_), .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for (field, param) in [
            (r#""logprobs": 21"#, "logprobs"),
            (r#""best_of": 2"#, "best_of"),
            (r#""suffix": "end""#, "suffix"),
            (r#""echo": 1"#, "echo"),
        ] {
            let found = CompletionRequest::parse(format!(r#"{{"prompt": "a", {field}}}"#).as_bytes());
            assert!(
                matches!(found, Err(ApiError::Invalid { param: Some(found), .. }) if found == param),
                "{field}"
            );
        }
    }
}
