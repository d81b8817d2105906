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
    /// The stop string that the text reached, by its index; it is not part of `text`.
    pub(crate) stopped: Option<usize>,
}

/// The text of one reply.
#[derive(Debug)]
pub(crate) struct ReplyText {
    detokenizer: Detokenizer,
    parts: PartTracker,
    stops: StopStrings,
}

impl ReplyText {
    /// `stop_strings` come with their indices in the request.
    pub(crate) fn new(format: ReplyFormat, stop_strings: Vec<(usize, String)>, vocabulary: &Vocabulary) -> Self {
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

    /// The reply ends without one: what was held back, and the stop string that is found in it after all.
    pub(crate) fn finish(&mut self) -> (String, Option<usize>) {
        self.flush(self.parts.part())
    }

    /// All text of the open part; an incomplete character becomes U+FFFD.
    fn flush(&mut self, part: Part) -> (String, Option<usize>) {
        let rest = self.detokenizer.finish();
        let (mut text, stopped) = self.stop(part, rest);
        if stopped.is_none() {
            text.push_str(&self.stops.take());
        }
        (text, stopped)
    }

    fn stop(&mut self, part: Part, text: String) -> (String, Option<usize>) {
        match part {
            Part::Content => self.stops.push(text),
            Part::Reasoning | Part::ToolCall => (text, None),
        }
    }
}

/// Finds stop strings across the borders of the pieces that text comes in.
#[derive(Debug)]
struct StopStrings {
    stops: Vec<(usize, String)>,
    longest: usize,
    /// Text that may be the start of a stop string.
    held: String,
}

impl StopStrings {
    fn new(stops: Vec<(usize, String)>) -> Self {
        let longest = stops.iter().map(|(_, stop)| stop.len()).max().unwrap_or(0);
        StopStrings {
            stops,
            longest,
            held: String::new(),
        }
    }

    /// Takes the next piece; returns the text that cannot be part of a stop string any more, and the one that was found right after it.
    fn push(&mut self, piece: String) -> (String, Option<usize>) {
        if self.stops.is_empty() {
            return (piece, None);
        }
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&piece);
        let found = self
            .stops
            .iter()
            .filter_map(|(index, stop)| Some((text.find(stop.as_str())?, *index)));
        if let Some((at, index)) = found.min() {
            text.truncate(at);
            return (text, Some(index));
        }
        let earliest = text.len().saturating_sub(self.longest - 1);
        let may_start = |at: &usize| self.stops.iter().any(|(_, stop)| stop.starts_with(&text[*at..]));
        let hold = (earliest..text.len())
            .filter(|&at| text.is_char_boundary(at))
            .find(may_start);
        self.held = text.split_off(hold.unwrap_or(text.len()));
        (text, None)
    }

    /// What is held back.
    fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
