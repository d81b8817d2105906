//! Where the time of a step goes.

use std::time::{Duration, Instant};

/// One operation of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What was computed: `projections`, `attention`.
    pub operation: &'static str,
    /// Its layer; `None` before the first layer and after the last.
    pub layer: Option<usize>,
    /// Its start, after the start of the profile.
    pub start: Duration,
    /// How long it took.
    pub time: Duration,
}

/// Notes when each operation ends, once it was started. The thread that runs the step calls it between parallel regions, so that a step
/// that is not profiled pays one branch an operation and the workers pay nothing.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Option<Box<Running>>);

#[derive(Debug)]
struct Running {
    begun: Instant,
    last: Instant,
    layer: Option<usize>,
    spans: Vec<Span>,
}

impl Recorder {
    /// Forgets what was noted and begins anew.
    pub(crate) fn start(&mut self) {
        let now = Instant::now();
        self.0 = Some(Box::new(Running {
            begun: now,
            last: now,
            layer: None,
            spans: Vec::with_capacity(1024),
        }));
    }

    /// Ends; empty where nothing was started.
    pub(crate) fn stop(&mut self) -> Vec<Span> {
        self.0.take().map_or_else(Vec::new, |running| running.spans)
    }

    /// The next operation starts now.
    pub(crate) fn skip(&mut self) {
        if let Some(running) = &mut self.0 {
            running.last = Instant::now();
        }
    }

    /// The layer of the operations that follow.
    pub(crate) fn layer(&mut self, layer: Option<usize>) {
        if let Some(running) = &mut self.0 {
            running.layer = layer;
        }
    }

    /// `operation` ends now; it started where the one before it ended.
    pub(crate) fn end(&mut self, operation: &'static str) {
        if let Some(running) = &mut self.0 {
            let now = Instant::now();
            running.spans.push(Span {
                operation,
                layer: running.layer,
                start: running.last - running.begun,
                time: now - running.last,
            });
            running.last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_follow_each_other_without_a_gap() {
        let mut recorder = Recorder::default();
        recorder.end("not started");
        assert_eq!(recorder.stop(), []);
        recorder.start();
        recorder.end("a");
        recorder.layer(Some(3));
        recorder.end("b");
        std::thread::sleep(Duration::from_millis(2));
        recorder.skip();
        recorder.end("c");
        let spans = recorder.stop();
        let names: Vec<_> = spans.iter().map(|span| (span.operation, span.layer)).collect();
        assert_eq!(names, [("a", None), ("b", Some(3)), ("c", Some(3))]);
        assert_eq!(spans[0].start + spans[0].time, spans[1].start);
        assert!(spans[2].start - (spans[1].start + spans[1].time) >= Duration::from_millis(2));
        assert_eq!(recorder.stop(), []);
    }
}
