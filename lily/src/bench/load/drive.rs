//! Sends the requests of a plan to a server, and notes what became of each.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::Request;
use crate::bench::http::{Client, Completion};

/// Who gets the requests.
#[derive(Clone)]
pub struct Target {
    /// Its name, for people.
    pub name: String,
    /// Talks to it.
    pub client: Client,
    /// Its name of the model.
    pub model: String,
}

impl Target {
    /// Sends one request and reads its reply.
    pub fn ask(&self, request: &Request) -> Result<Outcome, String> {
        let completion = Completion {
            model: self.model.clone(),
            prompt: request.prompt.clone().into(),
            max_tokens: request.reply,
            extensions: true,
        };
        let streamed = self
            .client
            .complete(&completion)
            .map_err(|refusal| refusal.to_string())?;
        let gaps = streamed.pieces.windows(2).map(|pair| pair[1] - pair[0]).collect();
        Ok(Outcome {
            first: streamed.first(),
            rest: streamed.rest(),
            gaps,
            tokens: streamed.tokens(),
        })
    }
}

/// A reply that came to its end.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time to the first piece of text (TTFT).
    pub first: Duration,
    /// Time from the first piece to the last.
    pub rest: Duration,
    /// Times between pieces.
    pub gaps: Vec<Duration>,
    /// Tokens.
    pub tokens: usize,
}

/// How requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// So many clients, each of which sends its next request when it has its reply.
    Clients(usize),
    /// At their arrivals, whether or not earlier ones are answered.
    Arrivals,
}

/// What became of all requests.
#[derive(Debug, Default)]
pub struct Driven {
    /// Of each request, in no order.
    pub outcomes: Vec<Result<Outcome, String>>,
    /// From the first request to the end of the last reply.
    pub time: Duration,
}

/// Sends all requests of a plan that can be sent before the deadline, and waits for their replies.
pub fn drive(target: &Target, plan: &[Request], mode: Mode, deadline: Option<Instant>) -> Driven {
    let outcomes = Mutex::new(Vec::with_capacity(plan.len()));
    let late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let ask = |request: &Request| {
        let outcome = target.ask(request);
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    };
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    thread::scope(|scope| match mode {
        Mode::Clients(clients) => {
            for _ in 0..clients {
                scope.spawn(|| {
                    while let Some(request) = plan.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if late() {
                            return;
                        }
                        ask(request);
                    }
                });
            }
        }
        Mode::Arrivals => {
            for request in plan {
                thread::sleep((started + request.arrival).saturating_duration_since(Instant::now()));
                if late() {
                    return;
                }
                let ask = &ask;
                scope.spawn(move || ask(request));
            }
        }
    });
    Driven {
        time: started.elapsed(),
        outcomes: outcomes.into_inner().unwrap_or_else(PoisonError::into_inner),
    }
}
