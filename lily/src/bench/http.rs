//! A client of OpenAI-compatible servers that notes when each piece of a streamed completion came.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use ureq::Agent;

/// Environment variable with the key of a server that wants one.
pub const KEY_VARIABLE: &str = "LILY_PEER_KEY";

/// Bytes that are read at once, at most.
const PIECE: usize = 16 << 10;

/// Most bytes of an error's body that are read.
const MOST_OF_AN_ERROR: u64 = 4096;

/// Talks to one server.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    base: String,
    key: Option<String>,
}

/// What to complete.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The model's name.
    pub model: String,
    /// Token ids, or a text as a string.
    pub prompt: Value,
    /// Tokens of the reply.
    pub max_tokens: usize,
    /// Whether to send what OpenAI's API does not have: no stop at the end of a text, no cache of prompts.
    pub extensions: bool,
}

/// A streamed reply by its times.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// When the request was sent.
    pub sent: Instant,
    /// When each piece of text came; at least one.
    pub pieces: Vec<Instant>,
    /// The server's count of the prompt's tokens.
    pub prompt_tokens: Option<usize>,
    /// Those of them that it had read before.
    pub cached_tokens: usize,
    /// Its count of the reply's tokens.
    pub completion_tokens: Option<usize>,
}

impl Streamed {
    /// Time to the first piece.
    pub fn first(&self) -> Duration {
        self.pieces[0] - self.sent
    }

    /// Time from the first piece to the last.
    pub fn rest(&self) -> Duration {
        self.pieces[self.pieces.len() - 1] - self.pieces[0]
    }

    /// Tokens of the reply: as the server counts, or the pieces.
    pub fn tokens(&self) -> usize {
        self.completion_tokens.unwrap_or(self.pieces.len())
    }
}

/// Why a request failed.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    /// With a status and what the server said.
    Status(u16, String),
    /// In any other way.
    Other(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Status(status, said) => write!(f, "status {status}: {said}"),
            Refusal::Other(what) => f.write_str(what),
        }
    }
}

impl Client {
    /// Of the server at `url`, with or without `/v1`.
    pub fn new(url: &str) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .build();
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Client {
            agent: agent.into(),
            base,
            key: std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty()),
        }
    }

    /// The JSON at a path.
    ///
    /// # Errors
    /// [`Refusal`]
    pub fn get(&self, path: &str) -> Result<Value, Refusal> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().map_err(|error| Refusal::Other(error.to_string()))?;
        let text = response
            .body_mut()
            .read_to_string()
            .map_err(|error| Refusal::Other(error.to_string()))?;
        if response.status() != 200 {
            return Err(Refusal::Status(response.status().as_u16(), message(&text)));
        }
        serde_json::from_str(&text).map_err(|error| Refusal::Other(format!("{path}: {error}")))
    }

    /// The name of the first model that the server lists.
    ///
    /// # Errors
    /// [`Refusal`]
    pub fn first_model(&self) -> Result<String, Refusal> {
        let models = self.get("/v1/models")?;
        match models["data"][0]["id"].as_str() {
            Some(name) => Ok(name.to_owned()),
            None => Err(Refusal::Other(
                "/v1/models lists none: name one with --peer-name".into(),
            )),
        }
    }

    /// A streamed greedy completion.
    ///
    /// # Errors
    /// [`Refusal`]
    pub fn complete(&self, completion: &Completion) -> Result<Streamed, Refusal> {
        let body = completion.body().to_string();
        let mut request = self
            .agent
            .post(format!("{}/v1/completions", self.base))
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let sent = Instant::now();
        let response = request.send(&body).map_err(|error| Refusal::Other(error.to_string()))?;
        let status = response.status().as_u16();
        let reader = response.into_body().into_reader();
        if status != 200 {
            let mut text = String::new();
            let _ = reader.take(MOST_OF_AN_ERROR).read_to_string(&mut text);
            return Err(Refusal::Status(status, message(&text)));
        }
        read(reader, sent).map_err(Refusal::Other)
    }
}

impl Completion {
    fn body(&self) -> Value {
        let mut body = Map::new();
        body.insert("model".into(), self.model.as_str().into());
        body.insert("prompt".into(), self.prompt.clone());
        body.insert("max_tokens".into(), self.max_tokens.into());
        body.insert("temperature".into(), 0.into());
        body.insert("stream".into(), true.into());
        body.insert("stream_options".into(), json!({ "include_usage": true }));
        if self.extensions {
            body.insert("ignore_eos".into(), true.into());
            body.insert("cache_prompt".into(), false.into());
        }
        body.into()
    }
}

/// The message of an error's body, or its beginning.
fn message(text: &str) -> String {
    let json: Value = serde_json::from_str(text).unwrap_or_default();
    let message = json["error"]["message"].as_str().or_else(|| json["error"].as_str());
    message.unwrap_or(text.trim()).chars().take(300).collect()
}

/// Reads the events of a completion to their end. They are taken apart only then: the client shares the machine with what it measures.
fn read(mut events: impl Read, sent: Instant) -> Result<Streamed, String> {
    let mut text = Vec::new();
    // Where each read ended, and when.
    let mut reads = Vec::new();
    let mut piece = [0; PIECE];
    loop {
        let read = events.read(&mut piece).map_err(|error| error.to_string())?;
        if read == 0 {
            break;
        }
        text.extend_from_slice(&piece[..read]);
        reads.push((text.len(), Instant::now()));
        if text.trim_ascii_end().ends_with(b"data: [DONE]") {
            break;
        }
    }
    let text = String::from_utf8(text).map_err(|error| format!("the stream: {error}"))?;
    let mut streamed = Streamed {
        sent,
        pieces: Vec::new(),
        prompt_tokens: None,
        cached_tokens: 0,
        completion_tokens: None,
    };
    let mut complete = false;
    let (mut end, mut reads) = (0, reads.iter().peekable());
    for line in text.split_inclusive('\n') {
        end += line.len();
        // A line came with the read that held its end.
        while reads.next_if(|(until, _)| *until < end).is_some() {}
        let Some(data) = line.strip_prefix("data:").map(str::trim) else {
            continue;
        };
        if data == "[DONE]" {
            complete = true;
            break;
        }
        let event: Value = serde_json::from_str(data).map_err(|error| format!("an event of the stream: {error}"))?;
        if !event["error"].is_null() {
            return Err(message(data));
        }
        if event["choices"][0]["text"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
        {
            streamed.pieces.extend(reads.peek().map(|(_, at)| *at));
        }
        let usage = &event["usage"];
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        if usage.is_object() {
            streamed.prompt_tokens = count(&usage["prompt_tokens"]);
            streamed.completion_tokens = count(&usage["completion_tokens"]);
            streamed.cached_tokens = count(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0);
        }
    }
    if !complete {
        return Err("the stream ended without [DONE]".into());
    }
    if streamed.pieces.is_empty() {
        return Err("the reply has no text".into());
    }
    Ok(streamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Result<Streamed, String> {
        read(text.as_bytes(), Instant::now())
    }

    #[test]
    fn pieces_and_counts_of_a_stream() {
        let streamed = events(
            ": keep-alive\n\ndata: {\"choices\":[{\"text\":\"a\"}],\"usage\":null}\n\ndata:{\"choices\":[{\"text\":\"b\"}]}\n\n\
             data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n\
             data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n\
             data: [DONE]\n\n",
        )
        .unwrap();
        assert_eq!((streamed.pieces.len(), streamed.tokens()), (2, 3));
        assert_eq!((streamed.prompt_tokens, streamed.cached_tokens), (Some(9), 4));
        assert!(streamed.first() >= Duration::ZERO && streamed.pieces[1] >= streamed.pieces[0]);
    }

    #[test]
    fn streams_that_fail() {
        assert_eq!(
            events("data: {\"error\":{\"message\":\"out of memory\"}}\n\n").unwrap_err(),
            "out of memory"
        );
        assert!(
            events("data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
                .unwrap_err()
                .contains("without [DONE]")
        );
        assert!(events("data: [DONE]\n\n").unwrap_err().contains("no text"));
        assert!(events("data: {\n\n").is_err());
    }

    #[test]
    fn addresses_with_and_without_v1() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            assert_eq!(Client::new(url).base, "http://h:1");
        }
    }
}
