//! The checkpoint's chat template: messages to prompt text.

use serde_json::{Map, Value};

use crate::error::Result;

/// What a prompt is made of.
#[derive(Clone, Debug, Default)]
pub struct ChatInput<'a> {
    /// Messages in OpenAI's form, oldest first; `tool_calls[].function.arguments` are objects, not strings.
    pub messages: &'a [Value],
    /// Tools in OpenAI's form; empty for none.
    pub tools: &'a [Value],
    /// Whether to open the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Whether the model thinks; the template's default where `None`.
    pub enable_thinking: Option<bool>,
    /// Whether the thoughts of earlier turns stay; the template's default where `None`.
    pub preserve_thinking: Option<bool>,
    /// Further variables for the template; those above win.
    pub extra: Map<String, Value>,
}

/// A rendered prompt, in which the template's markup can be told from what the messages say.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    pub(crate) guarded: String,
    pub(crate) guard: char,
}

impl ChatPrompt {
    /// The prompt as text.
    pub fn text(&self) -> String {
        self.guarded.replace(self.guard, "")
    }

    /// Whether the prompt ends inside a think block, so that the model's answer starts with thoughts.
    pub fn ends_in_thinking(&self) -> bool {
        todo!()
    }
}

/// A chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {}

impl ChatTemplate {
    /// Renders a prompt. Control tokens that a message's text spells out are marked, so that `Tokenizer::encode_prompt` reads them as text.
    ///
    /// # Errors
    /// [`crate::Error::TemplateRefused`] where the template raises an exception: the messages are at fault.
    /// [`crate::Error::Template`] where the template fails otherwise.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<ChatPrompt> {
        let _ = input;
        todo!()
    }
}
