//! Runs of decode with the token handed over on the device.

use lily_gpu::emulator::EmulatorOptions;
use lily_gpu::{LogitRows, Sampling, Switches, TokenHistory};

use crate::common::{Model, model, top1};
use crate::golden;

const GREEDY: Sampling = Sampling {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    repetition_penalty: 1.0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    logit_bias: Vec::new(),
    seed: 1,
    valid_ids: 500,
};

fn mini(switches: Switches, checked: bool) -> Model {
    model(
        "mini/mlx-4bit",
        switches,
        EmulatorOptions {
            checked,
            ..EmulatorOptions::default()
        },
    )
}

/// `count` tokens after a prompt of 9, and what the sequence then holds.
fn reply(
    model: &mut Model,
    sampling: &Sampling,
    history: &[TokenHistory],
    count: usize,
) -> (Vec<u32>, usize, Vec<f32>) {
    let inputs = golden("mini").inputs;
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &inputs[..9], LogitRows::None).unwrap();
    let mut run = model.start_run(&mut sequence, inputs[9], 0, sampling, history).unwrap();
    let tokens = (0..count)
        .map(|_| model.next_token(&mut sequence, &mut run).unwrap())
        .collect();
    model.finish_run(&mut sequence, run).unwrap();
    (tokens, sequence.position(), sequence.logits().to_vec())
}

#[test]
fn greedy_is_what_step_by_step_decoding_gives() {
    let mut model = mini(Switches::default(), false);
    let (tokens, position, logits) = reply(&mut model, &GREEDY, &[], 20);
    let inputs = golden("mini").inputs;
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &inputs[..9], LogitRows::None).unwrap();
    let mut next = inputs[9];
    for &token in &tokens {
        model.decode(&mut sequence, next).unwrap();
        next = top1(&sequence.logits()[..GREEDY.valid_ids]) as u32;
        assert_eq!(next, token);
    }
    // the pass that takes in the last token was in flight
    model.decode(&mut sequence, next).unwrap();
    assert_eq!((position, &logits[..]), (sequence.position(), sequence.logits()));
}

#[test]
fn every_setting_gives_the_same_tokens_with_and_without_the_hand_off() {
    let mut history = vec![TokenHistory::default(); 512];
    golden("mini").inputs[..10]
        .iter()
        .for_each(|&token| history[token as usize].listed = true);
    history[7] = TokenHistory {
        exempt: true,
        ..TokenHistory::default()
    };
    let drawn = Sampling {
        temperature: 0.9,
        top_k: 20,
        top_p: 0.95,
        min_p: 0.01,
        ..GREEDY
    };
    let penalised = Sampling {
        repetition_penalty: 1.2,
        presence_penalty: 0.5,
        frequency_penalty: 0.3,
        ..drawn.clone()
    };
    let biased = Sampling {
        logit_bias: vec![(3, 50.0)],
        ..GREEDY
    };
    let (mut with, mut without) = (
        mini(Switches::default(), false),
        mini(Switches::default().without("token-hand-off").unwrap(), false),
    );
    let mut replies = Vec::new();
    for sampling in [
        &GREEDY,
        &drawn,
        &penalised,
        &biased,
        &Sampling {
            seed: 2,
            ..drawn.clone()
        },
    ] {
        let (tokens, position, _) = reply(&mut with, sampling, &history, 12);
        let (tokens_without, position_without, _) = reply(&mut without, sampling, &history, 12);
        assert_eq!(tokens, tokens_without, "{sampling:?}");
        assert_eq!((position, position_without), (9 + 13, 9 + 12));
        assert_eq!(
            reply(&mut with, sampling, &history, 12).0,
            tokens,
            "a run is reproducible"
        );
        replies.push(tokens);
    }
    assert_eq!(replies[3], [3; 12], "a large bias decides");
    assert_ne!(replies[1], replies[4], "another seed draws other tokens");
}

#[test]
fn a_run_is_clean_under_the_checker() {
    let sampling = Sampling {
        temperature: 1.0,
        top_k: 5,
        repetition_penalty: 1.1,
        logit_bias: vec![(1, 1.0)],
        ..GREEDY
    };
    let mut model = mini(Switches::default(), true);
    reply(&mut model, &sampling, &vec![TokenHistory::default(); 512], 2);
    assert!(model.device().findings().is_empty(), "{:#?}", model.device().findings());
    assert!(
        model.device().undeclared().is_empty(),
        "{:?}",
        model.device().undeclared()
    );
}

#[test]
fn wrong_settings_are_refused_with_reasons() {
    let mut model = mini(Switches::default(), false);
    let mut sequence = model.new_sequence().unwrap();
    let wrong = Sampling {
        valid_ids: 513,
        ..GREEDY
    };
    assert!(
        model
            .start_run(&mut sequence, 1, 0, &wrong, &[])
            .unwrap_err()
            .to_string()
            .contains("513 valid ids")
    );
    let wrong = Sampling {
        logit_bias: vec![(600, 1.0)],
        ..GREEDY
    };
    assert!(
        model
            .start_run(&mut sequence, 1, 0, &wrong, &[])
            .unwrap_err()
            .to_string()
            .contains("token 600")
    );
    let wrong = Sampling {
        presence_penalty: 1.0,
        ..GREEDY
    };
    assert!(
        model
            .start_run(&mut sequence, 1, 0, &wrong, &[])
            .unwrap_err()
            .to_string()
            .contains("history")
    );
    assert_eq!(sequence.position(), 0);
}
