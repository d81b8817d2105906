//! Prefix reuse: what is cached in each of the ways in which conversations go on, and that the tokens are those of a cold run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod toy;

use lily_engine::EngineOptions;
use toy::{FIXED_BYTES, Toy, cold, collect, engine, prompt, request, run};

const REPLY: usize = 20;

/// Runs `prompt`; its tokens have to be those of a cold run. Returns the cached tokens and the reply.
fn check(engine: &lily_engine::Engine, prompt: &[u32], boundaries: &[usize]) -> (usize, Vec<u32>) {
    let mut request = request(prompt, REPLY);
    request.snapshot_at = boundaries.to_vec();
    request.cache_key = Some("conversation".into());
    let outcome = run(engine, request);
    assert_eq!(outcome.ids(), cold(prompt, REPLY), "differs from a cold run");
    assert_eq!(outcome.usage.prompt_tokens, prompt.len());
    (outcome.usage.cached_tokens, outcome.ids())
}

fn join(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

#[test]
fn next_turn_starts_where_the_reply_ended() {
    let (engine, log) = engine(Toy::new(), EngineOptions::default());
    let first = prompt(50, 1);
    let (cached, reply) = check(&engine, &first, &[]);
    assert_eq!(cached, 0);
    let second = join(&[&first, &reply, &prompt(10, 2)]);
    let before: usize = log.lock().unwrap().chunks.iter().sum();
    let (cached, _) = check(&engine, &second, &[]);
    // The reply's last token was delivered but never read by the model.
    assert_eq!(cached, first.len() + reply.len() - 1);
    let read: usize = log.lock().unwrap().chunks.iter().sum::<usize>() - before;
    assert_eq!(
        read,
        second.len() - cached,
        "cached tokens are not read again, all others are"
    );
}

#[test]
fn a_regenerated_reply_needs_no_prefill() {
    let (engine, log) = engine(Toy::new(), EngineOptions::default());
    let first = prompt(50, 1);
    let (_, reply) = check(&engine, &first, &[]);
    let chunks = log.lock().unwrap().chunks.len();
    let (cached, again) = check(&engine, &first, &[]);
    assert_eq!(cached, first.len());
    assert_eq!(again, reply);
    assert_eq!(log.lock().unwrap().chunks.len(), chunks);
}

#[test]
fn an_edited_last_message_starts_at_its_boundary() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let (history, last) = (prompt(80, 1), prompt(30, 2));
    check(&engine, &join(&[&history, &last]), &[history.len()]);
    let (cached, _) = check(&engine, &join(&[&history, &prompt(25, 3)]), &[history.len()]);
    assert_eq!(cached, history.len());
}

#[test]
fn appended_tool_results_start_where_the_call_ended() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let mut conversation = prompt(40, 1);
    let mut expected = 0;
    for turn in 0..5 {
        let (cached, reply) = check(&engine, &conversation, &[]);
        assert_eq!(cached, expected);
        expected = conversation.len() + reply.len() - 1;
        conversation = join(&[&conversation, &reply, &prompt(15, 10 + turn)]);
    }
}

#[test]
fn two_interleaved_conversations_do_not_disturb_each_other() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let (mut a, mut b) = (prompt(60, 1), prompt(60, 2));
    let (mut expect_a, mut expect_b) = (0, 0);
    for turn in 0..4 {
        for (conversation, expected) in [(&mut a, &mut expect_a), (&mut b, &mut expect_b)] {
            let (cached, reply) = check(&engine, conversation, &[]);
            assert_eq!(cached, *expected);
            *expected = conversation.len() + reply.len() - 1;
            *conversation = join(&[conversation, &reply, &prompt(12, 20 + turn)]);
        }
    }
}

#[test]
fn a_side_request_shares_the_start_and_leaves_the_conversation_alone() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    let system = prompt(70, 1);
    let main = join(&[&system, &prompt(20, 2)]);
    let (_, reply) = check(&engine, &main, &[system.len()]);
    let (cached, _) = check(&engine, &join(&[&system, &prompt(9, 3)]), &[system.len()]);
    assert_eq!(cached, system.len());
    let (cached, _) = check(&engine, &join(&[&main, &reply, &prompt(5, 4)]), &[system.len()]);
    assert_eq!(cached, main.len() + reply.len() - 1);
}

#[test]
fn short_prompts_are_kept_too() {
    let (engine, _) = engine(Toy::new(), EngineOptions::default());
    check(&engine, &[5], &[]);
    assert_eq!(check(&engine, &[5], &[]).0, 1);
}

#[test]
fn long_prompts_leave_snapshots_on_the_way() {
    let options = EngineOptions {
        snapshot_interval: 100,
        ..EngineOptions::default()
    };
    let (engine, _) = engine(Toy::new(), options);
    let long = prompt(450, 1);
    check(&engine, &long, &[]);
    let edited = join(&[&long[..370], &prompt(100, 2)]);
    assert_eq!(check(&engine, &edited, &[]).0, 300);
}

#[test]
fn only_the_rows_that_are_needed_get_logits() {
    let (engine, log) = engine(Toy::new(), EngineOptions::default());
    check(&engine, &prompt(64 * 4, 1), &[64 * 2]);
    assert_eq!(log.lock().unwrap().logit_rows, [0, 1, 0, 1]);
}

#[test]
fn a_cancelled_prompt_is_not_read_twice() {
    let toy = Toy::new();
    let pace = std::time::Duration::from_millis(1);
    toy.log.lock().unwrap().pace = pace;
    let (engine, log) = engine(toy, EngineOptions::default());
    let long = prompt(64 * 8, 1);
    let mut generation = engine.submit(request(&long, REPLY)).unwrap();
    while !matches!(generation.blocking_next(), Some(lily_engine::Event::PrefillProgress { done, .. }) if done >= 128) {
    }
    drop(generation);
    while engine.status().running > 0 {
        std::thread::sleep(pace);
    }
    assert_eq!(engine.status().cancelled, 1);
    assert!(log.lock().unwrap().chunks.len() < 8, "cancelled between chunks");
    let (cached, _) = check(&engine, &long, &[]);
    assert!(cached >= 128 && cached < long.len(), "{cached}");
}

#[test]
fn a_snapshot_that_cannot_be_restored_is_dropped_alone() {
    let (engine, log) = engine(Toy::new(), EngineOptions::default());
    let (history, last) = (prompt(80, 1), prompt(30, 2));
    let whole = join(&[&history, &last]);
    check(&engine, &whole, &[history.len()]);
    let entries = engine.status().cache_entries;
    log.lock().unwrap().broken.insert(whole.clone());
    let (cached, _) = check(&engine, &whole, &[]);
    assert_eq!(cached, history.len(), "the next shorter one serves");
    log.lock().unwrap().broken.clear();
    assert_eq!(
        engine.status().cache_entries,
        entries,
        "the broken one was replaced, the others stayed"
    );
    assert_eq!(check(&engine, &whole, &[]).0, whole.len());
}

#[test]
fn the_cache_keeps_to_its_budget() {
    let budget = 6 * FIXED_BYTES;
    let (engine, _) = engine(
        Toy::new(),
        EngineOptions {
            cache_memory: budget,
            ..EngineOptions::default()
        },
    );
    for seed in 0..30 {
        run(&engine, request(&prompt(40, seed), 4));
        let status = engine.status();
        assert!(status.cache_bytes <= budget, "{status:?}");
        assert!(status.cache_entries > 0);
    }
}

#[test]
fn without_memory_for_it_there_is_no_cache() {
    let (engine, log) = engine(
        Toy::new(),
        EngineOptions {
            cache_memory: 0,
            ..EngineOptions::default()
        },
    );
    for _ in 0..2 {
        assert_eq!(check(&engine, &prompt(40, 1), &[10, 20]).0, 0);
    }
    assert_eq!(log.lock().unwrap().snapshots, 0);
    assert_eq!(log.lock().unwrap().chunks, [40, 40]);
}

#[test]
fn many_conversations_at_once_are_as_cold() {
    let (engine, _) = engine(
        Toy::new(),
        EngineOptions {
            cache_memory: 40_000,
            ..EngineOptions::default()
        },
    );
    let mut conversations: Vec<Vec<u32>> = (0..8).map(|seed| prompt(30 + 7 * seed as usize, seed)).collect();
    for turn in 0..4 {
        let running: Vec<_> = conversations
            .iter()
            .map(|prompt| engine.submit(request(prompt, REPLY)).unwrap())
            .collect();
        for (conversation, generation) in conversations.iter_mut().zip(running) {
            let reply = collect(generation).ids();
            assert_eq!(reply, cold(conversation, REPLY));
            *conversation = join(&[conversation, &reply, &prompt(9, 40 + turn)]);
        }
    }
}
