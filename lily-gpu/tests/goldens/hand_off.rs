//! Decoding with the token handed over on the device.

use lily_gpu::emulator::EmulatorOptions;
use lily_gpu::{GpuError, LogitRows, Switches};
use lily_model::{SamplerStart, Sampling, TokenHistory};

use crate::common::{Model, model, top1};
use crate::golden;

const VALID: usize = 500;

fn mini(checked: bool) -> Model {
    model(
        "mini/mlx-4bit",
        Switches::default(),
        EmulatorOptions {
            checked,
            ..EmulatorOptions::default()
        },
    )
}

fn start<'a>(sampling: &'a Sampling, history: &'a [TokenHistory]) -> SamplerStart<'a> {
    SamplerStart {
        sampling,
        seed: sampling.seed.unwrap_or(1),
        step: 0,
        valid_ids: VALID,
        history,
    }
}

/// `count` tokens after a prompt of 9 and one more, and what the sequence then holds.
fn reply(model: &mut Model, start: &SamplerStart<'_>, count: usize, ahead: bool) -> (Vec<u32>, usize, Vec<f32>) {
    let inputs = golden("mini").inputs;
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &inputs[..9], LogitRows::None).unwrap();
    model.start_hand_off(&mut sequence, inputs[9], start).unwrap();
    let tokens = (0..count)
        .map(|_| model.next_token(&mut sequence, ahead).unwrap())
        .collect();
    model.end_hand_off(&mut sequence).unwrap();
    (tokens, sequence.position(), sequence.logits().to_vec())
}

#[test]
fn greedy_is_what_step_by_step_decoding_gives() {
    let mut model = mini(false);
    let greedy = Sampling::greedy();
    let (tokens, position, logits) = reply(&mut model, &start(&greedy, &[]), 20, true);
    let inputs = golden("mini").inputs;
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &inputs[..9], LogitRows::None).unwrap();
    let mut next = inputs[9];
    for &token in &tokens {
        model.decode(&mut sequence, next).unwrap();
        next = top1(&sequence.logits()[..VALID]) as u32;
        assert_eq!(next, token);
    }
    // without a pass ahead, the last token is not taken in
    let behind = reply(&mut model, &start(&greedy, &[]), 20, false);
    assert_eq!(behind, (tokens, sequence.position(), sequence.logits().to_vec()));
    // with one, it is
    model.decode(&mut sequence, next).unwrap();
    assert_eq!((position, &logits[..]), (sequence.position(), sequence.logits()));
}

fn settings() -> Vec<Sampling> {
    let drawn = Sampling {
        temperature: 0.9,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.01,
        ..Sampling::greedy()
    };
    let penalised = Sampling {
        repetition_penalty: 1.2,
        presence_penalty: 0.5,
        frequency_penalty: 0.3,
        ..drawn.clone()
    };
    let biased = Sampling {
        logit_bias: vec![(3, 50.0)],
        ..Sampling::greedy()
    };
    let other_seed = Sampling {
        seed: Some(2),
        ..drawn.clone()
    };
    vec![Sampling::greedy(), drawn, penalised, biased, other_seed]
}

#[test]
fn a_pass_ahead_changes_no_token() {
    let mut history = vec![TokenHistory::default(); VALID];
    for &token in &golden("mini").inputs[..10] {
        history[token as usize].listed = true;
    }
    history[7] = TokenHistory {
        exempt: true,
        ..TokenHistory::default()
    };
    let mut model = mini(false);
    let mut replies = Vec::new();
    for sampling in settings() {
        let start = start(&sampling, if sampling.penalises() { &history } else { &[] });
        let (tokens, position, _) = reply(&mut model, &start, 12, true);
        let (behind, position_behind, _) = reply(&mut model, &start, 12, false);
        assert_eq!(tokens, behind, "{sampling:?}");
        assert_eq!((position, position_behind), (9 + 13, 9 + 12));
        replies.push(tokens);
    }
    assert_eq!(replies[3], [3; 12], "a large bias decides");
    assert_ne!(replies[1], replies[4], "another seed draws other tokens");
}

#[test]
fn banned_tokens_are_never_chosen() {
    let mut model = mini(false);
    let greedy = Sampling::greedy();
    let first = reply(&mut model, &start(&greedy, &[]), 1, false).0[0];
    let banned: Vec<(u32, f32)> = [first]
        .into_iter()
        .chain(100..400)
        .map(|id| (id, f32::NEG_INFINITY))
        .collect();
    for temperature in [0.0, 1.5] {
        let sampling = Sampling {
            temperature,
            logit_bias: banned.clone(),
            ..Sampling::greedy()
        };
        let tokens = reply(&mut model, &start(&sampling, &[]), 12, true).0;
        let chosen = tokens.iter().find(|id| banned.iter().any(|(banned, _)| banned == *id));
        assert_eq!(chosen, None, "at {temperature}: {tokens:?}");
    }
}

/// Two sequences whose passes alternate, each with one ahead, do not see each other.
#[test]
fn sequences_take_turns() {
    let mut model = mini(false);
    let (inputs, sampling) = (golden("mini").inputs, settings().swap_remove(1));
    let start = start(&sampling, &[]);
    let alone = reply(&mut model, &start, 10, true);
    let mut sequences = [model.new_sequence().unwrap(), model.new_sequence().unwrap()];
    for (sequence, token) in sequences.iter_mut().zip([inputs[9], 5]) {
        model.prefill(sequence, &inputs[..9], LogitRows::None).unwrap();
        model.start_hand_off(sequence, token, &start).unwrap();
    }
    let mut tokens = [Vec::new(), Vec::new()];
    for _ in 0..10 {
        for (sequence, tokens) in sequences.iter_mut().zip(&mut tokens) {
            tokens.push(model.next_token(sequence, true).unwrap());
        }
    }
    for sequence in &mut sequences {
        model.end_hand_off(sequence).unwrap();
    }
    let [first, _] = &sequences;
    let [tokens, others] = tokens;
    assert_ne!(tokens, others);
    assert_eq!((tokens, first.position(), first.logits().to_vec()), alone);
}

#[test]
fn it_is_clean_under_the_checker() {
    let sampling = Sampling {
        temperature: 1.0,
        top_k: 5,
        repetition_penalty: 1.1,
        logit_bias: vec![(1, 1.0)],
        ..Sampling::greedy()
    };
    let mut model = mini(true);
    let history = vec![TokenHistory::default(); VALID];
    reply(&mut model, &start(&sampling, &history), 2, true);
    assert!(model.device().findings().is_empty(), "{:#?}", model.device().findings());
    assert!(
        model.device().undeclared().is_empty(),
        "{:?}",
        model.device().undeclared()
    );
}

#[test]
fn wrong_calls_are_refused_with_reasons() {
    let mut model = mini(false);
    let mut sequence = model.new_sequence().unwrap();
    let greedy = Sampling::greedy();
    let biased = Sampling {
        logit_bias: vec![(600, 1.0)],
        ..Sampling::greedy()
    };
    let right = start(&greedy, &[]);
    for (wrong, reason) in [
        (
            SamplerStart {
                valid_ids: 513,
                ..right
            },
            "513 valid ids",
        ),
        (start(&biased, &[]), "token 600"),
        (start(&greedy, &[TokenHistory::default(); 3]), "history"),
    ] {
        let error = model.start_hand_off(&mut sequence, 1, &wrong).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(sequence.position(), 0);
    let host = |error: GpuError| assert!(error.to_string().contains("the host chooses"), "{error}");
    host(model.next_token(&mut sequence, true).unwrap_err());
    model.start_hand_off(&mut sequence, 1, &right).unwrap();
    let device = |error: GpuError| assert!(error.to_string().contains("the device chooses"), "{error}");
    device(model.decode(&mut sequence, 1).unwrap_err());
    device(model.prefill(&mut sequence, &[1], LogitRows::Last).unwrap_err());
    // a sequence that is dropped in the middle gives everything back, and the next one works
    model.next_token(&mut sequence, true).unwrap();
    drop(sequence);
    assert_eq!(reply(&mut model, &right, 2, true).0.len(), 2);
}
