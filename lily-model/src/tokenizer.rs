//! Text to token ids and back.

use crate::error::Result;
use crate::template::ChatPrompt;

/// Byte-level BPE with added (control) tokens. Cheap to share by reference; all methods take `&self`.
#[derive(Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Ids of `text`; control tokens that it spells out become those tokens (what `transformers` does by default).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let _ = text;
        todo!()
    }

    /// Ids of `text` with control tokens read as plain text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let _ = text;
        todo!()
    }

    /// Ids of a rendered chat: the template's own markup becomes control tokens, what the messages spell out stays text.
    pub fn encode_prompt(&self, prompt: &ChatPrompt) -> Result<Vec<u32>> {
        let _ = prompt;
        todo!()
    }

    /// Bytes that token `id` stands for (a control token's name for control tokens); empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let _ = id;
        todo!()
    }

    /// Id of the added token with exactly this content: `<|im_end|>`, `</think>`, ...
    pub fn added_token(&self, content: &str) -> Option<u32> {
        let _ = content;
        todo!()
    }

    /// Whether `id` is an added token that is left out of what people see (`"special": true`).
    pub fn is_special(&self, id: u32) -> bool {
        let _ = id;
        todo!()
    }

    /// One more than the largest id; ids from here to the model's `vocab_size` are padding and never valid.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Text of `ids`, without special tokens where `skip_special`; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let _ = (ids, skip_special);
        todo!()
    }
}
