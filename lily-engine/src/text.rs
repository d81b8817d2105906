//! The text of a reply as it grows: whole characters, parts, stop strings.

use lily_model::Detokenizer;

use crate::reply::{Markup, Part, PartTracker};
use crate::request::ReplyFormat;
use crate::vocabulary::Vocabulary;

/// What a token adds to the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextStep {
    /// Text that became certain, of `part`.
    pub(crate) text: String,
    /// The part that `text` belongs to.
    pub(crate) part: Part,
    /// What the token does, where it is markup.
    pub(crate) markup: Option<Markup>,
    /// Whether the text reached a stop string; it is not part of `text`.
    pub(crate) stopped: bool,
}

/// The text of one reply.
#[derive(Debug)]
pub(crate) struct ReplyText {
    detokenizer: Detokenizer,
    parts: PartTracker,
    stops: StopStrings,
}

impl ReplyText {
    pub(crate) fn new(format: ReplyFormat, stop_strings: Vec<String>, vocabulary: &Vocabulary) -> Self {
        ReplyText {
            detokenizer: Detokenizer::default(),
            parts: PartTracker::new(format, vocabulary.markup),
            stops: StopStrings::new(stop_strings),
        }
    }

    /// The part that the next token belongs to.
    pub(crate) fn part(&self) -> Part {
        self.parts.part()
    }

    /// Takes the next token.
    pub(crate) fn push(&mut self, id: u32, vocabulary: &Vocabulary) -> TextStep {
        let bytes = if vocabulary.is_special(id) {
            &[]
        } else {
            vocabulary.token_bytes(id)
        };
        let part = self.parts.part();
        let markup = self.parts.push(id, bytes);
        match markup {
            None => {
                let text = self.detokenizer.push(bytes);
                let (text, stopped) = self.stop(part, text);
                TextStep {
                    text,
                    part,
                    markup,
                    stopped,
                }
            }
            Some(_) => {
                let (text, stopped) = self.flush(part);
                TextStep {
                    text,
                    part,
                    markup,
                    stopped,
                }
            }
        }
    }

    /// The reply ends with a stop token.
    pub(crate) fn end(&mut self) -> TextStep {
        let part = self.parts.part();
        let (text, stopped) = self.flush(part);
        TextStep {
            text,
            part,
            markup: Some(Markup::End),
            stopped,
        }
    }

    /// The reply ends without one: what was held back. Whether a stop string is found in it after all.
    pub(crate) fn finish(&mut self) -> (String, bool) {
        self.flush(self.parts.part())
    }

    /// All text of the open part; an incomplete character becomes U+FFFD.
    fn flush(&mut self, part: Part) -> (String, bool) {
        let rest = self.detokenizer.finish();
        let (mut text, stopped) = self.stop(part, rest);
        if !stopped {
            text.push_str(&self.stops.take());
        }
        (text, stopped)
    }

    fn stop(&mut self, part: Part, text: String) -> (String, bool) {
        match part {
            Part::Content => self.stops.push(text),
            Part::Reasoning | Part::ToolCall => (text, false),
        }
    }
}

/// Finds stop strings across the borders of the pieces that text comes in.
#[derive(Debug)]
struct StopStrings {
    stops: Vec<String>,
    longest: usize,
    /// Text that may be the start of a stop string.
    held: String,
}

impl StopStrings {
    fn new(stops: Vec<String>) -> Self {
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        StopStrings {
            stops,
            longest,
            held: String::new(),
        }
    }

    /// Takes the next piece; returns the text that cannot be part of a stop string any more, and whether one was found right after it.
    fn push(&mut self, piece: String) -> (String, bool) {
        if self.stops.is_empty() {
            return (piece, false);
        }
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| text.find(stop.as_str())).min() {
            text.truncate(at);
            return (text, true);
        }
        let earliest = text.len().saturating_sub(self.longest - 1);
        let may_start = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&text[*at..]));
        let hold = (earliest..text.len())
            .filter(|&at| text.is_char_boundary(at))
            .find(may_start);
        self.held = text.split_off(hold.unwrap_or(text.len()));
        (text, false)
    }

    /// What is held back.
    fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
