//! Agreement with another engine: both are given the same tokens, and their logits are compared at every position.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use lily_engine::{Backend, PrefillLogits};
use lily_model::{Checkpoint, Tokenizer};
use serde::{Deserialize, Serialize};

use super::EvalArgs;
use super::statistics::{Comparison, Difference, Top};
use crate::error::CliError;
use crate::output;
use crate::peer::{self, Driver, Environment, PeerError};

const SCRIPT: &str = include_str!("mlx.py");
/// English written for this purpose, which no model was trained on: names and texts.
const TEXTS: [(&str, &str); 4] = [
    ("clock", include_str!("agreement/clock.txt")),
    ("ferry", include_str!("agreement/ferry.txt")),
    ("bread", include_str!("agreement/bread.txt")),
    ("rain", include_str!("agreement/rain.txt")),
];
/// The most bytes of logits that are on their way at once.
const MOST_BYTES: usize = 64 << 20;
/// The longest that one chunk, or loading, may take the peer.
const LIMIT: Duration = Duration::from_secs(1800);
/// Tokens that are shown before a position.
const SHOWN_BEFORE: usize = 8;

/// An engine to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// MLX-LM, in f32
    MlxLm,
}

#[derive(Deserialize)]
struct Loaded {
    device: String,
}

#[derive(Deserialize)]
struct Answer {
    rows: usize,
    vocabulary: usize,
}

/// A position and the text around it.
#[derive(Debug, Serialize)]
struct Place {
    /// Name of the text.
    text: String,
    position: usize,
    kl: f64,
    max_abs_logit_diff: f64,
    /// By how much this engine prefers its choice to the peer's, in nats; the peer, its own to ours.
    margin: f64,
    peer_margin: f64,
    /// The text before.
    before: String,
    /// The token that came.
    next: String,
    ours: Choice,
    peers: Choice,
}

/// The token that an engine thinks most likely.
#[derive(Debug, Serialize)]
struct Choice {
    token: u32,
    text: String,
    /// Its probability by this engine, and by the other.
    probability: f64,
    others_probability: f64,
}

#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    peer: String,
    peer_device: String,
    texts: Vec<String>,
    positions: usize,
    window: usize,
    perplexity: f64,
    peer_perplexity: f64,
    perplexity_difference_percent: f64,
    top1_agreement: f64,
    mean_kl: f64,
    max_kl: f64,
    max_abs_logit_diff: f64,
    different_tops: usize,
    /// The largest margin at a position with different top tokens; null where there is none.
    largest_margin: Option<f64>,
    /// The positions with the largest divergence.
    worst: Vec<Place>,
    /// Positions with different top tokens, as many as were asked for.
    differences: Vec<Place>,
}

/// Compares and prints.
pub fn run(backend: &mut impl Backend, checkpoint: &Checkpoint, args: &EvalArgs) -> Result<(), CliError> {
    let texts = match &args.text {
        None => TEXTS.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec(),
        Some(path) => vec![(path.display().to_string(), super::read_text(path)?)],
    };
    let tokens = texts.iter().map(|(_, text)| checkpoint.tokenizer.encode_plain(text));
    let tokens = tokens.collect::<Result<Vec<Vec<u32>>, _>>()?;
    if let Some(short) = tokens.iter().find(|tokens| tokens.len() < 2) {
        return Err(CliError::Usage(format!(
            "--text: expected at least 2 tokens, found {}",
            short.len()
        )));
    }
    let environment = Environment::mlx_lm(&args.mlx)?;
    let mut reference = Reference::start(&environment, &peer::directory(checkpoint)?)?;
    let window = args.window.min(backend.context_limit());
    let chunk = args.chunk.unwrap_or(usize::MAX);
    let mut compared = Compared::default();
    for tokens in &tokens {
        compared.add(backend, &mut reference, tokens, window, chunk)?;
    }
    let place = |at: &Position| place(&texts[at.text].0, at, &tokens[at.text], &checkpoint.tokenizer);
    let mut worst: Vec<&Position> = compared.positions.iter().collect();
    let max_kl = worst.iter().map(|at| at.difference.kl).max_by(f64::total_cmp);
    worst.sort_by(|a, b| b.difference.kl.total_cmp(&a.difference.kl));
    worst.truncate(args.worst);
    let different = compared.positions.iter().filter(|at| !at.difference.same_top());
    let margins = different.clone().flat_map(|at| at.difference.margins());
    let sums = &compared.sums;
    let report = Report {
        model: checkpoint.name.clone(),
        device: backend.device().description,
        peer: format!("{}, in f32", environment.description()),
        peer_device: reference.device,
        texts: texts.iter().map(|(name, _)| name.clone()).collect(),
        positions: sums.positions,
        window,
        perplexity: sums.perplexity(),
        peer_perplexity: sums.reference_perplexity(),
        perplexity_difference_percent: 100.0 * (sums.perplexity() / sums.reference_perplexity() - 1.0),
        top1_agreement: sums.top1_agreement(),
        mean_kl: sums.mean_kl(),
        max_kl: max_kl.unwrap_or(0.0),
        max_abs_logit_diff: sums.max_abs_logit_diff,
        different_tops: different.clone().count(),
        largest_margin: margins.max_by(f64::total_cmp),
        worst: worst.into_iter().map(place).collect(),
        differences: different.take(args.worst).map(place).collect(),
    };
    if args.json {
        return output::json(&report);
    }
    print(&report)
}

/// The engine that is compared with.
struct Reference {
    driver: Driver,
    device: String,
    /// Where its logits are handed over.
    file: PathBuf,
    _directory: tempfile::TempDir,
}

impl Reference {
    fn start(environment: &Environment, checkpoint: &Path) -> Result<Self, CliError> {
        let mut driver = environment.start(SCRIPT)?;
        let loaded: Loaded = driver.ask(&serde_json::json!({ "model": checkpoint }), Some(LIMIT))?;
        let directory = tempfile::tempdir()?;
        Ok(Reference {
            driver,
            device: loaded.device,
            file: directory.path().join("logits"),
            _directory: directory,
        })
    }

    /// Appends `tokens`, to an empty sequence where `fresh`; the logits after each of them, `vocabulary` numbers a row.
    fn logits(&mut self, tokens: &[u32], fresh: bool, vocabulary: usize) -> Result<BufReader<File>, CliError> {
        let request = serde_json::json!({ "tokens": tokens, "file": self.file, "fresh": fresh });
        let answer: Answer = self.driver.ask(&request, Some(LIMIT))?;
        let strange = |problem: String| PeerError::Driver {
            peer: "mlx-lm".into(),
            problem,
        };
        if (answer.rows, answer.vocabulary) != (tokens.len(), vocabulary) {
            let (rows, found) = (answer.rows, answer.vocabulary);
            let expected = tokens.len();
            return Err(strange(format!(
                "expected {expected} rows of {vocabulary} logits, found {rows} of {found}"
            ))
            .into());
        }
        let file = File::open(&self.file)?;
        let (expected, found) = (4 * (tokens.len() * vocabulary) as u64, file.metadata()?.len());
        if expected != found {
            return Err(strange(format!("expected {expected} bytes of logits, found {found}")).into());
        }
        Ok(BufReader::new(file))
    }
}

/// What was found, in all and at each position.
#[derive(Default)]
struct Compared {
    sums: Comparison,
    positions: Vec<Position>,
    texts: usize,
}

struct Position {
    /// Number of the text.
    text: usize,
    /// Number of the token after which the two differ so.
    position: usize,
    difference: Difference,
}

impl Compared {
    /// Compares at all tokens of a text but the last. Windows overlap by one token, so that each is predicted once.
    fn add<B: Backend>(
        &mut self,
        backend: &mut B,
        reference: &mut Reference,
        tokens: &[u32],
        window: usize,
        chunk: usize,
    ) -> Result<(), CliError> {
        let vocabulary = backend.vocab_size();
        let chunk = chunk.min(backend.max_chunk()).min(MOST_BYTES / (4 * vocabulary)).max(1);
        let mut theirs = vec![0f32; vocabulary];
        let mut start = 0;
        while start + 1 < tokens.len() {
            let end = (start + window).min(tokens.len());
            let mut sequence = backend.new_sequence()?;
            for (index, part) in tokens[start..end - 1].chunks(chunk).enumerate() {
                let first = start + index * chunk;
                let mut rows = reference.logits(part, index == 0, vocabulary)?;
                let mut read = Ok(());
                let mut add = |row: usize, ours: &[f32]| {
                    if read.is_ok() {
                        read = read_row(&mut rows, &mut theirs);
                    }
                    self.positions.push(Position {
                        text: self.texts,
                        position: first + row,
                        difference: self.sums.add(ours, &theirs, tokens[first + row + 1]),
                    });
                };
                backend.prefill(&mut sequence, part, PrefillLogits::All(&mut add))?;
                read?;
            }
            start = end - 1;
        }
        self.texts += 1;
        Ok(())
    }
}

fn read_row(from: &mut impl Read, row: &mut [f32]) -> io::Result<()> {
    let mut bytes = vec![0; 4 * row.len()];
    from.read_exact(&mut bytes)?;
    let numbers = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&number| f32::from_le_bytes(number));
    row.iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
    Ok(())
}

fn place(name: &str, at: &Position, tokens: &[u32], tokenizer: &Tokenizer) -> Place {
    let Position {
        position, difference, ..
    } = *at;
    let [margin, peer_margin] = difference.margins();
    let text = |tokens: &[u32]| {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&id| tokenizer.token_bytes(id).to_vec())
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let choice = |top: Top| Choice {
        token: top.token,
        text: text(&[top.token]),
        probability: top.probability,
        others_probability: top.others_probability,
    };
    Place {
        text: name.to_owned(),
        position,
        kl: difference.kl,
        max_abs_logit_diff: difference.max_abs_logit_diff,
        margin,
        peer_margin,
        before: text(&tokens[(position + 1).saturating_sub(SHOWN_BEFORE)..=position]),
        next: text(&tokens[position + 1..position + 2]),
        ours: choice(difference.top),
        peers: choice(difference.reference_top),
    }
}

fn print(report: &Report) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    writeln!(out, "model             {} on {}", report.model, report.device)?;
    writeln!(out, "peer              {}, on its {}", report.peer, report.peer_device)?;
    let positions = output::count(report.positions as u64);
    let texts = report.texts.join(", ");
    writeln!(out, "text              {texts}: {positions} positions")?;
    writeln!(
        out,
        "perplexity        {:.6}, the peer's {:.6}: {:+.5} %",
        report.perplexity, report.peer_perplexity, report.perplexity_difference_percent
    )?;
    let different = report.different_tops;
    let margin = report.largest_margin;
    let margin = margin.map(|nats| format!(", which neither prefers by more than {nats:.5} nats"));
    writeln!(
        out,
        "same top token    {:.3} % (another one at {different} positions{})",
        100.0 * report.top1_agreement,
        margin.unwrap_or_default()
    )?;
    writeln!(
        out,
        "KL                {:.3e} mean, {:.3e} at most",
        report.mean_kl, report.max_kl
    )?;
    writeln!(out, "max |logit diff|  {:.3e}", report.max_abs_logit_diff)?;
    places(&mut out, "where the top token differs", &report.differences)?;
    if report.differences.len() < different {
        writeln!(out, "  and {} more", different - report.differences.len())?;
    }
    places(&mut out, "the largest divergence", &report.worst)
}

fn places(out: &mut impl Write, title: &str, places: &[Place]) -> Result<(), CliError> {
    if places.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}:")?;
    for place in places {
        let choice = |choice: &Choice| {
            let (own, others) = (100.0 * choice.probability, 100.0 * choice.others_probability);
            format!("{:?} {own:.2} % ({others:.2} %)", choice.text)
        };
        write!(
            out,
            "{} {:>5}  KL {:.2e}  {:?} then {:?}; here {}, the peer {}",
            place.text,
            place.position,
            place.kl,
            place.before,
            place.next,
            choice(&place.ours),
            choice(&place.peers)
        )?;
        if place.ours.token != place.peers.token {
            write!(out, "; margins {:.5} and {:.5} nats", place.margin, place.peer_margin)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_texts_are_long_enough_to_say_something() {
        let checkpoint = Checkpoint::open(&crate::demo::source()).unwrap();
        let tokens = TEXTS.map(|(_, text)| checkpoint.tokenizer.encode_plain(text).unwrap().len());
        assert!(tokens.iter().sum::<usize>() > 4096, "{tokens:?}");
        assert!(TEXTS.iter().all(|(_, text)| text.is_ascii()));
    }

    /// A reference that thinks the token just given most likely.
    const ECHO: &str = "\
from array import array
def answer(request):
    vocabulary = 3 if request['tokens'][0] == 7 else 3840
    rows = array('f')
    for token in request['tokens']:
        row = array('f', [0.0]) * vocabulary
        row[token % vocabulary] = 50.0
        rows.extend(row)
    with open(request['file'], 'wb') as file:
        rows[: len(rows) - (request['tokens'][0] == 8)].tofile(file)
    return {'rows': len(request['tokens']), 'vocabulary': vocabulary}
run(answer)";

    fn compare_with_echo(tokens: &[u32], window: usize, chunk: usize) -> Result<Compared, CliError> {
        let checkpoint = Checkpoint::open(&crate::demo::source()).unwrap();
        let (config, weights) = (checkpoint.config.clone().into(), checkpoint.weights.clone().into());
        let mut backend = lily_cpu::CpuModel::new(config, weights, lily_cpu::CpuOptions::default()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut reference = Reference {
            driver: Driver::start("echo", Path::new("python3"), ECHO).unwrap(),
            device: "cpu".into(),
            file: directory.path().join("logits"),
            _directory: directory,
        };
        let mut compared = Compared::default();
        compared.add(&mut backend, &mut reference, tokens, window, chunk)?;
        Ok(compared)
    }

    #[test]
    fn rows_meet_their_positions_in_chunks_and_windows() {
        let tokens: Vec<u32> = (100..121).collect();
        for (window, chunk) in [(4096, 4096), (4096, 6), (7, 3)] {
            let compared = compare_with_echo(&tokens, window, chunk).unwrap();
            assert_eq!(compared.sums.positions, tokens.len() - 1);
            let echoed = compared.positions.iter().map(|at| at.difference.reference_top.token);
            let echoed: Vec<u32> = echoed.collect();
            assert_eq!(
                echoed,
                tokens[..tokens.len() - 1],
                "windows of {window}, chunks of {chunk}"
            );
            // The token that came is one of the others.
            assert!(compared.sums.reference_perplexity() > 1e8);
            assert!(compared.sums.mean_kl() > 1.0);
        }
    }

    #[test]
    fn a_reference_of_another_shape_is_refused() {
        let refused = |first| {
            compare_with_echo(&[first, 100, 101], 4096, 4096)
                .err()
                .unwrap()
                .to_string()
        };
        assert_eq!(refused(7), "mlx-lm: expected 2 rows of 3840 logits, found 2 of 3");
        assert_eq!(refused(8), "mlx-lm: expected 30720 bytes of logits, found 30716");
    }

    #[test]
    fn places_show_the_text_around_them() {
        let checkpoint = Checkpoint::open(&crate::demo::source()).unwrap();
        let tokens = checkpoint.tokenizer.encode_plain("The cat sat on the mat.").unwrap();
        let top = |token| Top {
            token,
            probability: 0.5,
            others_probability: 0.25,
        };
        let difference = Difference {
            kl: 1.0,
            max_abs_logit_diff: 2.0,
            top: top(tokens[1]),
            reference_top: top(tokens[0]),
        };
        let at = Position {
            text: 0,
            position: 0,
            difference,
        };
        let place = place("cat", &at, &tokens, &checkpoint.tokenizer);
        assert_eq!((place.before.as_str(), place.peers.text.as_str()), ("The", "The"));
        assert_eq!(place.next, place.ours.text);
        let mut out = Vec::new();
        places(&mut out, "title", &[place]).unwrap();
        let line = String::from_utf8(out).unwrap();
        assert!(
            line.contains("the peer \"The\" 50.00 % (25.00 %); margins 0.69315 and 0.69315 nats"),
            "{line}"
        );
    }
}
