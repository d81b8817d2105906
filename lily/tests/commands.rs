//! The commands as a user meets them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Read;
use std::process::Stdio;

use common::{complaint, fixture, json, lily, ok, run, run_with};

#[test]
fn the_demo_model_answers() {
    let args = [
        "chat",
        "Hello! How are you?",
        "--max-tokens",
        "60",
        "--temperature",
        "0",
    ];
    let answer = ok(&args);
    assert!(
        answer.trim().chars().filter(|c| c.is_alphabetic()).count() > 5,
        "{answer:?}"
    );
    assert_eq!(ok(&args), answer, "greedy answers are the same each time");
}

#[test]
fn a_chat_in_json_has_its_parts() {
    let args = ["chat", "Hello!", "--temperature", "0", "--max-tokens", "200", "--json"];
    let answer = json(&args);
    let usage = &answer["usage"];
    assert!(usage["completion_tokens"].as_u64().unwrap() > 0 && usage["prompt_tokens"].as_u64().unwrap() > 0);
    assert!(
        ["stop", "length"].contains(&answer["finish_reason"].as_str().unwrap()),
        "{answer}"
    );
    let plain = ok(&args[..args.len() - 1]);
    assert_eq!(
        plain.trim_end(),
        answer["content"].as_str().unwrap().trim_end(),
        "printed as it came, without the thoughts"
    );
}

#[test]
fn thinking_can_be_turned_on_and_off() {
    let tiny = fixture("tiny/mlx-4bit");
    let ask = |flag| {
        json(&[
            "chat",
            "Hi",
            "--model",
            &tiny,
            flag,
            "--max-tokens",
            "12",
            "--temperature",
            "0",
            "--json",
        ])
    };
    let (thinking, plain) = (ask("--think"), ask("--no-think"));
    assert_eq!(thinking["usage"]["reasoning_tokens"], 12);
    assert_eq!(thinking["content"], "");
    assert_eq!(plain["usage"]["reasoning_tokens"], 0);
    assert_eq!(plain["reasoning"], "");
}

#[test]
fn a_message_may_come_through_a_pipe() {
    let options = ["--temperature", "0", "--max-tokens", "20"];
    let direct = ok(&[&["chat", "Hello!"][..], &options].concat());
    let piped = run_with(&[&["chat"][..], &options].concat(), "Hello!\n");
    assert_eq!((piped.code, piped.out), (Some(0), direct));
    let both = run_with(&[&["chat", "Say", "-"][..], &options].concat(), "Hello!\n");
    assert_eq!(both.out, ok(&[&["chat", "Say\n\nHello!"][..], &options].concat()));
}

#[test]
fn generated_text_is_the_same_streamed_and_in_json() {
    let args = ["generate", "Once upon a time", "--max-tokens", "30", "--seed", "7"];
    let streamed = ok(&args);
    let whole = json(&[&args[..], &["--json", "--logprobs", "3"]].concat());
    assert_eq!(streamed.strip_suffix('\n'), whole["text"].as_str());
    let tokens = whole["completion_tokens"].as_u64().unwrap() as usize;
    assert_eq!(whole["token_ids"].as_array().unwrap().len(), tokens);
    assert_eq!(whole["logprobs"].as_array().unwrap().len(), tokens);
    assert!(
        whole["logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|l| l["logprob"].as_f64().unwrap() <= 0.0)
    );
    assert_eq!(ok(&args), streamed, "the same seed");
    assert_ne!(
        ok(&["generate", "Once upon a time", "--max-tokens", "30", "--seed", "8"]),
        streamed
    );
}

#[test]
fn a_prompt_may_be_a_file_or_a_pipe_or_ids() {
    let options = ["--temperature", "0", "--max-tokens", "10"];
    let direct = ok(&[&["generate", "Once upon"][..], &options].concat());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prompt.txt");
    std::fs::write(&path, "Once upon").unwrap();
    assert_eq!(
        ok(&[&["generate", "--file", path.to_str().unwrap()][..], &options].concat()),
        direct
    );
    assert_eq!(
        run_with(&[&["generate"][..], &options].concat(), "Once upon\n").out,
        direct
    );
    assert!(!ok(&[&["generate", "--prompt-ids", "5,6,7"][..], &options].concat()).is_empty());
}

#[test]
fn a_stop_text_ends_the_reply_and_is_left_out() {
    let args = [
        "generate",
        "Once upon a time",
        "--temperature",
        "0",
        "--max-tokens",
        "40",
    ];
    let text = ok(&args);
    let stop: String = text.chars().skip(10).take(4).collect();
    let cut = json(&[&args[..], &["--stop", &stop, "--json"]].concat());
    assert_eq!(cut["finish_reason"], "stop_string");
    assert_eq!(cut["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
}

#[test]
fn inspect_counts_the_published_model_without_loading_it() {
    let report = json(&[
        "inspect",
        "--synthetic",
        "qwen3.6-35b-a3b",
        "--context",
        "1,262144",
        "--json",
    ]);
    assert_eq!(report["parameters"], 34_660_610_688u64);
    assert_eq!(report["bytes"], 19_508_789_376u64);
    assert_eq!(report["architecture"]["attention_layers"], 10);
    let memory = |at: usize| report["memory"][at]["state_bytes"].as_u64().unwrap();
    // 20,480 bytes of KV cache a token, and what does not grow with the context.
    assert_eq!(memory(1) - memory(0), 20_480 * (262_144 - 256));
    let demo = json(&["inspect", "--json"]);
    let parts = demo["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| part["bytes"].as_u64().unwrap()).sum();
    assert_eq!(demo["bytes"], sum);
    assert!(ok(&["inspect"]).contains("routed experts"));
}

#[test]
fn bench_measures_what_was_asked_for() {
    let report = json(&[
        "bench",
        "--prompt",
        "20,33",
        "--decode-at",
        "33",
        "--rounds",
        "3",
        "--json",
    ]);
    let results = report["results"].as_array().unwrap();
    assert_eq!(
        results
            .iter()
            .map(|r| r["context"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [20, 33]
    );
    assert!(results[0]["decode_tokens_per_second"].is_null());
    assert_eq!(results[0]["tokens"].as_array().unwrap().len(), 1);
    assert_eq!(
        results[1]["tokens"].as_array().unwrap().len(),
        65,
        "one after the prompt and 64 decode steps"
    );
    assert_eq!(results[1]["decode_seconds"].as_array().unwrap().len(), 3);
    let mut seconds: Vec<f64> = results[1]["decode_seconds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s.as_f64().unwrap())
        .collect();
    seconds.sort_by(f64::total_cmp);
    let rate = results[1]["decode_tokens_per_second"].as_f64().unwrap();
    assert!((rate * seconds[1] - 64.0).abs() < 1e-9, "of the median");
    assert!(report["machine"]["memory_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn what_cannot_be_done_is_one_line_and_an_exit_code() {
    let missing = complaint(&["chat", "hi", "--model", "/nowhere/model"], 1);
    assert!(missing.contains("/nowhere/model"), "{missing}");
    let directory = tempfile::tempdir().unwrap();
    let empty = complaint(&["inspect", "--model", directory.path().to_str().unwrap()], 1);
    assert!(empty.contains("config.json"), "{empty}");
    let long = complaint(&["generate", "many words", "--context", "2"], 1);
    assert!(long.contains("tokens, the context has room for 2"), "{long}");
    let sampling = complaint(&["generate", "x", "--top-p", "1.5"], 1);
    assert!(
        sampling.contains("top_p: expected a number above 0, at most 1, found 1.5"),
        "{sampling}"
    );
    let small = complaint(&["generate", "x", "--memory", "10B"], 1);
    assert!(small.contains("10 are left"), "{small}");
    let layers = complaint(&["bench", "--synthetic", "qwen3.6-35b-a3b", "--layers", "41"], 2);
    assert!(layers.contains("expected 1 to 40, found 41"), "{layers}");
    let file = complaint(&["generate", "--file", "/nowhere/text"], 1);
    assert!(file.contains("/nowhere/text"), "{file}");
    assert!(complaint(&["chat"], 2).contains("empty"));
    assert!(complaint(&["generate", ""], 2).contains("empty"));
    assert!(complaint(&["chat", "hi", "--threads", "0"], 2).contains("--threads"));
}

#[test]
fn wrong_options_end_with_code_2() {
    for args in [
        &["chat", "--frobnicate"][..],
        &["eval"],
        &["generate", "x", "--device", "abacus"],
        &["fly"],
    ] {
        let run = run(args);
        assert_eq!(run.code, Some(2), "{args:?}: {run:?}");
        assert!(run.err.contains("error:"), "{run:?}");
    }
}

#[test]
fn every_command_explains_itself_with_examples() {
    for command in ["chat", "generate", "serve", "inspect", "pull", "eval", "bench"] {
        let help = ok(&[command, "--help"]);
        assert!(
            help.contains("Examples:") && help.contains(&format!("lily {command}")),
            "{help}"
        );
    }
    assert!(ok(&["--help"]).contains("Examples:"));
    assert!(ok(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = lily()
        .args(["generate", "Once upon a time", "--ignore-eos", "--max-tokens", "2000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 5];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

/// Ctrl-C ends a single answer with the code that shells expect.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer() {
    let tiny = fixture("tiny/mlx-4bit");
    let mut child = lily()
        .args([
            "chat",
            "Hello",
            "--no-think",
            "--model",
            &tiny,
            "--max-tokens",
            "100000",
            "--temperature",
            "1",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 5]).unwrap();
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    out.read_to_end(&mut Vec::new()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "lily: interrupted\n");
}

#[test]
fn the_doctor_finds_the_cpu_well() {
    let report = json(&["doctor", "--device", "cpu", "--seconds", "0", "--json"]);
    assert_eq!(report["device"]["kind"], "cpu");
    let tests = report["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 2);
    assert!(tests.iter().all(|test| test["passed"] == true), "{report}");
    assert!(report["bench"].is_null());
    let text = ok(&["doctor", "--device", "cpu", "--seconds", "0"]);
    assert!(text.contains("test      passed: prefill ("), "{text}");
}
