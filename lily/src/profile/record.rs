//! Running one step again and again, with and without noting what its operations take.

use std::time::{Duration, Instant};

use lily_engine::{Backend, BackendError, DecodeStep, PrefillLogits};

use crate::backend::{AnyBackend, AnySequence};
use crate::bench::measure;

/// One operation of a step: on a GPU, one dispatch.
#[derive(Clone, Debug)]
pub struct Event {
    /// What was computed, without its layer.
    pub operation: String,
    /// Its layer.
    pub layer: Option<usize>,
    /// Its kernel, on a GPU.
    pub kernel: Option<String>,
    /// Its pass and the dependency stage in that pass, on a GPU.
    pub stage: Option<(usize, usize)>,
    /// Its start, after the start of the step; on a GPU, where dispatches run one by one, the end of the one before.
    pub start: Duration,
    /// How long it took.
    pub time: Duration,
}

/// A step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// A decode step, else a chunk of prefill.
    pub decode: bool,
    /// Tokens before it.
    pub context: usize,
    /// Tokens of it.
    pub rows: usize,
}

/// What was measured.
pub struct Recorded {
    /// Times of the step when nothing is noted.
    pub plain: Vec<Duration>,
    /// Time of the step whose operations are told, from outside.
    pub profiled: Duration,
    /// Its operations.
    pub events: Vec<Event>,
}

/// Runs `step` some times to warm up, then `rounds` times each way in turns; the profile of medium length is kept.
pub fn record(backend: &mut AnyBackend, step: Step, rounds: usize) -> Result<Recorded, BackendError> {
    const WARM_UP: usize = 2;
    // A decode step follows others: the one before it is run each time, and not measured. It is the one that copies what the snapshot shares.
    let lead = usize::from(step.decode && step.context > 0);
    let before = prepare(backend, step.context - lead)?;
    let mut plain = Vec::with_capacity(rounds);
    let mut profiles = Vec::with_capacity(rounds);
    for round in 0..WARM_UP + rounds {
        let mut sequence = ready(backend, &before, step, lead)?;
        let took = run(backend, &mut sequence, step)?;
        let mut sequence = ready(backend, &before, step, lead)?;
        start(backend);
        let whole = run(backend, &mut sequence, step);
        let events = stop(backend);
        let whole = whole?;
        if round >= WARM_UP {
            plain.push(took);
            profiles.push((whole, events));
        }
    }
    profiles.sort_by_key(|(whole, _)| *whole);
    let (profiled, events) = profiles.swap_remove(profiles.len() / 2);
    Ok(Recorded {
        plain,
        profiled,
        events,
    })
}

/// The state after `context` tokens.
fn prepare(backend: &mut AnyBackend, context: usize) -> Result<<AnyBackend as Backend>::Snapshot, BackendError> {
    let mut sequence = backend.new_sequence()?;
    let tokens = measure::prompt(context, backend.vocab_size());
    for chunk in tokens.chunks(backend.max_chunk()) {
        backend.prefill(&mut sequence, chunk, PrefillLogits::None)?;
    }
    backend.snapshot(&sequence)
}

/// A copy of the state, moved on to the step by `lead` decode steps.
fn ready(
    backend: &mut AnyBackend,
    before: &<AnyBackend as Backend>::Snapshot,
    step: Step,
    lead: usize,
) -> Result<AnySequence, BackendError> {
    let mut sequence = backend.restore(before)?;
    for token in tokens(backend, step.context - lead, lead) {
        let sequence = &mut sequence;
        backend.decode(&mut [DecodeStep { sequence, token }])?;
    }
    Ok(sequence)
}

/// The time of the step.
fn run(backend: &mut AnyBackend, sequence: &mut AnySequence, step: Step) -> Result<Duration, BackendError> {
    let tokens = tokens(backend, step.context, step.rows);
    let started = Instant::now();
    if step.decode {
        let token = tokens[0];
        backend.decode(&mut [DecodeStep { sequence, token }])?;
    } else {
        backend.prefill(sequence, &tokens, PrefillLogits::Last)?;
    }
    Ok(started.elapsed())
}

/// `count` tokens of the prompt from `first` on.
fn tokens(backend: &AnyBackend, first: usize, count: usize) -> Vec<u32> {
    measure::prompt(first + count, backend.vocab_size()).split_off(first)
}

fn start(backend: &mut AnyBackend) {
    match backend {
        AnyBackend::Cpu(model) => model.start_profile(),
        AnyBackend::Gpu(model) => model.start_profile(),
    }
}

fn stop(backend: &mut AnyBackend) -> Vec<Event> {
    match backend {
        AnyBackend::Cpu(model) => {
            let spans = model.stop_profile();
            let begin = spans.first().map_or(Duration::ZERO, |span| span.start);
            let event = |span: &lily_cpu::Span| Event {
                operation: span.operation.into(),
                layer: span.layer,
                kernel: None,
                stage: None,
                start: span.start - begin,
                time: span.time,
            };
            spans.iter().map(event).collect()
        }
        AnyBackend::Gpu(model) => {
            let mut at = Duration::ZERO;
            let dispatches = model.stop_profile().into_iter();
            let events = dispatches.map(|dispatch| {
                let (layer, operation) = split_label(&dispatch.label);
                let start = at;
                at += dispatch.time;
                Event {
                    operation: operation.into(),
                    layer,
                    kernel: Some(dispatch.kernel),
                    stage: Some(dispatch.stage),
                    start,
                    time: dispatch.time,
                }
            });
            events.collect()
        }
    }
}

/// `layer 3 attention` is `attention` of layer 3.
fn split_label(label: &str) -> (Option<usize>, &str) {
    let in_layer = label
        .strip_prefix("layer ")
        .and_then(|rest| rest.split_once(' '))
        .and_then(|(layer, operation)| Some((layer.parse().ok()?, operation)));
    match in_layer {
        Some((layer, operation)) => (Some(layer), operation),
        None => (None, label),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_a_layer_or_none() {
        assert_eq!(split_label("layer 12 gate and up"), (Some(12), "gate and up"));
        assert_eq!(split_label("logits"), (None, "logits"));
        assert_eq!(split_label("layer x norm"), (None, "layer x norm"));
    }
}
