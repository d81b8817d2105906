//! Keeps what a message says from being read as control tokens.
//!
//! A chat template pastes messages between its own markup, and afterwards `<|im_end|>` from the template and `<|im_end|>` from a
//! user's message look the same. So, before rendering, a character that stands nowhere in the input (a Unicode noncharacter, meant
//! for such internal use) is put inside every control token that the input spells out. Markup is then found as it is, while guarded
//! text is not found; the guard is taken out again before that text is encoded. A text that ends in the beginning of a control token
//! is guarded there as well, since the template, or the next part of the message, may write the rest.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// What the rules below need to know of a tokenizer: its added tokens, and which of them are the model's own protocol.
#[derive(Debug)]
pub(crate) struct Guards {
    tokens: Vec<Token>,
    matcher: AhoCorasick,
}

#[derive(Debug)]
struct Token {
    content: String,
    /// `<think>`, `<tool_call>` and so on: not `special`, so people see them, and templates look for them in messages.
    protocol: bool,
}

/// Which control tokens keep their meaning in a text.
#[derive(Clone, Copy, PartialEq)]
enum Exempt {
    None,
    /// An assistant's text may be the model's own output, with its thoughts and tool calls as it wrote them.
    Protocol,
    /// A user's message that is a tool's response as a whole, which templates tell by its tags.
    ToolResponse,
}

impl Guards {
    /// Guards for the added tokens given as content and whether they are `special`.
    pub fn new<'a>(added: impl Iterator<Item = (&'a str, bool)>) -> Result<Guards> {
        let tokens: Vec<Token> = added
            .map(|(content, special)| Token {
                content: content.into(),
                protocol: !special,
            })
            .collect();
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.content))
            .map_err(|error| Error::Tokenize(error.to_string()))?;
        Ok(Guards { tokens, matcher })
    }

    /// A noncharacter that stands nowhere in the template or its input.
    pub fn choose(template: &str, values: &[&Value]) -> Result<char> {
        ('\u{fdd0}'..='\u{fdef}')
            .find(|guard| !template.contains(*guard) && !values.iter().any(|value| contains(value, *guard)))
            .ok_or_else(|| Error::TemplateRefused("the messages use every Unicode noncharacter".into()))
    }

    /// A copy of `message` with its control tokens guarded.
    pub fn message(&self, message: &Value, guard: char) -> Value {
        let Value::Object(fields) = message else {
            return self.value(message, guard, Exempt::None);
        };
        let role = fields.get("role").and_then(Value::as_str).unwrap_or("");
        fields
            .iter()
            .map(|(name, value)| {
                let exempt = match (role, name.as_str()) {
                    ("assistant", "content") => Exempt::Protocol,
                    ("user", "content") if is_tool_response(value) => Exempt::ToolResponse,
                    _ => Exempt::None,
                };
                (self.text(name, guard, Exempt::None), self.value(value, guard, exempt))
            })
            .collect::<Map<String, Value>>()
            .into()
    }

    /// A copy of any other input with its control tokens guarded.
    pub fn input(&self, value: &Value, guard: char) -> Value {
        self.value(value, guard, Exempt::None)
    }

    fn value(&self, value: &Value, guard: char, exempt: Exempt) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text, guard, exempt)),
            Value::Array(items) => items.iter().map(|item| self.value(item, guard, exempt)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(name, field)| (self.text(name, guard, Exempt::None), self.value(field, guard, exempt)))
                .collect::<Map<String, Value>>()
                .into(),
            plain => plain.clone(),
        }
    }

    fn text(&self, text: &str, guard: char, exempt: Exempt) -> String {
        let mut guarded = String::with_capacity(text.len());
        let mut copied = 0;
        let mut guard_after_first_of = |start: usize| {
            let inside = start + text[start..].chars().next().map_or(0, char::len_utf8);
            guarded.push_str(&text[copied..inside]);
            guarded.push(guard);
            copied = inside;
        };
        let mut last_end = 0;
        for found in self.matcher.find_iter(text) {
            last_end = found.end();
            if !self.is_exempt(found.pattern().as_usize(), exempt) {
                guard_after_first_of(found.start());
            }
        }
        if let Some(start) = self.unfinished_token(text, last_end) {
            guard_after_first_of(start);
        }
        guarded.push_str(&text[copied..]);
        guarded
    }

    /// Where a control token begins that `text` ends in the middle of, after `from`.
    fn unfinished_token(&self, text: &str, from: usize) -> Option<usize> {
        let longest = self.tokens.iter().map(|token| token.content.len()).max()?;
        let earliest = from.max((text.len() + 1).saturating_sub(longest));
        (earliest..text.len())
            .filter(|start| text.is_char_boundary(*start))
            .find(|start| {
                self.tokens
                    .iter()
                    .any(|token| token.content.len() > text.len() - start && token.content.starts_with(&text[*start..]))
            })
    }

    fn is_exempt(&self, token: usize, exempt: Exempt) -> bool {
        let token = &self.tokens[token];
        match exempt {
            Exempt::None => false,
            Exempt::Protocol => token.protocol,
            Exempt::ToolResponse => matches!(token.content.as_str(), "<tool_response>" | "</tool_response>"),
        }
    }
}

fn is_tool_response(content: &Value) -> bool {
    content
        .as_str()
        .map(str::trim)
        .is_some_and(|content| content.starts_with("<tool_response>") && content.ends_with("</tool_response>"))
}

fn contains(value: &Value, character: char) -> bool {
    match value {
        Value::String(text) => text.contains(character),
        Value::Array(items) => items.iter().any(|item| contains(item, character)),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, field)| name.contains(character) || contains(field, character)),
        _ => false,
    }
}
