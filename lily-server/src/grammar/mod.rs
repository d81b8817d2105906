//! Grammars that a reply must follow: structured output and tool calls that are required.
//!
//! `llguidance` compiles them and says, token by token, what may come next. A grammar covers what follows the thoughts.

pub mod calls;
pub mod format;

use std::sync::Arc;

use lily_engine::TokenMask;
use lily_model::{GenerationConfig, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::error::ApiError;

/// Compiles grammars over one tokenizer. Making it takes a while, using it does not.
pub struct Grammars {
    factory: ParserFactory,
}

impl Grammars {
    /// For `tokenizer`, of which the first `vocabulary` ids are valid.
    ///
    /// # Errors
    /// Where the tokenizer has no end token or `llguidance` cannot take it.
    pub fn new(tokenizer: &Tokenizer, generation: &GenerationConfig, vocabulary: usize) -> Result<Self, ApiError> {
        let failed = |why: String| ApiError::Internal(format!("grammars cannot be used with this tokenizer: {why}"));
        let ends = &generation.eos_token_ids;
        let &end = ends.first().ok_or_else(|| failed("it has no end token".into()))?;
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(vocabulary);
        for id in 0..u32::try_from(vocabulary).unwrap_or(u32::MAX) {
            let bytes = tokenizer.token_bytes(id);
            // Control tokens must not be taken for the text that spells them.
            let control = std::str::from_utf8(bytes).is_ok_and(|text| tokenizer.added_token(text) == Some(id));
            let marker = control.then_some(TokTrie::SPECIAL_TOKEN_MARKER);
            words.push(marker.into_iter().chain(bytes.iter().copied()).collect());
        }
        let size = u32::try_from(words.len()).map_err(|_| failed("it is too large".into()))?;
        let trie = TokTrie::from(&TokRxInfo::new(size, end), &words).with_eos_tokens(ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|error| failed(error.to_string()))?;
        factory.quiet();
        Ok(Self { factory })
    }

    /// The mask for a grammar, which a request gives in field `field`.
    pub fn mask(&self, grammar: TopLevelGrammar, field: &str) -> Result<Box<dyn TokenMask>, ApiError> {
        let parser = self.factory.create_parser(grammar);
        let parser =
            parser.map_err(|error| ApiError::invalid(field, format!("the grammar cannot be used: {error}")))?;
        Ok(Box::new(GrammarMask(Matcher::new(Ok(parser)))))
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammars")
    }
}

/// Follows one reply through a grammar.
struct GrammarMask(Matcher);

impl TokenMask for GrammarMask {
    fn restrict(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        let mask = self.0.compute_mask_or_eos().map_err(|error| error.to_string())?;
        let words = mask.as_slice().iter().copied().chain(std::iter::repeat(0));
        for (word, mask) in allowed.iter_mut().zip(words) {
            *word &= mask;
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0.consume_token(token).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lily_model::{Checkpoint, Source};
    use std::path::Path;

    pub(crate) fn checkpoint() -> Checkpoint {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/mini/mlx-4bit");
        Checkpoint::open(&Source::Directory(directory)).unwrap()
    }

    /// Whether the grammar takes the whole of `text`, in which control tokens are spelled out.
    pub(crate) fn accepts(checkpoint: &Checkpoint, grammar: TopLevelGrammar, text: &str) -> bool {
        let tokenizer = &checkpoint.tokenizer;
        let grammars = Grammars::new(tokenizer, &checkpoint.generation, tokenizer.len()).unwrap();
        let mut mask = grammars.mask(grammar, "grammar").unwrap();
        let mut tokens = tokenizer.encode(text).unwrap();
        tokens.push(checkpoint.generation.eos_token_ids[0]);
        let last = tokens.len() - 1;
        tokens.iter().enumerate().all(|(position, &token)| {
            let mut allowed = vec![u32::MAX; tokenizer.len().div_ceil(32)];
            mask.restrict(&mut allowed).unwrap();
            let may = allowed[token as usize / 32] >> (token % 32) & 1 == 1;
            may && (position == last || mask.accept(token).is_ok())
        })
    }
}
