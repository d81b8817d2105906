//! The contract's sweep: prefill and decode at several contexts, alone or beside a peer.

use std::fmt::Write as _;

use serde::Serialize;

use super::arm::{Sample, Series};
use super::measure::median;
use super::report::{self, Head, digest, first_difference};
use crate::output;

/// Spread of the rounds, in percent of the median, from which on it is told.
const WIDE: f64 = 5.0;

/// What is measured at one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Tokens.
    pub context: usize,
    /// Whether prefill is.
    pub prefill: bool,
    /// Whether decode is.
    pub decode: bool,
}

/// All points, by length.
pub fn points(prompt: &[usize], decode_at: &[usize]) -> Vec<Point> {
    let mut contexts = [prompt, decode_at].concat();
    contexts.sort_unstable();
    contexts.dedup();
    contexts
        .into_iter()
        .map(|context| Point {
            context,
            prefill: prompt.contains(&context),
            decode: decode_at.contains(&context),
        })
        .collect()
}

/// The engine that was measured beside ours.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its release.
    pub version: String,
    /// Where it ran, as it says.
    pub device: String,
    /// Weights and number format.
    pub format: String,
    /// What else a reader of the ratios has to know.
    pub notes: Vec<String>,
}

/// Speed of one arm at one context. What was not asked for is null.
#[derive(Debug, Default, Serialize)]
pub struct Speed {
    prefill_tokens_per_second: Option<f64>,
    decode_tokens_per_second: Option<f64>,
    prefill_seconds: Vec<f64>,
    decode_seconds: Vec<f64>,
    tokens: Vec<u32>,
    digest: Option<String>,
}

impl Speed {
    fn new(point: &Point, samples: &[Sample]) -> Self {
        let Some(first) = samples.first() else {
            return Speed::default();
        };
        let seconds = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<f64>>();
        let rate = |count: usize, seconds: &[f64]| (count > 0).then(|| count as f64 / median(seconds));
        let mut speed = Speed {
            tokens: first.tokens.clone(),
            digest: digest(&first.tokens),
            ..Speed::default()
        };
        if point.prefill {
            speed.prefill_seconds = seconds(|sample| sample.prefill_seconds);
            speed.prefill_tokens_per_second = rate(first.prompt_tokens, &speed.prefill_seconds);
        }
        if point.decode {
            speed.decode_seconds = seconds(|sample| sample.decode_seconds);
            speed.decode_tokens_per_second = rate(first.steps, &speed.decode_seconds);
        }
        speed
    }
}

/// The peer at one context; ratios are ours over the peer's.
#[derive(Debug, Serialize)]
struct PeerSpeed {
    #[serde(flatten)]
    speed: Speed,
    prefill_ratio: Option<f64>,
    decode_ratio: Option<f64>,
    /// Place of the first token that differs from ours; null where none does, or where the peer does not tell.
    first_difference: Option<usize>,
}

/// One context.
#[derive(Debug, Serialize)]
pub struct Measured {
    context: usize,
    #[serde(flatten)]
    speed: Speed,
    decode_bytes_per_second: Option<f64>,
    peer: Option<PeerSpeed>,
}

impl Measured {
    /// Of the samples of our arm, and the peer's where there is one.
    pub fn new(point: &Point, series: &Series, read_per_token: u64) -> Self {
        let speed = Speed::new(point, &series.samples[0]);
        let ratio = |ours: Option<f64>, peers: Option<f64>| Some(ours? / peers?);
        let peer = series.samples.get(1).map(|samples| {
            let peer = Speed::new(point, samples);
            let told = !peer.tokens.is_empty() && !speed.tokens.is_empty();
            PeerSpeed {
                prefill_ratio: ratio(speed.prefill_tokens_per_second, peer.prefill_tokens_per_second),
                decode_ratio: ratio(speed.decode_tokens_per_second, peer.decode_tokens_per_second),
                first_difference: first_difference(&speed.tokens, &peer.tokens).filter(|_| told),
                speed: peer,
            }
        });
        Measured {
            context: point.context,
            decode_bytes_per_second: speed.decode_tokens_per_second.map(|rate| rate * read_per_token as f64),
            speed,
            peer,
        }
    }

    /// The rounds whose spread makes the median doubtful, as a warning.
    pub fn wide(&self) -> Option<String> {
        let spread = |name: &str, seconds: &[f64]| {
            let spread = spread_percent(seconds).filter(|&spread| spread > WIDE)?;
            Some(format!(
                "{name} at {} differs by {spread:.0} % between rounds",
                output::count(self.context as u64)
            ))
        };
        spread("prefill", &self.speed.prefill_seconds).or_else(|| spread("decode", &self.speed.decode_seconds))
    }
}

/// Largest less smallest, in percent of the median; `None` of a single value.
pub fn spread_percent(values: &[f64]) -> Option<f64> {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    (values.len() > 1).then(|| 100.0 * (largest - smallest) / median(values))
}

/// The head of the table.
pub fn header(peer: Option<&str>) -> String {
    match peer {
        None => "| context | prefill, tokens/s | decode, tokens/s | weights read | digest |\n|---:|---:|---:|---:|---|"
            .into(),
        Some(peer) => format!(
            "| context | prefill, tokens/s | {peer} | ratio | decode, tokens/s | {peer} | ratio | same tokens |\n|---:|---:|---:|---:|---:|---:|---:|---|"
        ),
    }
}

/// A row of the table.
pub fn row(measured: &Measured) -> String {
    let rate = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.1}"));
    let context = output::count(measured.context as u64);
    let speed = &measured.speed;
    let (prefill, decode) = (
        rate(speed.prefill_tokens_per_second),
        rate(speed.decode_tokens_per_second),
    );
    let Some(peer) = &measured.peer else {
        let read = measured
            .decode_bytes_per_second
            .map_or("-".into(), |rate| format!("{}/s", output::bytes(rate as u64)));
        let digest = speed.digest.as_deref().unwrap_or("-");
        return format!("| {context} | {prefill} | {decode} | {read} | {digest} |");
    };
    let ratio = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
    let same = match (peer.speed.tokens.len(), peer.first_difference) {
        (0, _) => "not told".into(),
        (count, None) => format!("all {count}"),
        (_, Some(at)) => format!("{at}, then others"),
    };
    format!(
        "| {context} | {prefill} | {} | {} | {decode} | {} | {} | {same} |",
        rate(peer.speed.prefill_tokens_per_second),
        ratio(peer.prefill_ratio),
        rate(peer.speed.decode_tokens_per_second),
        ratio(peer.decode_ratio)
    )
}

/// A whole sweep.
#[derive(Serialize)]
pub struct Report {
    /// What every report says.
    #[serde(flatten)]
    pub head: Head,
    /// `one for each arm` or `one`.
    pub processes: &'static str,
    /// Rounds asked for.
    pub rounds: usize,
    /// By context.
    pub results: Vec<Measured>,
    /// The engine beside ours.
    pub peer: Option<Peer>,
    /// Whether rounds or contexts are missing because of the time limit.
    pub time_limit_reached: bool,
    /// Most memory that our process held.
    pub peak_memory_bytes: Option<u64>,
}

impl Report {
    /// The report for people; `with_table` repeats the rows.
    pub fn markdown(&self, with_table: bool) -> String {
        let mut text = self.head.markdown();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "- batch 1, greedy; {}; a warm-up of the same shape, then one prefill and its decode steps; medians of {}",
            match self.processes {
                "one" => "all in one process",
                _ => "a fresh process for each arm",
            },
            report::rounds(self.rounds)
        );
        if let Some(peer) = &self.peer {
            let _ = writeln!(
                text,
                "- {}: {}; {}; {}",
                peer.name, peer.version, peer.device, peer.format
            );
            for note in &peer.notes {
                let _ = writeln!(text, "- {note}");
            }
        }
        let head = header(self.peer.as_ref().map(|peer| peer.name.as_str()));
        let lines = std::iter::once(head).chain(self.results.iter().map(row));
        report::end_markdown(&mut text, self.time_limit_reached, with_table, lines);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(prefill_seconds: f64, decode_seconds: f64, tokens: &[u32]) -> Sample {
        Sample {
            prompt_tokens: 100,
            prefill_seconds,
            steps: 10,
            decode_seconds,
            tokens: tokens.to_vec(),
        }
    }

    #[test]
    fn points_join_both_lists() {
        let point = |context, prefill, decode| Point {
            context,
            prefill,
            decode,
        };
        assert_eq!(
            points(&[33, 20], &[33, 64]),
            [point(20, true, false), point(33, true, true), point(64, false, true)]
        );
    }

    #[test]
    fn rates_are_of_medians_and_ratios_ours_over_theirs() {
        let series = Series {
            samples: vec![
                vec![sample(1.0, 2.0, &[1, 2, 3]), sample(3.0, 2.0, &[1, 2, 3])],
                vec![sample(4.0, 1.0, &[1, 2, 4]), sample(4.0, 1.0, &[1, 2, 4])],
            ],
            cut_short: false,
        };
        let point = points(&[100], &[100])[0];
        let measured = Measured::new(&point, &series, 7);
        assert_eq!(measured.speed.prefill_tokens_per_second, Some(50.0));
        assert_eq!(measured.decode_bytes_per_second, Some(35.0));
        let peer = measured.peer.as_ref().unwrap();
        assert_eq!((peer.prefill_ratio, peer.decode_ratio), (Some(2.0), Some(0.5)));
        assert_eq!(peer.first_difference, Some(2));
        assert_eq!(
            row(&measured),
            "| 100 | 50.0 | 25.0 | 2.000 | 5.0 | 10.0 | 0.500 | 2, then others |"
        );
        assert_eq!(
            measured.wide().unwrap(),
            "prefill at 100 differs by 100 % between rounds"
        );
    }

    #[test]
    fn what_was_not_asked_for_is_null() {
        let series = Series {
            samples: vec![vec![sample(1.0, 0.0, &[1])]],
            cut_short: false,
        };
        let measured = Measured::new(&points(&[100], &[])[0], &series, 7);
        let json = serde_json::to_value(&measured).unwrap();
        assert!(json["decode_tokens_per_second"].is_null() && json["peer"].is_null() && json["digest"].is_null());
        assert_eq!(row(&measured), "| 100 | 100.0 | - | - | - |");
    }
}
