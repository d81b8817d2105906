//! Arms: one engine each, measured in alternation with others.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::conditions::Watch;
use super::report::Subject;
use super::sweep::Peer;
use crate::error::CliError;
use crate::output;

/// What an arm is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Tokens of the prompt.
    pub context: usize,
    /// Decode steps after it.
    pub steps: usize,
    /// Rounds before this one.
    pub round: usize,
    /// Tokens of our own arm's largest prefill chunk, once it is known.
    pub chunk: Option<usize>,
    /// When the arm has to stop.
    pub deadline: Option<Instant>,
}

impl Job {
    /// [`CliError::TimeLimit`] where the deadline has passed.
    pub fn check(&self) -> Result<(), CliError> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(CliError::TimeLimit),
            _ => Ok(()),
        }
    }
}

/// One measured round of an arm.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Tokens of the prompt, as the arm counts them.
    pub prompt_tokens: usize,
    /// Seconds to the first token.
    pub prefill_seconds: f64,
    /// Decode steps that were measured.
    pub steps: usize,
    /// Seconds of all of them.
    pub decode_seconds: f64,
    /// The tokens chosen, where the arm tells them: one after the prompt and one a step.
    pub tokens: Vec<u32>,
}

/// An engine that can be measured.
pub trait Arm {
    /// Its name, for messages.
    fn name(&self) -> String;

    /// One round: a warm-up of the same shape where the engine is not warm, then a measured prefill and measured decode steps.
    ///
    /// # Errors
    /// Whatever the engine says; [`CliError::TimeLimit`] at the deadline
    fn sample(&mut self, job: &Job) -> Result<Sample, CliError>;

    /// What ran and the most memory that its process held, of one of our own arms and after its first round.
    fn subject(&self) -> Option<(Subject, Option<u64>)> {
        None
    }

    /// What ran, of another engine's arm and after its first round.
    fn peer(&self) -> Option<Peer> {
        None
    }
}

/// Samples of several arms at one context.
#[derive(Debug)]
pub struct Series {
    /// By arm, then by round; all arms have as many rounds.
    pub samples: Vec<Vec<Sample>>,
    /// Whether the deadline came before the last round.
    pub cut_short: bool,
}

/// Rounds of all arms, in an order that turns around with each round: A B, B A, A B.
///
/// # Errors
/// What an arm says, except for the time limit, and [`CliError::NotReproducible`] where the first arm, ours, gives other tokens in a later round. Of another
/// arm that is a warning.
pub fn alternate(arms: &mut [&mut dyn Arm], job: Job, rounds: usize, watch: &mut Watch) -> Result<Series, CliError> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); arms.len()];
    let mut cut_short = false;
    // Seen on a terminal only.
    let progress = ProgressBar::new_spinner();
    progress.enable_steady_tick(Duration::from_millis(200));
    'rounds: for round in 0..rounds {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for arm in order {
            progress.set_message(format!(
                "{} tokens, round {} of {rounds}: {}",
                output::count(job.context as u64),
                round + 1,
                arms[arm].name()
            ));
            // Our own arm comes first in the first round.
            let chunk = arms[0].subject().and_then(|(subject, _)| subject.max_chunk);
            match arms[arm].sample(&Job { round, chunk, ..job }) {
                Ok(sample) => samples[arm].push(sample),
                Err(CliError::TimeLimit) => {
                    cut_short = true;
                    break 'rounds;
                }
                Err(error) => return Err(error),
            }
        }
    }
    progress.finish_and_clear();
    let complete = samples.iter().map(Vec::len).min().unwrap_or(0);
    for (index, (arm, samples)) in arms.iter().zip(&mut samples).enumerate() {
        samples.truncate(complete);
        if samples.windows(2).all(|pair| pair[0].tokens == pair[1].tokens) {
            continue;
        }
        let problem = format!(
            "context {}: two rounds of {} gave different tokens",
            job.context,
            arm.name()
        );
        if index == 0 {
            return Err(CliError::NotReproducible(format!(
                "{problem}; the figures mean nothing"
            )));
        }
        watch.warn(problem);
    }
    Ok(Series { samples, cut_short })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Fake<'a> {
        name: &'static str,
        log: &'a RefCell<Vec<String>>,
        tokens: fn(usize) -> Vec<u32>,
        stops_at: usize,
    }

    impl Arm for Fake<'_> {
        fn name(&self) -> String {
            self.name.into()
        }

        fn sample(&mut self, job: &Job) -> Result<Sample, CliError> {
            if job.round >= self.stops_at {
                return Err(CliError::TimeLimit);
            }
            self.log.borrow_mut().push(format!("{}{}", self.name, job.round));
            Ok(Sample {
                prompt_tokens: job.context,
                prefill_seconds: 1.0,
                steps: job.steps,
                decode_seconds: 1.0,
                tokens: (self.tokens)(job.round),
            })
        }
    }

    const JOB: Job = Job {
        context: 8,
        steps: 2,
        round: 0,
        chunk: None,
        deadline: None,
    };

    fn run(
        tokens: [fn(usize) -> Vec<u32>; 2],
        stops_at: usize,
    ) -> (Result<Series, CliError>, Vec<String>, Vec<String>) {
        let log = RefCell::new(Vec::new());
        let arm = |name, tokens, stops_at| Fake {
            name,
            log: &log,
            tokens,
            stops_at,
        };
        let (mut a, mut b) = (arm("a", tokens[0], usize::MAX), arm("b", tokens[1], stops_at));
        let mut watch = Watch::start();
        let series = alternate(&mut [&mut a, &mut b], JOB, 3, &mut watch);
        let warnings = watch.finish().warnings;
        (series, log.into_inner(), warnings)
    }

    #[test]
    fn the_order_turns_around() {
        let (series, log, _) = run([|_| vec![1], |_| vec![2]], usize::MAX);
        assert_eq!(log, ["a0", "b0", "b1", "a1", "a2", "b2"]);
        assert_eq!(series.unwrap().samples[1].len(), 3);
    }

    #[test]
    fn a_deadline_keeps_whole_rounds() {
        let (series, ..) = run([|_| vec![1], |_| vec![2]], 2);
        let series = series.unwrap();
        assert!(series.cut_short);
        assert_eq!(series.samples.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn tokens_have_to_be_the_same_in_every_round() {
        let changing: fn(usize) -> Vec<u32> = |round| vec![round as u32];
        let (series, ..) = run([changing, |_| vec![2]], usize::MAX);
        assert!(matches!(series, Err(CliError::NotReproducible(_))));
        let (series, _, warnings) = run([|_| vec![1], changing], usize::MAX);
        assert!(series.is_ok());
        assert!(
            warnings
                .iter()
                .any(|warning| warning == "context 8: two rounds of b gave different tokens")
        );
    }
}
