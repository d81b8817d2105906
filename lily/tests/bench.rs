//! `lily bench` as a user meets it: beside stand-ins for other engines, over HTTP, and with every switch.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::{complaint, fixture, json, lily, ok};
use serde_json::Value;

/// An executable file.
fn program(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

#[test]
fn a_process_for_each_arm_gives_what_one_process_gives() {
    let args = ["bench", "--prompt", "9", "--decode-steps", "5", "--json"];
    let (arms, one) = (
        json(&args),
        json(&[&args[..], &["--one-process", "--rounds", "1"]].concat()),
    );
    for (report, processes, rounds) in [(&arms, "one for each arm", 2), (&one, "one", 1)] {
        assert_eq!(
            (report["schema"].as_u64(), report["kind"].as_str()),
            (Some(2), Some("sweep"))
        );
        assert_eq!(report["processes"], processes);
        assert_eq!(
            report["results"][0]["prefill_seconds"].as_array().unwrap().len(),
            rounds
        );
        assert!(number(&report["conditions"]["busy_percent"]) >= 0.0 && report["conditions"]["warnings"].is_array());
        assert!(report["commit"].as_str().unwrap().len() >= 7 && report["date"].as_str().unwrap().starts_with("20"));
        assert_eq!(report["time_limit_reached"], false);
    }
    assert_eq!(arms["results"][0]["digest"], one["results"][0]["digest"]);
    assert_eq!(arms["results"][0]["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(arms["model"], one["model"]);
    assert_eq!(arms["device"], one["device"]);
}

#[test]
fn a_report_is_saved_as_json_and_as_a_table() {
    let directory = tempfile::tempdir().unwrap();
    let stem = directory.path().join("today");
    let args = [
        "bench",
        "--one-process",
        "--prompt",
        "4",
        "--decode-steps",
        "2",
        "--rounds",
        "1",
        "--save",
    ];
    let printed = ok(&[&args[..], &[stem.to_str().unwrap()]].concat());
    let table = std::fs::read_to_string(stem.with_extension("md")).unwrap();
    let report: Value = serde_json::from_slice(&std::fs::read(stem.with_extension("json")).unwrap()).unwrap();
    let digest = report["results"][0]["digest"].as_str().unwrap();
    for text in [&printed, &table] {
        assert!(
            text.contains("| context | prefill, tokens/s |") && text.contains(digest),
            "{text}"
        );
        assert!(
            text.contains("- `lily bench --one-process") && text.contains("demo: 8 layers"),
            "{text}"
        );
    }
}

/// Answers as the drivers do, with times of its own; a letter a round goes to a log.
const PYTHON: &str = r#"#!/usr/bin/env python3
import json, sys
assert sys.argv[1:3] == ["-I", "-c"] and "def run(answer)" in sys.argv[3]
for line in sys.stdin:
    request = json.loads(line)
    if isinstance(request, list):
        result = {"mlx": "0.1", "mlx-lm": "0.2"}
    else:
        assert "generate_step" in sys.argv[3] and open(request["model"] + "/config.json").read()
        assert request["dtype"] == "float32"
        steps, length = request["steps"], len(request["prompt"])
        result = {"prefill_seconds": length / 100, "decode_seconds": steps / 10, "tokens": [7] * (steps + 1), "device": "cpu",
                  "dtype": "float32"}
    print(json.dumps({"result": result}), flush=True)
"#;

#[test]
fn mlx_lm_is_measured_in_turns_and_ratios_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let python = program(directory.path(), "python", PYTHON);
    let args = [
        "bench",
        "--prompt",
        "12",
        "--decode-steps",
        "3",
        "--against",
        "mlx-lm",
        "--peer-dtype",
        "float32",
        "--json",
    ];
    let output = lily()
        .args(args)
        .arg("--peer-python")
        .arg(&python)
        .env("LILY_CACHE", directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (ours, peer) = (&report["results"][0], &report["results"][0]["peer"]);
    assert_eq!(number(&peer["prefill_tokens_per_second"]), 100.0);
    assert_eq!(number(&peer["decode_tokens_per_second"]), 10.0);
    let ratio = number(&ours["decode_tokens_per_second"]) / 10.0;
    assert!((number(&peer["decode_ratio"]) - ratio).abs() < 1e-9);
    assert_eq!(peer["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(report["peer"]["version"], "mlx-lm 0.2, mlx 0.1");
    assert!(report["peer"]["format"].as_str().unwrap().contains("float32"));
    assert!(
        directory.path().join("peers/demo/model.safetensors").exists(),
        "the demo model became a directory"
    );
}

#[test]
fn an_engine_that_is_missing_is_asked_for() {
    let missing = complaint(&["bench", "--against", "mlx-lm", "--peer-python", "/no/python"], 1);
    assert!(missing.contains("--peer-python /no/python"), "{missing}");
    let nobody = complaint(&["bench", "--against", "http://127.0.0.1:1"], 1);
    assert!(nobody.contains("http://127.0.0.1:1"), "{nobody}");
    let output = lily()
        .args(["bench", "--against", "llama.cpp", "--peer-model", "x.gguf"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("llama-bench of llama.cpp is not on PATH"),
        "{output:?}"
    );
    // Without a Python on PATH, and without a cache, there is nothing to install with.
    let directory = tempfile::tempdir().unwrap();
    let output = lily()
        .args(["bench", "--against", "mlx-lm"])
        .env("PATH", "/nowhere")
        .env("LILY_CACHE", directory.path())
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("MLX-LM needs Python 3.10 or later"),
        "{output:?}"
    );
}

/// Prints what llama-bench prints, for the numbers that it is asked for.
const LLAMA_BENCH: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in -p) p=$2;; -n) n=$2;; -d) d=$2;; -ub) ub=$2;; esac
    shift
done
echo "[{\"build_commit\": \"abc\", \"build_number\": 1, \"backends\": \"CPU\", \"cpu_info\": \"a processor\", \"gpu_info\": \"\",
 \"model_type\": \"qwen35moe Q4_0\", \"model_size\": 1000, \"n_ubatch\": $ub, \"n_prompt\": $p, \"n_gen\": $n, \"n_depth\": $d, \"samples_ns\": [500000000]}]"
"#;

#[test]
fn llama_cpp_has_its_own_model_and_format() {
    let directory = tempfile::tempdir().unwrap();
    program(directory.path(), "llama-bench", LLAMA_BENCH);
    let model = directory.path().join("model.gguf");
    std::fs::write(&model, "GGUF").unwrap();
    let paths = [
        "--peer-path",
        directory.path().to_str().unwrap(),
        "--peer-model",
        model.to_str().unwrap(),
    ];
    let args = [
        "bench",
        "--prompt",
        "12",
        "--decode-steps",
        "3",
        "--rounds",
        "1",
        "--against",
        "llama.cpp",
    ];
    let report = json(&[&args[..], &paths, &["--json"]].concat());
    let peer = &report["results"][0]["peer"];
    assert_eq!(number(&peer["prefill_tokens_per_second"]), 24.0);
    assert_eq!(number(&peer["decode_tokens_per_second"]), 6.0);
    assert!(
        report["peer"]["format"]
            .as_str()
            .unwrap()
            .contains("another format: model.gguf (qwen35moe Q4_0)")
    );
    // It computes as many tokens together as our own chunks have, unless told otherwise.
    let note = |report: &Value| report["peer"]["notes"][0].as_str().unwrap().to_owned();
    let ours = format!("up to {} tokens", report["max_chunk"]);
    assert!(note(&report).contains(&ours), "{report}");
    let told = json(&[&args[..], &paths, &["--json", "--peer-ubatch", "256"]].concat());
    assert!(note(&told).contains("up to 256 tokens"), "{told}");
    assert!(ok(&[&args[..], &paths].concat()).contains("another file in another format"));
}

/// A server on a free port.
struct Server(Child, String);

impl Server {
    fn start() -> Self {
        let mut child = lily()
            .args(["serve", "--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.split(" at ").nth(1).unwrap().split_whitespace().next().unwrap();
        Server(child, address.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_server_is_compared_through_http_and_loaded() {
    let server = Server::start();
    let args = [
        "bench",
        "--prompt",
        "12",
        "--decode-steps",
        "6",
        "--rounds",
        "1",
        "--json",
        "--against",
        &server.1,
    ];
    let report = json(&args);
    let result = &report["results"][0];
    assert!(number(&result["prefill_tokens_per_second"]) > 0.0 && number(&result["peer"]["decode_ratio"]) > 0.0);
    assert_eq!(report["device_kind"], "cpu");
    assert!(report["peer"]["format"].as_str().unwrap().starts_with("demo"));
    let notes = report["peer"]["notes"].to_string();
    assert!(
        notes.contains("through HTTP") && !notes.contains("refuses") && !notes.contains("cache"),
        "{notes}"
    );

    let load = [
        "bench",
        "--serve",
        "--requests",
        "3",
        "--prompt-tokens",
        "4-9",
        "--reply-tokens",
        "5",
        "--rounds",
        "1",
        "--json",
    ];
    let report = json(&[&load[..], &["--rate", "200", "--server", &server.1]].concat());
    assert_eq!(report["results"][0]["rate"], 200.0);
    assert_eq!(
        (
            report["results"][0]["requests"].as_u64(),
            report["results"][0]["failed"].as_u64()
        ),
        (Some(3), Some(0))
    );
    assert!(
        report["overhead"].is_null(),
        "there is no engine of ours to compare with"
    );
}

#[test]
fn load_on_our_own_server() {
    let args = [
        "bench",
        "--serve",
        "--clients",
        "1,3",
        "--requests",
        "4",
        "--prompt-tokens",
        "6",
        "--reply-tokens",
        "8",
        "--rounds",
        "1",
    ];
    let report = json(
        &[
            &args[..],
            &["--ttft-target", "60000", "--itl-target", "0.000001", "--json"],
        ]
        .concat(),
    );
    assert_eq!(report["kind"], "load");
    let results = report["results"].as_array().unwrap();
    for (result, clients) in results.iter().zip([1, 3]) {
        assert_eq!(
            (result["clients"].as_u64(), result["failed"].as_u64()),
            (Some(clients), Some(0)),
            "{result}"
        );
        let (ttft, tokens) = (
            number(&result["ttft_ms"]["p50"]),
            number(&result["output_tokens_per_second"]),
        );
        assert!(ttft > 0.0 && number(&result["total_ms"]["p50"]) > ttft && tokens > 0.0);
        assert_eq!(result["good_share"], 0.0, "no server is so fast");
    }
    let overhead = &report["overhead"];
    assert_eq!(overhead["requests"], 4);
    assert!(number(&overhead["engine_step_ms"]) > 0.0 && number(&overhead["server_ttft_ms"]) > 0.0);
}

#[test]
fn a_switch_is_measured_off_and_on() {
    let tiny = fixture("tiny/mlx-4bit");
    let args = [
        "bench",
        "--ablate",
        "fused-swiglu,fused-norm",
        "--device",
        "emulator",
        "--model",
        &tiny,
        "--prompt",
        "3",
    ];
    let more = ["--decode-steps", "2", "--rounds", "2", "--one-process", "--json"];
    let report = json(&[&args[..], &more].concat());
    assert_eq!(
        (report["kind"].as_str(), report["device_kind"].as_str()),
        (Some("ablation"), Some("emulator"))
    );
    let results = report["results"].as_array().unwrap();
    let told: Vec<_> = results
        .iter()
        .map(|gain| (gain["switch"].as_str().unwrap(), gain["phase"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            ("fused-swiglu", "prefill"),
            ("fused-swiglu", "decode"),
            ("fused-norm", "decode")
        ]
    );
    for gain in results {
        assert!(number(&gain["least_percent"]) <= number(&gain["gain_percent"]));
        assert!(number(&gain["gain_percent"]) <= number(&gain["most_percent"]));
        assert_eq!(gain["off_seconds"].as_array().unwrap().len(), 2);
    }
    let processes = ["--decode-steps", "1", "--rounds", "1"];
    let text = ok(&[
        "bench",
        "--ablate",
        "fused-norm",
        "--device",
        "emulator",
        "--model",
        &tiny,
        "--prompt",
        "3",
    ]
    .iter()
    .chain(&processes)
    .copied()
    .collect::<Vec<_>>());
    assert!(
        text.contains("| fused-norm | decode | 3 |") && text.contains("a fresh process for each arm"),
        "{text}"
    );
}

#[test]
fn options_that_do_not_go_together_are_told() {
    for (args, told) in [
        (&["--against", "llama.cpp"][..], "--peer-model"),
        (&["--peer-model", "x.gguf"], "--against llama.cpp"),
        (&["--peer-ubatch", "512"], "--against llama.cpp"),
        (&["--peer-dtype", "float32"], "--against mlx-lm"),
        (&["--peer-name", "x"], "--against URL"),
        (
            &["--against", "mlx-lm", "--synthetic", "qwen3.6-35b-a3b"],
            "synthetic_checkpoint.py",
        ),
        (&["--against", "http://127.0.0.1:1", "--one-process"], "--one-process"),
        (&["--serve", "--prompt", "8"], "--prompt-tokens"),
        (&["--serve", "--against", "mlx-lm"], "--against URL"),
        (&["--serve", "--rate", "0"], "--rate"),
        (&["--serve", "--requests", "0"], "--requests"),
        (&["--ablate", "--device", "cpu"], "--device metal"),
        (&["--ablate", "speed", "--device", "emulator"], "gqa-packing"),
        (&["--prompt", "0"], "at least 1"),
        (&["--without", "speed"], "gqa-packing"),
    ] {
        let said = complaint(&[&["bench"], args].concat(), 2);
        assert!(said.contains(told), "{args:?}: {said}");
    }
    for args in [
        &["--clients", "2"][..],
        &["--serve", "--clients", "2", "--rate", "1"],
        &["--serve", "--reply-tokens", "none"],
        &["--against", "ollama"],
        &["--ablate", "--against", "mlx-lm"],
        &["--contract", "--prompt", "8"],
    ] {
        let run = common::run(&[&["bench"], args].concat());
        assert_eq!(run.code, Some(2), "{args:?}: {run:?}");
    }
}

#[test]
fn a_time_limit_ends_a_measurement() {
    let said = complaint(&["bench", "--prompt", "8", "--time-limit", "0"], 1);
    assert!(said.contains("time limit"), "{said}");
}
