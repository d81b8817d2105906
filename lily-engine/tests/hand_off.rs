//! Tokens that the device chooses: the same replies as the host's choices, and a state that goes on exactly.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod toy;

use std::path::PathBuf;
use std::sync::Arc;

use lily_engine::{
    Engine, EngineError, EngineOptions, Event, FinishReason, GenerateRequest, ReasoningBudget, ReplyFormat,
};
use lily_engine::{Sampling, Vocabulary};
use lily_gpu::emulator::{EmulatorDevice, EmulatorOptions};
use lily_gpu::{GpuModel, GpuOptions, Switches};
use lily_model::{Checkpoint, Source};
use toy::{CALL, CALL_END, END, THINK_END, Toy, collect, engine, prompt, request, run};

/// Both engines over the same model: the host chooses tokens, the device does.
fn both(script: &[u32]) -> [Engine; 2] {
    [false, true].map(|hands_over| {
        let toy = Toy {
            hands_over,
            ..Toy::scripted(10, script)
        };
        engine(toy, EngineOptions::default()).0
    })
}

fn settings() -> Vec<Sampling> {
    let drawn = Sampling {
        temperature: 1.3,
        top_k: 50,
        top_p: 0.97,
        min_p: 0.001,
        seed: Some(3),
        ..Sampling::greedy()
    };
    vec![
        Sampling::greedy(),
        drawn.clone(),
        Sampling {
            repetition_penalty: 1.3,
            presence_penalty: 0.7,
            frequency_penalty: 0.4,
            ..drawn.clone()
        },
        Sampling {
            frequency_penalty: 1.5,
            ..Sampling::greedy()
        },
        Sampling {
            logit_bias: vec![(65, 6.0), (66, f32::NEG_INFINITY), (67, -3.0)],
            seed: Some(9),
            ..drawn
        },
    ]
}

/// A chat's reply: reasoning, content, a tool call, content.
fn script() -> Vec<u32> {
    let free = |count| vec![u32::MAX; count];
    [
        free(6),
        vec![THINK_END],
        free(8),
        vec![CALL],
        b"f 1 1 1 1 1".map(u32::from).to_vec(),
        free(6),
        vec![CALL_END],
        free(9),
        vec![END],
    ]
    .concat()
}

/// Requests in which something ends or interrupts the hand-off.
fn requests(sampling: &Sampling) -> Vec<GenerateRequest> {
    let base = || GenerateRequest {
        sampling: sampling.clone(),
        format: ReplyFormat::Chat {
            starts_in_reasoning: true,
        },
        ..request(&prompt(10, 1), 100)
    };
    let budget = |tokens| GenerateRequest {
        reasoning_budget: Some(ReasoningBudget {
            tokens,
            end: vec![46, 10],
        }),
        max_tokens: Some(20),
        ..base()
    };
    let shortened = |max| GenerateRequest {
        max_tokens: Some(max),
        ..base()
    };
    let mut all = vec![base(), budget(0), budget(1), budget(3)];
    all.extend([1, 2, 3, 17].map(shortened));
    all
}

#[test]
fn replies_are_those_of_the_host() {
    for sampling in settings() {
        let [host, device] = both(&script());
        for (case, (a, b)) in requests(&sampling).into_iter().zip(requests(&sampling)).enumerate() {
            let (expected, found) = (run(&host, a), run(&device, b));
            assert_eq!(found.tokens, expected.tokens, "request {case}, {sampling:?}");
            assert_eq!(found.reason, expected.reason, "request {case}, {sampling:?}");
        }
    }
}

#[test]
fn the_device_chooses_all_it_may() {
    let toy = Toy {
        hands_over: true,
        ..Toy::new()
    };
    let (engine, log) = engine(toy, EngineOptions::default());
    run(&engine, request(&prompt(10, 1), 50));
    assert_eq!(log.lock().unwrap().order, format!("P{}", "H".repeat(49)));
    // log-probabilities need the logits
    let with_logprobs = GenerateRequest {
        logprobs: Some(1),
        ..request(&prompt(10, 2), 5)
    };
    run(&engine, with_logprobs);
    assert!(log.lock().unwrap().order.ends_with("PDDDD"));
}

/// Every way for a reply to end leaves a state from which the conversation goes on as it would anew.
#[test]
fn ended_replies_are_kept_exactly() {
    let ends: [fn(&mut GenerateRequest, &str); 3] = [
        |request, _| request.max_tokens = Some(12),
        |request, text| request.stop_strings = vec![text.chars().skip(6).take(2).collect()],
        |request, text| request.stop_tokens.push(text.chars().nth(8).unwrap() as u32),
    ];
    // ASCII only, so that characters are tokens
    let ascii = Sampling {
        logit_bias: (0..32).chain(127..256).map(|id| (id, f32::NEG_INFINITY)).collect(),
        ..Sampling::greedy()
    };
    let ask = |prompt: &[u32], max| GenerateRequest {
        sampling: ascii.clone(),
        ..request(prompt, max)
    };
    let [host, device] = both(&[]);
    for (case, end) in ends.iter().enumerate() {
        let start = prompt(10, case as u32 + 7);
        let text = run(&host, ask(&start, 30)).text();
        let mut first = ask(&start, 30);
        end(&mut first, &text);
        let reply = run(&device, first);
        assert!((7..=12).contains(&reply.tokens.len()), "end {case}: {:?}", reply.text());
        let next = [&start[..], &reply.ids(), &prompt(5, 2)].concat();
        let (expected, found) = (run(&host, ask(&next, 20)), run(&device, ask(&next, 20)));
        assert_eq!(found.ids(), expected.ids(), "end {case}");
        let kept = start.len() + reply.tokens.len() - usize::from(case == 0);
        assert_eq!(found.usage.cached_tokens, kept, "end {case}");
    }
}

#[test]
fn a_reader_that_leaves_ends_it_and_its_state_is_kept() {
    let toy = Toy {
        hands_over: true,
        ..Toy::new()
    };
    let (engine, _) = engine(toy, EngineOptions::default());
    let mut generation = engine.submit(request(&prompt(10, 4), 100_000 - 20)).unwrap();
    let mut ids = Vec::new();
    while ids.len() < 30 {
        if let Some(Event::Token(token)) = generation.blocking_next() {
            ids.push(token.id);
        }
    }
    drop(generation);
    while engine.status().running > 0 {
        std::thread::yield_now();
    }
    let next = [prompt(10, 4), ids].concat();
    let found = run(&engine, request(&[&next[..], &[7]].concat(), 10));
    assert_eq!(found.ids(), toy::cold(&[&next[..], &[7]].concat(), 10));
    // what the engine had computed beyond the tokens read here is of no use to this prompt, and does it no harm
    assert!(found.usage.cached_tokens >= 10);
}

#[test]
fn sequences_take_turns() {
    let toy = Toy {
        hands_over: true,
        ..Toy::new()
    };
    let (engine, log) = engine(toy, EngineOptions::default());
    let running: Vec<_> = (0..3)
        .map(|seed| engine.submit(request(&prompt(10, seed), 40)).unwrap())
        .collect();
    for (seed, generation) in (0..).zip(running) {
        assert_eq!(collect(generation).ids(), toy::cold(&prompt(10, seed), 40), "{seed}");
    }
    // once all prompts are read, nobody gets two tokens before everybody has one
    let order = log.lock().unwrap().order.clone();
    assert_eq!(order.matches('P').count(), 3, "{order}");
    assert!(!order.contains('D') && order.len() == 3 + 3 * 39, "{order}");
}

#[test]
fn logits_that_are_not_numbers_fail_the_reply_and_are_not_kept() {
    for hands_over in [false, true] {
        let toy = Toy {
            hands_over,
            ..Toy::scripted(10, &[u32::MAX, u32::MAX, 77])
        };
        toy.log.lock().unwrap().not_a_number = Some(77);
        let (engine, _) = engine(toy, EngineOptions::default());
        let mut generation = engine.submit(request(&prompt(10, 1), 50)).unwrap();
        let mut last = None;
        while let Some(event) = generation.blocking_next() {
            last = Some(event);
        }
        let position = 13;
        assert_eq!(
            last,
            Some(Event::Failed(EngineError::NotFinite { position })),
            "{hands_over}"
        );
        assert_eq!(engine.status().cache_entries, 1, "only the prompt's state is kept");
    }
}

// The real thing: the GPU model in the emulator.

fn emulated(checkpoint: &Checkpoint, without: &[&str]) -> Engine {
    let switches = without
        .iter()
        .fold(Switches::default(), |switches, name| switches.without(name).unwrap());
    let options = GpuOptions {
        switches,
        max_chunk: 64,
        max_context: Some(1024),
    };
    let device = EmulatorDevice::new(EmulatorOptions::default()).unwrap();
    let config = Arc::new(checkpoint.config.clone());
    let model = GpuModel::new(device, config, &checkpoint.weights, options, &mut |_| {}).unwrap();
    Engine::start(model, Vocabulary::new(&checkpoint.tokenizer), EngineOptions::default()).unwrap()
}

/// Greedy and drawn text, penalties and bans, alone and two at a time, stopped and cancelled, with the switch on and off.
#[test]
fn the_demo_model_says_the_same_with_and_without_the_hand_off() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../demo");
    let checkpoint = Checkpoint::open(&Source::Directory(directory)).unwrap();
    let engines = [emulated(&checkpoint, &[]), emulated(&checkpoint, &["token-hand-off"])];
    let tokens = checkpoint
        .tokenizer
        .encode_plain("Once upon a time there was a")
        .unwrap();
    let mut texts = Vec::new();
    for sampling in settings() {
        let ask = || GenerateRequest {
            sampling: sampling.clone(),
            ..request(&tokens, 16)
        };
        let [on, off] = engines.each_ref().map(|engine| run(engine, ask()));
        assert_eq!((on.text(), on.ids()), (off.text(), off.ids()), "{sampling:?}");
        texts.push(on.text());
    }
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");

    // two at once, and one whose reader leaves
    let ask = |sampling: &Sampling| GenerateRequest {
        sampling: sampling.clone(),
        ..request(&tokens, 16)
    };
    let [greedy, drawn, ..] = &settings()[..] else {
        unreachable!()
    };
    let mut left = engines[0].submit(ask(drawn)).unwrap();
    let running = [greedy, drawn].map(|sampling| engines[0].submit(ask(sampling)).unwrap());
    while !matches!(left.blocking_next(), Some(Event::Token(_)) | None) {}
    drop(left);
    let [first, second] = running.map(collect);
    assert_eq!([first.text(), second.text()], [texts[0].clone(), texts[1].clone()]);

    // a stop string, and the conversation that goes on from there
    let stop: String = texts[0].chars().skip(12).take(6).collect();
    let [on, off] = engines.each_ref().map(|engine| {
        let stopped = run(
            engine,
            GenerateRequest {
                stop_strings: vec![stop.clone()],
                ..ask(greedy)
            },
        );
        assert_eq!(stopped.reason, FinishReason::StopString(0));
        let next = [&tokens[..], &stopped.ids(), &tokens[..3]].concat();
        let more = run(engine, request(&next, 6));
        assert!(more.usage.cached_tokens >= tokens.len() + stopped.ids().len() - 1);
        (stopped.text(), more.text())
    });
    assert_eq!(on, off);
}
