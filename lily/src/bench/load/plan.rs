//! What the clients of a load ask for, and when: from a seed, so that two servers get the same.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use serde::{Serialize, Serializer};

use crate::bench::measure;

/// A distribution of lengths, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// Always so many.
    Fixed(usize),
    /// From the first to the second, each as likely.
    Uniform(usize, usize),
    /// Log-normal by its median and the standard deviation of the logarithm: most are short, a few are long.
    LogNormal(f64, f64),
}

/// Longest that a log-normal length may be, over its median.
const LONGEST: f64 = 16.0;

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected N, A-B or lognormal:MEDIAN:SIGMA, of at least 1 token, found {text:?}");
        let length = |text: &str| text.parse::<usize>().ok().filter(|&length| length > 0);
        let lengths = if let Some(rest) = text.strip_prefix("lognormal:") {
            let (median, sigma) = rest.split_once(':').ok_or_else(wrong)?;
            let median = length(median).map(|median| median as f64);
            let sigma = sigma.parse::<f64>().ok().filter(|sigma| (0.0..=4.0).contains(sigma));
            median
                .zip(sigma)
                .map(|(median, sigma)| Lengths::LogNormal(median, sigma))
        } else if let Some((least, most)) = text.split_once('-') {
            let range = length(least).zip(length(most)).filter(|(least, most)| least <= most);
            range.map(|(least, most)| Lengths::Uniform(least, most))
        } else {
            length(text).map(Lengths::Fixed)
        };
        lengths.ok_or_else(wrong)
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(length) => write!(f, "{length}"),
            Lengths::Uniform(least, most) => write!(f, "{least}-{most}"),
            Lengths::LogNormal(median, sigma) => write!(f, "lognormal:{median}:{sigma}"),
        }
    }
}

impl Serialize for Lengths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Lengths {
    fn draw(&self, random: &mut Rng) -> usize {
        match *self {
            Lengths::Fixed(length) => length,
            Lengths::Uniform(least, most) => random.usize(least..=most),
            Lengths::LogNormal(median, sigma) => {
                let length = median * (sigma * normal(random)).exp();
                length.min(median * LONGEST).round().max(1.0) as usize
            }
        }
    }
}

/// A number of the standard normal distribution (Box and Muller).
fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// One request of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Token ids; no two requests begin alike.
    pub prompt: Vec<u32>,
    /// Tokens of the reply.
    pub reply: usize,
    /// When it is sent after the start, where requests do not wait for each other.
    pub arrival: Duration,
}

/// `count` requests. Arrivals are a Poisson process of `rate` requests a second, where there is one.
pub fn plan(
    count: usize,
    (prompt, reply): (&Lengths, &Lengths),
    rate: Option<f64>,
    vocab_size: usize,
    seed: u64,
) -> Vec<Request> {
    let mut random = Rng::with_seed(seed);
    let mut arrival = 0.0;
    let mut shift = random.usize(0..1 << 20);
    (0..count)
        .map(|_| {
            if let Some(rate) = rate {
                arrival += -(1.0 - random.f64()).ln() / rate;
            }
            shift += 1;
            Request {
                prompt: measure::shifted_prompt(shift, prompt.draw(&mut random), vocab_size),
                reply: reply.draw(&mut random),
                arrival: Duration::from_secs_f64(arrival),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_and_told() {
        for (text, lengths) in [
            ("256", Lengths::Fixed(256)),
            ("16-64", Lengths::Uniform(16, 64)),
            ("lognormal:200:0.8", Lengths::LogNormal(200.0, 0.8)),
        ] {
            assert_eq!(text.parse(), Ok(lengths));
            assert_eq!(lengths.to_string(), text);
        }
        for wrong in [
            "0",
            "64-16",
            "a",
            "lognormal:200",
            "lognormal:0:1",
            "lognormal:9:-1",
            "-5",
        ] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn draws_follow_their_distribution() {
        let mut random = Rng::with_seed(3);
        let mut draws = |lengths: Lengths| -> Vec<usize> {
            let mut all: Vec<usize> = (0..2001).map(|_| lengths.draw(&mut random)).collect();
            all.sort_unstable();
            all
        };
        let uniform = draws(Lengths::Uniform(10, 20));
        assert_eq!((uniform[0], uniform[2000]), (10, 20));
        let skewed = draws(Lengths::LogNormal(100.0, 1.0));
        assert!((90..=111).contains(&skewed[1000]), "median {}", skewed[1000]);
        // 84.13 % lie below a standard deviation.
        assert!((240..=305).contains(&skewed[1683]), "{}", skewed[1683]);
        assert!(skewed[2000] <= 1600);
    }

    #[test]
    fn arrivals_are_a_poisson_process() {
        let lengths = (&Lengths::Fixed(4), &Lengths::Fixed(2));
        let requests = plan(2000, lengths, Some(10.0), 1000, 1);
        let gaps: Vec<f64> = requests
            .windows(2)
            .map(|pair| (pair[1].arrival - pair[0].arrival).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.1).abs() < 0.01, "{mean}");
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!(
            (deviation / mean - 1.0).abs() < 0.1,
            "exponential gaps spread as much as their mean"
        );
        assert_eq!(requests, plan(2000, lengths, Some(10.0), 1000, 1), "the same seed");
        assert_ne!(requests, plan(2000, lengths, Some(10.0), 1000, 2));
        assert!(
            plan(9, lengths, None, 1000, 1)
                .iter()
                .all(|request| request.arrival == Duration::ZERO)
        );
        let mut first: Vec<u32> = requests[..100].iter().map(|request| request.prompt[0]).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 100, "no two begin alike");
    }
}
