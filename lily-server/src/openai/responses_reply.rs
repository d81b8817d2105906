//! Replies of `POST /v1/responses`, whole and as events.

use lily_engine::Usage;
use lily_model::Tokenizer;
use serde_json::{Value, json};

use super::chat_reply::logprob;
use super::responses_request::ResponsesRequest;
use crate::blocks::{Block, BlockEvent, BlockKind, Blocks};
use crate::error::ApiError;
use crate::ids;
use crate::reply::{Ending, ReplyEvent};

/// Writes a reply, whole or event by event.
#[derive(Debug)]
pub struct ResponseWriter<'a> {
    tokenizer: &'a Tokenizer,
    /// The response object, as it is before there is any output.
    head: Value,
    blocks: Blocks,
    /// Ids of the blocks' items.
    ids: Vec<String>,
    /// Log-probabilities of the text since the last piece.
    fresh: Vec<Value>,
    /// Log-probabilities of each block's text.
    logprobs: Vec<Vec<Value>>,
    sequence: u64,
}

type Events = Vec<(&'static str, Value)>;

impl<'a> ResponseWriter<'a> {
    /// For a reply of `model`, at `created` seconds since 1970.
    pub fn new(model: &str, created: u64, request: &ResponsesRequest, tokenizer: &'a Tokenizer) -> Self {
        let head = json!({
            "id": ids::new("resp"),
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata.clone().unwrap_or_else(|| json!({})),
            "model": model,
            "output": [],
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "store": false,
            "temperature": request.sampling.temperature,
            "text": { "format": request.format() },
            "tool_choice": request.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            "tools": request.tools.clone().unwrap_or_default(),
            "top_p": request.sampling.top_p,
            "truncation": "disabled",
            "usage": null,
            "user": request.user,
        });
        Self {
            tokenizer,
            head,
            blocks: Blocks::default(),
            ids: Vec::new(),
            fresh: Vec::new(),
            logprobs: Vec::new(),
            sequence: 0,
        }
    }

    /// The first events of a stream.
    pub fn first(&mut self) -> Events {
        let created = self.event("response.created", json!({ "response": self.head }));
        let running = self.event("response.in_progress", json!({ "response": self.head }));
        vec![created, running]
    }

    /// Takes a piece of the reply; returns the events of a stream that it gives.
    pub fn events(&mut self, event: &ReplyEvent) -> Events {
        if let ReplyEvent::Logprobs(entry) = event {
            self.fresh.push(logprob(entry, self.tokenizer));
            return Vec::new();
        }
        let mut changes = Vec::new();
        self.blocks.push(event, |blocks, change| {
            if let Some(block) = blocks.last() {
                changes.push((blocks.len() - 1, block.clone(), change));
            }
        });
        let mut events: Events = changes
            .into_iter()
            .flat_map(|(index, block, change)| self.block_events(index, &block, change))
            .collect();
        match event {
            ReplyEvent::Finished { reason, usage } => {
                let name = if *reason == Ending::Length {
                    "response.incomplete"
                } else {
                    "response.completed"
                };
                let response = self.whole(*reason, usage);
                events.push(self.event(name, json!({ "response": response })));
            }
            ReplyEvent::Failed(error) => {
                let response = self.failed(error);
                events.push(self.event("response.failed", json!({ "response": response })));
            }
            _ => {}
        }
        events
    }

    fn block_events(&mut self, index: usize, block: &Block, change: BlockEvent) -> Events {
        match change {
            BlockEvent::Open => {
                let prefix = match block.kind {
                    BlockKind::Reasoning => "rs",
                    BlockKind::Text => "msg",
                    BlockKind::Call { .. } => "fc",
                };
                self.ids.push(ids::new(prefix));
                self.logprobs.push(Vec::new());
                let mut item = self.item(index, block, "in_progress");
                if item.get("content").is_some() {
                    item["content"] = json!([]);
                }
                let added = json!({ "output_index": index, "item": item });
                let mut events = vec![self.event("response.output_item.added", added)];
                if let Some(part) = self.part(index, block) {
                    events.push(self.content_event("response.content_part.added", index, json!({ "part": part })));
                }
                events
            }
            BlockEvent::Delta(text) => {
                let delta = json!({ "delta": text });
                vec![match block.kind {
                    BlockKind::Reasoning => self.content_event("response.reasoning_text.delta", index, delta),
                    BlockKind::Text => {
                        let fresh = std::mem::take(&mut self.fresh);
                        let delta = json!({ "delta": text, "logprobs": fresh });
                        self.logprobs[index].extend(fresh);
                        self.content_event("response.output_text.delta", index, delta)
                    }
                    BlockKind::Call { .. } => self.item_event("response.function_call_arguments.delta", index, delta),
                }]
            }
            BlockEvent::Close => self.close_events(index, block),
        }
    }

    fn close_events(&mut self, index: usize, block: &Block) -> Events {
        let mut events = Vec::new();
        match &block.kind {
            BlockKind::Reasoning => {
                let done = json!({ "text": block.text });
                events.push(self.content_event("response.reasoning_text.done", index, done));
            }
            BlockKind::Text => {
                let fresh = std::mem::take(&mut self.fresh);
                self.logprobs[index].extend(fresh);
                let done = json!({ "text": block.text, "logprobs": self.logprobs[index] });
                events.push(self.content_event("response.output_text.done", index, done));
            }
            BlockKind::Call { name, .. } => {
                let done = json!({ "name": name, "arguments": block.text });
                events.push(self.item_event("response.function_call_arguments.done", index, done));
            }
        }
        if let Some(part) = self.part(index, block) {
            events.push(self.content_event("response.content_part.done", index, json!({ "part": part })));
        }
        let item = self.item(index, block, "completed");
        events.push(self.event(
            "response.output_item.done",
            json!({ "output_index": index, "item": item }),
        ));
        events
    }

    /// The whole reply, after all of its pieces went through [`ResponseWriter::events`].
    pub fn whole(&self, ending: Ending, usage: &Usage) -> Value {
        let mut response = self.head.clone();
        let cut = ending == Ending::Length;
        response["status"] = if cut { "incomplete" } else { "completed" }.into();
        if cut {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let last = self.blocks.list.len().saturating_sub(1);
        let items = self.blocks.list.iter().enumerate().map(|(index, block)| {
            self.item(
                index,
                block,
                if cut && index == last {
                    "incomplete"
                } else {
                    "completed"
                },
            )
        });
        response["output"] = items.collect();
        response["usage"] = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": { "cached_tokens": usage.cached_tokens },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        });
        response
    }

    fn failed(&self, error: &ApiError) -> Value {
        let mut response = self.head.clone();
        response["status"] = "failed".into();
        response["error"] = json!({ "code": "server_error", "message": error.to_string() });
        response
    }

    fn item(&self, index: usize, block: &Block, status: &str) -> Value {
        let id = self.ids.get(index);
        match &block.kind {
            BlockKind::Reasoning => {
                let content = json!([{ "type": "reasoning_text", "text": block.text }]);
                json!({ "id": id, "type": "reasoning", "summary": [], "content": content, "status": status })
            }
            BlockKind::Text => {
                let content: Vec<Value> = self.part(index, block).into_iter().collect();
                json!({ "id": id, "type": "message", "role": "assistant", "status": status, "content": content })
            }
            BlockKind::Call { id: call_id, name } => json!({
                "id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": block.text, "status": status,
            }),
        }
    }

    /// The one part of an item's content; calls have none.
    fn part(&self, index: usize, block: &Block) -> Option<Value> {
        match block.kind {
            BlockKind::Reasoning => Some(json!({ "type": "reasoning_text", "text": block.text })),
            BlockKind::Text => {
                let logprobs = self.logprobs.get(index).cloned().unwrap_or_default();
                Some(json!({ "type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs }))
            }
            BlockKind::Call { .. } => None,
        }
    }

    fn content_event(&mut self, name: &'static str, index: usize, mut data: Value) -> (&'static str, Value) {
        data["content_index"] = 0.into();
        self.item_event(name, index, data)
    }

    fn item_event(&mut self, name: &'static str, index: usize, mut data: Value) -> (&'static str, Value) {
        data["output_index"] = index.into();
        data["item_id"] = self.ids.get(index).map_or(Value::Null, |id| id.as_str().into());
        self.event(name, data)
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> (&'static str, Value) {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        (name, data)
    }
}
