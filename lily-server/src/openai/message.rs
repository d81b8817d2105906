//! Messages of a conversation, as OpenAI's chat completions take them.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::text_or_list::{TextOrList, text_or_list};

/// Who a message is from.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of whoever runs the application.
    System,
    /// OpenAI's newer name for system.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// One message.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Message {
    /// Who it is from.
    pub role: Role,
    /// What it says.
    #[serde(default)]
    pub content: Option<Content>,
    /// The model's thoughts before it answered (assistant).
    #[serde(default, alias = "reasoning")]
    pub reasoning_content: Option<String>,
    /// Calls that the model made (assistant).
    #[serde(default)]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call that this is the result of (tool).
    #[serde(default)]
    pub tool_call_id: Option<String>,
}

/// A call that the model made in an earlier turn.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct ToolCall {
    /// Ties the call to its result.
    #[serde(default)]
    pub id: Option<String>,
    /// What was called.
    pub function: CalledFunction,
}

/// Name and arguments of a call.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct CalledFunction {
    /// Name of the function.
    pub name: String,
    /// A JSON object as text, as the API has it; clients that send the object itself are understood.
    #[serde(default)]
    pub arguments: Value,
}

/// What a message says: a string, or a list of parts.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts, in order.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// Something that is no text (`image_url`, `input_audio`, `file`, ...), by the name of its type.
    Other(String),
}

impl Content {
    /// The text of all parts together, or the type of the first part that is no text.
    pub fn text(&self) -> Result<String, &str> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Parts(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => Ok(text.as_str()),
                    Part::Other(kind) => Err(kind.as_str()),
                })
                .collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(
            match text_or_list(deserializer, "a string or a list of content parts")? {
                TextOrList::Text(text) => Content::Text(text),
                TextOrList::List(parts) => Content::Parts(parts),
            },
        )
    }
}

/// Types of parts that are text, in chat completions and in responses.
const TEXT_TYPES: [&str; 6] = [
    "text",
    "input_text",
    "output_text",
    "refusal",
    "reasoning_text",
    "summary_text",
];

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PartVisitor;

        impl<'de> Visitor<'de> for PartVisitor {
            type Value = Part;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a content part: an object with a type")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Part, A::Error> {
                let mut kind: Option<String> = None;
                let mut text: Option<String> = None;
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "type" => kind = Some(map.next_value()?),
                        "text" | "refusal" => text = Some(map.next_value()?),
                        _ => {
                            map.next_value::<de::IgnoredAny>()?;
                        }
                    }
                }
                match (kind, text) {
                    (None, Some(text)) => Ok(Part::Text(text)),
                    (Some(kind), Some(text)) if TEXT_TYPES.contains(&kind.as_str()) => Ok(Part::Text(text)),
                    (Some(kind), None) if TEXT_TYPES.contains(&kind.as_str()) => Err(de::Error::missing_field("text")),
                    (Some(kind), _) => Ok(Part::Other(kind)),
                    (None, None) => Err(de::Error::missing_field("type")),
                }
            }
        }

        deserializer.deserialize_map(PartVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse_json;
    use crate::error::ApiError;

    fn message(json: &str) -> Result<Message, ApiError> {
        parse_json(json.as_bytes())
    }

    fn param(json: &str) -> String {
        match message(json) {
            Err(ApiError::Invalid { message, param, .. }) => format!("{}: {message}", param.unwrap_or_default()),
            other => panic!("expected a 400, found {other:?}"),
        }
    }

    #[test]
    fn content_is_a_string_or_parts() {
        let plain = message(r#"{"role": "user", "content": "a"}"#).unwrap();
        assert_eq!(plain.content.unwrap().text(), Ok("a".into()));
        let parts =
            r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b", "type": "text", "x": {}}]}"#;
        assert_eq!(message(parts).unwrap().content.unwrap().text(), Ok("ab".into()));
        let image = r#"{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}"#;
        assert_eq!(message(image).unwrap().content.unwrap().text(), Err("image_url"));
    }

    #[test]
    fn null_and_absent_content_are_the_same() {
        assert_eq!(
            message(r#"{"role": "assistant", "content": null}"#),
            message(r#"{"role": "assistant"}"#)
        );
    }

    #[test]
    fn errors_name_the_field() {
        assert_eq!(
            param(r#"{"role": "robot"}"#),
            "role: unknown variant `robot`, expected one of `system`, `developer`, `user`, `assistant`, `tool`"
        );
        assert!(param(r#"{"role": "user", "content": 5}"#).starts_with("content: invalid type: integer `5`"));
        assert!(
            param(r#"{"role": "user", "content": [{"type": "text"}]}"#).starts_with("content[0]: missing field `text`")
        );
        assert!(param(r#"{"role": "user", "content": [{"type": "text", "text": 1}]}"#).starts_with("content[0]."));
        assert!(param(r#"{"role": "user", "content": ["a"]}"#).starts_with("content[0]: invalid type: string"));
        assert!(param(r#"{"content": "a"}"#).contains("missing field `role`"));
    }
}
