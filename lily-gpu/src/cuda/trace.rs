//! Where a pass's time goes: every launch on its own, between two events.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::driver::{Mark, Stream, launch};
use super::recording::Launch;
use crate::error::GpuError;

/// Launches and milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    launches: usize,
    milliseconds: f64,
}

/// What was measured so far.
#[derive(Default)]
pub struct Trace {
    marks: Vec<Mark>,
    sums: BTreeMap<(String, String), Sum>,
    passes: usize,
}

impl Trace {
    /// Runs launches one after the other, and waits for each, so that a failure names its kernel. Tells the milliseconds of each.
    pub fn run(&mut self, stream: &Stream, launches: &mut [Launch]) -> Result<Vec<f64>, GpuError> {
        let mut times = Vec::with_capacity(launches.len());
        while self.marks.len() < 2 {
            self.marks.push(Mark::new(true)?);
        }
        self.passes += 1;
        for launched in launches {
            let named =
                |error: GpuError| GpuError::Device(format!("{} ({}): {error}", launched.label, launched.kernel));
            self.marks[0].set(stream)?;
            launch(
                stream,
                &launched.pipeline.function,
                launched.grid,
                &mut launched.parameters,
            )
            .and_then(|()| self.marks[1].set(stream))
            .and_then(|()| self.marks[1].wait())
            .map_err(named)?;
            let milliseconds = f64::from(self.marks[1].since(&self.marks[0])?);
            self.add(&launched.label, &launched.kernel, milliseconds);
            times.push(milliseconds);
        }
        Ok(times)
    }

    fn add(&mut self, label: &str, kernel: &str, milliseconds: f64) {
        let sum = self
            .sums
            .entry((without_layer(label).into(), kernel.into()))
            .or_default();
        sum.launches += 1;
        sum.milliseconds += milliseconds;
    }

    /// A table, the longest first.
    pub fn report(&self) -> String {
        let mut rows: Vec<_> = self.sums.iter().collect();
        rows.sort_by(|a, b| b.1.milliseconds.total_cmp(&a.1.milliseconds));
        let total: f64 = rows.iter().map(|row| row.1.milliseconds).sum();
        let mut text = format!("{} passes, {total:.3} ms in launches one by one\n", self.passes);
        for ((label, kernel), sum) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:>10.3} ms {:>5.1} % {:>7} x {:>9.2} us  {label:24} {kernel}",
                sum.milliseconds,
                100.0 * sum.milliseconds / total.max(f64::MIN_POSITIVE),
                sum.launches,
                1e3 * sum.milliseconds / sum.launches as f64
            );
        }
        text
    }
}

/// `layer 3 attention` without the number.
fn without_layer(label: &str) -> &str {
    let rest = label
        .strip_prefix("layer ")
        .map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.map_or(label, str::trim_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_added_up() {
        let mut trace = Trace::default();
        trace.add("layer 3 attention", "a", 1.0);
        trace.add("layer 17 attention", "a", 2.0);
        trace.add("logits", "b", 4.0);
        let report = trace.report();
        let lines: Vec<&str> = report.lines().collect();
        assert!(lines[1].contains("logits") && lines[1].contains("57.1 %"), "{report}");
        assert!(lines[2].contains("2 x") && lines[2].contains("1500.00 us"), "{report}");
    }
}
