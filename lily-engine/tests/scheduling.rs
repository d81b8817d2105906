//! Several generations at once: batches, fairness, memory, slow readers, failures, ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod toy;

use std::time::Duration;

use lily_engine::{Engine, EngineError, EngineOptions, Event, FinishReason, GenerateRequest, Generation};
use toy::{FIXED_BYTES, TOKEN_BYTES, Toy, cold, collect, engine, prompt, request, run};

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("waited too long for {what}");
}

fn slow() -> Toy {
    let toy = Toy::new();
    toy.log.lock().unwrap().pace = Duration::from_micros(300);
    toy
}

fn first_token(generation: &mut Generation) -> u32 {
    loop {
        if let Event::Token(token) = generation.blocking_next().unwrap() {
            return token.id;
        }
    }
}

#[test]
fn sequences_decode_together_as_if_alone() {
    let (engine, log) = engine(slow(), EngineOptions::default());
    let prompts: Vec<Vec<u32>> = (0..10).map(|seed| prompt(5 + seed as usize, seed)).collect();
    let running: Vec<_> = prompts
        .iter()
        .map(|prompt| engine.submit(request(prompt, 40)).unwrap())
        .collect();
    for (prompt, generation) in prompts.iter().zip(running) {
        assert_eq!(collect(generation).ids(), cold(prompt, 40));
    }
    let log = log.lock().unwrap();
    assert_eq!(*log.batches.iter().max().unwrap(), 4, "as many as the backend takes");
    assert!(
        log.batches.iter().sum::<usize>() >= 2 * log.batches.len(),
        "{:?}",
        log.batches
    );
}

#[test]
fn a_long_prompt_does_not_stop_the_others() {
    let toy = slow();
    let options = EngineOptions {
        prefill_slice: Duration::from_millis(5),
        cache_memory: 0,
        ..EngineOptions::default()
    };
    let (engine, log) = engine(toy, options);
    let mut short = engine.submit(request(&prompt(5, 1), 10_000)).unwrap();
    first_token(&mut short);
    log.lock().unwrap().order.clear();
    let long = prompt(1000, 2);
    assert_eq!(run(&engine, request(&long, 3)).ids(), cold(&long, 3));
    let order = log.lock().unwrap().order.clone();
    let chunks = order.matches('P').count();
    assert!(
        chunks > 1000 / 64,
        "chunks are cut shorter than the backend's largest while others decode: {chunks}"
    );
    assert!(
        !order.contains("PP"),
        "a token for the others after every chunk: {order}"
    );
}

#[test]
fn a_short_prompt_overtakes_a_long_one() {
    let (engine, _) = engine(slow(), EngineOptions::default());
    let mut long = engine.submit(request(&prompt(3000, 1), 1)).unwrap();
    assert!(matches!(long.blocking_next(), Some(Event::Started { .. })));
    run(&engine, request(&prompt(5, 2), 1));
    let mut read = 0;
    while let Some(event) = long.blocking_next() {
        if let Event::PrefillProgress { done, .. } = event {
            read = done;
        }
        if engine.status().finished < 2 && read < 3000 {
            break;
        }
    }
    assert!(read < 3000, "the short one was done before the long one was read");
}

#[test]
fn waiting_clients_take_turns() {
    let (engine, _) = engine(
        slow(),
        EngineOptions {
            max_sequences: 1,
            ..EngineOptions::default()
        },
    );
    let mut blocker = engine.submit(request(&prompt(3, 9), 100)).unwrap();
    first_token(&mut blocker);
    let from = |client: &str, seed| {
        let request = GenerateRequest {
            client: Some(client.into()),
            ..request(&prompt(20, seed), 1)
        };
        engine.submit(request).unwrap()
    };
    let greedy: Vec<_> = (0..5).map(|seed| from("greedy", seed)).collect();
    let modest = from("modest", 99);
    collect(blocker);
    let modest = collect(modest).usage.queued;
    let greedy: Vec<Duration> = greedy
        .into_iter()
        .map(|generation| collect(generation).usage.queued)
        .collect();
    assert!(greedy[0] < modest && modest < greedy[1], "{modest:?} {greedy:?}");
    assert!(greedy.is_sorted(), "one client's requests keep their order");
}

#[test]
fn a_full_queue_refuses_with_numbers() {
    let options = EngineOptions {
        max_sequences: 1,
        queue_capacity: 2,
        ..EngineOptions::default()
    };
    let (engine, _) = engine(slow(), options);
    let mut running = engine.submit(request(&prompt(3, 1), 100_000 - 3)).unwrap();
    first_token(&mut running);
    let waiting: Vec<_> = (0..2)
        .map(|_| engine.submit(request(&prompt(3, 2), 1)).unwrap())
        .collect();
    assert_eq!(engine.status().waiting, 2);
    assert_eq!(
        engine.submit(request(&prompt(3, 3), 1)).unwrap_err(),
        EngineError::QueueFull { waiting: 2 }
    );
    drop(waiting);
    wait_for("the abandoned requests to leave the queue", || {
        engine.status().waiting == 0
    });
    engine.submit(request(&prompt(3, 3), 1)).unwrap();
}

#[test]
fn requests_wait_for_memory() {
    let memory = 2 * (FIXED_BYTES + 110 * TOKEN_BYTES);
    let options = EngineOptions {
        sequence_memory: Some(memory),
        cache_memory: 0,
        ..EngineOptions::default()
    };
    let (engine, log) = engine(slow(), options);
    let running: Vec<_> = (0..6)
        .map(|seed| engine.submit(request(&prompt(10, seed), 100)).unwrap())
        .collect();
    wait_for("the first to start", || engine.status().running > 0);
    assert!(engine.status().sequence_bytes <= memory);
    for (seed, generation) in running.into_iter().enumerate() {
        let outcome = collect(generation);
        assert_eq!(
            outcome.ids(),
            cold(&prompt(10, seed as u32), 100),
            "nothing is cut short"
        );
    }
    assert_eq!(*log.lock().unwrap().batches.iter().max().unwrap(), 2);
}

#[test]
fn replies_without_a_limit_grow_into_the_memory_and_end_by_length() {
    let memory = 2 * (FIXED_BYTES + 1200 * TOKEN_BYTES) + 300 * TOKEN_BYTES;
    let options = EngineOptions {
        sequence_memory: Some(memory),
        cache_memory: 0,
        ..EngineOptions::default()
    };
    let (engine, _) = engine(Toy::new(), options);
    let unlimited = |seed| {
        engine
            .submit(GenerateRequest {
                max_tokens: None,
                ..request(&prompt(10, seed), 0)
            })
            .unwrap()
    };
    let (older, younger) = (unlimited(1), unlimited(2));
    let younger = std::thread::spawn(|| collect(younger));
    let (older, younger) = (collect(older), younger.join().unwrap());
    assert_eq!(
        (older.reason, younger.reason),
        (FinishReason::Length, FinishReason::Length)
    );
    assert_eq!(
        10 + older.tokens.len(),
        engine.info().context_limit,
        "the older one got all that was free"
    );
    assert!(younger.tokens.len() >= 1024, "{}", younger.tokens.len());
}

#[test]
fn a_slow_reader_pauses_only_itself() {
    let (engine, log) = engine(Toy::new(), EngineOptions::default());
    let mut lazy = engine.submit(request(&prompt(5, 1), 2000)).unwrap();
    let expected = cold(&prompt(5, 1), 2000);
    assert_eq!(first_token(&mut lazy), expected[0]);
    wait_for("the buffer to fill", || {
        let steps = log.lock().unwrap().batches.len();
        std::thread::sleep(Duration::from_millis(20));
        steps == log.lock().unwrap().batches.len()
    });
    let steps = log.lock().unwrap().batches.len();
    assert!(steps <= Generation::BUFFER + 2, "{steps}");
    assert_eq!(run(&engine, request(&prompt(5, 2), 1000)).tokens.len(), 1000);
    assert_eq!(collect(lazy).ids(), expected[1..], "nothing is lost");
}

#[test]
fn dropping_a_generation_stops_it() {
    let (engine, log) = engine(slow(), EngineOptions::default());
    let mut generation = engine.submit(request(&prompt(5, 1), 50_000)).unwrap();
    first_token(&mut generation);
    drop(generation);
    wait_for("the sequence to end", || engine.status().running == 0);
    assert_eq!(engine.status().cancelled, 1);
    let steps = log.lock().unwrap().batches.len();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(log.lock().unwrap().batches.len(), steps);
}

#[test]
fn dropping_a_paused_generation_stops_it() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let generation = engine.submit(request(&prompt(5, 1), 50_000)).unwrap();
    wait_for("the buffer to fill", || {
        engine.status().generated_tokens as usize >= Generation::BUFFER - 2
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(generation);
    wait_for("the sequence to end", || engine.status().running == 0);
}

#[test]
fn a_failing_device_fails_the_requests_in_the_step_and_serves_the_next() {
    let toy = Toy::new();
    toy.log.lock().unwrap().poison = Some(200);
    let (engine, _) = engine(toy, EngineOptions::default());
    let mut generation = engine.submit(request(&[1, 200, 3], 5)).unwrap();
    let mut last = None;
    while let Some(event) = generation.blocking_next() {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Failed(EngineError::Backend(_)))), "{last:?}");
    assert_eq!(
        run(&engine, request(&[1, 2, 3], 5)).usage.cached_tokens,
        0,
        "nothing of the failed one is reused"
    );
    // the status is that of the last whole round: a request's end is seen before it
    assert_eq!(engine.status().failed, 1);
}

#[test]
fn shutting_down_finishes_what_runs() {
    let (engine, _) = engine(
        slow(),
        EngineOptions {
            max_sequences: 1,
            ..EngineOptions::default()
        },
    );
    let running = engine.submit(request(&prompt(5, 1), 50)).unwrap();
    let waiting = engine.submit(request(&prompt(5, 2), 50)).unwrap();
    engine.shut_down();
    assert_eq!(
        engine.submit(request(&prompt(5, 3), 1)).unwrap_err(),
        EngineError::ShuttingDown
    );
    assert_eq!(collect(running).tokens.len(), 50);
    assert_eq!(collect(waiting).tokens.len(), 50);
}

#[test]
fn after_the_end_nobody_holds_the_backend() {
    let (engine, log) = engine(slow(), EngineOptions::default());
    let running = engine.submit(request(&prompt(5, 1), 1000)).unwrap();
    drop(running);
    engine.finish();
    assert_eq!(std::sync::Arc::strong_count(&log), 1);
    engine.finish();
}

#[test]
fn a_generation_outlives_the_handles() {
    let (engine, _) = engine(slow(), EngineOptions::default());
    let mut generation = engine.submit(request(&prompt(5, 1), 50)).unwrap();
    first_token(&mut generation);
    drop(engine);
    assert_eq!(collect(generation).tokens.len(), 49);
}

#[test]
fn handles_and_generations_cross_threads() {
    fn is_send_and_sync<T: Send + Sync>() {}
    fn is_send<T: Send>() {}
    is_send_and_sync::<Engine>();
    is_send::<Generation>();
}

#[test]
fn events_can_be_awaited() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let mut generation = engine.submit(request(&prompt(5, 1), 30)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ids = runtime.block_on(async {
        let mut ids = Vec::new();
        while let Some(event) = generation.next().await {
            if let Event::Token(token) = event {
                ids.push(token.id);
            }
        }
        ids
    });
    assert_eq!(ids, cold(&prompt(5, 1), 30));
}
