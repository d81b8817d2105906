//! `#include "..."` resolved textually: Apple's run-time compiler cannot, and the translator wants one text.

use super::SourceFile;
use crate::Diagnostic;
use std::collections::HashSet;
use std::fmt::Write as _;

/// One unit with its headers in place, and where each of its lines came from.
#[derive(Debug)]
pub(crate) struct Flat {
    /// Every line ends with a newline.
    pub text: String,
    /// For each line of `text`: index into `files`, and line number in that file, counted from 1.
    origin: Vec<(usize, u32)>,
    /// Byte offset of each line of `text`.
    starts: Vec<usize>,
    files: Vec<String>,
}

impl Flat {
    /// The source and line that byte `offset` of the text came from.
    pub fn place(&self, offset: usize) -> (&str, u32) {
        let line = self.starts.partition_point(|&start| start <= offset).saturating_sub(1);
        let (file, number) = self.origin.get(line).copied().unwrap_or((0, 1));
        (self.files.get(file).map_or("", String::as_str), number)
    }

    /// The `.metal` source that was flattened.
    pub fn unit_name(&self) -> &str {
        self.files.first().map_or("", String::as_str)
    }

    /// A diagnostic about byte `offset`.
    pub fn diagnostic(&self, offset: usize, message: impl Into<String>) -> Diagnostic {
        let (file, line) = self.place(offset);
        Diagnostic {
            file: file.to_owned(),
            line,
            message: message.into(),
        }
    }

    /// `text` (this flat text, or an edit of it with the same lines) with `#line` wherever the next line does not follow
    /// from the one before, so that a compiler's messages name the real file and line.
    pub fn with_line_markers(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 1024);
        let mut expected = None;
        for (line, &(file, number)) in text.lines().zip(&self.origin) {
            if expected != Some((file, number)) {
                // Writing to a String cannot fail.
                let _ = writeln!(out, "#line {number} \"{}\"", self.files[file]);
            }
            out.push_str(line);
            out.push('\n');
            expected = Some((file, number + 1));
        }
        out
    }
}

/// Flattens `unit`; each header enters once.
pub(crate) fn flatten(sources: &[SourceFile], unit: &SourceFile) -> Result<Flat, Vec<Diagnostic>> {
    let mut flat = Flat {
        text: String::new(),
        origin: Vec::new(),
        starts: Vec::new(),
        files: Vec::new(),
    };
    let mut seen = HashSet::new();
    let mut errors = Vec::new();
    append(sources, unit, &mut flat, &mut seen, &mut errors);
    if errors.is_empty() { Ok(flat) } else { Err(errors) }
}

fn append(
    sources: &[SourceFile],
    file: &SourceFile,
    flat: &mut Flat,
    seen: &mut HashSet<String>,
    errors: &mut Vec<Diagnostic>,
) {
    if !seen.insert(file.name.clone()) {
        return;
    }
    let index = flat.files.len();
    flat.files.push(file.name.clone());
    for (number, line) in (1..).zip(file.text.lines()) {
        let mut kept = line;
        let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
        if directive.is_some_and(|d| d.starts_with("pragma") && d.contains("once")) {
            kept = ""; // Meaningless in one flat file, and clang warns about it.
        } else if let Some(name) = directive.and_then(quoted_include) {
            match find(sources, file, name) {
                Some(header) => append(sources, header, flat, seen, errors),
                None => errors.push(Diagnostic {
                    file: file.name.clone(),
                    line: number,
                    message: format!("no source named \"{name}\" to include"),
                }),
            }
            kept = "";
        }
        flat.starts.push(flat.text.len());
        flat.origin.push((index, number));
        flat.text.push_str(kept);
        flat.text.push('\n');
    }
}

fn quoted_include(directive: &str) -> Option<&str> {
    let rest = directive.strip_prefix("include")?.trim_start().strip_prefix('"')?;
    rest.split('"').next()
}

/// Looks beside the including file, then from the kernels' root, then in `include/`.
fn find<'a>(sources: &'a [SourceFile], from: &SourceFile, name: &str) -> Option<&'a SourceFile> {
    let beside = from
        .name
        .rsplit_once('/')
        .map_or(String::new(), |(folder, _)| format!("{folder}/"));
    [format!("{beside}{name}"), name.to_owned(), format!("include/{name}")]
        .into_iter()
        .find_map(|candidate| sources.iter().find(|source| source.name == candidate))
}
