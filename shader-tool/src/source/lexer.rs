//! Tokens of a flat Metal source. Comments and preprocessor lines are skipped; directives are kept aside for the lint.

use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Identifier,
    Number,
    Text,
    /// One character, except `[[`, `]]` and `::`.
    Punctuation,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
}

#[derive(Debug)]
pub(crate) struct Lexed {
    pub tokens: Vec<Token>,
    /// Byte ranges of preprocessor directives, continuation lines included.
    pub directives: Vec<Range<usize>>,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

pub(crate) fn lex(text: &str) -> Lexed {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut directives = Vec::new();
    let mut at = 0;
    let mut line_is_blank = true;
    while at < bytes.len() {
        let byte = bytes[at];
        let rest = &bytes[at..];
        if byte == b'\n' {
            line_is_blank = true;
            at += 1;
        } else if byte.is_ascii_whitespace() {
            at += 1;
        } else if byte == b'#' && line_is_blank {
            let end = end_of_directive(bytes, at);
            directives.push(at..end);
            at = end;
        } else if rest.starts_with(b"//") {
            at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            at += rest[2..]
                .windows(2)
                .position(|pair| pair == b"*/")
                .map_or(rest.len(), |found| found + 4);
        } else {
            line_is_blank = false;
            let (kind, length) = token_at(rest);
            tokens.push(Token {
                kind,
                start: at,
                end: at + length,
            });
            at += length;
        }
    }
    Lexed {
        tokens: split_unpaired(tokens, text),
        directives,
    }
}

fn end_of_directive(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < bytes.len() && bytes[at] != b'\n' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

fn token_at(rest: &[u8]) -> (Kind, usize) {
    let run = |accept: fn(u8) -> bool| rest.iter().position(|&b| !accept(b)).unwrap_or(rest.len());
    match rest[0] {
        b'"' | b'\'' => {
            let mut at = 1;
            while at < rest.len() && rest[at] != rest[0] && rest[at] != b'\n' {
                at += if rest[at] == b'\\' { 2 } else { 1 };
            }
            (Kind::Text, (at + 1).min(rest.len()))
        }
        first if first.is_ascii_digit() => (Kind::Number, run(|b| is_word(b) || b == b'.')),
        first if is_word(first) => (Kind::Identifier, run(is_word)),
        // A character outside ASCII is one token, so that slices stay on character boundaries.
        first if !first.is_ascii() => (Kind::Punctuation, run(|b| !b.is_ascii())),
        _ if rest.starts_with(b"[[") || rest.starts_with(b"]]") || rest.starts_with(b"::") => (Kind::Punctuation, 2),
        _ => (Kind::Punctuation, 1),
    }
}

/// `x[y[0]]` ends in what looks like the end of an attribute: a `]]` counts as one token only where a `[[` is open.
fn split_unpaired(tokens: Vec<Token>, text: &str) -> Vec<Token> {
    let mut open = 0;
    let mut out = Vec::with_capacity(tokens.len());
    for token in tokens {
        match &text[token.start..token.end] {
            "[[" => open += 1,
            "]]" if open == 0 => {
                out.push(Token {
                    end: token.start + 1,
                    ..token
                });
                out.push(Token {
                    start: token.start + 1,
                    ..token
                });
                continue;
            }
            "]]" => open -= 1,
            _ => {}
        }
        out.push(token);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        lex(text).tokens.iter().map(|t| &text[t.start..t.end]).collect()
    }

    #[test]
    fn comments_and_directives_are_not_tokens() {
        assert_eq!(
            words("#define A \\\n b\nint x; // y\n/* z\n */ 1.5f"),
            ["int", "x", ";", "1.5f"]
        );
    }

    #[test]
    fn brackets_pair_up() {
        assert_eq!(
            words("a[b[0]] [[k]]"),
            ["a", "[", "b", "[", "0", "]", "]", "[[", "k", "]]"]
        );
    }
}
