//! From a request's messages to what the chat template takes.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::openai::message::{Content, Message, Role, ToolCall};

/// Messages as the template takes them: text only, arguments as objects, the system's first messages as one.
pub fn template_messages(messages: &[Message]) -> Result<Vec<Value>, ApiError> {
    let mut leading: Vec<String> = Vec::new();
    let mut rest = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let text = text_of(message, index)?;
        match message.role {
            Role::System | Role::Developer if rest.is_empty() => leading.push(text),
            Role::System | Role::Developer => rest.push(json!({ "role": "system", "content": text })),
            Role::User => rest.push(json!({ "role": "user", "content": text })),
            Role::Tool => rest.push(json!({ "role": "tool", "content": text })),
            Role::Assistant => rest.push(assistant(message, text)),
        }
    }
    if !leading.is_empty() {
        rest.insert(0, json!({ "role": "system", "content": leading.join("\n\n") }));
    }
    Ok(rest)
}

fn text_of(message: &Message, index: usize) -> Result<String, ApiError> {
    let field = || format!("messages[{index}].content");
    match &message.content {
        Some(content) => content.text().map_err(|kind| {
            let position = match &content {
                Content::Parts(parts) => parts
                    .iter()
                    .position(|part| matches!(part, crate::openai::message::Part::Other(_))),
                Content::Text(_) => None,
            };
            let message = format!("this model reads text only, found a part of type {kind:?}");
            ApiError::invalid(format!("{}[{}]", field(), position.unwrap_or(0)), message)
        }),
        None if matches!(message.role, Role::Assistant | Role::Tool) => Ok(String::new()),
        None => Err(ApiError::invalid(
            field(),
            "must be a string or a list of text parts, found nothing",
        )),
    }
}

fn assistant(message: &Message, text: String) -> Value {
    let mut object = Map::new();
    object.insert("role".into(), "assistant".into());
    object.insert("content".into(), text.into());
    if let Some(reasoning) = &message.reasoning_content {
        object.insert("reasoning_content".into(), reasoning.as_str().into());
    }
    if let Some(calls) = message.tool_calls.as_deref().filter(|calls| !calls.is_empty()) {
        object.insert("tool_calls".into(), calls.iter().map(tool_call).collect());
    }
    Value::Object(object)
}

fn tool_call(call: &ToolCall) -> Value {
    json!({
        "type": "function",
        "id": call.id,
        "function": { "name": call.function.name, "arguments": arguments(&call.function.arguments) },
    })
}

/// The template needs an object where the API has JSON text. Text that is none (a truncated call, sent back) stays readable for the
/// model: to refuse it would end the conversation for good.
fn arguments(value: &Value) -> Value {
    match value {
        Value::Object(_) => value.clone(),
        Value::Null => json!({}),
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Object(object)) => Value::Object(object),
            _ => {
                tracing::warn!(text, "arguments of an earlier tool call are not a JSON object");
                json!({ "arguments": text })
            }
        },
        other => json!({ "arguments": other }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(messages: Value) -> Result<Vec<Value>, ApiError> {
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        template_messages(&messages)
    }

    #[test]
    fn developer_is_system_and_leading_ones_are_merged() {
        let found = convert(json!([
            {"role": "system", "content": "a"},
            {"role": "developer", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"},
            {"role": "developer", "content": "d"},
        ]));
        let expected = json!([
            {"role": "system", "content": "a\n\nb"},
            {"role": "user", "content": "c"},
            {"role": "system", "content": "d"},
        ]);
        assert_eq!(Value::from(found.unwrap()), expected);
    }

    #[test]
    fn arguments_become_objects() {
        for (sent, expected) in [
            (json!("{\"a\": 1, \"b\": [true]}"), json!({"a": 1, "b": [true]})),
            (json!({"a": 1}), json!({"a": 1})),
            (json!(""), json!({})),
            (json!(null), json!({})),
            (json!("{\"a\": 1"), json!({"arguments": "{\"a\": 1"})),
            (json!("[1]"), json!({"arguments": "[1]"})),
        ] {
            let message = json!([{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": sent}}]}]);
            let found = convert(message).unwrap();
            assert_eq!(found[0]["tool_calls"][0]["function"]["arguments"], expected);
            assert_eq!(found[0]["content"], "");
        }
    }

    #[test]
    fn images_are_refused_by_name() {
        let found = convert(json!([{"role": "user", "content": [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
        ]}]));
        let expected = ApiError::invalid(
            "messages[0].content[1]",
            "this model reads text only, found a part of type \"image_url\"",
        );
        assert_eq!(found, Err(expected));
    }

    #[test]
    fn content_may_be_missing_only_where_calls_stand_for_it() {
        assert!(convert(json!([{"role": "assistant"}, {"role": "tool", "tool_call_id": "x"}])).is_ok());
        let found = convert(json!([{"role": "user"}]));
        assert!(matches!(found, Err(ApiError::Invalid { param: Some(param), .. }) if param == "messages[0].content"));
    }
}
