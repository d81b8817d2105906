//! The parts of a chat's reply: reasoning, content, tool calls.
//!
//! Only control tokens set parts apart, never text that looks like them. [`PartTracker`] runs beside the generation (stop strings, grammars and
//! the reasoning budget depend on the part), [`ReplyBuilder`] runs at the caller and turns tokens into the pieces that clients see. A reply is
//! the concatenation of its pieces, so streamed and unstreamed replies are equal by construction.

use crate::generation::Token;
use crate::request::ReplyFormat;
use crate::vocabulary::MarkupIds;

/// A part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Thoughts, between `<think>` and `</think>`.
    Reasoning,
    /// The answer.
    Content,
    /// A tool call's markup, between `<tool_call>` and `</tool_call>`.
    ToolCall,
}

/// What a token does that is markup and not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Markup {
    /// `<think>` before any content: reasoning starts.
    ThinkStart,
    /// `</think>`: content starts.
    ThinkEnd,
    /// `<tool_call>`: a tool call starts; it also ends reasoning that was left open.
    ToolCallStart,
    /// `</tool_call>`: content goes on.
    ToolCallEnd,
    /// A stop token: the reply ends.
    End,
}

/// Which part of the reply a token belongs to.
#[derive(Clone, Debug)]
pub struct PartTracker {
    format: ReplyFormat,
    ids: MarkupIds,
    part: Part,
    /// Whether the content has anything but white space, or a tool call came. Think markup after that is what the reply talks about.
    answered: bool,
}

impl PartTracker {
    /// At the start of a reply.
    pub fn new(format: ReplyFormat, ids: MarkupIds) -> Self {
        let part = match format {
            ReplyFormat::Chat {
                starts_in_reasoning: true,
            } => Part::Reasoning,
            _ => Part::Content,
        };
        PartTracker {
            format,
            ids,
            part,
            answered: false,
        }
    }

    /// The part that the next token belongs to.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Takes the next token and its bytes, and says what it does if it is markup. A control token in a place where it has no meaning is text.
    pub fn push(&mut self, id: u32, bytes: &[u8]) -> Option<Markup> {
        let markup = self.markup(id);
        match markup {
            Some(Markup::ThinkStart) => self.part = Part::Reasoning,
            Some(Markup::ThinkEnd | Markup::ToolCallEnd) => self.part = Part::Content,
            Some(Markup::ToolCallStart) => {
                self.part = Part::ToolCall;
                self.answered = true;
            }
            Some(Markup::End) => {}
            None if self.part == Part::Content => self.answered |= !bytes.iter().all(u8::is_ascii_whitespace),
            None => {}
        }
        markup
    }

    fn markup(&self, id: u32) -> Option<Markup> {
        if self.format == ReplyFormat::Raw {
            return None;
        }
        let is = |wanted: Option<u32>| wanted == Some(id);
        match self.part {
            Part::Reasoning if is(self.ids.think_end) => Some(Markup::ThinkEnd),
            Part::Content if is(self.ids.think_start) && !self.answered => Some(Markup::ThinkStart),
            Part::Content if is(self.ids.think_end) && !self.answered => Some(Markup::ThinkEnd),
            Part::Reasoning | Part::Content if is(self.ids.tool_call_start) => Some(Markup::ToolCallStart),
            Part::ToolCall if is(self.ids.tool_call_end) => Some(Markup::ToolCallEnd),
            _ => None,
        }
    }
}

/// A piece of a reply, as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyDelta {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A tool call starts.
    ToolCallStart,
    /// More of the tool call's text, as the model wrote it.
    ToolCall(String),
    /// The tool call is complete.
    ToolCallEnd,
}

/// A whole reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The thoughts, without white space around them.
    pub reasoning: String,
    /// The answer, without white space at its start, and at its end where a tool call follows.
    pub content: String,
    /// The texts of the tool calls, as the model wrote them between their markup.
    pub tool_calls: Vec<String>,
}

impl Reply {
    /// Adds a piece.
    pub fn push(&mut self, delta: &ReplyDelta) {
        match delta {
            ReplyDelta::Reasoning(text) => self.reasoning.push_str(text),
            ReplyDelta::Content(text) => self.content.push_str(text),
            ReplyDelta::ToolCallStart => self.tool_calls.push(String::new()),
            ReplyDelta::ToolCall(text) => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.push_str(text);
                }
            }
            ReplyDelta::ToolCallEnd => {}
        }
    }
}

/// Turns the tokens of a chat's reply into pieces. White space at the borders of reasoning and content belongs to the template, not to the
/// reply: it is held back until text follows, and dropped where none does. At the very end of the content it stays.
#[derive(Clone, Debug, Default)]
pub struct ReplyBuilder {
    /// White space that may turn out to stand at the end of its part.
    held: String,
    /// Whether the open part has text already.
    begun: bool,
}

impl ReplyBuilder {
    /// At the start of a reply.
    pub fn new() -> Self {
        ReplyBuilder::default()
    }

    /// Takes a token; calls `emit` for each piece that is complete with it.
    pub fn push(&mut self, token: &Token, mut emit: impl FnMut(ReplyDelta)) {
        match token.part {
            Part::Reasoning => self.text(&token.text, ReplyDelta::Reasoning, &mut emit),
            Part::Content => self.text(&token.text, ReplyDelta::Content, &mut emit),
            Part::ToolCall if !token.text.is_empty() => emit(ReplyDelta::ToolCall(token.text.clone())),
            Part::ToolCall => {}
        }
        match token.markup {
            Some(Markup::ThinkStart | Markup::ThinkEnd) => self.border(),
            Some(Markup::ToolCallStart) => {
                self.border();
                emit(ReplyDelta::ToolCallStart);
            }
            Some(Markup::ToolCallEnd) => emit(ReplyDelta::ToolCallEnd),
            Some(Markup::End) | None => {}
        }
    }

    /// At the end of the reply: the content's trailing white space.
    pub fn finish(&mut self, last: Part, mut emit: impl FnMut(ReplyDelta)) {
        if last == Part::Content && self.begun && !self.held.is_empty() {
            emit(ReplyDelta::Content(std::mem::take(&mut self.held)));
        }
    }

    fn border(&mut self) {
        self.held.clear();
        self.begun = false;
    }

    fn text(&mut self, text: &str, piece: fn(String) -> ReplyDelta, emit: &mut impl FnMut(ReplyDelta)) {
        let text = if self.begun { text } else { text.trim_start() };
        let solid = text.trim_end().len();
        if solid > 0 {
            let mut out = std::mem::take(&mut self.held);
            out.push_str(&text[..solid]);
            emit(piece(out));
            self.begun = true;
        }
        self.held.push_str(&text[solid..]);
    }
}
