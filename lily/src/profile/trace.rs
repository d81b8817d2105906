//! A profile in the trace event format, which Perfetto and chrome://tracing show.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::Row;
use super::record::Event;
use super::work::Work;
use crate::error::CliError;

/// Lanes of the picture.
const LAYERS: u32 = 1;
const STAGES: u32 = 2;
const OPERATIONS: u32 = 3;

/// Writes the events with their work. `rows` is the table, which goes along.
pub fn write(path: &Path, title: &str, events: &[(Event, Work)], rows: &[Row]) -> Result<(), CliError> {
    let failed = |source| CliError::File {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::create(path).map_err(failed)?;
    let trace = json!({
        "displayTimeUnit": "ns",
        "otherData": { "title": title, "operations": rows },
        "traceEvents": trace_events(title, events),
    });
    serde_json::to_writer(std::io::BufWriter::new(file), &trace).map_err(|error| failed(error.into()))
}

fn trace_events(title: &str, events: &[(Event, Work)]) -> Vec<Value> {
    let on_gpu = events.iter().any(|(event, _)| event.stage.is_some());
    let mut lanes = vec![
        (LAYERS, "layers"),
        (OPERATIONS, if on_gpu { "dispatches" } else { "operations" }),
    ];
    if on_gpu {
        lanes.push((STAGES, "stages"));
    }
    let mut all = vec![json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": title } })];
    for (lane, name) in lanes {
        all.push(json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": lane, "args": { "name": name } }));
        all.push(
            json!({ "ph": "M", "name": "thread_sort_index", "pid": 1, "tid": lane, "args": { "sort_index": lane } }),
        );
    }
    all.extend(groups(events, LAYERS, |event| {
        event.layer.map(|layer| format!("layer {layer}"))
    }));
    all.extend(groups(events, STAGES, |event| {
        event.stage.map(|(pass, stage)| format!("pass {pass} stage {stage}"))
    }));
    for (event, work) in events {
        let mut args = json!({ "bytes": work.bytes, "flops": work.flops });
        if let Some(layer) = event.layer {
            args["layer"] = layer.into();
        }
        if let Some(kernel) = &event.kernel {
            args["kernel"] = kernel.as_str().into();
        }
        all.push(complete(&event.operation, OPERATIONS, event.start, event.time, args));
    }
    all
}

/// One slice for each run of events of the same name.
fn groups(events: &[(Event, Work)], lane: u32, name: impl Fn(&Event) -> Option<String>) -> Vec<Value> {
    let mut slices: Vec<(String, Duration, Duration)> = Vec::new();
    let mut last = None;
    for (event, _) in events {
        let this = name(event);
        let end = event.start + event.time;
        match (&this, slices.last_mut()) {
            (Some(_), Some(slice)) if this == last => slice.2 = end,
            (Some(this), _) => slices.push((this.clone(), event.start, end)),
            (None, _) => {}
        }
        last = this;
    }
    let slice = |(name, start, end): (String, Duration, Duration)| complete(&name, lane, start, end - start, json!({}));
    slices.into_iter().map(slice).collect()
}

/// Times are in microseconds.
fn complete(name: &str, lane: u32, start: Duration, time: Duration, args: Value) -> Value {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    json!({ "ph": "X", "name": name, "pid": 1, "tid": lane, "ts": micros(start), "dur": micros(time), "args": args })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(layer: Option<usize>, start: u64, time: u64) -> (Event, Work) {
        let event = Event {
            operation: "norm".into(),
            layer,
            kernel: None,
            stage: None,
            start: Duration::from_micros(start),
            time: Duration::from_micros(time),
        };
        (event, Work::default())
    }

    #[test]
    fn a_layer_spans_its_operations() {
        let events = [
            event(None, 0, 1),
            event(Some(0), 1, 2),
            event(Some(0), 3, 4),
            event(Some(1), 7, 1),
        ];
        let all = trace_events("t", &events);
        let layers: Vec<_> = all
            .iter()
            .filter(|e| e["ph"] == "X" && e["tid"] == LAYERS)
            .map(|e| (e["name"].as_str().unwrap_or(""), e["ts"].as_f64(), e["dur"].as_f64()))
            .collect();
        assert_eq!(
            layers,
            [("layer 0", Some(1.0), Some(6.0)), ("layer 1", Some(7.0), Some(1.0))]
        );
        assert_eq!(
            all.iter().filter(|e| e["tid"] == OPERATIONS && e["ph"] == "X").count(),
            4
        );
        assert!(all.iter().all(|e| e["tid"] != STAGES), "no stages on a CPU");
    }
}
