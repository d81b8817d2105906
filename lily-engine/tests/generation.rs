//! One generation: ends, text, parts, limits, log-probabilities.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod toy;

use lily_engine::{
    EngineError, EngineOptions, Event, FinishReason, GenerateRequest, Markup, Part, ReasoningBudget, Reply,
    ReplyBuilder, ReplyFormat, Sampling, TokenMask,
};
use toy::{CALL, CALL_END, END, Outcome, THINK, THINK_END, Toy, VALID, engine, prompt, request, run};

const CHAT: ReplyFormat = ReplyFormat::Chat {
    starts_in_reasoning: false,
};
const THINKING: ReplyFormat = ReplyFormat::Chat {
    starts_in_reasoning: true,
};

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The outcome where the model replies `reply` to a prompt of 3 tokens.
fn reply_to(reply: &[u32], change: impl FnOnce(&mut GenerateRequest)) -> Outcome {
    let (engine, _) = engine(Toy::scripted(3, reply), EngineOptions::default());
    let mut request = request(&prompt(3, 1), 200);
    change(&mut request);
    run(&engine, request)
}

fn built(outcome: &Outcome) -> Reply {
    let (mut reply, mut builder) = (Reply::default(), ReplyBuilder::new());
    let mut part = Part::Content;
    for token in &outcome.tokens {
        builder.push(token, |delta| reply.push(&delta));
        part = token.part;
    }
    builder.finish(part, |delta| reply.push(&delta));
    reply
}

fn with_end(text: &str) -> Vec<u32> {
    [ids(text), vec![END]].concat()
}

#[test]
fn stop_token_ends_the_reply_and_has_no_text() {
    let outcome = reply_to(&with_end("hello"), |_| {});
    assert_eq!(outcome.reason, FinishReason::Stop);
    assert_eq!(outcome.text(), "hello");
    assert_eq!(outcome.ids(), with_end("hello"));
    assert_eq!(outcome.tokens.last().unwrap().markup, Some(Markup::End));
    assert_eq!(outcome.usage.completion_tokens, 6);
}

#[test]
fn max_tokens_ends_the_reply() {
    let outcome = reply_to(&ids("hello"), |request| request.max_tokens = Some(3));
    assert_eq!((outcome.reason, outcome.text().as_str()), (FinishReason::Length, "hel"));
}

#[test]
fn no_tokens_may_be_asked_for() {
    let outcome = reply_to(&ids("hello"), |request| request.max_tokens = Some(0));
    assert_eq!((outcome.reason, outcome.tokens.len()), (FinishReason::Length, 0));
}

#[test]
fn the_context_limit_ends_the_reply_and_refuses_prompts_without_room() {
    let options = EngineOptions {
        context_limit: Some(20),
        ..EngineOptions::default()
    };
    let (engine, _) = engine(Toy::new(), options);
    let mut unlimited = request(&prompt(15, 1), 1);
    unlimited.max_tokens = None;
    let outcome = run(&engine, unlimited);
    assert_eq!((outcome.reason, outcome.tokens.len()), (FinishReason::Length, 5));
    let error = engine.submit(request(&prompt(20, 1), 1)).unwrap_err();
    assert_eq!(
        error,
        EngineError::ContextOverflow {
            prompt_tokens: 20,
            context_limit: 20
        }
    );
    assert_eq!(run(&engine, request(&prompt(20, 1), 0)).tokens.len(), 0);
}

#[test]
fn memory_limits_the_context() {
    let options = EngineOptions {
        sequence_memory: Some(toy::FIXED_BYTES + 50 * toy::TOKEN_BYTES),
        ..EngineOptions::default()
    };
    let (engine, _) = engine(Toy::new(), options);
    assert_eq!(engine.info().context_limit, 50);
    let too_little = EngineOptions {
        sequence_memory: Some(100),
        ..EngineOptions::default()
    };
    assert!(matches!(
        lily_engine::Engine::start(Toy::new(), toy::vocabulary(), too_little),
        Err(EngineError::Backend(lily_engine::BackendError::OutOfMemory {
            available: 100,
            ..
        }))
    ));
}

#[test]
fn padding_is_never_generated() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    for temperature in [0.0, 1.0, 5.0] {
        let mut request = request(&prompt(10, 1), 300);
        request.sampling.temperature = temperature;
        request.logprobs = Some(5);
        for token in run(&engine, request).tokens {
            assert!((token.id as usize) < VALID);
            assert!(token.logprobs.unwrap().top.iter().all(|(id, _)| (*id as usize) < VALID));
        }
    }
}

#[test]
fn stop_strings_are_found_across_tokens_and_left_out() {
    let stop = |text: &str, stops: &[&str]| {
        let outcome = reply_to(&with_end(text), |request| {
            request.stop_strings = stops.iter().map(|&stop| stop.into()).collect();
        });
        (outcome.text(), outcome.reason)
    };
    let (found, ended) = (FinishReason::StopString, FinishReason::Stop);
    assert_eq!(stop("one STOP two", &["STOP"]), ("one ".into(), found(0)));
    assert_eq!(stop("one STOP two", &["two", "STOP"]), ("one ".into(), found(1)));
    assert_eq!(
        stop("one STOP two", &["<|im_end|>", "two", "STOP"]),
        ("one ".into(), found(2))
    );
    assert_eq!(stop("one STO", &["STOP"]), ("one STO".into(), ended));
    assert_eq!(stop("aaab", &["aab"]), ("a".into(), found(0)));
    assert_eq!(stop("käse", &["äs"]), ("k".into(), found(0)));
    assert_eq!(stop("x\n\ny", &["\n\n"]), ("x".into(), found(0)));
}

#[test]
fn text_that_may_start_a_stop_string_is_held_back() {
    let outcome = reply_to(&with_end("abcabd!"), |request| {
        request.stop_strings = vec!["abd".into()]
    });
    let texts: Vec<&str> = outcome.tokens.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(texts, ["", "", "abc", "", "", ""]);
    let outcome = reply_to(&ids("xxab"), |request| {
        request.stop_strings = vec!["abd".into()];
        request.max_tokens = Some(4);
    });
    assert_eq!(outcome.text(), "xxab", "released at the end");
}

#[test]
fn a_stop_string_that_names_a_control_token_is_that_token() {
    let outcome = reply_to(&with_end("hi"), |request| {
        request.stop_tokens.clear();
        request.stop_strings = vec!["<|im_end|>".into()];
    });
    assert_eq!((outcome.text().as_str(), outcome.reason), ("hi", FinishReason::Stop));
}

#[test]
fn characters_are_never_split() {
    let text = "a😀é\u{4e2d}z";
    let outcome = reply_to(&with_end(text), |_| {});
    assert_eq!(outcome.text(), text);
    assert!(outcome.tokens.iter().all(|token| !token.text.contains('\u{fffd}')));
    let outcome = reply_to(&ids("a😀"), |request| request.max_tokens = Some(3));
    assert_eq!(
        outcome.text(),
        "a\u{fffd}",
        "what stays incomplete is shown once, at the end"
    );
}

#[test]
fn a_chat_is_split_into_its_parts() {
    let reply = [
        &ids("let me see\n")[..],
        &[THINK_END],
        &ids("\n\nHello \n"),
        &[CALL],
        &ids("\n<function=f>\n"),
        &[CALL_END, END],
    ];
    let outcome = reply_to(&reply.concat(), |request| request.format = THINKING);
    assert_eq!(
        built(&outcome),
        Reply {
            reasoning: "let me see".into(),
            content: "Hello".into(),
            tool_calls: vec!["\n<function=f>\n".into()]
        }
    );
    assert_eq!(outcome.usage.reasoning_tokens, 12);
}

#[test]
fn only_control_tokens_are_markup() {
    let text = "</think> <tool_call> <think>";
    let outcome = reply_to(&with_end(text), |request| request.format = THINKING);
    assert_eq!(built(&outcome).reasoning, text);
    // Think markup in the middle of an answer is what the answer is about.
    let outcome = reply_to(
        &[&ids("use ")[..], &[THINK], &ids(" and "), &[THINK_END, END]].concat(),
        |r| r.format = CHAT,
    );
    assert_eq!(built(&outcome).content, "use <think> and </think>");
    // In a raw completion, all of it is text.
    let outcome = reply_to(&[THINK, 65, THINK_END, END], |_| {});
    assert_eq!(outcome.text(), "<think>A</think>");
    assert!(outcome.tokens.iter().all(|token| token.part == Part::Content));
}

#[test]
fn a_tool_call_ends_reasoning_that_was_left_open() {
    let outcome = reply_to(&[&ids("hm")[..], &[CALL], &ids("f"), &[CALL_END, END]].concat(), |r| {
        r.format = THINKING
    });
    assert_eq!(
        built(&outcome),
        Reply {
            reasoning: "hm".into(),
            content: String::new(),
            tool_calls: vec!["f".into()]
        }
    );
}

#[test]
fn penalties_leave_the_syntax_of_calls_alone() {
    let penalised = |r: &mut GenerateRequest| {
        r.format = CHAT;
        r.sampling.repetition_penalty = 10.0;
    };
    let call = [&[CALL][..], &ids("fff"), &[CALL_END, END]].concat();
    assert_eq!(built(&reply_to(&call, penalised)).tool_calls, ["fff"]);
    let text = [&ids("fff")[..], &[END]].concat();
    assert_ne!(reply_to(&text, penalised).text(), "fff", "the penalty is at work");
}

#[test]
fn thinking_that_starts_by_itself_is_reasoning() {
    let outcome = reply_to(
        &[&[THINK][..], &ids("hm"), &[THINK_END], &ids("yes"), &[END]].concat(),
        |r| r.format = CHAT,
    );
    assert_eq!(
        built(&outcome),
        Reply {
            reasoning: "hm".into(),
            content: "yes".into(),
            tool_calls: Vec::new()
        }
    );
}

#[test]
fn stop_strings_and_reasoning_do_not_mix() {
    let reply = [&ids("a STOP b")[..], &[THINK_END], &ids("c STOP d"), &[END]].concat();
    let outcome = reply_to(&reply, |request| {
        request.format = THINKING;
        request.stop_strings = vec!["STOP".into()];
    });
    let reply = built(&outcome);
    assert_eq!((reply.reasoning.as_str(), reply.content.trim_end()), ("a STOP b", "c"));
    assert_eq!(outcome.reason, FinishReason::StopString(0));
}

#[test]
fn a_reasoning_budget_ends_the_thoughts() {
    for (tokens, end) in [(4, ids("!")), (4, vec![33, THINK_END, 10]), (0, Vec::new())] {
        let outcome = reply_to(&ids("thinking on and on"), |request| {
            request.format = THINKING;
            request.reasoning_budget = Some(ReasoningBudget {
                tokens,
                end: end.clone(),
            });
            request.max_tokens = Some(12);
        });
        let forced = if end.contains(&THINK_END) {
            end
        } else {
            [end, vec![THINK_END]].concat()
        };
        assert_eq!(outcome.ids()[..tokens], ids("thinking on")[..tokens]);
        assert_eq!(outcome.ids()[tokens..tokens + forced.len()], forced);
        assert_eq!(
            outcome.tokens.last().unwrap().part,
            Part::Content,
            "{:?}",
            outcome.tokens
        );
        assert!(!built(&outcome).content.is_empty());
    }
}

#[test]
fn reasoning_within_its_budget_is_left_alone() {
    let reply = [&ids("hm")[..], &[THINK_END], &with_end("yes")].concat();
    let outcome = reply_to(&reply, |request| {
        request.format = THINKING;
        request.reasoning_budget = Some(ReasoningBudget {
            tokens: 3,
            end: Vec::new(),
        });
    });
    assert_eq!(outcome.ids(), reply);
}

/// Allows the tokens of a text, one after the other.
struct Exactly(Vec<u32>, usize);

impl TokenMask for Exactly {
    fn restrict(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        allowed.fill(0);
        let next = self.0.get(self.1).ok_or("the text is over")?;
        allowed[*next as usize / 32] |= 1 << (next % 32);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.1 += 1;
        if self.0.get(self.1 - 1) == Some(&token) {
            Ok(())
        } else {
            Err(format!("{token} was not allowed"))
        }
    }
}

#[test]
fn with_a_mask_only_its_end_marker_ends_the_reasoning() {
    let outcome = reply_to(&[&ids("hm")[..], &[END, CALL, THINK_END]].concat(), |request| {
        request.format = THINKING;
        request.mask = Some(Box::new(Exactly(with_end("{}"), 0)));
    });
    let reply = built(&outcome);
    assert!(reply.reasoning.starts_with("hm"), "{}", reply.reasoning);
    assert_eq!((reply.content.as_str(), reply.tool_calls.len()), ("{}", 0));
    assert_eq!(outcome.usage.reasoning_tokens, 5);
}

#[test]
fn a_mask_decides_after_the_reasoning() {
    let outcome = reply_to(&[&ids("hm")[..], &[THINK_END]].concat(), |request| {
        request.format = THINKING;
        request.mask = Some(Box::new(Exactly(with_end("{\"a\":1}"), 0)));
    });
    let reply = built(&outcome);
    assert_eq!((reply.reasoning.as_str(), reply.content.as_str()), ("hm", "{\"a\":1}"));
    assert_eq!(outcome.reason, FinishReason::Stop);
}

#[test]
fn a_mask_that_fails_ends_the_generation() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let mut request = request(&prompt(3, 1), 9);
    request.mask = Some(Box::new(Exactly(ids("ab"), 0)));
    let mut generation = engine.submit(request).unwrap();
    let mut last = None;
    while let Some(event) = generation.blocking_next() {
        last = Some(event);
    }
    assert_eq!(last, Some(Event::Failed(EngineError::Mask("the text is over".into()))));
}

#[test]
fn seeds_reproduce() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let sample = |seed| {
        let mut request = request(&prompt(10, 1), 30);
        request.sampling = Sampling {
            temperature: 1.0,
            seed,
            ..Sampling::greedy()
        };
        run(&engine, request).ids()
    };
    assert_eq!(sample(Some(3)), sample(Some(3)));
    assert_ne!(sample(Some(3)), sample(Some(4)));
    assert_ne!(sample(None), sample(None), "a fresh seed each time");
}

#[test]
fn prompt_logprobs_cover_the_prompt_whatever_is_cached() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let prompt = prompt(150, 1);
    run(&engine, request(&prompt, 3));
    let mut request = request(&prompt, 0);
    request.prompt_logprobs = Some(2);
    let outcome = run(&engine, request);
    assert_eq!(outcome.usage.cached_tokens, 0);
    let found = outcome.events.iter().find_map(|event| match event {
        Event::PromptLogprobs(list) => Some(list),
        _ => None,
    });
    let found = found.unwrap();
    assert_eq!(found.iter().map(|l| l.id).collect::<Vec<_>>(), prompt[1..]);
    assert!(
        found
            .iter()
            .all(|l| l.logprob < 0.0 && l.top.len() == 2 && l.top[0].1 >= l.top[1].1)
    );
}

#[test]
fn bad_requests_are_refused_by_field() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let field = |change: fn(&mut GenerateRequest)| {
        let mut request = request(&prompt(3, 1), 5);
        change(&mut request);
        match engine.submit(request) {
            Err(EngineError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(field(|r| r.prompt.clear()), "prompt");
    assert_eq!(field(|r| r.prompt[1] = VALID as u32), "prompt");
    assert_eq!(field(|r| r.sampling.temperature = -1.0), "temperature");
    assert_eq!(field(|r| r.sampling.temperature = f32::NAN), "temperature");
    assert_eq!(field(|r| r.sampling.top_p = 0.0), "top_p");
    assert_eq!(field(|r| r.sampling.min_p = 1.5), "min_p");
    assert_eq!(field(|r| r.sampling.repetition_penalty = 0.0), "repetition_penalty");
    assert_eq!(
        field(|r| r.sampling.presence_penalty = f32::INFINITY),
        "presence_penalty"
    );
    assert_eq!(
        field(|r| r.sampling.logit_bias = vec![(VALID as u32, 1.0)]),
        "logit_bias"
    );
    assert_eq!(field(|r| r.stop_strings = vec![String::new()]), "stop_strings");
    assert_eq!(field(|r| r.logprobs = Some(100_000)), "logprobs");
}

#[test]
fn logits_that_are_not_numbers_fail_the_request_and_no_other() {
    let toy = Toy::new();
    toy.log.lock().unwrap().not_a_number = Some(200);
    let (engine, _) = engine(toy, EngineOptions::default());
    let mut generation = engine.submit(request(&[1, 200], 5)).unwrap();
    let mut last = None;
    while let Some(event) = generation.blocking_next() {
        last = Some(event);
    }
    assert_eq!(last, Some(Event::Failed(EngineError::NotFinite { position: 2 })));
    assert_eq!(run(&engine, request(&[1, 2], 1)).tokens.len(), 1);
}
