//! Bytes of tokens to text, piece by piece, never half a character.

/// Collects the bytes of tokens and gives out whole UTF-8 characters only.
///
/// The pieces and what [`Detokenizer::finish`] returns add up to `String::from_utf8_lossy` of all the bytes.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// Bytes of a character that is not complete yet: at most three.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Takes the bytes of the next token and returns the text that is complete by now (often one token's, possibly none).
    /// Bytes that can no longer become a character come out as U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    match error.error_len() {
                        Some(invalid) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &rest[invalid..];
                        }
                        None => break,
                    }
                }
            }
        }
        let complete = self.pending.len() - rest.len();
        self.pending.drain(..complete);
        text
    }

    /// What is left at the end: an incomplete character as U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(bytes: &[u8], cuts: &[usize]) -> Vec<String> {
        let mut detokenizer = Detokenizer::default();
        let mut pieces = Vec::new();
        let mut rest = bytes;
        for cut in cuts {
            let (head, tail) = rest.split_at((*cut).min(rest.len()));
            pieces.push(detokenizer.push(head));
            rest = tail;
        }
        pieces.push(detokenizer.push(rest));
        pieces.push(detokenizer.finish());
        pieces
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut detokenizer = Detokenizer::default();
        assert_eq!(detokenizer.push(b"a\xf0\x9f"), "a");
        assert_eq!(detokenizer.push(b"\x98"), "");
        assert_eq!(detokenizer.push(b"\x80b"), "😀b");
        assert_eq!(detokenizer.finish(), "");
    }

    #[test]
    fn a_broken_character_does_not_hold_up_the_rest() {
        let mut detokenizer = Detokenizer::default();
        assert_eq!(detokenizer.push(b"\xe4\xb8"), "");
        assert_eq!(detokenizer.push(b"x"), "\u{fffd}x");
        assert_eq!(detokenizer.push(b"\xe4"), "");
        assert_eq!(detokenizer.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_add_up_to_the_lossy_text(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            cuts in proptest::collection::vec(0usize..6, 0..20),
        ) {
            prop_assert_eq!(stream(&bytes, &cuts).concat(), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn valid_text_never_shows_a_replacement(text in "\\PC{0,40}", cuts in proptest::collection::vec(0usize..4, 0..60)) {
            prop_assert_eq!(stream(text.as_bytes(), &cuts).concat(), text);
        }
    }
}
