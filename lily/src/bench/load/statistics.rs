//! What a load shows: latencies, throughput, goodput.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::drive::{Driven, Outcome};

/// Quantiles of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// A tenth is slower.
    pub p90: f64,
    /// A hundredth is slower.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

impl Quantiles {
    /// Of times in any order; `None` of none.
    pub fn of(times: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut times: Vec<f64> = times.into_iter().map(|time| time.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let last = times.len().checked_sub(1)?;
        // The smallest value that at least this share does not exceed.
        let at = |share: f64| times[((share * times.len() as f64).ceil() as usize).clamp(1, last + 1) - 1];
        Some(Quantiles {
            p50: at(0.50),
            p90: at(0.90),
            p99: at(0.99),
            max: times[last],
        })
    }
}

/// Latencies that a request has to keep to count as good.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Targets {
    /// Time to the first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Mean time between the tokens of a reply, in milliseconds.
    pub itl_ms: Option<f64>,
}

impl Targets {
    /// Whether any is set.
    pub fn any(&self) -> bool {
        self.ttft_ms.is_some() || self.itl_ms.is_some()
    }

    fn met(&self, outcome: &Outcome) -> bool {
        let within = |time: Duration, most: Option<f64>| most.is_none_or(|most| time.as_secs_f64() * 1e3 <= most);
        let mean = match u32::try_from(outcome.gaps.len()) {
            Ok(gaps @ 1..) => outcome.rest / gaps,
            _ => Duration::ZERO,
        };
        within(outcome.first, self.ttft_ms) && within(mean, self.itl_ms)
    }
}

/// What one target showed at one level of load.
#[derive(Debug, Serialize)]
pub struct Statistics {
    /// Requests that were sent.
    pub requests: usize,
    /// Those that failed.
    pub failed: usize,
    /// How often by what was said.
    pub failures: BTreeMap<String, usize>,
    /// From the first request to the end of the last reply.
    pub seconds: f64,
    /// Replies finished in a second.
    pub requests_per_second: f64,
    /// Tokens of replies in a second.
    pub output_tokens_per_second: f64,
    /// Time to the first token, ms.
    pub ttft_ms: Option<Quantiles>,
    /// Time between pieces of text, which are tokens but for parts of characters, ms.
    pub itl_ms: Option<Quantiles>,
    /// Time of the whole reply, ms.
    pub total_ms: Option<Quantiles>,
    /// Replies in a second that kept the targets; null where none is set.
    pub goodput_per_second: Option<f64>,
    /// Share of all requests that kept the targets; null where none is set.
    pub good_share: Option<f64>,
}

impl Statistics {
    /// Of rounds of the same load, taken together.
    pub fn new(rounds: &[Driven], targets: &Targets) -> Self {
        let outcomes: Vec<_> = rounds.iter().flat_map(|driven| &driven.outcomes).collect();
        let finished: Vec<&Outcome> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        let mut failures = BTreeMap::new();
        for failure in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            *failures.entry(failure.clone()).or_default() += 1;
        }
        let seconds: f64 = rounds.iter().map(|driven| driven.time.as_secs_f64()).sum();
        let rate = |count: usize| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let good = finished.iter().filter(|outcome| targets.met(outcome)).count();
        Statistics {
            requests: outcomes.len(),
            failed: outcomes.len() - finished.len(),
            failures,
            seconds,
            requests_per_second: rate(finished.len()),
            output_tokens_per_second: rate(finished.iter().map(|outcome| outcome.tokens).sum()),
            ttft_ms: Quantiles::of(finished.iter().map(|outcome| outcome.first)),
            itl_ms: Quantiles::of(finished.iter().flat_map(|outcome| outcome.gaps.iter().copied())),
            total_ms: Quantiles::of(finished.iter().map(|outcome| outcome.first + outcome.rest)),
            goodput_per_second: targets.any().then(|| rate(good)),
            good_share: (targets.any() && !outcomes.is_empty()).then(|| good as f64 / outcomes.len() as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn outcome(first: u64, gaps: &[u64]) -> Outcome {
        Outcome {
            first: ms(first),
            rest: ms(gaps.iter().sum()),
            gaps: gaps.iter().copied().map(ms).collect(),
            tokens: gaps.len() + 1,
        }
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let quantiles = Quantiles::of((1..=200).rev().map(ms)).unwrap();
        assert_eq!(
            (quantiles.p50, quantiles.p90, quantiles.p99, quantiles.max),
            (100.0, 180.0, 198.0, 200.0)
        );
        assert_eq!(Quantiles::of([ms(7)]).unwrap().p50, 7.0);
        assert_eq!(Quantiles::of([]), None);
    }

    #[test]
    fn goodput_counts_what_kept_both_targets() {
        let driven = Driven {
            outcomes: vec![
                Ok(outcome(100, &[10, 10])),
                Ok(outcome(300, &[10, 10])),
                Ok(outcome(100, &[10, 50])),
                Err("status 503: full".into()),
            ],
            time: Duration::from_secs(2),
        };
        let targets = Targets {
            ttft_ms: Some(200.0),
            itl_ms: Some(20.0),
        };
        let statistics = Statistics::new(&[driven], &targets);
        assert_eq!((statistics.requests, statistics.failed), (4, 1));
        assert_eq!(statistics.failures["status 503: full"], 1);
        assert_eq!(
            (statistics.goodput_per_second, statistics.good_share),
            (Some(0.5), Some(0.25))
        );
        assert_eq!(
            (statistics.requests_per_second, statistics.output_tokens_per_second),
            (1.5, 4.5)
        );
        assert_eq!(statistics.itl_ms.unwrap().max, 50.0);
        let none = Statistics::new(&[], &Targets::default());
        assert_eq!((none.goodput_per_second, none.ttft_ms), (None, None));
    }
}
