//! Replies of `POST /v1/messages`, whole and as events.

use lily_engine::Usage;
use serde_json::{Value, json};

use crate::blocks::{Block, BlockEvent, BlockKind, Blocks};
use crate::ids;
use crate::reply::{Ending, ReplyEvent};

/// Writes a reply, whole or event by event.
#[derive(Debug)]
pub struct MessageWriter {
    id: String,
    model: String,
    stop_sequences: Vec<String>,
    blocks: Blocks,
}

impl MessageWriter {
    /// For a reply of `model` to a request with these stop strings.
    pub fn new(model: &str, stop_sequences: Vec<String>) -> Self {
        Self {
            id: ids::new("msg"),
            model: model.to_owned(),
            stop_sequences,
            blocks: Blocks::default(),
        }
    }

    /// Takes a piece of the reply; returns the events of a stream that it gives.
    pub fn events(&mut self, event: &ReplyEvent) -> Vec<(&'static str, Value)> {
        let mut events = Vec::new();
        if let ReplyEvent::Started {
            prompt_tokens,
            cached_tokens,
        } = event
        {
            let usage = Usage {
                prompt_tokens: *prompt_tokens,
                cached_tokens: *cached_tokens,
                ..Usage::default()
            };
            let message = self.message(Vec::new(), Value::Null, Value::Null, &usage);
            events.push(("message_start", json!({ "type": "message_start", "message": message })));
        }
        self.blocks.push(event, |blocks, event| {
            let index = blocks.len() - 1;
            let Some(block) = blocks.last() else { return };
            events.push(match event {
                BlockEvent::Open => {
                    let block = content_block(&Block {
                        kind: block.kind.clone(),
                        text: String::new(),
                    });
                    let data = json!({ "type": "content_block_start", "index": index, "content_block": block });
                    ("content_block_start", data)
                }
                BlockEvent::Delta(text) => {
                    let delta = match block.kind {
                        BlockKind::Reasoning => json!({ "type": "thinking_delta", "thinking": text }),
                        BlockKind::Text => json!({ "type": "text_delta", "text": text }),
                        BlockKind::Call { .. } => json!({ "type": "input_json_delta", "partial_json": text }),
                    };
                    (
                        "content_block_delta",
                        json!({ "type": "content_block_delta", "index": index, "delta": delta }),
                    )
                }
                BlockEvent::Close => (
                    "content_block_stop",
                    json!({ "type": "content_block_stop", "index": index }),
                ),
            });
        });
        if let ReplyEvent::Finished { reason, usage } = event {
            let (reason, sequence) = self.stop(*reason);
            let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
            let data = json!({ "type": "message_delta", "delta": delta, "usage": usage_json(usage) });
            events.push(("message_delta", data));
            events.push(("message_stop", json!({ "type": "message_stop" })));
        }
        events
    }

    /// The whole reply, after all of its pieces went through [`MessageWriter::events`].
    pub fn whole(&self, ending: Ending, usage: &Usage) -> Value {
        let (reason, sequence) = self.stop(ending);
        self.message(
            self.blocks.list.iter().map(content_block).collect(),
            reason,
            sequence,
            usage,
        )
    }

    fn message(&self, content: Vec<Value>, stop_reason: Value, stop_sequence: Value, usage: &Usage) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": usage_json(usage),
        })
    }

    fn stop(&self, ending: Ending) -> (Value, Value) {
        match ending {
            Ending::Stop => (json!("end_turn"), Value::Null),
            Ending::ToolCalls => (json!("tool_use"), Value::Null),
            Ending::Length => (json!("max_tokens"), Value::Null),
            Ending::StopString(index) => (json!("stop_sequence"), json!(self.stop_sequences.get(index))),
        }
    }
}

/// Anthropic's `input_tokens` are those that were not in the cache.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}

fn content_block(block: &Block) -> Value {
    match &block.kind {
        BlockKind::Reasoning => json!({ "type": "thinking", "thinking": block.text, "signature": "" }),
        BlockKind::Text => json!({ "type": "text", "text": block.text }),
        BlockKind::Call { id, name } => {
            // A call that was cut short has no valid arguments; the object that Anthropic's clients expect is then empty.
            let input = serde_json::from_str(&block.text).unwrap_or_else(|_| json!({}));
            json!({ "type": "tool_use", "id": id, "name": name, "input": input })
        }
    }
}
