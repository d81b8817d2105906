//! The body of `POST /v1/responses`, and what it means in the terms that all APIs share.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::{Value, json};

use super::chat_request::{Effort, MAX_TOP_LOGPROBS};
use super::message::{CalledFunction, Content, Message, Role, ToolCall};
use super::sampling::SamplingFields;
use crate::body::parse_json;
use crate::error::ApiError;
use crate::grammar::format::OutputFormat;
use crate::job::{ChatJob, Thinking};
use crate::prompt::template_messages;
use crate::text_or_list::{TextOrList, text_or_list};
use crate::tools::definition::{Tool, ToolChoice};

/// A responses request.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct ResponsesRequest {
    /// The model's name; the served one where absent.
    #[serde(default)]
    pub model: Option<String>,
    /// The conversation.
    #[serde(default)]
    input: Input,
    /// Instructions that come before it.
    #[serde(default)]
    pub instructions: Option<String>,
    /// Most tokens of the reply.
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    /// Whether the reply comes as server-sent events.
    #[serde(default)]
    pub stream: Option<bool>,
    /// Functions that the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    /// Whether it may or must.
    #[serde(default)]
    pub tool_choice: Option<Value>,
    /// Whether it may make several calls.
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    #[serde(default)]
    reasoning: Option<Reasoning>,
    #[serde(default)]
    text: Option<TextOptions>,
    /// Alternatives to tell for each token.
    #[serde(default)]
    top_logprobs: Option<u32>,
    /// What the reply holds besides.
    #[serde(default)]
    include: Option<Vec<String>>,
    #[serde(default)]
    previous_response_id: Option<String>,
    #[serde(default)]
    background: Option<bool>,
    /// Passed back.
    #[serde(default)]
    pub metadata: Option<Value>,
    /// Name of the conversation, for the prefix cache.
    #[serde(default)]
    prompt_cache_key: Option<String>,
    /// Name of whoever asks.
    #[serde(default)]
    pub user: Option<String>,
    /// How tokens are chosen.
    #[serde(skip)]
    pub sampling: SamplingFields,
}

/// Absent input is none, which is refused later with a message of its own.
#[derive(Clone, Debug, Default, PartialEq)]
struct Input(Vec<Item>);

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
struct Item {
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    role: Option<Role>,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    summary: Option<Content>,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<Value>,
    #[serde(default)]
    output: Option<Content>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct Reasoning {
    #[serde(default)]
    effort: Option<Effort>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct TextOptions {
    #[serde(default)]
    format: Option<Value>,
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Input(
            match text_or_list(deserializer, "a string or a list of items")? {
                TextOrList::Text(text) => vec![Item {
                    role: Some(Role::User),
                    content: Some(Content::Text(text)),
                    ..Item::default()
                }],
                TextOrList::List(items) => items,
            },
        ))
    }
}

impl ResponsesRequest {
    /// Reads and checks a body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut request: Self = parse_json(bytes)?;
        request.sampling = parse_json(bytes)?;
        request.sampling.validate()?;
        request.sampling.n = None;
        if request.input.0.is_empty() {
            return Err(ApiError::invalid(
                "input",
                "must be a string or a list with at least one item",
            ));
        }
        if request.max_output_tokens == Some(0) {
            return Err(ApiError::invalid("max_output_tokens", "must be at least 1, found 0"));
        }
        if let Some(top) = request.top_logprobs
            && top > MAX_TOP_LOGPROBS
        {
            return Err(ApiError::invalid(
                "top_logprobs",
                format!("must be between 0 and {MAX_TOP_LOGPROBS}, found {top}"),
            ));
        }
        if request.previous_response_id.is_some() {
            let message = "responses are not stored: send the whole conversation as input";
            return Err(ApiError::invalid("previous_response_id", message));
        }
        if request.background == Some(true) {
            return Err(ApiError::invalid("background", "is not supported"));
        }
        Ok(request)
    }

    /// Whether log-probabilities of the text are asked for.
    pub fn wants_logprobs(&self) -> bool {
        let included = |list: &Vec<String>| list.iter().any(|name| name == "message.output_text.logprobs");
        self.top_logprobs.is_some_and(|top| top > 0) || self.include.as_ref().is_some_and(included)
    }

    /// `text.format` as it was sent.
    pub fn format(&self) -> Value {
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        format.unwrap_or_else(|| json!({ "type": "text" }))
    }

    /// The request in the terms that all APIs share.
    pub fn job(&self) -> Result<ChatJob, ApiError> {
        let tools: Arc<[Tool]> = Tool::parse_all(&self.definitions(), "tools")?.into();
        let effort = self
            .reasoning
            .as_ref()
            .and_then(|reasoning| reasoning.effort)
            .map(Effort::meaning);
        Ok(ChatJob {
            messages: template_messages(&self.conversation()?)?,
            tool_choice: ToolChoice::parse(self.tool_choice.as_ref(), &tools)?,
            parallel_tool_calls: self.parallel_tool_calls != Some(false),
            tools,
            format: OutputFormat::parse(self.text.as_ref().and_then(|text| text.format.as_ref()), "text.format")?,
            thinking: Thinking {
                enabled: effort.map(|(enabled, _)| enabled),
                budget: effort.and_then(|(_, budget)| budget),
                ..Thinking::default()
            },
            sampling: self.sampling.clone(),
            max_tokens: self.max_output_tokens,
            logprobs: self.wants_logprobs().then(|| self.top_logprobs.unwrap_or(0) as usize),
            cache_key: self.prompt_cache_key.clone(),
            client: self.user.clone(),
        })
    }

    /// Tools in chat completions' form, which the template knows. Tools that only OpenAI's own servers have are left out: agents send them
    /// along and do without.
    fn definitions(&self) -> Vec<Value> {
        let mut definitions = Vec::new();
        for tool in self.tools.iter().flatten() {
            if tool["type"] != "function" {
                tracing::warn!(kind = %tool["type"], "a tool that only OpenAI's servers have is left out");
                continue;
            }
            let mut function = tool.clone();
            if let Some(object) = function.as_object_mut() {
                object.shift_remove("type");
            }
            definitions.push(json!({ "type": "function", "function": function }));
        }
        definitions
    }

    /// Items that the model made in one turn (thoughts, text, calls) become one message.
    fn conversation(&self) -> Result<Vec<Message>, ApiError> {
        let mut messages = Vec::new();
        if let Some(instructions) = &self.instructions {
            messages.push(message(Role::System, instructions.clone()));
        }
        let mut turn: Option<Message> = None;
        for (index, item) in self.input.0.iter().enumerate() {
            let field = format!("input[{index}]");
            let kind = item.r#type.as_deref().unwrap_or("message");
            let own = match kind {
                "message" => item.role == Some(Role::Assistant),
                "reasoning" | "function_call" => true,
                _ => false,
            };
            if !own {
                messages.extend(turn.take());
            }
            match kind {
                "message" if own => {
                    let assistant = turn.get_or_insert_with(|| message(Role::Assistant, String::new()));
                    append(
                        &mut assistant.content,
                        &item.text(&item.content, &format!("{field}.content"))?,
                    );
                }
                "message" => {
                    let Some(role) = item.role else {
                        return Err(ApiError::invalid(
                            format!("{field}.role"),
                            "must be a role, found nothing",
                        ));
                    };
                    messages.push(message(role, item.text(&item.content, &format!("{field}.content"))?));
                }
                "reasoning" => {
                    let part = if item.content.is_some() {
                        &item.content
                    } else {
                        &item.summary
                    };
                    let thoughts = part
                        .as_ref()
                        .and_then(|content| content.text().ok())
                        .unwrap_or_default();
                    let assistant = turn.get_or_insert_with(|| message(Role::Assistant, String::new()));
                    assistant
                        .reasoning_content
                        .get_or_insert_with(String::new)
                        .push_str(&thoughts);
                }
                "function_call" => {
                    let Some(name) = item.name.clone() else {
                        return Err(ApiError::invalid(
                            format!("{field}.name"),
                            "must be a string, found nothing",
                        ));
                    };
                    let arguments = item.arguments.clone().unwrap_or_default();
                    let call = ToolCall {
                        id: item.call_id.clone(),
                        function: CalledFunction { name, arguments },
                    };
                    let assistant = turn.get_or_insert_with(|| message(Role::Assistant, String::new()));
                    assistant.tool_calls.get_or_insert_with(Vec::new).push(call);
                }
                "function_call_output" => {
                    let output = item.text(&item.output, &format!("{field}.output"))?;
                    messages.push(Message {
                        tool_call_id: item.call_id.clone(),
                        ..message(Role::Tool, output)
                    });
                }
                other => {
                    let message = format!("items of type {other:?} are not supported");
                    return Err(ApiError::invalid(format!("{field}.type"), message));
                }
            }
        }
        messages.extend(turn);
        Ok(messages)
    }
}

impl Item {
    fn text(&self, content: &Option<Content>, field: &str) -> Result<String, ApiError> {
        match content {
            Some(content) => content.text().map_err(|kind| {
                ApiError::invalid(
                    field,
                    format!("this model reads text only, found a part of type {kind:?}"),
                )
            }),
            None => Err(ApiError::invalid(
                field,
                "must be a string or a list of parts, found nothing",
            )),
        }
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

fn append(content: &mut Option<Content>, text: &str) {
    match content {
        Some(Content::Text(all)) => all.push_str(text),
        other => *other = Some(Content::Text(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(body: Value) -> Result<ChatJob, ApiError> {
        ResponsesRequest::parse(body.to_string().as_bytes())?.job()
    }

    #[test]
    fn items_become_messages() {
        let job = job(json!({
            "instructions": "be brief",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "look"}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
                {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "42"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "43"}]},
                {"role": "developer", "content": "go on"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}, {"type": "web_search"}],
            "tool_choice": {"type": "function", "name": "f"},
            "reasoning": {"effort": "low", "summary": "auto"},
        }))
        .unwrap();
        let call = |id: &str, arguments: Value| json!({"type": "function", "id": id, "function": {"name": "f", "arguments": arguments}});
        let expected = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "look", "reasoning_content": "hm",
             "tool_calls": [call("c1", json!({"a": 1})), call("c2", json!({}))]},
            {"role": "tool", "content": "42"},
            {"role": "tool", "content": "43"},
            {"role": "system", "content": "go on"},
        ]);
        assert_eq!(Value::from(job.messages), expected);
        assert_eq!(
            job.tools[0].definition,
            json!({"type": "function", "function": {
                "name": "f", "parameters": {"type": "object"}, "strict": true,
            }})
        );
        assert_eq!((job.thinking.enabled, job.thinking.budget), (Some(true), Some(2048)));
    }

    #[test]
    fn faults_name_the_field() {
        for (body, expected) in [
            (json!({}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": 5}), "input"),
            (json!({"input": [{"content": "a"}]}), "input[0].role"),
            (json!({"input": [{"role": "user"}]}), "input[0].content"),
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
                "input[0].content",
            ),
            (
                json!({"input": [{"type": "item_reference", "id": "x"}]}),
                "input[0].type",
            ),
            (json!({"input": [{"type": "function_call"}]}), "input[0].name"),
            (
                json!({"input": "a", "previous_response_id": "x"}),
                "previous_response_id",
            ),
            (json!({"input": "a", "background": true}), "background"),
            (json!({"input": "a", "max_output_tokens": 0}), "max_output_tokens"),
            (
                json!({"input": "a", "text": {"format": {"type": "xml"}}}),
                "text.format.type",
            ),
            (
                json!({"input": "a", "reasoning": {"effort": "huge"}}),
                "reasoning.effort",
            ),
        ] {
            let found = job(body.clone());
            assert!(
                matches!(&found, Err(ApiError::Invalid { param: Some(param), .. }) if param == expected),
                "{body}: {found:?}"
            );
        }
    }
}
