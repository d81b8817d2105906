//! System messages in the middle of a conversation, for templates that refuse them.
//!
//! Agents add instructions as they go, and Qwen's templates raise an exception for every system message after the first. To merge them into
//! the first would change the start of the prompt, and with it everything that the prefix cache holds. So each is rendered where it
//! stands: a stand-in takes its place as a user's message, and in the rendered prompt that turn becomes the system's.
//!
//! The stand-in looks like a tool's response, since templates take every other message of the user for a new question, before which they
//! drop the model's thoughts.

use serde_json::{Map, Value};

const TURN: &str = "<|im_start|>";

/// System messages that were taken out of a conversation.
pub(crate) struct LateSystem {
    /// Stand-in and text of each, in order.
    taken: Vec<(String, String)>,
}

impl LateSystem {
    /// Puts a stand-in for each system message after the first of `variables`' messages; `None` where there is none. `guard` is a
    /// character that the messages do not hold.
    pub fn take(variables: &mut Map<String, Value>, guard: char) -> Option<LateSystem> {
        let messages = variables.get_mut("messages")?.as_array_mut()?;
        let mut taken = Vec::new();
        for message in messages.iter_mut().skip(1) {
            if message["role"] != "system" {
                continue;
            }
            let text = text_of(&message["content"])?;
            let stand_in = format!(
                "<tool_response>{guard}{guard}{}{guard}{guard}</tool_response>",
                taken.len()
            );
            message["role"] = "user".into();
            message["content"] = stand_in.as_str().into();
            taken.push((stand_in, text.trim().to_owned()));
        }
        (!taken.is_empty()).then_some(LateSystem { taken })
    }

    /// Puts the messages back into the rendered prompt; `None` where the template made something else of the stand-ins than a turn each.
    pub fn put_back(&self, rendered: &str) -> Option<String> {
        let mut prompt = String::with_capacity(rendered.len());
        let mut rest = rendered;
        for (stand_in, text) in &self.taken {
            let (before, after) = rest.split_once(stand_in.as_str())?;
            prompt.push_str(before.strip_suffix("user\n").filter(|before| before.ends_with(TURN))?);
            prompt.push_str("system\n");
            prompt.push_str(text);
            rest = after;
        }
        prompt.push_str(rest);
        Some(prompt)
    }
}

fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(|part| part["text"].as_str()).collect(),
        _ => None,
    }
}
