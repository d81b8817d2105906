//! What the engine has to know of the tokenizer.

use lily_model::Tokenizer;

/// The tokens of a model: their bytes, and which of them are control tokens.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// Bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where token `id` ends in `bytes`.
    ends: Vec<usize>,
    /// Ids of control tokens that stand for no text, in ascending order.
    special: Vec<u32>,
    /// Ids of the control tokens that set the parts of a reply apart.
    pub(crate) markup: MarkupIds,
}

/// Ids of the control tokens that set the parts of a reply apart; `None` where the tokenizer has no such token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkupIds {
    /// `<think>`
    pub think_start: Option<u32>,
    /// `</think>`
    pub think_end: Option<u32>,
    /// `<tool_call>`
    pub tool_call_start: Option<u32>,
    /// `</tool_call>`
    pub tool_call_end: Option<u32>,
}

impl Vocabulary {
    /// The tokens of `tokenizer`.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let ids = 0..tokenizer.len() as u32;
        let markup = MarkupIds {
            think_start: tokenizer.added_token("<think>"),
            think_end: tokenizer.added_token("</think>"),
            tool_call_start: tokenizer.added_token("<tool_call>"),
            tool_call_end: tokenizer.added_token("</tool_call>"),
        };
        let special = ids.clone().filter(|&id| tokenizer.is_special(id)).collect();
        Self::from_tokens(ids.map(|id| tokenizer.token_bytes(id)), special, markup)
    }

    /// A vocabulary of these tokens; `special` lists, in ascending order, the ids of control tokens that stand for no text.
    pub fn from_tokens<T: AsRef<[u8]>>(
        tokens: impl IntoIterator<Item = T>,
        special: Vec<u32>,
        markup: MarkupIds,
    ) -> Self {
        let mut vocabulary = Vocabulary {
            special,
            markup,
            ..Vocabulary::default()
        };
        for token in tokens {
            vocabulary.bytes.extend_from_slice(token.as_ref());
            vocabulary.ends.push(vocabulary.bytes.len());
        }
        vocabulary
    }

    /// Tokens; ids from here on are padding and never valid.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of token `id`; none for ids without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 {
            0
        } else {
            self.ends.get(id - 1).copied().unwrap_or(0)
        };
        self.ends.get(id).map_or(&[], |&end| &self.bytes[start..end])
    }

    /// Whether `id` is a control token that stands for no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    /// The control token without text whose name is `name`.
    pub(crate) fn special(&self, name: &str) -> Option<u32> {
        self.special
            .iter()
            .copied()
            .find(|&id| self.token_bytes(id) == name.as_bytes())
    }

    /// Control tokens that penalties leave alone: punishing markup for coming often breaks tool calls.
    pub(crate) fn is_control(&self, id: u32) -> bool {
        let markup = self.markup;
        let markup = [
            markup.think_start,
            markup.think_end,
            markup.tool_call_start,
            markup.tool_call_end,
        ];
        self.is_special(id) || markup.contains(&Some(id))
    }
}
