//! Text to token ids and back.

use std::collections::HashMap;
use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Model, Tokenizer as Pipeline};

use crate::error::{Error, Result};
use crate::template::ChatPrompt;

/// Largest id that is accepted; tables by id are allocated whole.
const MAX_ID: u32 = 1 << 24;

/// Byte-level BPE with added (control) tokens, as `tokenizer.json` describes it. All methods take `&self`.
///
/// Three ways to encode, because a control token that a user's text spells out is an attack in one place and wanted in another:
/// [`Tokenizer::encode`] reads it as the token, [`Tokenizer::encode_plain`] as text, and [`Tokenizer::encode_prompt`] tells a chat
/// template's own markup from what the messages say.
pub struct Tokenizer {
    /// Normalizer, pre-tokenizer and BPE, without the added tokens: these are matched here.
    pipeline: Pipeline,
    added: Vec<AddedToken>,
    /// Finds `added` in text, the pattern's number being the index there.
    matcher: AhoCorasick,
    by_content: HashMap<String, u32>,
    bytes: TokenBytes,
}

#[derive(Clone, Debug, Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// The parts of `tokenizer.json` that encoding and decoding need.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: BPE,
}

/// The bytes of every token, one after the other.
struct TokenBytes {
    bytes: Vec<u8>,
    /// Where token `id` ends; it starts where the one before ends.
    ends: Vec<u32>,
}

impl TokenBytes {
    /// The bytes of all tokens, or `None` where there are none or ids are beyond [`MAX_ID`].
    fn of(model: &BPE, added: &[AddedToken]) -> Option<TokenBytes> {
        if added.iter().any(|token| token.id > MAX_ID) {
            return None;
        }
        let alphabet = byte_alphabet();
        let added: HashMap<u32, &str> = added.iter().map(|token| (token.id, token.content.as_str())).collect();
        let mut unseen = model.get_vocab_size();
        let last_added = added.keys().max().map_or(0, |id| id + 1);
        let mut table = TokenBytes {
            bytes: Vec::new(),
            ends: Vec::with_capacity(unseen.max(last_added as usize)),
        };
        // Ids need not be without gaps, so the loop ends when every token was met.
        let mut id = 0;
        while unseen > 0 || id < last_added {
            if id > MAX_ID {
                return None;
            }
            let token = model.id_to_token(id);
            unseen -= usize::from(token.is_some());
            if let Some(content) = added.get(&id) {
                table.bytes.extend_from_slice(content.as_bytes());
            } else {
                for character in token.iter().flat_map(|token| token.chars()) {
                    match alphabet.get(&character) {
                        Some(byte) => table.bytes.push(*byte),
                        None => table
                            .bytes
                            .extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                }
            }
            table.ends.push(u32::try_from(table.bytes.len()).ok()?);
            id += 1;
        }
        (id > 0).then_some(table)
    }

    fn of_token(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else {
            return &[];
        };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start as usize..end as usize]
    }
}

impl Tokenizer {
    /// Reads the content of a `tokenizer.json`, which errors call `file`.
    ///
    /// # Errors
    /// Where it is not a byte-level BPE tokenizer or an added token asks for more than being found as it is written.
    pub fn from_json(file: &str, content: &[u8]) -> Result<Tokenizer> {
        let bad = |problem: String| Error::BadFile {
            file: file.into(),
            problem,
        };
        let parsed: TokenizerFile = serde_json::from_slice(content)
            .map_err(|error| bad(format!("is no byte-level BPE tokenizer that can be read: {error}")))?;
        if !parsed.pre_tokenizer.as_ref().is_some_and(is_byte_level) {
            return Err(bad("pre_tokenizer: expected one with ByteLevel, found none".into()));
        }
        for token in &parsed.added_tokens {
            if token.content.is_empty() || token.single_word || token.lstrip || token.rstrip {
                return Err(bad(format!(
                    "added_tokens: expected plain tokens (no single_word, lstrip, rstrip), found otherwise for {:?}",
                    token.content
                )));
            }
        }
        let bytes = TokenBytes::of(&parsed.model, &parsed.added_tokens).ok_or_else(|| {
            bad(format!(
                "expected tokens with ids up to {MAX_ID}, found none or greater ids"
            ))
        })?;
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(parsed.added_tokens.iter().map(|token| &token.content))
            .map_err(|error| bad(format!("added_tokens: {error}")))?;
        let mut pipeline = Pipeline::new(parsed.model);
        pipeline
            .with_normalizer(parsed.normalizer)
            .with_pre_tokenizer(parsed.pre_tokenizer);
        Ok(Tokenizer {
            pipeline,
            by_content: parsed
                .added_tokens
                .iter()
                .map(|token| (token.content.clone(), token.id))
                .collect(),
            added: parsed.added_tokens,
            matcher,
            bytes,
        })
    }

    /// Ids of `text`; control tokens that it spells out become those tokens (what `transformers` does by default).
    ///
    /// # Errors
    /// [`Error::Tokenize`] where the pre-tokenizer's pattern gives up.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = 0;
        for found in self.matcher.find_iter(text) {
            self.append_plain(&text[rest..found.start()], &mut ids)?;
            ids.push(self.added[found.pattern().as_usize()].id);
            rest = found.end();
        }
        self.append_plain(&text[rest..], &mut ids)?;
        Ok(ids)
    }

    /// Ids of `text` with control tokens read as plain text.
    ///
    /// # Errors
    /// [`Error::Tokenize`] where the pre-tokenizer's pattern gives up.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.append_plain(text, &mut ids)?;
        Ok(ids)
    }

    /// Ids of a rendered chat: the template's own markup becomes control tokens, what the messages spell out stays text.
    ///
    /// # Errors
    /// [`Error::Tokenize`] where the pre-tokenizer's pattern gives up.
    pub fn encode_prompt(&self, prompt: &ChatPrompt) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = 0;
        let text = prompt.guarded();
        for found in self.matcher.find_iter(text) {
            self.append_plain(&prompt.unguard(&text[rest..found.start()]), &mut ids)?;
            ids.push(self.added[found.pattern().as_usize()].id);
            rest = found.end();
        }
        self.append_plain(&prompt.unguard(&text[rest..]), &mut ids)?;
        Ok(ids)
    }

    fn append_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding = self
            .pipeline
            .encode_fast(text, false)
            .map_err(|error| Error::Tokenize(error.to_string()))?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// Bytes that token `id` stands for (a control token's name for control tokens); empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.of_token(id)
    }

    /// Id of the added token with exactly this content: `<|im_end|>`, `</think>`, ...
    pub fn added_token(&self, content: &str) -> Option<u32> {
        self.by_content.get(content).copied()
    }

    /// Content and id of every added token, in the file's order; `true` for those that are left out of what people see.
    pub fn added_tokens(&self) -> impl Iterator<Item = (&str, u32, bool)> {
        self.added
            .iter()
            .map(|token| (token.content.as_str(), token.id, token.special))
    }

    /// Whether `id` is an added token that is left out of what people see (`"special": true`).
    pub fn is_special(&self, id: u32) -> bool {
        self.added.iter().any(|token| token.id == id && token.special)
    }

    /// One more than the largest id; ids from here to the model's `vocab_size` are padding and never valid.
    #[expect(clippy::len_without_is_empty, reason = "a tokenizer without tokens cannot be made")]
    pub fn len(&self) -> usize {
        self.bytes.ends.len()
    }

    /// Text of `ids`, without special tokens where `skip_special`; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let bytes: Vec<u8> = ids
            .iter()
            .filter(|id| !(skip_special && self.is_special(**id)))
            .flat_map(|id| self.token_bytes(*id))
            .copied()
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({} ids)", self.len())
    }
}

fn is_byte_level(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(parts) => parts.as_ref().iter().any(is_byte_level),
        _ => false,
    }
}

/// The characters that stand for bytes in a byte-level vocabulary: printable Latin-1 characters for themselves, the other bytes, in
/// order, for the characters from U+0100 on (GPT-2's table).
fn byte_alphabet() -> HashMap<char, u8> {
    let mut others = 0x100..;
    (0..=255u8)
        .filter_map(|byte| {
            let code = match byte {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
                _ => others.next()?,
            };
            Some((char::from_u32(code)?, byte))
        })
        .collect()
}
