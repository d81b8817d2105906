//! Replies of `POST /v1/chat/completions`, whole and in chunks.

use lily_engine::{TokenLogprobs, Usage};
use lily_model::Tokenizer;
use serde_json::{Map, Value, json};

use crate::ids;
use crate::reply::{Ending, ReplyEvent};

/// What all chunks of a reply repeat.
#[derive(Clone, Debug)]
pub struct Head {
    /// Id of the reply.
    pub id: String,
    /// When it was asked for, seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
}

impl Head {
    /// The head of a new reply.
    pub fn new(model: &str) -> Self {
        let created = crate::endpoints::models::unix_seconds(std::time::SystemTime::now());
        Self {
            id: ids::dashed("chatcmpl"),
            created,
            model: model.to_owned(),
        }
    }

    fn object(&self, kind: &str) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("id".into(), self.id.as_str().into());
        object.insert("object".into(), kind.into());
        object.insert("created".into(), self.created.into());
        object.insert("model".into(), self.model.as_str().into());
        object.insert(
            "system_fingerprint".into(),
            concat!("lily-", env!("CARGO_PKG_VERSION")).into(),
        );
        object
    }
}

/// `finish_reason` for an ending.
pub fn finish_reason(ending: Ending) -> &'static str {
    match ending {
        Ending::Stop | Ending::StopString(_) => "stop",
        Ending::ToolCalls => "tool_calls",
        Ending::Length => "length",
    }
}

/// `usage`, over all choices of a request: the prompt counts once.
pub fn usage(choices: &[Usage]) -> Value {
    let prompt = choices.first().map_or(0, |usage| usage.prompt_tokens);
    let cached = choices.iter().map(|usage| usage.cached_tokens).min().unwrap_or(0);
    let completion: usize = choices.iter().map(|usage| usage.completion_tokens).sum();
    let reasoning: usize = choices.iter().map(|usage| usage.reasoning_tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
        "completion_tokens_details": { "reasoning_tokens": reasoning },
    })
}

/// Where the time of a reply went (extension), milliseconds.
pub fn timings(usage: &Usage) -> Value {
    let milliseconds = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let rate = |tokens: usize, time: std::time::Duration| {
        let seconds = time.as_secs_f64();
        (seconds > 0.0).then(|| (tokens as f64 / seconds * 100.0).round() / 100.0)
    };
    json!({
        "queue_ms": milliseconds(usage.queued),
        "prefill_ms": milliseconds(usage.prefill),
        "decode_ms": milliseconds(usage.decode),
        "prefill_tokens_per_second": rate(usage.prompt_tokens.saturating_sub(usage.cached_tokens), usage.prefill),
        // The first token belongs to the prefill.
        "decode_tokens_per_second": rate(usage.completion_tokens.saturating_sub(1), usage.decode),
    })
}

/// OpenAI's object for a token's log-probabilities.
pub fn logprob(entry: &TokenLogprobs, tokenizer: &Tokenizer) -> Value {
    let mut object = token_logprob(entry.id, entry.logprob, tokenizer);
    let top: Vec<Value> = entry
        .top
        .iter()
        .map(|&(id, value)| token_logprob(id, value, tokenizer))
        .collect();
    object["top_logprobs"] = top.into();
    object
}

fn token_logprob(id: u32, value: f32, tokenizer: &Tokenizer) -> Value {
    let bytes = tokenizer.token_bytes(id);
    json!({ "token": String::from_utf8_lossy(bytes), "logprob": finite(value), "bytes": bytes })
}

/// JSON has no infinity; OpenAI writes -9999 for what cannot come.
pub fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// Writes the chunks of one choice of a streamed reply.
#[derive(Debug)]
pub struct ChunkWriter<'a> {
    head: Head,
    choice: u32,
    include_usage: bool,
    tokenizer: &'a Tokenizer,
    logprobs: Vec<Value>,
}

impl<'a> ChunkWriter<'a> {
    /// For choice number `choice`.
    pub fn new(head: Head, choice: u32, include_usage: bool, tokenizer: &'a Tokenizer) -> Self {
        Self {
            head,
            choice,
            include_usage,
            tokenizer,
            logprobs: Vec::new(),
        }
    }

    /// The first chunk, which tells the role.
    pub fn first(&mut self) -> Value {
        self.chunk(json!({ "role": "assistant", "content": "" }), None)
    }

    /// The chunk for a piece of the reply, if it needs one.
    pub fn chunk_for(&mut self, event: &ReplyEvent) -> Option<Value> {
        let delta = match event {
            ReplyEvent::Logprobs(entry) => {
                self.logprobs.push(logprob(entry, self.tokenizer));
                return None;
            }
            ReplyEvent::Reasoning(text) => json!({ "reasoning_content": text }),
            ReplyEvent::Content(text) => json!({ "content": text }),
            ReplyEvent::CallStart { index, id, name } => json!({ "tool_calls": [
                { "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } },
            ] }),
            ReplyEvent::CallArguments { index, text } => json!({ "tool_calls": [
                { "index": index, "function": { "arguments": text } },
            ] }),
            ReplyEvent::Finished { reason, usage } => {
                let mut chunk = self.chunk(json!({}), Some(finish_reason(*reason)));
                chunk["timings"] = timings(usage);
                return Some(chunk);
            }
            _ => return None,
        };
        Some(self.chunk(delta, None))
    }

    /// The last chunk of a stream whose client asked for the usage.
    pub fn usage_chunk(head: &Head, choices: &[Usage]) -> Value {
        let mut object = head.object("chat.completion.chunk");
        object.insert("choices".into(), json!([]));
        object.insert("usage".into(), usage(choices));
        Value::Object(object)
    }

    fn chunk(&mut self, delta: Value, finish_reason: Option<&str>) -> Value {
        let logprobs = match std::mem::take(&mut self.logprobs) {
            list if list.is_empty() => Value::Null,
            list => json!({ "content": list, "refusal": null }),
        };
        let mut object = self.head.object("chat.completion.chunk");
        let choice =
            json!({ "index": self.choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason });
        object.insert("choices".into(), json!([choice]));
        if self.include_usage {
            object.insert("usage".into(), Value::Null);
        }
        Value::Object(object)
    }
}

/// A choice of an unstreamed reply, put together from the same pieces that a stream is made of.
#[derive(Debug)]
pub struct Choice<'a> {
    tokenizer: &'a Tokenizer,
    content: String,
    reasoning: String,
    calls: Vec<(String, String, String)>,
    logprobs: Option<Vec<Value>>,
}

impl<'a> Choice<'a> {
    /// An empty one; `logprobs` says whether the request asked for them.
    pub fn new(tokenizer: &'a Tokenizer, logprobs: bool) -> Self {
        let logprobs = logprobs.then(Vec::new);
        Self {
            tokenizer,
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            logprobs,
        }
    }

    /// Adds a piece.
    pub fn push(&mut self, event: &ReplyEvent) {
        match event {
            ReplyEvent::Reasoning(text) => self.reasoning.push_str(text),
            ReplyEvent::Content(text) => self.content.push_str(text),
            ReplyEvent::CallStart { id, name, .. } => self.calls.push((id.clone(), name.clone(), String::new())),
            ReplyEvent::CallArguments { index, text } => {
                if let Some((_, _, arguments)) = self.calls.get_mut(*index) {
                    arguments.push_str(text);
                }
            }
            ReplyEvent::Logprobs(entry) => {
                if let Some(list) = &mut self.logprobs {
                    list.push(logprob(entry, self.tokenizer));
                }
            }
            _ => {}
        }
    }

    /// The choice as JSON.
    pub fn finish(self, index: usize, ending: Ending) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        // Calls without text have null for content, as OpenAI writes it.
        let content = if self.content.is_empty() && !self.calls.is_empty() {
            Value::Null
        } else {
            self.content.into()
        };
        message.insert("content".into(), content);
        message.insert("refusal".into(), Value::Null);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), self.reasoning.into());
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_iter().map(|(id, name, arguments)| {
                json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
            });
            message.insert("tool_calls".into(), calls.collect());
        }
        let logprobs = self.logprobs.map(|list| json!({ "content": list, "refusal": null }));
        json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason(ending) })
    }

    /// The whole reply.
    pub fn reply(head: &Head, choices: Vec<Value>, usages: &[Usage]) -> Value {
        let mut object = head.object("chat.completion");
        object.insert("choices".into(), choices.into());
        object.insert("usage".into(), usage(usages));
        if let [only] = usages {
            object.insert("timings".into(), timings(only));
        }
        Value::Object(object)
    }
}
