//! A server whose model says what the test wants: a scripted backend under the real engine, tokenizer and chat template.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::StreamExt;
use lily_engine::{
    Backend, BackendError, DecodeStep, DeviceInfo, Engine, EngineOptions, LoadError, PrefillLogits, SaveState,
    Vocabulary,
};
use lily_model::{Checkpoint, Source};
use lily_server::{App, AppState, ServerConfig, router};
use serde_json::Value;
use tower::ServiceExt;

/// Rows of the model's logits; the last ones are padding.
const ROWS: usize = 512;

/// What the backend is told and has seen.
#[derive(Debug, Default)]
pub struct Stage {
    /// Replies to come, as token ids; each prompt takes the next one. Without any, the end token comes at once.
    pub replies: VecDeque<Vec<u32>>,
    /// Tokens of the prompts, as they were read.
    pub prompts: Vec<Vec<u32>>,
    /// Decode steps taken.
    pub steps: usize,
    /// Time that a step takes.
    pub pace: Duration,
    /// The device fails at the next step.
    pub broken: bool,
}

/// A backend that says its script.
pub struct Scripted {
    stage: Arc<Mutex<Stage>>,
    end: u32,
}

/// A sequence and the reply that it is in the midst of.
#[derive(Clone, Default)]
pub struct ScriptedSequence {
    tokens: Vec<u32>,
    reply: Option<Arc<Vec<u32>>>,
    said: usize,
    logits: Vec<f32>,
}

impl Scripted {
    fn say(&self, sequence: &mut ScriptedSequence) {
        let next = sequence
            .reply
            .as_ref()
            .and_then(|reply| reply.get(sequence.said))
            .copied()
            .unwrap_or(self.end);
        sequence.said += 1;
        // Noise that tells the others apart, so that alternatives have an order.
        sequence.logits = (0..ROWS).map(|id| (id * 37 % 101) as f32 / 101.0).collect();
        sequence.logits[next as usize] = 30.0;
    }
}

impl Backend for Scripted {
    type Sequence = ScriptedSequence;
    type Snapshot = ScriptedSequence;

    fn device(&self) -> DeviceInfo {
        DeviceInfo {
            kind: "script".into(),
            description: "a script".into(),
        }
    }

    fn vocab_size(&self) -> usize {
        ROWS
    }

    fn max_chunk(&self) -> usize {
        64
    }

    fn max_batch(&self) -> usize {
        8
    }

    fn context_limit(&self) -> usize {
        8192
    }

    fn new_sequence(&mut self) -> Result<ScriptedSequence, BackendError> {
        Ok(ScriptedSequence::default())
    }

    fn position(&self, sequence: &ScriptedSequence) -> usize {
        sequence.tokens.len()
    }

    fn prefill(
        &mut self,
        sequence: &mut ScriptedSequence,
        tokens: &[u32],
        logits: PrefillLogits<'_>,
    ) -> Result<(), BackendError> {
        let pace = self.stage.lock().unwrap().pace;
        std::thread::sleep(pace);
        sequence.tokens.extend_from_slice(tokens);
        let rows = match logits {
            PrefillLogits::None => return Ok(()),
            PrefillLogits::Last => None,
            PrefillLogits::All(each) => Some(each),
        };
        if let Some(each) = rows {
            for row in 0..tokens.len() {
                let logits: Vec<f32> = (0..ROWS).map(|id| (id * 37 % 101) as f32 / 101.0).collect();
                each(row, &logits);
            }
        }
        let mut stage = self.stage.lock().unwrap();
        // The whole prompt replaces what was read of it on the way.
        let longer = |read: &Vec<u32>| sequence.reply.is_some() && sequence.tokens.starts_with(read);
        if stage.prompts.last().is_some_and(longer) {
            stage.prompts.pop();
        }
        stage.prompts.push(sequence.tokens.clone());
        // Logits are also asked for on the way, where a snapshot is taken.
        if sequence.reply.is_none() {
            sequence.reply = stage.replies.pop_front().map(Arc::new);
        }
        sequence.said = 0;
        drop(stage);
        self.say(sequence);
        Ok(())
    }

    fn decode(&mut self, batch: &mut [DecodeStep<'_, ScriptedSequence>]) -> Result<(), BackendError> {
        let pace = {
            let mut stage = self.stage.lock().unwrap();
            stage.steps += 1;
            if stage.broken {
                return Err(BackendError::Device("it burns".into()));
            }
            stage.pace
        };
        std::thread::sleep(pace);
        for step in batch {
            step.sequence.tokens.push(step.token);
            if step.sequence.reply.is_none() {
                // Restored with the first token's logits: the next reply is taken to start with the same token.
                step.sequence.reply = self.stage.lock().unwrap().replies.pop_front().map(Arc::new);
                step.sequence.said = 1;
            }
            self.say(step.sequence);
        }
        Ok(())
    }

    fn logits<'a>(&'a self, sequence: &'a ScriptedSequence) -> &'a [f32] {
        &sequence.logits
    }

    fn snapshot(&mut self, sequence: &ScriptedSequence) -> Result<ScriptedSequence, BackendError> {
        Ok(sequence.clone())
    }

    fn restore(&mut self, snapshot: &ScriptedSequence) -> Result<ScriptedSequence, BackendError> {
        Ok(ScriptedSequence {
            reply: None,
            ..snapshot.clone()
        })
    }

    fn snapshot_memory(&self, snapshot: &ScriptedSequence, visit: &mut dyn FnMut(usize, usize)) {
        visit(std::ptr::from_ref(snapshot) as usize, 1000 + snapshot.tokens.len());
    }

    fn state_format(&self) -> String {
        "script".into()
    }

    fn saved_bytes(&self, _: usize, _: bool) -> usize {
        0
    }

    fn save(&mut self, _: &Arc<ScriptedSequence>) -> Result<SaveState, BackendError> {
        Err(BackendError::Device("a script is not saved".into()))
    }

    fn load(&mut self, _: usize, _: bool, _: &mut dyn std::io::Read) -> Result<ScriptedSequence, LoadError> {
        Err(BackendError::Device("a script is not saved".into()).into())
    }

    fn sequence_bytes(&self, tokens: usize) -> usize {
        1000 + tokens
    }
}

/// The checkpoint whose tokenizer and template the tests use.
pub fn checkpoint() -> Arc<Checkpoint> {
    static CHECKPOINT: OnceLock<Arc<Checkpoint>> = OnceLock::new();
    let open = || {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/mini/mlx-4bit");
        Arc::new(Checkpoint::open(&Source::Directory(directory)).unwrap())
    };
    Arc::clone(CHECKPOINT.get_or_init(open))
}

/// A server and the stage of its model.
pub struct Server {
    pub app: AppState,
    pub stage: Arc<Mutex<Stage>>,
    pub router: Router,
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: axum::http::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The JSON of each `data:` line; `[DONE]` must be the last one and is left out.
    pub fn chunks(&self) -> Vec<Value> {
        let mut lines: Vec<&str> = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(lines.pop(), Some("[DONE]"), "{}", self.text);
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Name and JSON of each named event.
    pub fn events(&self) -> Vec<(String, Value)> {
        self.text
            .split("\n\n")
            .filter_map(|frame| {
                let (name, data) = frame.strip_prefix("event: ")?.split_once("\ndata: ")?;
                Some((name.to_owned(), serde_json::from_str(data).unwrap()))
            })
            .collect()
    }

    pub fn error(&self) -> Value {
        self.json()["error"].clone()
    }
}

impl Server {
    /// Waits until `requests` requests are counted as finished, which may be after their last event was seen.
    pub async fn until_finished(&self, requests: u64) {
        let finished = async {
            while self.app.engine.status().finished < requests {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), finished)
            .await
            .expect("the generation goes on");
    }

    pub fn new() -> Self {
        Self::with(
            ServerConfig {
                model_id: "mini".into(),
                ..ServerConfig::default()
            },
            EngineOptions::default(),
        )
    }

    pub fn with(config: ServerConfig, options: EngineOptions) -> Self {
        let checkpoint = checkpoint();
        let stage = Arc::new(Mutex::new(Stage::default()));
        let end = checkpoint.tokenizer.added_token("<|im_end|>").unwrap();
        let backend = Scripted {
            stage: Arc::clone(&stage),
            end,
        };
        let engine = Engine::start(backend, Vocabulary::new(&checkpoint.tokenizer), options).unwrap();
        let app = App::new(config, engine, checkpoint);
        Self {
            router: router(Arc::clone(&app)),
            app,
            stage,
        }
    }

    /// The model's next reply: text in which control tokens are spelled out. The end token follows by itself.
    pub fn say(&self, text: &str) {
        let tokens = self.app.checkpoint.tokenizer.encode(text).unwrap();
        self.stage.lock().unwrap().replies.push_back(tokens);
    }

    /// The last prompt that the model read, as text.
    pub fn last_prompt(&self) -> String {
        let stage = self.stage.lock().unwrap();
        self.app
            .checkpoint
            .tokenizer
            .decode(stage.prompts.last().unwrap(), false)
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let mut bytes = Vec::new();
        let mut body = response.into_body().into_data_stream();
        while let Some(chunk) = body.next().await {
            bytes.extend_from_slice(&chunk.unwrap());
        }
        Answer {
            status,
            headers,
            text: String::from_utf8(bytes).unwrap(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    pub async fn post_text(&self, path: &str, body: String) -> Answer {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    /// `POST /v1/chat/completions` without sampling noise.
    pub async fn chat(&self, mut body: Value) -> Answer {
        let object = body.as_object_mut().unwrap();
        object.entry("temperature").or_insert(0.into());
        object
            .entry("messages")
            .or_insert_with(|| serde_json::json!([{"role": "user", "content": "hi"}]));
        self.post("/v1/chat/completions", body).await
    }
}
