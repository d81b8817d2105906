//! Bytes of tokens to text, piece by piece, never half a character.

/// Collects the bytes of tokens and gives out whole UTF-8 characters only.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Takes the bytes of the next token and returns the text that is complete by now (often one token's, possibly none).
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        todo!()
    }

    /// What is left at the end, incomplete characters as U+FFFD.
    pub fn finish(&mut self) -> String {
        todo!()
    }
}
