//! What every measurement says about itself: the head of its JSON, and the same as text. `docs/bench.md` describes the schema.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sysinfo::System;
use time::OffsetDateTime;

use super::conditions::Conditions;
use crate::error::CliError;
use crate::machine::Machine;
use crate::output;

/// Number of the schema; it grows when a field changes its meaning or goes.
pub const SCHEMA: u32 = 2;

/// The model that was measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Layers.
    pub layers: usize,
    /// Parameters.
    pub parameters: u64,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Bytes of weights that one token reads.
    pub read_per_token: u64,
}

/// What ran, as the engine says itself.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Subject {
    /// Device and kernels, for people.
    pub device: String,
    /// `cpu`, `cuda`, `metal` or `emulator`.
    pub device_kind: String,
    /// Tokens of the largest prefill chunk, where it is known.
    pub max_chunk: Option<usize>,
    /// The model.
    pub model: Model,
}

/// The head of every report.
#[derive(Debug, Serialize)]
pub struct Head {
    schema: u32,
    kind: &'static str,
    version: &'static str,
    commit: &'static str,
    date: String,
    command: Vec<String>,
    machine: Machine,
    system: String,
    #[serde(flatten)]
    subject: Subject,
    conditions: Conditions,
}

impl Head {
    /// Of a measurement of `kind` (`sweep`, `ablation`, `load` or `profile`) that has ended now.
    pub fn new(kind: &'static str, subject: Subject, conditions: Conditions) -> Self {
        let now = OffsetDateTime::now_utc();
        Head {
            schema: SCHEMA,
            kind,
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("LILY_COMMIT"),
            date: format!("{}-{:02}-{:02}", now.year(), u8::from(now.month()), now.day()),
            command: std::iter::once("lily".to_owned())
                .chain(std::env::args().skip(1))
                .collect(),
            machine: Machine::this(),
            system: System::long_os_version().unwrap_or_else(|| "unknown".into()),
            subject,
            conditions,
        }
    }

    /// Machine, device, model, commit, command and warnings, as the list that stands above a table in Markdown.
    pub fn markdown(&self) -> String {
        let (machine, model) = (&self.machine, &self.subject.model);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- `{}`, {}", self.command.join(" "), self.date);
        let _ = writeln!(text, "- Lily {}, commit {}", self.version, self.commit);
        let _ = writeln!(
            text,
            "- {}, {} processors, {}, {} ({})",
            machine.cpu,
            machine.cpus,
            output::bytes(machine.memory_bytes),
            self.system,
            machine.arch
        );
        let _ = writeln!(text, "- {}", self.subject.device);
        let _ = writeln!(
            text,
            "- {}: {} layers, {} parameters, {} of weights",
            model.name,
            model.layers,
            output::count(model.parameters),
            output::bytes(model.bytes)
        );
        let _ = writeln!(
            text,
            "- load {:.2} before; others used at most {:.0} % of the processors",
            self.conditions.load_before, self.conditions.busy_percent
        );
        for warning in &self.conditions.warnings {
            let _ = writeln!(text, "- **warning**: {warning}");
        }
        text
    }
}

/// The digest of the tokens of decode: the first 16 digits of the BLAKE3 hash of their ids, 4 bytes each, the lowest first.
pub fn digest(tokens: &[u32]) -> Option<String> {
    if tokens.len() < 2 {
        return None;
    }
    let bytes: Vec<u8> = tokens[1..].iter().flat_map(|id| id.to_le_bytes()).collect();
    Some(blake3::hash(&bytes).to_hex()[..16].to_owned())
}

/// `1 round`, `2 rounds`.
pub fn rounds(count: usize) -> String {
    format!("{count} round{}", if count == 1 { "" } else { "s" })
}

/// Where two replies differ first; `None` where they do not.
pub fn first_difference(one: &[u32], other: &[u32]) -> Option<usize> {
    (0..one.len().max(other.len())).find(|&at| one.get(at) != other.get(at))
}

/// Ends a report in Markdown: with a warning where the time limit left something out, and the lines of its table where `with_table`.
pub fn end_markdown(
    text: &mut String,
    time_limit_reached: bool,
    with_table: bool,
    lines: impl Iterator<Item = String>,
) {
    // Writing to a string cannot fail.
    if time_limit_reached {
        let _ = writeln!(
            text,
            "- **warning**: the time limit was reached; what is missing was not measured"
        );
    }
    if with_table {
        let _ = writeln!(text);
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
    }
}

/// Prints a report: as JSON, or what its Markdown has beside the table, which was printed while it was measured. Writes both, whole, to the files
/// that `--save` names.
///
/// # Errors
/// [`CliError::File`], and where nothing can be printed
pub fn deliver(
    report: &impl Serialize,
    markdown: impl Fn(bool) -> String,
    json: bool,
    stem: Option<&Path>,
) -> Result<(), CliError> {
    if json {
        output::json(report)?;
    } else {
        write!(io::stdout(), "\n{}", markdown(false))?;
    }
    stem.map_or(Ok(()), |stem| save(stem, report, &markdown(true)))
}

/// Writes `STEM.json` and `STEM.md`.
fn save(stem: &Path, report: &impl Serialize, markdown: &str) -> Result<(), CliError> {
    let mut json = serde_json::to_string_pretty(report).map_err(io::Error::from)?;
    json.push('\n');
    for (extension, content) in [("json", json.as_str()), ("md", markdown)] {
        let path = stem.with_added_extension(extension);
        let written = std::fs::File::create(&path).and_then(|mut file| file.write_all(content.as_bytes()));
        written.map_err(|source| CliError::File { path, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_of_the_tokens_of_decode() {
        assert_eq!(digest(&[7]), None);
        let one = digest(&[7, 1, 2]).unwrap();
        assert_eq!(one.len(), 16);
        assert_eq!(
            Some(&one),
            digest(&[8, 1, 2]).as_ref(),
            "the prompt's token is not part of it"
        );
        assert_ne!(Some(&one), digest(&[7, 1, 3]).as_ref());
        assert_eq!(one, blake3::hash(&[1, 0, 0, 0, 2, 0, 0, 0]).to_hex()[..16]);
    }

    #[test]
    fn the_first_difference() {
        assert_eq!(first_difference(&[1, 2], &[1, 2]), None);
        assert_eq!(first_difference(&[1, 2], &[1, 3]), Some(1));
        assert_eq!(first_difference(&[1, 2], &[1]), Some(1));
    }

    #[test]
    fn a_report_ends_with_its_warning_and_its_table() {
        let end = |late, with_table| {
            let mut text = String::from("- head\n");
            end_markdown(
                &mut text,
                late,
                with_table,
                ["| a |", "|---|"].map(String::from).into_iter(),
            );
            text
        };
        assert_eq!(end(false, false), "- head\n");
        assert_eq!(end(false, true), "- head\n\n| a |\n|---|\n");
        assert!(end(true, true).starts_with("- head\n- **warning**: the time limit"));
    }

    #[test]
    fn both_files_are_written() {
        let directory = tempfile::tempdir().unwrap();
        save(&directory.path().join("a.b"), &1, "text").unwrap();
        assert_eq!(
            std::fs::read_to_string(directory.path().join("a.b.json")).unwrap(),
            "1\n"
        );
        assert_eq!(
            std::fs::read_to_string(directory.path().join("a.b.md")).unwrap(),
            "text"
        );
    }
}
