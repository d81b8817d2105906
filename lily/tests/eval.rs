//! `lily eval` against logits that other implementations computed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{complaint, fixture, json};
use serde_json::Value;

fn golden(model: &str, file: &str, logits: &str, chunk: &str) -> Value {
    eval_golden(&fixture(model), &fixture(file), logits, chunk)
}

fn eval_golden(model: &str, file: &str, logits: &str, chunk: &str) -> Value {
    json(&[
        "eval",
        "--model",
        model,
        "--golden",
        file,
        "--golden-logits",
        logits,
        "--chunk",
        chunk,
        "--json",
    ])
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name} in {report}"))
}

/// The tolerances of an engine whose activations are f32: they leave room for the order of additions and for nothing else.
fn assert_agrees(report: &Value, positions: u64) {
    assert_eq!(report["positions"], positions);
    assert!(number(report, "max_abs_logit_diff") <= 1e-3, "{report}");
    assert!(number(report, "mean_kl") <= 1e-7, "{report}");
    assert_eq!(number(report, "top1_agreement"), 1.0, "{report}");
    assert!((number(report, "perplexity_ratio") - 1.0).abs() < 1e-5, "{report}");
    let ratio = number(report, "perplexity") / number(report, "reference_perplexity");
    assert!((number(report, "perplexity_ratio") - ratio).abs() < 1e-12, "{report}");
}

#[test]
fn float64_logits_are_met_and_chunks_make_no_difference() {
    for (model, file) in [
        ("tiny/mlx-4bit", "tiny/golden.safetensors"),
        ("mini/mlx-4bit", "mini/golden.safetensors"),
        ("mini/mlx-4bit-sharded", "mini/golden.safetensors"),
    ] {
        chunks_make_no_difference(&fixture(model), &fixture(file), 192);
    }
}

#[test]
fn the_demo_model_meets_its_float64_logits() {
    let demo = |file: &str| format!("{}/../demo/{file}", env!("CARGO_MANIFEST_DIR"));
    chunks_make_no_difference("demo", &demo("golden.safetensors"), 192);
    chunks_make_no_difference("demo", &demo("golden_tools.safetensors"), 64);
}

fn chunks_make_no_difference(model: &str, file: &str, positions: u64) {
    let mut whole = eval_golden(model, file, "logits.numpy_f64", "192");
    assert_agrees(&whole, positions);
    for chunk in ["1", "7", "64"] {
        let mut cut = eval_golden(model, file, "logits.numpy_f64", chunk);
        assert_eq!(cut["chunk"].to_string(), chunk);
        cut["chunk"] = Value::Null;
        whole["chunk"] = Value::Null;
        assert_eq!(cut, whole, "{model} in chunks of {chunk}");
    }
}

#[test]
fn every_format_meets_the_reference() {
    let root = fixture("mini/variants");
    let mut formats = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            let name = entry.file_name().into_string().unwrap();
            let model = format!("mini/variants/{name}");
            let report = golden(&model, "mini/variants/golden_logits.safetensors", &name, "64");
            assert_agrees(&report, 64);
            formats += 1;
        }
    }
    assert!(formats >= 7, "{formats} formats");
}

/// A comparison that cannot tell a wrong model from a right one would prove nothing.
#[test]
fn another_model_does_not_agree() {
    let report = golden(
        "mini/variants/affine-3-g64",
        "mini/golden.safetensors",
        "logits.numpy_f64",
        "192",
    );
    assert!(number(&report, "max_abs_logit_diff") > 0.1, "{report}");
    assert!(number(&report, "mean_kl") > 1e-3, "{report}");
}

#[test]
fn text_is_scored_the_same_in_any_chunks() {
    let file = fixture("README.md");
    let score =
        |window: &str, chunk: &str| json(&["eval", "--text", &file, "--window", window, "--chunk", chunk, "--json"]);
    let whole = score("4096", "512");
    assert!(number(&whole, "tokens") > 500.0);
    assert!(number(&whole, "perplexity") > 1.0 && number(&whole, "bits_per_byte") > 0.0);
    let per_token = number(&whole, "perplexity").log2();
    let expected = per_token * number(&whole, "tokens") / number(&whole, "bytes");
    assert!((number(&whole, "bits_per_byte") - expected).abs() < 1e-9);
    assert_eq!(score("4096", "100")["perplexity"], whole["perplexity"]);
    let windows = score("64", "512");
    assert_eq!(
        windows["tokens"], whole["tokens"],
        "each token but the first is predicted once"
    );
    assert_ne!(windows["perplexity"], whole["perplexity"]);
}

#[test]
fn golden_files_that_do_not_fit_are_refused() {
    let (tiny, mini) = (fixture("tiny/mlx-4bit"), fixture("mini/golden.safetensors"));
    let wrong = complaint(&["eval", "--model", &tiny, "--golden", &mini], 1);
    assert!(
        wrong.contains("mini/golden.safetensors: tensor logits.numpy_f64: expected rows of 1024 logits"),
        "{wrong}"
    );
    let missing = complaint(
        &["eval", "--model", &tiny, "--golden", &mini, "--golden-logits", "nope"],
        1,
    );
    assert!(missing.contains("expected a tensor nope, found"), "{missing}");
    let none = complaint(
        &["eval", "--model", &tiny, "--golden", "/nowhere/golden.safetensors"],
        1,
    );
    assert!(none.contains("/nowhere/golden.safetensors"), "{none}");
    let config = fixture("tiny/mlx-4bit/config.json");
    let junk = complaint(&["eval", "--model", &tiny, "--golden", &config], 1);
    assert!(junk.contains("config.json: is no safetensors file"), "{junk}");
}
