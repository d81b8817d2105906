//! What the server adds to the engine: the same requests to an engine in this process and to the server, in turns.

use std::time::{Duration, Instant};

use lily_engine::{Engine, EngineError, Event, GenerateRequest};
use serde::Serialize;

use super::drive::Target;
use super::plan::Request;
use crate::bench::measure::median;
use crate::error::CliError;

/// One client at the engine and at the server.
#[derive(Debug, Serialize)]
pub struct Overhead {
    /// Requests that each of them answered.
    pub requests: usize,
    /// Time of a decode step at the engine alone, ms: the median of the requests.
    pub engine_step_ms: f64,
    /// The same at the server's client.
    pub server_step_ms: f64,
    /// What the server adds to a step, in percent: the median of the pairs.
    pub decode_percent: f64,
    /// A quarter of the pairs lies below.
    pub decode_percent_low: f64,
    /// A quarter of the pairs lies above.
    pub decode_percent_high: f64,
    /// Time to the first token at the engine alone, ms.
    pub engine_ttft_ms: f64,
    /// The same at the server's client.
    pub server_ttft_ms: f64,
}

/// Times of one reply.
struct Times {
    first: Duration,
    step: f64,
}

/// Asks both for every request of the plan; which of them comes first alternates. `None` where the deadline leaves no pair.
///
/// # Errors
/// What the engine or the server says
pub fn measure(
    engine: &Engine,
    target: &Target,
    plan: &[Request],
    deadline: Option<Instant>,
) -> Result<Option<Overhead>, CliError> {
    // Both get warm.
    if let Some(request) = plan.first() {
        let mut warm_up = request.clone();
        // Nothing of it may be left in a cache for the request itself.
        warm_up.prompt.reverse();
        at_engine(engine, &warm_up)?;
        at_server(target, &warm_up)?;
    }
    let mut pairs = Vec::with_capacity(plan.len());
    for (index, request) in plan.iter().enumerate() {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
        pairs.push(if index % 2 == 0 {
            let engine = at_engine(engine, request)?;
            (engine, at_server(target, request)?)
        } else {
            let server = at_server(target, request)?;
            (at_engine(engine, request)?, server)
        });
    }
    Ok(summary(&pairs))
}

fn summary(pairs: &[(Times, Times)]) -> Option<Overhead> {
    if pairs.is_empty() {
        return None;
    }
    let of = |value: fn(&(Times, Times)) -> f64| pairs.iter().map(value).collect::<Vec<f64>>();
    let mut percents = of(|(engine, server)| 100.0 * (server.step / engine.step - 1.0));
    percents.sort_by(f64::total_cmp);
    let quarter = percents.len() / 4;
    Some(Overhead {
        requests: pairs.len(),
        engine_step_ms: 1e3 * median(&of(|(engine, _)| engine.step)),
        server_step_ms: 1e3 * median(&of(|(_, server)| server.step)),
        decode_percent: median(&percents),
        decode_percent_low: percents[quarter],
        decode_percent_high: percents[percents.len() - 1 - quarter],
        engine_ttft_ms: 1e3 * median(&of(|(engine, _)| engine.first.as_secs_f64())),
        server_ttft_ms: 1e3 * median(&of(|(_, server)| server.first.as_secs_f64())),
    })
}

fn at_server(target: &Target, request: &Request) -> Result<Times, CliError> {
    let outcome = target.ask(request).map_err(|problem| CliError::Arm {
        arm: target.name.clone(),
        problem,
    })?;
    Ok(Times {
        first: outcome.first,
        step: outcome.rest.as_secs_f64() / outcome.gaps.len().max(1) as f64,
    })
}

/// The same times as at the server: those of pieces of text.
fn at_engine(engine: &Engine, request: &Request) -> Result<Times, CliError> {
    let mut asked = GenerateRequest::new(request.prompt.clone());
    asked.max_tokens = Some(request.reply);
    let sent = Instant::now();
    let mut generation = engine.submit(asked)?;
    let mut pieces = Vec::with_capacity(request.reply);
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token(token) if !token.text.is_empty() => pieces.push(Instant::now()),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    match (pieces.first(), pieces.last()) {
        (Some(&first), Some(&last)) => Ok(Times {
            first: first - sent,
            step: (last - first).as_secs_f64() / (pieces.len() - 1).max(1) as f64,
        }),
        _ => Err(EngineError::Stopped.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_of_pairs() {
        let times = |step: f64| Times {
            first: Duration::from_millis(100),
            step,
        };
        // Both slow down together: what the server adds stays the same.
        let pairs: Vec<_> = (1..=8)
            .map(|slow| (times(f64::from(slow)), times(1.01 * f64::from(slow))))
            .collect();
        let overhead = summary(&pairs).unwrap();
        assert!((overhead.decode_percent - 1.0).abs() < 1e-9, "{overhead:?}");
        assert!((overhead.decode_percent_low - 1.0).abs() < 1e-9 && (overhead.engine_ttft_ms - 100.0).abs() < 1e-9);
        assert!(summary(&[]).is_none());
    }
}
