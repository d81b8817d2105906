//! The engine over the CPU model, against what another implementation generated, and against itself in every order of work.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use lily_cpu::{CpuModel, CpuOptions, KvPrecision};
use lily_engine::{
    DiskOptions, Engine, EngineOptions, Event, GenerateRequest, Generation, MarkupIds, Sampling, Vocabulary,
};
use lily_model::{Checkpoint, Source};
use serde_json::Value;

fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(path)
}

fn tiny() -> Checkpoint {
    Checkpoint::open(&Source::Directory(fixture("tiny/mlx-4bit"))).unwrap()
}

fn engine(checkpoint: &Checkpoint, vocabulary: Vocabulary, options: EngineOptions) -> Engine {
    let cpu = CpuOptions {
        kv: KvPrecision::F32,
        exact: true,
        ..CpuOptions::default()
    };
    let (config, weights) = (
        Arc::new(checkpoint.config.clone()),
        Arc::new(checkpoint.weights.clone()),
    );
    Engine::start(CpuModel::new(config, weights, cpu).unwrap(), vocabulary, options).unwrap()
}

fn collect(mut generation: Generation) -> (Vec<u32>, usize) {
    let mut ids = Vec::new();
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token(token) => ids.push(token.id),
            Event::Finished { usage, .. } => return (ids, usage.cached_tokens),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("the generation did not finish")
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

/// The reference knows no tokenizer and generates from every row of lm_head, so the vocabulary here has a token for each.
#[test]
fn greedy_tokens_are_those_of_the_reference() {
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("tiny/greedy_golden.json")).unwrap()).unwrap();
    let checkpoint = tiny();
    let every_row = Vocabulary::from_tokens(
        vec![b"x"; checkpoint.config.vocab_size],
        Vec::new(),
        MarkupIds::default(),
    );
    let engine = engine(&checkpoint, every_row, EngineOptions::default());
    let expected = ids(&golden["greedy_fp32"]);
    let request = GenerateRequest {
        max_tokens: Some(expected.len()),
        ..GenerateRequest::new(ids(&golden["prompt_ids"]))
    };
    assert_eq!(collect(engine.submit(request).unwrap()).0, expected);
}

fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 7919 + seed * 104_729) % 960).collect()
}

fn sampled(prompt: &[u32], tokens: usize) -> GenerateRequest {
    GenerateRequest {
        max_tokens: Some(tokens),
        // At a high temperature every bit of the logits counts.
        sampling: Sampling {
            temperature: 1.5,
            seed: Some(11),
            ..Sampling::greedy()
        },
        ..GenerateRequest::new(prompt.to_vec())
    }
}

/// Log-probabilities to the last bit: equal tokens alone could hide small differences.
fn outcome(mut generation: Generation) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token(token) => found.push((token.id, token.logprobs.unwrap().logprob.to_bits())),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    found
}

fn with_logprobs(request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        logprobs: Some(0),
        ..request
    }
}

/// Conversations that run at once, share starts, go on from snapshots and are cut at different places give the bits of lone, cold runs.
#[test]
fn batches_and_snapshots_change_no_bit() {
    let checkpoint = tiny();
    let vocabulary = Vocabulary::new(&checkpoint.tokenizer);
    let cold = engine(
        &checkpoint,
        vocabulary.clone(),
        EngineOptions {
            cache_memory: 0,
            ..EngineOptions::default()
        },
    );
    let options = EngineOptions {
        snapshot_interval: 100,
        ..EngineOptions::default()
    };
    let warm = engine(&checkpoint, vocabulary, options);
    let shared = prompt(130, 0);
    let mut conversations: Vec<Vec<u32>> = (0..5)
        .map(|seed| [shared.clone(), prompt(10 + 60 * seed, seed as u32 + 1)].concat())
        .collect();
    let mut cached = 0;
    for turn in 0..3 {
        let running: Vec<_> = conversations
            .iter()
            .map(|prompt| {
                let request = GenerateRequest {
                    snapshot_at: vec![shared.len()],
                    ..sampled(prompt, 24)
                };
                warm.submit(with_logprobs(request)).unwrap()
            })
            .collect();
        for (conversation, generation) in conversations.iter_mut().zip(running) {
            let found = outcome(generation);
            let alone = outcome(cold.submit(with_logprobs(sampled(conversation, 24))).unwrap());
            assert_eq!(found, alone, "turn {turn}");
            conversation.extend(found.iter().map(|(id, _)| id));
            conversation.extend(prompt(15, 50 + turn));
        }
        let now = warm.status().cached_tokens;
        assert!(
            turn == 0 || now > cached + 5 * 150,
            "later turns come from the cache: {cached} to {now}"
        );
        cached = now;
    }
    // A full hit, which computes nothing but the sampling.
    let again = conversations[0].clone();
    let first = outcome(warm.submit(with_logprobs(sampled(&again, 8))).unwrap());
    let (ids, hit) = collect(warm.submit(sampled(&again, 8)).unwrap());
    assert_eq!(hit, again.len());
    assert_eq!(ids, first.iter().map(|(id, _)| *id).collect::<Vec<_>>());
}

/// The log-probabilities tell every bit of the logits.
#[test]
fn a_restart_changes_no_bit() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = tiny();
    let start = |disk: bool| {
        let options = EngineOptions {
            disk_cache: disk.then(|| DiskOptions {
                directory: directory.path().into(),
                bytes: 100 << 20,
                identity: checkpoint.source().identity().unwrap(),
                settle: std::time::Duration::ZERO,
            }),
            ..EngineOptions::default()
        };
        engine(&checkpoint, Vocabulary::new(&checkpoint.tokenizer), options)
    };
    let run = |engine: &Engine, prompt: &[u32]| {
        let request = GenerateRequest {
            max_tokens: Some(12),
            logprobs: Some(20),
            ..GenerateRequest::new(prompt.to_vec())
        };
        let (mut tokens, mut cached) = (Vec::new(), 0);
        let mut generation = engine.submit(request).unwrap();
        while let Some(event) = generation.blocking_next() {
            match event {
                Event::Started { cached_tokens, .. } => cached = cached_tokens,
                Event::Token(token) => tokens.push((token.id, token.logprobs.unwrap())),
                _ => {}
            }
        }
        (tokens, cached)
    };
    let first = prompt(300, 1);
    let before = start(true);
    let reply: Vec<u32> = run(&before, &first).0.iter().map(|(id, _)| *id).collect();
    before.finish();
    let next = [first, reply, prompt(9, 2)].concat();
    let (cold, cached) = run(&start(false), &next);
    assert_eq!(cached, 0);
    let (warm, cached) = run(&start(true), &next);
    assert_eq!(cached, 311);
    assert_eq!(warm, cold);
}
