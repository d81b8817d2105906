//! The body of `POST /v1/messages`, and what it means in the terms that all APIs share.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::{Value, json};

use crate::body::parse_json;
use crate::error::ApiError;
use crate::job::{ChatJob, Thinking};
use crate::openai::message::{CalledFunction, Content, Message, Role, ToolCall};
use crate::openai::sampling::{SamplingFields, StopStrings};
use crate::prompt::template_messages;
use crate::text_or_list::{TextOrList, text_or_list};
use crate::tools::definition::{Tool, ToolChoice};

/// A messages request.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct MessagesRequest {
    /// The model's name; the served one where absent.
    #[serde(default)]
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<Turn>,
    /// Instructions.
    #[serde(default)]
    system: Option<Blocks>,
    /// Most tokens of the reply. Anthropic requires it; counting tokens does not.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    #[serde(default)]
    temperature: Option<f32>,
    #[serde(default)]
    top_p: Option<f32>,
    #[serde(default)]
    top_k: Option<i64>,
    /// Strings that end the reply.
    #[serde(default)]
    pub stop_sequences: Option<Vec<String>>,
    /// Whether the reply comes as server-sent events.
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    tool_choice: Option<Choice>,
    #[serde(default)]
    thinking: Option<ThinkingChoice>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

/// One turn of the conversation.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Turn {
    role: TurnRole,
    content: Blocks,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum TurnRole {
    User,
    Assistant,
    System,
}

/// Content: a string, which stands for one block of text, or blocks.
#[derive(Clone, Debug, Default, PartialEq)]
struct Blocks(Vec<Block>);

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
struct Block {
    r#type: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    input: Option<Value>,
    #[serde(default)]
    tool_use_id: Option<String>,
    #[serde(default)]
    content: Option<Blocks>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Choice {
    r#type: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct ThinkingChoice {
    r#type: String,
    #[serde(default)]
    budget_tokens: Option<u64>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Metadata {
    #[serde(default)]
    user_id: Option<String>,
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Blocks(
            match text_or_list(deserializer, "a string or a list of content blocks")? {
                TextOrList::Text(text) => vec![Block {
                    r#type: "text".into(),
                    text: Some(text),
                    ..Block::default()
                }],
                TextOrList::List(blocks) => blocks,
            },
        ))
    }
}

impl Blocks {
    /// The text of all blocks, which must be text.
    fn text(&self, field: &str) -> Result<String, ApiError> {
        self.0
            .iter()
            .enumerate()
            .map(|(index, block)| block.text(&format!("{field}[{index}]")))
            .collect()
    }
}

impl Block {
    fn text(&self, field: &str) -> Result<&str, ApiError> {
        match (self.r#type.as_str(), &self.text) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => Err(ApiError::invalid(
                format!("{field}.text"),
                "must be a string, found nothing",
            )),
            (kind, _) => Err(ApiError::invalid(
                field,
                format!("this model reads text only, found a block of type {kind:?}"),
            )),
        }
    }
}

impl MessagesRequest {
    /// Reads and checks a body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let request: Self = parse_json(bytes)?;
        if request.messages.is_empty() {
            return Err(ApiError::invalid("messages", "must hold at least one message"));
        }
        if request.max_tokens == Some(0) {
            return Err(ApiError::invalid("max_tokens", "must be at least 1, found 0"));
        }
        Ok(request)
    }

    /// The request in the terms that all APIs share.
    pub fn job(&self) -> Result<ChatJob, ApiError> {
        let tools: Arc<[Tool]> = Tool::parse_all(&self.definitions()?, "tools")?.into();
        let sampling = SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            stop: self.stop_sequences.clone().map(StopStrings),
            ..SamplingFields::default()
        };
        sampling.validate()?;
        Ok(ChatJob {
            messages: template_messages(&self.conversation()?)?,
            tool_choice: self.choice(&tools)?,
            parallel_tool_calls: self
                .tool_choice
                .as_ref()
                .is_none_or(|choice| choice.disable_parallel_tool_use != Some(true)),
            tools,
            thinking: self.thinking()?,
            sampling,
            max_tokens: self.max_tokens,
            client: self.metadata.as_ref().and_then(|metadata| metadata.user_id.clone()),
            ..ChatJob::default()
        })
    }

    /// Thoughts come only where they are asked for, as with Anthropic's models.
    fn thinking(&self) -> Result<Thinking, ApiError> {
        let (enabled, budget) = match &self.thinking {
            None => (false, None),
            Some(choice) => match choice.r#type.as_str() {
                "enabled" => (true, choice.budget_tokens),
                "adaptive" => (true, None),
                "disabled" => (false, None),
                other => {
                    let message = format!("must be enabled, adaptive or disabled, found {other:?}");
                    return Err(ApiError::invalid("thinking.type", message));
                }
            },
        };
        let budget = budget.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
        Ok(Thinking {
            enabled: Some(enabled),
            budget,
            ..Thinking::default()
        })
    }

    /// Tools in OpenAI's form, which the template knows. Tools that Anthropic's own servers run are none that a client could be asked to run.
    fn definitions(&self) -> Result<Vec<Value>, ApiError> {
        let mut definitions = Vec::new();
        for (index, tool) in self.tools.iter().flatten().enumerate() {
            match tool["type"].as_str() {
                None | Some("custom") => {}
                Some(kind) => {
                    tracing::warn!(kind, "a tool that only Anthropic's servers have is left out");
                    continue;
                }
            }
            let schema = &tool["input_schema"];
            if !schema.is_object() {
                return Err(ApiError::invalid(
                    format!("tools[{index}].input_schema"),
                    "must be a JSON schema, an object",
                ));
            }
            let mut function = json!({ "name": tool["name"] });
            if let Some(description) = tool.get("description") {
                function["description"] = description.clone();
            }
            function["parameters"] = schema.clone();
            definitions.push(json!({ "type": "function", "function": function }));
        }
        Ok(definitions)
    }

    fn choice(&self, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
        let Some(choice) = &self.tool_choice else {
            return Ok(ToolChoice::Auto);
        };
        let value = match (choice.r#type.as_str(), &choice.name) {
            ("auto" | "any" | "none", _) => json!(choice.r#type),
            ("tool", Some(name)) => json!({ "name": name }),
            ("tool", None) => return Err(ApiError::invalid("tool_choice.name", "must name a tool, found nothing")),
            (other, _) => {
                let message = format!("must be auto, any, tool or none, found {other:?}");
                return Err(ApiError::invalid("tool_choice.type", message));
            }
        };
        ToolChoice::parse(Some(&value), tools)
    }

    fn conversation(&self) -> Result<Vec<Message>, ApiError> {
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            messages.push(message(Role::System, system.text("system")?));
        }
        for (index, turn) in self.messages.iter().enumerate() {
            let field = format!("messages[{index}].content");
            match turn.role {
                TurnRole::System => messages.push(message(Role::System, turn.content.text(&field)?)),
                TurnRole::User => user(&turn.content, &field, &mut messages)?,
                TurnRole::Assistant => messages.push(assistant(&turn.content, &field)?),
            }
        }
        Ok(messages)
    }
}

fn message(role: Role, text: String) -> Message {
    Message {
        role,
        content: Some(Content::Text(text)),
        reasoning_content: None,
        tool_calls: None,
        tool_call_id: None,
    }
}

/// A user's turn may hold results of tools, which are messages of their own here, in the same order.
fn user(content: &Blocks, field: &str, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let mut text = None;
    for (index, block) in content.0.iter().enumerate() {
        let field = format!("{field}[{index}]");
        if block.r#type == "tool_result" {
            messages.extend(text.take().map(|text| message(Role::User, text)));
            let result = block
                .content
                .clone()
                .unwrap_or_default()
                .text(&format!("{field}.content"))?;
            messages.push(Message {
                tool_call_id: block.tool_use_id.clone(),
                ..message(Role::Tool, result)
            });
        } else {
            text.get_or_insert_with(String::new).push_str(block.text(&field)?);
        }
    }
    messages.extend(text.map(|text| message(Role::User, text)));
    Ok(())
}

fn assistant(content: &Blocks, field: &str) -> Result<Message, ApiError> {
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in content.0.iter().enumerate() {
        let field = format!("{field}[{index}]");
        match block.r#type.as_str() {
            "thinking" => thoughts.push_str(block.thinking.as_deref().unwrap_or_default()),
            "redacted_thinking" => {}
            "tool_use" => {
                let Some(name) = block.name.clone() else {
                    return Err(ApiError::invalid(
                        format!("{field}.name"),
                        "must be a string, found nothing",
                    ));
                };
                let arguments = block.input.clone().unwrap_or_default();
                calls.push(ToolCall {
                    id: block.id.clone(),
                    function: CalledFunction { name, arguments },
                });
            }
            _ => text.push_str(block.text(&field)?),
        }
    }
    Ok(Message {
        reasoning_content: (!thoughts.is_empty()).then_some(thoughts),
        tool_calls: (!calls.is_empty()).then_some(calls),
        ..message(Role::Assistant, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(body: Value) -> Result<ChatJob, ApiError> {
        MessagesRequest::parse(body.to_string().as_bytes())?.job()
    }

    fn param(body: Value) -> String {
        match job(body.clone()) {
            Err(ApiError::Invalid { param, message, .. }) => param.unwrap_or(message),
            other => panic!("{body}: expected a 400, found {other:?}"),
        }
    }

    #[test]
    fn blocks_become_messages() {
        let job = job(json!({
            "max_tokens": 5,
            "system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": " brief"}],
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "look"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
                    {"type": "text", "text": "so?"},
                ]},
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web"}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }))
        .unwrap();
        let expected = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "look", "reasoning_content": "hm", "tool_calls": [
                {"type": "function", "id": "t1", "function": {"name": "f", "arguments": {"a": 1}}},
            ]},
            {"role": "tool", "content": "42"},
            {"role": "user", "content": "so?"},
        ]);
        assert_eq!(Value::from(job.messages), expected);
        assert_eq!(job.tools.len(), 1);
        assert_eq!(job.tools[0].definition["function"]["description"], "d");
        assert_eq!(job.tool_choice, ToolChoice::Named("f".into()));
        assert!(!job.parallel_tool_calls);
        assert_eq!((job.thinking.enabled, job.thinking.budget), (Some(true), Some(1024)));
    }

    #[test]
    fn faults_name_the_field() {
        let with = |field: &str, value: Value| {
            let mut body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]});
            body[field] = value;
            body
        };
        let image =
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {}}]}]);
        let call = json!([{"role": "assistant", "content": [{"type": "tool_use"}]}]);
        for (body, expected) in [
            (with("messages", json!([])), "messages"),
            (with("messages", image), "messages[0].content[1]"),
            (with("messages", call), "messages[0].content[0].name"),
            (
                with("messages", json!([{"role": "robot", "content": ""}])),
                "messages[0].role",
            ),
            (
                with("messages", json!([{"role": "user", "content": 5}])),
                "messages[0].content",
            ),
            (with("max_tokens", json!(0)), "max_tokens"),
            (with("temperature", json!(-1)), "temperature"),
            (with("tools", json!([{"name": "f"}])), "tools[0].input_schema"),
            (with("tool_choice", json!({"type": "some"})), "tool_choice.type"),
            (with("tool_choice", json!({"type": "tool"})), "tool_choice.name"),
            (with("thinking", json!({"type": "maybe"})), "thinking.type"),
        ] {
            assert_eq!(param(body), expected);
        }
    }
}
