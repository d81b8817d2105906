//! `lily profile`: where the time of a step goes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{complaint, fixture, json, ok};
use serde_json::Value;

fn sum(rows: &Value, field: &str) -> f64 {
    let rows = rows.as_array().unwrap();
    rows.iter().map(|row| row[field].as_f64().unwrap()).sum()
}

fn operation<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["operations"].as_array().unwrap();
    rows.iter()
        .find(|row| row["operation"] == name)
        .unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn a_decode_step_on_the_cpu_is_accounted_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let trace = path.to_str().unwrap();
    let report = json(&[
        "profile",
        "--device",
        "cpu",
        "--context",
        "100",
        "--rounds",
        "3",
        "--trace",
        trace,
        "--json",
    ]);
    let accounted = report["accounted"].as_f64().unwrap();
    assert!((0.95..=1.0).contains(&accounted), "{report}");
    assert!((sum(&report["operations"], "share") - 1.0).abs() < 1e-9);
    let seconds = report["operations_seconds"].as_f64().unwrap();
    assert!((sum(&report["operations"], "seconds") - seconds).abs() < 1e-9);
    // The demo model: eight layers, two of them attention with one KV head of 256 in f32.
    assert_eq!(operation(&report, "projections")["calls"], 8);
    assert_eq!(operation(&report, "attention")["calls"], 2);
    let keys = 101;
    assert_eq!(
        operation(&report, "attention")["bytes"].as_f64().unwrap(),
        (2 * keys * 2 * 256 * 4) as f64
    );
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let micros: f64 = events
        .iter()
        .filter(|event| event["ph"] == "X" && event["args"]["bytes"].is_number())
        .map(|event| event["dur"].as_f64().unwrap())
        .sum();
    assert!((micros / 1e6 - seconds).abs() < 1e-6, "{micros} us, {seconds} s");
}

#[test]
fn dispatches_of_the_emulator_have_kernels_and_stages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let model = fixture("tiny/mlx-4bit");
    let report = json(&[
        "profile",
        "prefill",
        "--model",
        &model,
        "--device",
        "emulator",
        "--prompt",
        "9",
        "--rounds",
        "1",
        "--trace",
        path.to_str().unwrap(),
        "--json",
    ]);
    assert_eq!(
        (&report["tokens"], &report["context"]),
        (&Value::from(9), &Value::from(0))
    );
    let rows = report["operations"].as_array().unwrap();
    assert!(
        rows.iter().all(|row| !row["kernels"].as_array().unwrap().is_empty()),
        "{report}"
    );
    assert!(report["notes"].to_string().contains("say nothing about a GPU"));
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let lanes = trace["traceEvents"].to_string();
    assert!(lanes.contains("pass 0 stage 0") && lanes.contains("pass 1 stage 0") && lanes.contains("layer 1"));
}

#[test]
fn people_get_a_table_and_mistakes_one_line() {
    let table = ok(&[
        "profile",
        "--device",
        "cpu",
        "--context",
        "0",
        "--rounds",
        "1",
        "--bandwidth",
        "20",
    ]);
    assert!(table.contains("limits: 20.0 GB/s"), "{table}");
    assert!(
        table.contains("gate and up") && table.contains("the step as always"),
        "{table}"
    );
    let too_long = complaint(&["profile", "prefill", "--device", "cpu", "--prompt", "1000000"], 2);
    assert!(too_long.contains("--prompt: expected at most 1024"), "{too_long}");
    let no_rounds = complaint(&["profile", "--rounds", "0"], 2);
    assert!(no_rounds.contains("at least 1"), "{no_rounds}");
}
